"""`ortkit compare --advise`: which settings suit a use of one model, by measurement."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ortkit.cli import show
from ortkit.cli.flags import numbers, sizes
from ortkit.errors import UserError

if TYPE_CHECKING:
    from ortkit.runtime.advice.result import Advice

#: Flags of comparisons that settings are not advised for, and their defaults.
_OTHERS = {
    "threads": "0", "batch": "", "rounds": 0, "nodes": False, "repro": None, "processes": 3,
    "optimizations": "all", "precision": "fp32", "target": "cpu", "onnxruntime": "",
    "install": False, "fail_slower": None,
}  # fmt: skip


def run_advise(arguments: argparse.Namespace) -> int:
    """Measure, and print what to change."""
    if len(arguments.models) != 1:
        raise UserError("is about one model", where="--advise", fix="name one")
    for name, default in _OTHERS.items():
        if getattr(arguments, name) != default:
            flag = f"--{name.replace('_', '-')}"
            raise UserError("does not go with --advise", where=flag, fix="leave it out")
    callers = numbers(arguments.concurrency or "1", "--concurrency")
    if len(callers) != 1:
        raise UserError("is one number with --advise", where="--concurrency", fix="give one")
    from ortkit.comparison.advising import advise_model
    from ortkit.runtime.advice.use import Use

    use = Use(callers[0], arguments.sessions, arguments.goal, arguments.seconds)
    with show.progress(quiet=arguments.quiet or arguments.json) as progress:
        found = advise_model(
            arguments.models[0], use, inputs=arguments.inputs, shapes=sizes(arguments.shape),
            trust=arguments.trust, progress=progress,
        )  # fmt: skip
    if arguments.json:
        show.document(found.to_json())
    else:
        _show(found)
    return 0


def _show(found: Advice) -> None:
    from ortkit.runtime.advice.advise import ROUNDS

    show.labelled("use", found.use.text)
    show.labelled("machine", found.limits.text)
    others = found.load.others_cpus or 0.0
    show.labelled("load", f"others used {others:.2f} processors before the measurement")
    rows = []
    for row in found.rows:
        if not row.rounds:
            rows.append([row.label, row.problem, "", "", ""])
            continue
        peak = "" if row.peak_bytes < 0 else show.bytes_text(row.peak_bytes)
        numbers_of = (f"{row.middle(name):.3g}" for name in ("p50", "p95", "per_second"))
        rows.append([row.label, *numbers_of, peak])
    show.table(
        f"medians of {ROUNDS} rounds",
        ("settings", "p50 ms", "p95 ms", "runs/s", "peak memory"),
        rows,
    )
    for reason in found.reasons:
        show.labelled("measured", reason)
    arguments = ", ".join(f"{name}={value!r}" for name, value in found.changes.items())
    if arguments:
        show.labelled("advice", f"ortkit.Session(MODEL, {arguments}): {found.gain:.0%} saved")
    else:
        show.labelled("advice", "leave the session as it is: nothing is surely better")
    if found.load.warning:
        show.labelled("warning", found.load.warning)
