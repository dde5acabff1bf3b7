"""`ortkit memory`: what a model takes of memory, by stage, node, shape and option."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.cli import show
from ortkit.cli.decoding_flags import add_decoding, is_decoding, refuse_with, refuse_without
from ortkit.cli.flags import add_trust, check_written, sizes
from ortkit.cli.flags import sweeps as read_sweeps
from ortkit.errors import UserError
from ortkit.temporary import TemporaryFolder

if TYPE_CHECKING:
    from ortkit.cli.memory_shown import Shown

SCHEMA = "ortkit.memory/1"
_PLOTS = (".html", ".svg")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's flags."""
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="an ONNX file, or a folder of genai")
    add("--target", choices=("auto", "cpu", "cuda"), default="auto",
        help="default: cuda where it is to be had, else cpu")  # fmt: skip
    add("--inputs", type=Path, metavar="FILE.npz", help="run on these inputs")
    add("--shape", action="append", default=[], metavar="NAME=SIZE",
        help="value of a named size (default: what is usual); may be repeated")  # fmt: skip
    add("--sweep", action="append", default=[], metavar="NAME=A,B,...",
        help="run at each of these sizes; may be repeated, for all combinations")  # fmt: skip
    add_decoding(parser, has_sweep=True)
    add("--nodes", action="store_true", help="list the nodes that run at the fullest")
    add("--arena", action="store_true", help="measure what options of arena and session change")
    add("--layout", action="store_true",
        help="measure layouts and types for each Conv and MatMul")  # fmt: skip
    add("--plot", type=Path, metavar="FILE", help="write a plot: .html or .svg")
    add("--threads", type=int, default=0, metavar="N",
        help="threads of a session (default: ONNX Runtime decides)")  # fmt: skip
    add_trust(parser)
    add("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    shapes, sweeps = sizes(arguments.shape), read_sweeps(arguments.sweep)
    _check(arguments, shapes, sweeps)
    from ortkit.cli.memory_measure import Request, measure
    from ortkit.cli.memory_tables import show_memory

    request = Request(
        model=arguments.model,
        target=arguments.target,
        threads=arguments.threads,
        inputs=arguments.inputs,
        shapes=tuple({**shapes, **point} for point in _points(sweeps)),
        swept=tuple(sweeps),
        arena=arguments.arena,
        layout=arguments.layout,
        trust=arguments.trust,
    )
    if is_decoding(arguments, [arguments.model]):
        from ortkit.cli.decoding import decodings_of

        refuse_with(arguments, {"inputs": None, "shape": []})
        (decoding,) = decodings_of(arguments, [arguments.model], sweeps)
        request = request.decoding(decoding)
    else:
        refuse_without(arguments, "prompt")
    with (
        TemporaryFolder("memory") as folder,
        show.progress(quiet=arguments.quiet or arguments.json) as progress,
    ):
        found = measure(request, folder, progress)
    if arguments.plot is not None:
        _plot(found, arguments.plot)
    if arguments.json:
        show.document({"schema": SCHEMA, **found.to_json()})
        return 0
    show_memory(found, with_nodes=arguments.nodes)
    if arguments.plot is not None:
        show.line(f"wrote     {arguments.plot}")
    return 0


def _plot(found: Shown, path: Path) -> None:
    from ortkit.cli.memory_plot import write_plot

    write_plot(found, path)


def _check(
    arguments: argparse.Namespace, shapes: Mapping[str, int], sweeps: Mapping[str, Sequence[int]]
) -> None:
    """Refuse what does not go together before anything is measured.

    Raises:
        UserError: Two flags exclude each other, or the plot cannot be written.
    """
    if arguments.inputs is not None and (shapes or sweeps):
        flag = "--shape" if shapes else "--sweep"
        raise UserError("cannot go with --inputs", where=flag, fix="leave one of them out")
    for name in sweeps:
        if name in shapes:
            raise UserError(f"{name!r} is in --sweep too", where="--shape", fix="leave one out")
    if arguments.threads < 0:
        raise UserError(f"{arguments.threads} is negative", where="--threads", fix="0 or more")
    path: Path | None = arguments.plot
    if path is None:
        return
    if path.suffix.lower() not in _PLOTS:
        fix = f"end it in {', '.join(_PLOTS)}"
        raise UserError(
            "cannot be told what kind of plot this is", where=f"--plot {path}", fix=fix
        )
    check_written({"--plot": path}, (arguments.model, arguments.inputs))


def _points(sweeps: Mapping[str, Sequence[int]]) -> Iterator[dict[str, int]]:
    """Yield the combinations, the last name's sizes changing fastest; one if there is none."""
    for values in itertools.product(*sweeps.values()):
        yield dict(zip(sweeps, values, strict=True))
