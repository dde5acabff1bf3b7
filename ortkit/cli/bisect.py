"""`ortkit bisect`: name the rewrites that break a model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.cli import show
from ortkit.cli.flags import add_precision, add_verification, sizes, verification
from ortkit.targets.catalog import KINDS
from ortkit.text import plural

if TYPE_CHECKING:
    from ortkit.optimization.bisect import Bisection

CODES = {"sound": 0, "guilty": 1, "not found": 1, "not possible": 2}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's flags; those of `optimize` mean the same."""
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="an ONNX file")
    add("--target", choices=KINDS, default="cpu", help="default: cpu")
    add("--level", type=int, choices=range(4), default=2, metavar="0..3", help="default: 2")
    add_precision(parser)
    add("--passes", default="", metavar="SPEC", help="these passes instead, or +a,-b")
    add("--kernels", choices=("auto", "off", "tvm"), default="auto", help="default: auto")
    add_verification(parser)
    add("--inputs", type=Path, metavar="FILE.npz", help="verify on these inputs instead")
    add("--shape", action="append", default=[], metavar="NAME=SIZE",
        help="value of a named size; may be repeated")  # fmt: skip
    add("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Optimize, and bisect if the result is wrong; nothing is written."""
    shapes = sizes(arguments.shape)
    from ortkit.optimization.bisect import bisect_model
    from ortkit.optimization.call import OptimizeOptions

    with show.progress(quiet=arguments.quiet or arguments.json) as progress:
        options = OptimizeOptions(
            target=arguments.target,
            level=arguments.level,
            passes=arguments.passes,
            precision=arguments.precision,
            kernels=arguments.kernels,
            verify=verification(arguments),
            verify_seconds=arguments.verify_seconds,
            verify_memory=arguments.verify_memory,
            samples=arguments.samples,
            inputs=arguments.inputs,
            shapes=shapes,
            progress=progress,
        )
        found = bisect_model(arguments.model, options)
    if arguments.json:
        show.document(found.to_json())
    else:
        _show(found, arguments.passes)
    return CODES[found.verdict]


def _show(found: Bisection, spec: str) -> None:
    match found.verdict:
        case "sound":
            show.line(f"nothing is broken by {plural(found.rewrites, 'rewrite')} ({found.reason})")
        case "guilty":
            show.line(f"broken    {found.reason}")
            for one in found.guilty:
                show.line(f"breaking  {one.id}")
                show.line(f"          pass {one.pass_name}, rule {one.rule}, at {one.node}")
            if not spec:
                passes = dict.fromkeys(f"-{one.pass_name}" for one in found.guilty)
                show.line(f"avoid     it with --passes={','.join(passes)}")
        case "not found":
            show.line(f"broken    {found.reason}; no rewrite could be singled out")
        case _:
            show.line(f"cannot be compared: {found.reason}")
