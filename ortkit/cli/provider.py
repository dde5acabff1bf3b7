"""`ortkit provider`: compile a model for ortkit's execution provider, or test a provider."""

from __future__ import annotations

import argparse

from ortkit.cli import compile_provider, provider_test

_ACTIONS = {
    "compile": (
        compile_provider,
        "put a model's kernels into it, for the OrtkitExecutionProvider",
    ),
    "test": (provider_test, "run the node cases of the onnx package with a provider"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `compile` and `test`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, (module, summary) in _ACTIONS.items():
        sub = actions.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        sub.set_defaults(parser=sub)
        module.add_arguments(sub)


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked."""
    module, _ = _ACTIONS[arguments.action]
    code: int = module.run(arguments)
    return code
