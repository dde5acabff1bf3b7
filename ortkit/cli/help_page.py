"""Help pages: one line of usage, what a command takes in groups, an example at the end."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

#: Title -> the flags of several commands that stand under it; the others are the command's own.
_GROUPS: Mapping[str, frozenset[str]] = {
    "precision": frozenset(
        {"--precision", "--max-error", "--calibrate", "--calibration", "--precision-io"}
    ),
    "target": frozenset(
        {"--target", "--threads", "--cpu", "--arch", "--max-opset", "--library", "--trust"}
    ),
    "inputs": frozenset({"--inputs", "--shape", "--fix-shape", "--batch", "--cast", "--sweep"}),
    "verification": frozenset(
        {
            "--verify", "--no-verify", "--verify-seconds", "--verify-memory", "--samples",
            "--atol", "--rtol", "--strict", "--accept-unverified",
        }
    ),
    "what is printed and written": frozenset(
        {
            "--output", "--outputs", "--in-place", "--embed-library", "--report", "--html",
            "--trace", "--graph", "--plot", "--repro", "--dump-passes", "--keep-source", "--why",
            "--top", "--all", "--json", "--json-schema", "--quiet", "--verbose",
        }
    ),
    "": frozenset({"--help", "--version"}),
}  # fmt: skip
#: Command -> what its page ends with.
EXAMPLES: Mapping[str, str] = {
    "optimize": "ortkit optimize model.onnx -o fast.onnx --html fast.html",
    "try": "ortkit try model.onnx --seconds 30",
    "inspect": "ortkit inspect model.onnx --shape batch=8",
    "diff": "ortkit diff model.onnx model.opt.onnx",
    "verify": "ortkit verify model.onnx model.opt.onnx --verify full",
    "bisect": "ortkit bisect model.onnx --inputs failing.npz",
    "memory": "ortkit memory model.onnx --sweep batch=1,8,32",
    "run": "ortkit run model.onnx --shape batch=1 --outputs out.npz",
    "compare": "ortkit compare model.onnx other.onnx --threads 1,4",
    "reduce": "ortkit reduce model.onnx --check 'python fails.py {}'",
    "profile": "ortkit profile model.onnx --html profile.html",
    "profile diff": "ortkit profile diff model.onnx model.opt.onnx",
    "bundle triton": "ortkit bundle triton model.opt.onnx --repository models",
    "provider compile": "ortkit provider compile model.onnx -o model_ctx.onnx",
    "provider test": "ortkit provider test CPUExecutionProvider --only 'test_add*'",
    "passes list": "ortkit passes list --level 2",
    "passes show": "ortkit passes show fuse-norm",
    "cache list": "ortkit cache list",
    "cache clear": "ortkit cache clear",
    "trust": "ortkit trust model.opt.ops.so",
    "calibrate": "ortkit calibrate",
    "tune": "ortkit tune model.onnx --seconds 600",
    "ops list": "ortkit ops list --from ops.py",
    "ops show": "ortkit ops show Name --from ops.py",
    "ops test": "ortkit ops test --from ops.py",
    "ops build": "ortkit ops build Name --from ops.py -o ops.so",
    "doctor": "ortkit doctor",
    "completion": 'eval "$(ortkit completion bash)"',
}


def command_page(parser: argparse.ArgumentParser) -> str:
    """Return the help page of a command."""
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    positional = [item for item in shown if not item.option_strings]
    formatter = parser._get_formatter()
    formatter.add_usage(_usage(positional), shown, [])
    formatter.add_text(parser.description)
    _add(formatter, None, positional)
    flags = [one for one in shown if one.option_strings]
    known = frozenset().union(*_GROUPS.values())
    _add(formatter, "options", [flag for flag in flags if not known & {*flag.option_strings}])
    for title, names in _GROUPS.items():
        _add(formatter, title or None, [flag for flag in flags if names & {*flag.option_strings}])
    formatter.add_text(parser.epilog)
    return f"{formatter.format_help()}\nexample:\n  {_example(parser)}\n"


def _example(parser: argparse.ArgumentParser) -> str:
    """Return the example of a command, or of the first command in a group."""
    name = parser.prog.removeprefix("ortkit ")
    return next(
        text for known, text in EXAMPLES.items() if known == name or known.startswith(f"{name} ")
    )


def top_page(parser: argparse.ArgumentParser, groups: Mapping[str, Sequence[str]]) -> str:
    """Return the page of all commands, in groups.

    Args:
        parser: Of `ortkit`.
        groups: Title -> names of commands.
    """
    formatter = parser._get_formatter()
    formatter.add_usage("%(prog)s COMMAND ...", [], [])
    formatter.add_text(parser.description)
    listed = {
        entry.dest: entry
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for entry in action._choices_actions
    }
    for title, names in groups.items():
        _add(formatter, title, [listed[name] for name in names])
    _add(formatter, None, [action for action in parser._actions if action.option_strings])
    formatter.add_text("`ortkit COMMAND --help` says what a command takes, with an example.")
    return formatter.format_help()


def _usage(positional: Sequence[argparse.Action]) -> str:
    words = []
    for action in positional:
        word = str(action.metavar or action.dest)
        if isinstance(action, argparse._SubParsersAction):
            word += " ..."
        words.append({"?": f"[{word}]", "*": f"[{word} ...]", "+": f"{word} ..."}.get(
            str(action.nargs), word))  # fmt: skip
    return " ".join(("%(prog)s", "[options]", *words))


def _add(
    formatter: argparse.HelpFormatter, title: str | None, actions: Sequence[argparse.Action]
) -> None:
    if actions:
        formatter.start_section(title)
        formatter.add_arguments(actions)
        formatter.end_section()
