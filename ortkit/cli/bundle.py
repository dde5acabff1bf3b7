"""`ortkit bundle`: write what a server needs to serve an optimized model."""

from __future__ import annotations

import argparse

from ortkit.cli import bundle_triton

_SERVERS = {
    "triton": (
        bundle_triton,
        "write a model's folder for the repository of Triton Inference Server",
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add a subcommand for each server."""
    servers = parser.add_subparsers(dest="server", metavar="SERVER", required=True)
    for name, (module, summary) in _SERVERS.items():
        sub = servers.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        sub.set_defaults(parser=sub)
        module.add_arguments(sub)


def run(arguments: argparse.Namespace) -> int:
    """Write the bundle."""
    module, _ = _SERVERS[arguments.server]
    code: int = module.run(arguments)
    return code
