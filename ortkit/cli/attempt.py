"""`ortkit try`: before and after, the ceiling, and what holds a model back, in a minute."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ortkit.cli import show, verdicts
from ortkit.cli.flags import add_precision, add_verification, coverage, sizes
from ortkit.targets.catalog import KINDS
from ortkit.text import plural

if TYPE_CHECKING:
    from ortkit.trial.result import Latency, Prospect, Trial


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommand's flags."""
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL", help="an ONNX file")
    add("--target", choices=KINDS, default="cpu", help="default: cpu")
    add("--level", type=int, choices=range(4), default=2, metavar="0..3", help="default: 2")
    add_precision(parser)
    add("--passes", default="", metavar="SPEC", help="these passes instead, or +a,-b")
    add("--seconds", type=float, default=60.0, metavar="S", help="time to take (default: 60)")
    add_verification(parser, makes_samples=False)
    add("--inputs", type=Path, metavar="FILE.npz", help="run on these inputs")
    add("--shape", action="append", default=[], metavar="NAME=SIZE",
        help="value of a named size (default: what is usual); may be repeated")  # fmt: skip
    add("--threads", type=int, default=0, metavar="N",
        help="threads of a session (default: ONNX Runtime decides)")  # fmt: skip
    add("--json", action="store_true", help="print one JSON document")
    verdicts.add_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    """Try, and print what came of it; 1 if the optimized model computes something else."""
    schema = verdicts.json_schema(arguments, is_written=arguments.json)
    shapes = sizes(arguments.shape)
    from ortkit.trial.trial import TrialOptions, try_model

    with show.progress(quiet=arguments.quiet or arguments.json) as progress:
        options = TrialOptions(
            target=arguments.target,
            level=arguments.level,
            precision=arguments.precision,
            passes=arguments.passes,
            seconds=arguments.seconds,
            coverage=coverage(arguments),
            verify_seconds=arguments.verify_seconds,
            verify_memory=arguments.verify_memory,
            inputs=arguments.inputs,
            shapes=shapes,
            threads=arguments.threads,
            progress=progress,
        )
        found = try_model(arguments.model, options)
    outcome = verdicts.outcome_of(
        found.checked, accepts=arguments.accept_unverified, elsewhere="the same command"
    )
    if arguments.json:
        content = found.to_json(schema)
        show.document(content if schema == 1 else {**content, **outcome.to_json()})
    else:
        _show(found)
    verdicts.say(outcome)
    return outcome.code


def _show(found: Trial) -> None:
    for name, shape in found.inputs.items():
        show.line(f"input     {name} [{', '.join(map(str, shape))}]")
    kernels = f", {plural(found.kernels, 'generated kernel')}" if found.kernels else ""
    if found.nodes_after:
        nodes = f"{found.nodes_before} -> {found.nodes_after}"
        show.line(f"nodes     {nodes} ({plural(found.rewrites, 'rewrite')}{kernels})")
    _show_times(found)
    if found.holders:
        rows = [
            (holder.op, holder.milliseconds, f"{holder.share:.0%}", holder.calls or None)
            for holder in found.holders
        ]
        show.table("where the original's time goes", ("op", "ms", "share", "calls"), rows)
    if found.outlook:
        outlook = [
            (prospect.what, _prospect(prospect), prospect.basis) for prospect in found.outlook
        ]
        show.table("elsewhere, by arithmetic", ("what", "a run", "on the basis of"), outlook)
    for note in found.notes:
        show.labelled("note", note)
    show.labelled("verified", f"{found.checked.verdict}: {found.checked.reason}")
    show.line(f"took      {found.seconds:.1f} s; nothing was written")


def _show_times(found: Trial) -> None:
    for name, latency in (("before", found.before), ("after", found.after)):
        if latency is not None:
            show.line(f"{name:<9} {_latency(latency)}")
    if found.before is not None and found.flops:
        rate = found.flops / found.before.median_ms / 1e6
        flops = show.count_text(found.flops)
        show.line(f"          {flops} FLOPs, {rate:.1f} GFLOP/s before")
    if (gain := found.speedup) is not None:
        interval = "too few rounds for an interval"
        if gain.low is not None and gain.high is not None:
            interval = f"{gain.confidence:.0%} interval {gain.low:.3f} to {gain.high:.3f}"
        show.line(f"speedup   {gain.ratio:.3f} ({interval}): {gain.direction}")
    if (top := found.ceiling) is not None:
        what = ", ".join(top.heavy_ops[:4])
        show.line(
            f"ceiling   {top.milliseconds:.3f} ms if all but {what} were free, "
            f"a speedup of {top.speedup:.2f}"
        )


def _latency(latency: Latency) -> str:
    return (
        f"{latency.median_ms:.3f} ms (median of {latency.rounds} rounds, "
        f"fastest {latency.fastest_ms:.3f})"
    )


def _prospect(prospect: Prospect) -> str:
    if prospect.milliseconds is None:
        return prospect.known
    return f"{prospect.milliseconds:.3f} ms at best"
