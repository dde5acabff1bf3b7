"""`ortkit bisect --onnxruntime-optimizers`: which of ONNX Runtime's optimizers is to blame."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, cast

from ortkit.cli import show
from ortkit.errors import UserError
from ortkit.text import plural

if TYPE_CHECKING:
    from ortkit.runtime.settings import Optimizations
    from ortkit.upgrades.result import Culprit, OptimizerReport, Tried

CODES = {"sound": 0, "guilty": 1, "not found": 1}
_MOST_NODES = 3


def run_optimizers(arguments: argparse.Namespace) -> int:
    """Search and print; 1 if an optimizer is to blame."""
    from ortkit.cli.feeds import blaming_made_up
    from ortkit.cli.flags import sizes
    from ortkit.cli.installations import installations
    from ortkit.runtime.workers.interleave import Schedule
    from ortkit.upgrades.optimizers import BisectOptions, bisect_optimizers

    with (
        show.progress(quiet=arguments.quiet or arguments.json) as progress,
        blaming_made_up(arguments.model, arguments.inputs),
    ):
        installed = installations(arguments, progress)
        if len(installed) > 1:
            raise UserError("is one version", where="--onnxruntime", fix="name one at a time")
        options = BisectOptions(
            cast("Optimizations", arguments.optimizations),
            target=arguments.target,
            threads=arguments.threads,
            onnxruntime=installed[0][0] if installed else None,
            inputs=arguments.inputs,
            shapes=sizes(arguments.shape),
            schedule=None if arguments.no_timing else Schedule(arguments.seconds),
            trust=arguments.trust,
            progress=progress,
        )
        found = bisect_optimizers(arguments.model, options)
    if arguments.json:
        show.document(found.to_json())
    else:
        _show(found)
    return CODES[found.verdict]


def _show(found: OptimizerReport) -> None:
    folder = f" in {found.folder}" if found.folder else ""
    show.line(f"model     {found.model}")
    show.line(f"runtime   ONNX Runtime {found.version}{folder}")
    rows = [(level, tried.outcome, _eps(tried), tried.median_ms, tried.reason)
            for level, tried in found.levels]  # fmt: skip
    show.table("", ("level", "outputs", "error eps", "median ms", "reason"), rows)
    can = sum(optimizer.can_be_disabled for optimizer in found.optimizers)
    fired = [optimizer.name for optimizer in found.optimizers if optimizer.modified]
    show.labelled(
        "names",
        f"{plural(len(found.optimizers), 'optimizer')} of level {found.level}, from the log of "
        f"ONNX Runtime; {can} can be switched off, {len(fired)} changed the graph"
        + (f": {', '.join(fired)}" if fired else ""),
    )
    for culprit in found.culprits:
        _show_culprit(culprit)
    verb = {"sound": "sound", "guilty": "result", "not found": "not found"}[found.verdict]
    show.labelled(verb, found.reason)
    if (way := found.workaround) is not None:
        show.labelled("avoid", way.python)
        gain = "" if way.speedup is None else f", {way.speedup.ratio:.3f} times as fast"
        show.labelled("", f"tried in a new process: outputs {_outcome(way.tried)}{gain}")
    for note in found.notes:
        show.labelled("note", note)
    show.line(f"took      {found.seconds:.1f} s, {plural(found.sessions, 'session')}")


def _show_culprit(culprit: Culprit) -> None:
    group = f", a rule of {culprit.group}" if culprit.group else ""
    show.labelled("culprit", f"{culprit.name}{group} (level {culprit.level})")
    if culprit.effect == "slower" and culprit.speedup is not None:
        gain = culprit.speedup
        show.labelled("", f"without it {gain.ratio:.3f} times as fast "
                          f"({gain.low:.3f} to {gain.high:.3f})")  # fmt: skip
    else:
        show.labelled("", f"with it: {culprit.reason}")
    if culprit.alone_off is not None:
        show.labelled("", f"off alone: outputs {_outcome(culprit.alone_off)}")
    if culprit.needs:
        show.labelled("", f"only together with {', '.join(culprit.needs)}")
    if culprit.changes:
        show.labelled("", f"graph: {', '.join(culprit.changes)}")
    if (first := culprit.first_node) is not None and first.value:
        show.labelled("", f"first node that differs: {first.value!r}: {first.reason}")
        for name, labels in (("without", first.before), ("with", first.after)):
            show.labelled("", f"{name}: {', '.join(labels[:_MOST_NODES]) or 'a constant'}")


def _outcome(tried: Tried) -> str:
    return tried.outcome if not tried.is_bad else f"{tried.outcome}: {tried.reason}"


def _eps(tried: Tried) -> str | None:
    return None if tried.max_error_eps is None else f"{tried.max_error_eps:.3g}"
