"""`ortkit run`: run a model once, and say what came out and who computed it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.cli import show
from ortkit.cli.feeds import blaming_made_up
from ortkit.cli.flags import add_trust, check_written, sizes

if TYPE_CHECKING:
    from ortkit.cli.tree import Parser
    from ortkit.comparison.single_run import RunResult

SCHEMA = "ortkit.run/1"


def add_arguments(parser: Parser) -> None:
    """Add the subcommand's flags."""
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="an ONNX file")
    add("--inputs", type=Path, metavar="FILE.npz",
        help="arrays named like the inputs (default: made up)")  # fmt: skip
    add("--outputs", type=Path, metavar="FILE.npz", help="write the outputs here")
    add("--target", default="auto", metavar="P",
        help="cpu, cuda, auto (default) or a provider's full name")  # fmt: skip
    parser.add_renamed("--provider", "--target")
    add("--shape", action="append", default=[], metavar="NAME=SIZE",
        help="value of a named size of made-up inputs; may be repeated")  # fmt: skip
    add("--threads", type=int, default=0, metavar="N",
        help="threads of the session (default: ONNX Runtime decides)")  # fmt: skip
    add("--cast", action="store_true", help="convert inputs of another type")
    add("--library", type=Path, metavar="FILE.so",
        help="kernel library (default: MODEL's .ops.so, if it was built here)")  # fmt: skip
    add_trust(parser)
    add("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Run once."""
    check_written({"--outputs": arguments.outputs}, (arguments.model, arguments.inputs))
    from ortkit.comparison.single_run import run_once

    with (
        show.progress(quiet=arguments.quiet or arguments.json) as progress,
        blaming_made_up(arguments.model, arguments.inputs),
    ):
        found = run_once(
            arguments.model,
            inputs=arguments.inputs,
            outputs=arguments.outputs,
            provider=arguments.target,
            shapes=sizes(arguments.shape),
            threads=arguments.threads,
            cast=arguments.cast,
            library=arguments.library,
            trust=arguments.trust,
            progress=progress,
        )
    if arguments.json:
        show.document({"schema": SCHEMA, **found.to_json()})
    else:
        _show(found)
    return 0


def _show(found: RunResult) -> None:
    for name, shape in found.inputs.items():
        show.line(f"input     {name} {list(shape)}")
    for library in found.libraries:
        show.line(f"library   {library}")
    nodes = ", ".join(f"{provider} {count}" for provider, count in found.nodes.items())
    show.line(f"nodes     {nodes or 'this ONNX Runtime does not say who runs them'}")
    rows = [
        (
            name, each.type, str(list(each.shape)), _text(each.minimum), _text(each.maximum),
            each.nan or None, each.infinite or None,
        )
        for name, each in found.outputs
    ]  # fmt: skip
    columns = ("output", "type", "shape", "min", "max", "NaN", "infinite")
    show.table("", columns, rows)
    for note in found.notes:
        show.labelled("note", note)
    show.line(f"took      {found.load_ms:.1f} ms to load, {found.run_ms:.3f} ms for the first run")
    if found.written is not None:
        show.line(f"wrote     {found.written}")


def _text(value: float | None) -> str | None:
    return None if value is None else f"{value:.6g}"
