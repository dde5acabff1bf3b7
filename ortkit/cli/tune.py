"""`ortkit tune`: try kernels of a model on this machine, and keep what is faster."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.cli import show
from ortkit.cli.flags import add_precision, sizes
from ortkit.errors import UserError
from ortkit.targets.catalog import KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortkit.cli.tree import Parser
    from ortkit.tune.kernels import WrittenKernel
    from ortkit.tune.options import TuneOptions
    from ortkit.tune.result import TunedRegion, TuneResult

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_DEFAULT_SECONDS = 60.0
META_SCHEDULE = "meta-schedule"


def add_arguments(parser: Parser) -> None:
    """Add the subcommand's flags."""
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL",
        help="an ONNX file, or a Python file that declares ops with kernels in TE")  # fmt: skip
    add("--seconds", default="", metavar="S",
        help="time to take, 10m is 600 (default: 60 without --trials)")  # fmt: skip
    parser.add_renamed("--budget", "--seconds")
    add("--trials", type=int, metavar="N", help="kernels to try at most")
    add("--target", choices=KINDS, default="cpu", help="default: cpu")
    add("--level", type=int, choices=range(4), default=2, metavar="0..3", help="default: 2")
    add_precision(parser)
    add("--cpu", default="native", metavar="LEVEL",
        help="CPU the kernels are for: native (default), x86-64-v3, x86-64-v4, ...")  # fmt: skip
    add("--db", type=Path, metavar="FILE",
        help="write what is found into this file too, and go on from what is in it")  # fmt: skip
    add("--merge", type=Path, action="append", default=[], metavar="FILE",
        help="take over what another database knows; may be repeated")  # fmt: skip
    add("--inputs", type=Path, metavar="FILE.npz", help="run on these inputs")
    add("--shape", action="append", default=[], metavar="NAME=SIZE",
        help="value of a named size (default: what is usual); may be repeated")  # fmt: skip
    add("--search", choices=("vectors", META_SCHEDULE), default="vectors",
        help="for kernels in TE and TIR: through the lengths of vectors (default), or through "
             "what TVM's meta-schedule proposes for known sizes")  # fmt: skip
    add("--threads", type=int, default=0, metavar="N",
        help="threads of a session (default: ONNX Runtime decides)")  # fmt: skip
    add("--runner", default="local", metavar="RUNNER",
        help="who measures kernels: local (default), rpc://HOST:PORT/KEY for servers behind a "
             "tracker of TVM's, or ray")  # fmt: skip
    add("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Tune, and print what came of it."""
    shapes, seconds = sizes(arguments.shape), _seconds(arguments.seconds)
    if seconds is None and arguments.trials is None:
        seconds = _DEFAULT_SECONDS
    from ortkit.tune.options import TuneOptions

    with show.progress(quiet=arguments.quiet or arguments.json) as progress:
        options = TuneOptions(
            target=arguments.target,
            trials=arguments.trials,
            seconds=seconds,
            level=arguments.level,
            precision=arguments.precision,
            cpu=arguments.cpu,
            inputs=arguments.inputs,
            shapes=shapes,
            threads=arguments.threads,
            db=arguments.db,
            merge=tuple(arguments.merge),
            runner=arguments.runner,
            search=arguments.search,
            progress=progress,
        )
        found = _tuned(arguments.model, options)
    if arguments.json:
        show.document(found.to_json())
    elif not arguments.quiet:
        _show(found)
    return 0


def _tuned(source: Path, options: TuneOptions) -> TuneResult:
    if source.suffix != ".py":
        if options.search == META_SCHEDULE:
            raise UserError(
                "meta-schedule is for kernels that users wrote", where="--search",
                fix="give the Python file that declares them",
            )  # fmt: skip
        from ortkit.tune.tuner import tune

        return tune(source, options)
    from ortkit.extend.declare.find_ops import find_ops
    from ortkit.extend.tvm.searched import searched_kernels
    from ortkit.extend.tvm.tuning import te_kernels
    from ortkit.measure.inputs import shapes_in
    from ortkit.targets.target import Target
    from ortkit.tune.kernels import tune_kernels

    if not source.is_file():
        raise UserError("no such file", where=str(source), fix="check the path")
    options.progress("read kernels")
    path = str(source.resolve())
    ops = [op for op in find_ops([path]) if op.place.rpartition(":")[0] == path]
    target = Target("cpu", options.cpu).resolved()
    shapes = {} if options.inputs is None else shapes_in(options.inputs)
    searches: list[Sequence[WrittenKernel]] = [te_kernels(ops, target, shapes)]
    notes: list[str] = []
    if options.search == META_SCHEDULE:
        searches.append(searched_kernels(ops, target, options.shapes, shapes, notes))
    if not searches[-1]:
        raise UserError(
            notes[0] if notes else "no op has a kernel in TE without a schedule of its own",
            where=str(source),
            fix="" if notes else "tune a model: its generated kernels are tuned with it",
        )
    return tune_kernels(searches, options, str(source), notes)


def _seconds(text: str) -> float | None:
    """Return a time in seconds, None if none is given.

    Raises:
        UserError: It is no time.
    """
    if not text:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if match is None:
        raise UserError(f"{text!r} is no time", where="--seconds", fix="give such as 60 or 10m")
    return float(match[1]) * _UNITS[match[2]]


def _show(found: TuneResult) -> None:
    from ortkit.extend.tvm.traces import name_of

    for name, shape in found.inputs.items():
        show.line(f"input     {name} [{', '.join(map(str, shape))}]")
    rows = [
        (
            region.op,
            region.nodes,
            f"{region.share:.1%}",
            f"{region.trials}"
            if region.kernels is None
            else f"{region.trials} of {region.kernels - 1}",
            _times(region),
            f"{region.gain:.3f}",
            region.problem or name_of(region.choices) or "the default",
        )
        for region in found.regions
    ]
    header = ("kernel", "nodes", "share", "tried", "us", "gain", "best")
    show.table("kernels by their share of the time", header, rows)
    if found.alternatives:
        others = [
            (alternative.what, None if alternative.ratio is None else f"{alternative.ratio:.3f}",
             alternative.problem or alternative.direction)
            for alternative in found.alternatives
        ]  # fmt: skip
        show.table("other ways to run it", ("what", "times as fast", ""), others)
    for note in found.notes:
        show.labelled("note", note)
    show.line(f"gain      {found.predicted_gain:.3f} in all, by shares and gains (not measured)")
    for file in found.files:
        show.line(f"wrote     {file}")
    show.line(f"took      {found.seconds:.1f} s, {found.trials} new trials")


def _times(tuned_region: TunedRegion) -> str | None:
    if tuned_region.default_us is None or tuned_region.best_us is None:
        return None
    return f"{tuned_region.default_us:.1f} -> {tuned_region.best_us:.1f}"
