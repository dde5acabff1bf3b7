"""`ortkit bisect`: name the rewrites that break a model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.cli import show
from ortkit.cli.flags import add_precision, add_trust, add_verification, sizes, verification
from ortkit.errors import UserError
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
    add("--onnxruntime-optimizers", action="store_true",
        help="search ONNX Runtime's own for what changes results or slows")  # fmt: skip
    add("--optimizations", choices=("basic", "extended", "all"), default="all",
        help="with that: the level to search (default: all)")  # fmt: skip
    add("--onnxruntime", default="", metavar="V",
        help="with that: a version of ONNX Runtime, or a folder with one")  # fmt: skip
    add("--install", action="store_true",
        help="with --onnxruntime: fetch a version that is not there with pip")  # fmt: skip
    add("--no-timing", action="store_true", help="with that: look for wrong results only")
    add("--seconds", type=float, default=1.0, metavar="S",
        help="with that: time for the runs of each session (default: 1)")  # fmt: skip
    add("--threads", type=int, default=0, metavar="N",
        help="with that: threads of a session (default: ONNX Runtime decides)")  # fmt: skip
    add_trust(parser)
    add("--json", action="store_true", help="print one JSON document")


#: Flags of one kind of search -> their defaults; the other kind refuses them.
_OF_REWRITES = {"level": 2, "precision": "fp32", "passes": "", "kernels": "auto", "verify": None,
                "verify_seconds": None, "verify_memory": None, "samples": None}  # fmt: skip
_OF_OPTIMIZERS = {"optimizations": "all", "onnxruntime": "", "install": False, "no_timing": False,
                  "seconds": 1.0, "threads": 0, "trust": False}  # fmt: skip


def _check(arguments: argparse.Namespace) -> None:
    """Refuse flags that have no meaning for the search that was asked for."""
    refused = _OF_REWRITES if arguments.onnxruntime_optimizers else _OF_OPTIMIZERS
    for name, default in refused.items():
        if getattr(arguments, name) != default:
            where = f"--{name.replace('_', '-')}"
            if arguments.onnxruntime_optimizers:
                raise UserError("does not go with --onnxruntime-optimizers", where=where,
                                fix="leave it out")  # fmt: skip
            raise UserError("goes with --onnxruntime-optimizers only", where=where,
                            fix="add that")  # fmt: skip
    if arguments.install and not arguments.onnxruntime:
        raise UserError("fetches what --onnxruntime names", where="--install",
                        fix="add --onnxruntime")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Optimize, and bisect if the result is wrong; nothing is written."""
    _check(arguments)
    if arguments.onnxruntime_optimizers:
        from ortkit.cli.bisect_optimizers import run_optimizers

        return run_optimizers(arguments)
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
            for breaking_rewrite in found.guilty:
                show.line(f"breaking  {breaking_rewrite.id}")
                show.line(
                    f"          pass {breaking_rewrite.pass_name}, rule {breaking_rewrite.rule}, "
                    f"at {breaking_rewrite.node}"
                )
            if not spec:
                passes = dict.fromkeys(f"-{item.pass_name}" for item in found.guilty)
                show.line(f"avoid     it with --passes={','.join(passes)}")
        case "not found":
            show.line(f"broken    {found.reason}; no rewrite could be singled out")
        case _:
            show.line(f"cannot be compared: {found.reason}")
