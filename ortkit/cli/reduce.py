"""`ortkit reduce`: the smallest model for which a check still holds."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.cli import show
from ortkit.cli.flags import beside, check_written, sizes

if TYPE_CHECKING:
    from ortkit.comparison.reduce import Reduction

INTERRUPTED = 130
#: Why nothing more was tried, for people.
_STOPPED = {
    "": "nothing more can be left out",
    "time": "stopped at --seconds",
    "checks": "stopped at --checks",
    "interrupted": "interrupted; the smallest so far is kept",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's flags."""
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="an ONNX file")
    add("--check", required=True, metavar="COMMAND",
        help="ends with 0 while a model is interesting; {} is the model's path")  # fmt: skip
    add("-o", "--output", type=Path, metavar="FILE",
        help="where the smallest model goes (default: MODEL.reduced.onnx)")  # fmt: skip
    add("--jobs", type=int, default=1, metavar="N", help="checks at a time (default: 1)")
    add("--seconds", type=float, default=600.0, metavar="S",
        help="stop after that long (default: 600)")  # fmt: skip
    add("--checks", type=int, default=1000, metavar="N",
        help="stop after this many checks (default: 1000)")  # fmt: skip
    add("--check-seconds", type=float, default=60.0, metavar="S",
        help="a check that takes longer does not hold (default: 60)")  # fmt: skip
    add("--inputs", type=Path, metavar="FILE.npz",
        help="values that stand in for nodes are computed on these inputs")  # fmt: skip
    add("--shape", action="append", default=[], metavar="NAME=SIZE",
        help="value of a named size of made-up inputs; may be repeated")  # fmt: skip
    add("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Reduce; 130 if it was interrupted."""
    from ortkit.cli.feeds import feeds_for
    from ortkit.comparison.reduce import Limits, reduce_model
    from ortkit.errors import ModelError

    model: Path = arguments.model
    output: Path = arguments.output or beside(model, ".reduced.onnx")
    check_written({"--output": output}, (model, arguments.inputs))
    shapes = sizes(arguments.shape)
    try:
        feeds = feeds_for(model, arguments.inputs, shapes)
    except ModelError:
        from ortkit.graph.io.open import open_model

        open_model(model)
        feeds = None  # its inputs cannot be made up
    limits = Limits(arguments.seconds, arguments.checks, arguments.check_seconds)
    with show.progress(quiet=arguments.quiet or arguments.json) as progress:
        found = reduce_model(
            model,
            arguments.check,
            output,
            feeds=feeds,
            jobs=arguments.jobs,
            limits=limits,
            progress=progress,
        )
    if arguments.json:
        show.document(found.to_json())
    else:
        _show(found)
    return INTERRUPTED if found.stopped == "interrupted" else 0


def _show(found: Reduction) -> None:
    rows = [(taken.step, taken.nodes, show.bytes_text(taken.bytes)) for taken in found.taken]
    if rows:
        show.table("", ("step", "nodes", "weights"), rows)
    show.pairs(
        [
            ("nodes", f"{found.nodes_before} -> {found.nodes_after}"),
            ("weights", f"{show.bytes_text(found.bytes_before)} -> "
                        f"{show.bytes_text(found.bytes_after)}"),
            ("checks", f"{found.checks}; {_STOPPED[found.stopped]}"),
            ("wrote", found.output),
        ]
    )  # fmt: skip
