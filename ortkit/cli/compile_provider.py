"""`ortkit provider compile`: a model with its kernels inside, for the OrtkitExecutionProvider."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.cli import show
from ortkit.cli.flags import beside, sizes
from ortkit.cli.provider_options import provider_options
from ortkit.text import plural

if TYPE_CHECKING:
    from ortkit.provider.own.ahead import Compiled

SCHEMA = "ortkit.compile-provider/1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's flags."""
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="an ONNX file")
    add("-o", "--output", type=Path, metavar="OUT", help="default: MODEL_ctx.onnx beside MODEL")
    add("--level", type=int, choices=range(2, 4), default=2, metavar="2..3",
        help="2 what pays (default), 3 whatever has a kernel")  # fmt: skip
    add("--cpu", default="native", metavar="LEVEL",
        help="CPU the kernels are for: native (default), x86-64-v3, x86-64-v4, ...")  # fmt: skip
    add("--option", action="append", default=[], metavar="KEY=VALUE",
        help="another option of the provider; may be repeated")  # fmt: skip
    add("--verify", action=argparse.BooleanOptionalAction, default=True,
        help="run the result beside the model (default: on)")  # fmt: skip
    add("--inputs", type=Path, metavar="FILE.npz", help="verify on these inputs")
    add("--shape", action="append", default=[], metavar="NAME=SIZE",
        help="value of a named size in verification; may be repeated")  # fmt: skip
    add("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Compile, and say what came of it; 1 if the result computes something else."""
    model: Path = arguments.model
    options = {
        "level": str(arguments.level),
        "cpu": arguments.cpu,
        **provider_options(arguments.option),
    }
    shapes = sizes(arguments.shape)
    from ortkit.provider.own.ahead import compile_model

    with show.progress(quiet=arguments.quiet or arguments.json) as progress:
        found = compile_model(
            model,
            arguments.output or beside(model, "_ctx.onnx"),
            options,
            verify=arguments.verify,
            inputs=arguments.inputs,
            shapes=shapes,
            progress=progress,
        )
    if arguments.json:
        show.document({"schema": SCHEMA, "model": str(model), **found.to_json()})
    else:
        _show(found)
    return 0 if found.is_equal else 1


def _show(found: Compiled) -> None:
    library, size = show.bytes_text(found.library_bytes), show.bytes_text(found.size_bytes)
    groups = f"{plural(found.groups, 'group')} of {plural(found.nodes, 'node')}"
    rows = [
        ("groups", f"{groups}, a kernel library of {library}"),
        ("for", found.compatibility or "not stated"),
    ]
    if found.outputs:
        worst = max(
            found.outputs,
            key=lambda output_comparison: (
                output_comparison.max_error_eps / (output_comparison.allowed_eps or 1)
            ),
        )
        error = f"{worst.max_error_eps:.1f} epsilons at {worst.name!r}, allowed"
        verdict = "yes" if found.is_equal else "no"
        rows.append(("verified", f"{verdict}: {error} {worst.allowed_eps:.1f} {worst.reason}"))
    written = f"{found.output} ({size})" if found.is_equal else "nothing: the results differ"
    if found.weights is not None and found.is_equal:
        written += f", weights in {found.weights}"
    rows.append(("written", written))
    show.pairs(rows)
