"""`ortkit profile diff`: what got faster or slower between two models or profiles."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.cli import show
from ortkit.cli.flags import add_trust, sizes
from ortkit.temporary import TemporaryFolder

if TYPE_CHECKING:
    from ortkit.cli.show import Stages
    from ortkit.runtime.profiling.diff import ProfileDiff


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's flags."""
    add = parser.add_argument
    what = "a model, a profile that `ortkit profile --json` printed, or a trace"
    add("before", type=Path, metavar="A", help=what)
    add("after", type=Path, metavar="B", help=f"{what}; of the same kind as A")
    add("--model-a", type=Path, metavar="MODEL", help="the model of profile or trace A")
    add("--model-b", type=Path, metavar="MODEL", help="the model of profile or trace B")
    add("--target", default="auto", metavar="P", help="execution provider (default: auto)")
    add("--threads", type=int, default=0, metavar="N",
        help="threads of a session (default: ONNX Runtime decides)")  # fmt: skip
    add("--inputs", type=Path, metavar="FILE.npz", help="run on these inputs")
    add("--shape", action="append", default=[], metavar="NAME=SIZE",
        help="value of a named size (default: what is usual); may be repeated")  # fmt: skip
    add("--runs", type=int, default=60, metavar="N",
        help="traced runs of each model (default: 60)")  # fmt: skip
    add("--seconds", type=float, default=3.0, metavar="S",
        help="time for runs of each model without tracing (default: 3)")  # fmt: skip
    add("--processes", type=int, default=2, metavar="N",
        help="how many times each session is created (default: 2)")  # fmt: skip
    add("--top", type=int, default=10, metavar="N",
        help="largest gains and losses to show (default: 10)")  # fmt: skip
    add("--fail-slower", type=float, metavar="PCT",
        help="exit 1 if B is slower by more than this, beyond the noise")  # fmt: skip
    add_trust(parser)
    add("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Compare and print; 1 if B is slower than allowed."""
    from ortkit.errors import UserError

    limit = arguments.fail_slower
    if limit is not None and not limit >= 0:
        raise UserError(f"{limit:g} is no percentage", where="--fail-slower", fix="0 or more")
    if arguments.top < 0:
        raise UserError(f"{arguments.top} rows", where="--top", fix="give 0 or more")
    with show.progress(quiet=arguments.quiet or arguments.json) as progress:
        found = _compared(arguments, progress)
    slower = found.slower_by()
    if limit is not None and slower is None:
        raise UserError(
            "whether B is slower is not known: there are too few runs for an interval",
            where="--fail-slower",
            fix="give more --seconds, or profile more runs",
        )
    if arguments.json:
        show.document(found.to_json())
    else:
        from ortkit.cli.profile_diff_tables import show_diff

        show_diff(found, arguments.top)
    failed = limit is not None and slower is not None and slower > limit / 100
    if failed:
        show.note(
            f"ortkit: B is slower by {100 * (slower or 0):.1f} % or more; {limit:g} % is allowed"
        )
    return 1 if failed else 0


def _compared(arguments: argparse.Namespace, progress: Stages) -> ProfileDiff:
    from ortkit.errors import UserError
    from ortkit.runtime.profiling.diff_saved import diff_saved, kind_of

    paths = arguments.before, arguments.after
    kinds = [kind_of(path) for path in paths]
    if kinds.count("model") == 1:
        raise UserError(
            "is compared with a profile, and models are measured interleaved",
            where=str(paths[kinds.index("model")]),
            fix="give two models, or two profiles (`ortkit profile MODEL --json > FILE`)",
        )
    if "model" not in kinds:
        return diff_saved(paths, (arguments.model_a, arguments.model_b))
    for flag, given in (("--model-a", arguments.model_a), ("--model-b", arguments.model_b)):
        if given is not None:
            raise UserError("goes with profiles and traces only", where=flag, fix="leave it out")
    return _measured(arguments, progress)


def _measured(arguments: argparse.Namespace, progress: Stages) -> ProfileDiff:
    from ortkit.cli.feeds import candidate_feeds
    from ortkit.comparison.feeding import first_that_runs
    from ortkit.runtime.profiling.diff_models import DiffOptions, diff_models, plan_of
    from ortkit.runtime.settings import SessionSettings

    options = DiffOptions(
        settings=SessionSettings(
            target=arguments.target, threads=arguments.threads, trust=arguments.trust
        ),
        runs=arguments.runs,
        seconds=arguments.seconds,
        processes=arguments.processes,
        progress=progress,
    )
    models = arguments.before, arguments.after
    with TemporaryFolder("diff") as folder:
        progress("find inputs")
        plans = (
            plan_of(models[0], options, folder / "model-a"),
            plan_of(models[1], options, folder / "model-b"),
        )
        candidates = candidate_feeds(models[0], arguments.inputs, sizes(arguments.shape))
        first_that_runs(candidates, plans[0], folder, options.timeout_seconds)
        return diff_models(models, plans, folder / "feeds", folder, options)
