"""`ortkit compare`: variants of a model side by side, in time, memory and results."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.cli import show
from ortkit.cli.decoding_flags import add_decoding, is_decoding, refuse_without
from ortkit.cli.feeds import blaming_made_up
from ortkit.cli.flags import add_precision, add_trust, names, numbers, sizes
from ortkit.errors import UserError
from ortkit.temporary import TemporaryFolder

if TYPE_CHECKING:
    from ortkit.cli.tree import Parser
    from ortkit.comparison.comparing import CompareOptions
    from ortkit.comparison.result import Comparison

EXIT = {"equal": 0, "different": 1, "not known": 2}


def add_arguments(parser: Parser) -> None:
    """Add the subcommand's flags."""
    add = parser.add_argument
    add("models", nargs="+", type=Path, metavar="MODEL",
        help="ONNX files or folders of genai; one alone: with its optimized form")  # fmt: skip
    add("--target", default="cpu", metavar="P,P",
        help="execution providers: cpu (default), cuda or full names")  # fmt: skip
    parser.add_renamed("--providers", "--target")
    add("--threads", default="0", metavar="N,N",
        help="threads of a session (default: ONNX Runtime decides)")  # fmt: skip
    add("--optimizations", default="all", metavar="LEVEL,LEVEL",
        help="ONNX Runtime's own: all (default), extended, basic, off")  # fmt: skip
    add("--onnxruntime", default="", metavar="V,V",
        help="versions of ONNX Runtime, folders with one, or installed (default)")  # fmt: skip
    add("--install", action="store_true",
        help="with --onnxruntime: fetch versions that are not there with pip")  # fmt: skip
    add_precision(parser)
    add("--batch", default="", metavar="N,N", help="sizes of the inputs' first axis")
    add("--inputs", type=Path, metavar="FILE.npz", help="run on these inputs")
    add("--shape", action="append", default=[], metavar="NAME=SIZE",
        help="value of a named size (default: what is usual); may be repeated")  # fmt: skip
    add("--seconds", type=float, default=3.0, metavar="S",
        help="time for the runs of each row (default: 3)")  # fmt: skip
    add("--rounds", type=int, default=0, metavar="N",
        help="rounds in each process instead of --seconds")  # fmt: skip
    add("--processes", type=int, default=3, metavar="N",
        help="how many times each session is created (default: 3)")  # fmt: skip
    add_decoding(parser)
    add("--concurrency", default="", metavar="N,N",
        help="also measure throughput with this many run calls at a time")  # fmt: skip
    add("--nodes", action="store_true",
        help="align intermediate values and name the first node that diverges")  # fmt: skip
    add("--repro", type=Path, metavar="FOLDER",
        help="with --nodes: write the diverging node as models and inputs here")  # fmt: skip
    add("--fail-slower", type=float, metavar="PCT",
        help="exit 1 if a row is slower by more than this, beyond the noise")  # fmt: skip
    add("--advise", action="store_true",
        help="measure which threads and memory settings suit a use of one model")  # fmt: skip
    add("--sessions", type=int, default=1, metavar="N",
        help="with --advise: processes at a time, each with a session (default: 1)")  # fmt: skip
    add("--goal", choices=("latency", "throughput"), default="latency",
        help="with --advise: the 95th percentile (default), or runs a second")  # fmt: skip
    add_trust(parser)
    add("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Compare; 1 if outputs differ or a variant does not run, 2 if that cannot be found out."""
    import dataclasses

    if is_decoding(arguments, arguments.models):
        from ortkit.cli.compare_decoding import check_decoding

        check_decoding(arguments)
    else:
        refuse_without(arguments, "prompt", "sweep")
    if arguments.advise:
        from ortkit.cli.compare_advice import run_advise

        return run_advise(arguments)
    for flag, default in (("sessions", 1), ("goal", "latency")):
        if getattr(arguments, flag) != default:
            raise UserError("goes with --advise only", where=f"--{flag}", fix="add --advise")
    if arguments.repro is not None and not arguments.nodes:
        raise UserError("goes with --nodes only", where="--repro", fix="add --nodes")
    if arguments.install and not arguments.onnxruntime:
        raise UserError("fetches what --onnxruntime names", where="--install",
                        fix="add --onnxruntime")  # fmt: skip
    check_limit(arguments.fail_slower)
    if arguments.nodes:
        for flag in ("--batch", "--threads", "--rounds", "--concurrency", "--fail-slower"):
            if getattr(arguments, flag[2:].replace("-", "_")) not in ("", "0", 0, None):
                raise UserError("does not go with --nodes", where=flag, fix="leave it out")
        from ortkit.cli.compare_nodes import run_nodes

        return run_nodes(arguments)
    from ortkit.comparison.comparing import compare_models

    models = list(arguments.models)
    with (
        TemporaryFolder("optimized") as folder,
        show.progress(quiet=arguments.quiet or arguments.json) as progress,
        blaming_made_up(models[0], arguments.inputs),
    ):
        options = _options(arguments, progress)
        if arguments.precision != "fp32" and (len(models) > 1 or options.has_variants):
            raise UserError("is that of the optimized form of one model", where="--precision",
                            fix="give one model, and no variants")  # fmt: skip
        if len(models) == 1 and not options.has_variants:
            from ortkit.cli.optimized_form import optimized_form

            progress("optimize")
            models.append(optimized_form(models[0], folder, progress, arguments.precision))
        options = dataclasses.replace(options, progress=progress)
        if is_decoding(arguments, models):
            from ortkit.cli.compare_decoding import of_decoders

            models, options = of_decoders(arguments, models, options)
        found = compare_models(models, options)
    if arguments.json:
        show.document(found.to_json())
    else:
        from ortkit.cli.compare_tables import show_comparison

        show_comparison(found)
    if found.equality == "not known":
        show.note("ortkit: whether the outputs are equal is not known; the notes say why")
    return EXIT[found.equality] or int(_is_slower(found, arguments.fail_slower))


def check_limit(limit: float | None) -> None:
    """Refuse a limit of `--fail-slower` that is none.

    Raises:
        UserError: It is negative, or no number.
    """
    if limit is not None and not limit >= 0:
        raise UserError(f"{limit:g} is no percentage", where="--fail-slower", fix="0 or more")


def _is_slower(found: Comparison, limit: float | None) -> bool:
    """Say whether a row is slower than allowed, and name those that are."""
    if limit is None:
        return False
    failed = False
    for batch in found.batches:
        for result in batch.rows:
            if result.speedup is None:
                continue
            slower = result.slower_by()
            if slower is None:
                raise UserError(
                    f"whether row {result.row.number} is slower is not known: there are too few "
                    "rounds for an interval",
                    where="--fail-slower",
                    fix="give more --seconds or --rounds",
                )
            if slower > limit / 100:
                failed = True
                show.note(
                    f"ortkit: row {result.row.number} is slower than row {result.row.against} by "
                    f"{100 * slower:.1f} % or more; {limit:g} % is allowed"
                )
    return failed


def _options(arguments: argparse.Namespace, progress: Callable[[str], None]) -> CompareOptions:
    from ortkit.cli.installations import installations
    from ortkit.comparison.comparing import CompareOptions
    from ortkit.runtime.workers.interleave import Schedule

    installed = installations(arguments, progress)
    return CompareOptions(
        onnxruntimes=tuple(installation for installation, _ in installed),
        labels=tuple(label for _, label in installed),
        providers=names(arguments.target, "--target"),
        threads=numbers(arguments.threads, "--threads"),
        batches=numbers(arguments.batch, "--batch") if arguments.batch else (),
        inputs=arguments.inputs,
        concurrency=numbers(arguments.concurrency, "--concurrency")
        if arguments.concurrency
        else (),
        shapes=sizes(arguments.shape),
        optimizations=names(arguments.optimizations, "--optimizations"),
        schedule=Schedule(arguments.seconds, arguments.rounds, arguments.processes),
        trust=arguments.trust,
    )
