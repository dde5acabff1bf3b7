"""From a profile to what its page holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path

from ortkit.page.text import time_text
from ortkit.runtime.profiling.advice import Advice
from ortkit.runtime.profiling.page.timeline import timeline_of
from ortkit.runtime.profiling.page.write import Page
from ortkit.runtime.profiling.peaks import Peaks
from ortkit.runtime.profiling.result import KernelRow, OpRow, Overall, Profile, Row, Work
from ortkit.runtime.profiling.trace.events import TensorShape
from ortkit.text import with_short_keys
from ortkit.version import __version__

#: Rows beyond this, those of least time, are left out of the page, which says so.
MOST_ROWS = 20_000
_DIGITS = 5


def page_of(profile: Profile, advice: Sequence[Advice] = (), graph_page: str = "") -> Page:
    """Return the page of a profile; the timeline is that of the median run.

    Args:
        profile: What to show.
        advice: What to do about it.
        graph_page: Address of the model's own page, relative to this one, which nodes link to.
    """
    rows = profile.rows[:MOST_ROWS]
    timeline = timeline_of(profile, len(rows))
    notes = [*profile.notes, *timeline.notes]
    if len(rows) < len(profile.rows):
        left = sum(row.own_us for row in profile.rows[MOST_ROWS:])
        notes.append(
            f"{len(profile.rows) - len(rows):,} of {len(profile.rows):,} nodes, which take "
            f"{time_text(left)} of a run together, are left out of this page"
        )
    # Together: one operator has one name everywhere.
    labels = with_short_keys([*(op.op for op in profile.ops), *(row.label for row in rows)])
    data: dict[str, object] = {
        **timeline.to_json(),
        "nodes": _nodes(rows, labels[len(profile.ops) :]),
        "ops": _ops(profile.ops, labels[: len(profile.ops)]),
        "kernels": _kernels(profile.kernels),
        "peaks": _peaks(profile.peaks, rows),
        "graph_page": graph_page,
        "peaks_missing": (
            "the peaks of this machine are not known"
            if profile.peaks is None
            else "no peak was measured for their types"
        ),
    }
    about = profile.about
    return Page(
        title=Path(about.model).name if about.model else "Profile",
        subtitle=_subtitle(profile),
        facts=[*_facts(profile.overall), ("Nodes", f"{len(profile.rows):,}"), *timeline.facts],
        advice=[(item.title, item.detail, _gain(item, profile.overall)) for item in advice],
        notes=notes,
        data=data,
    )


def _subtitle(profile: Profile) -> str:
    about = profile.about
    parts = [
        f"onnxruntime {about.onnxruntime}" if about.onnxruntime else "",
        ", ".join(about.providers),
        f"{about.threads} thread{'s' * (about.threads != 1)}" if about.threads else "",
        f"{profile.runs} runs",
        ", ".join(f"{name} [{', '.join(map(str, dims))}]" for name, dims in about.inputs.items()),
        about.machine or "",
        f"ortkit {__version__}, {date.today().isoformat()}",
    ]
    return "; ".join(filter(None, parts))


def _facts(overall: Overall) -> Iterable[tuple[str, str]]:
    if overall.plain is not None:
        yield "A run, median", time_text(overall.plain.median_us)
    added = "" if overall.overhead is None else f" ({overall.overhead:+.0%})"
    yield "With tracing", time_text(overall.profiled.median_us) + added
    yield "In kernels", time_text(overall.kernels_us)
    yield "Between kernels", time_text(overall.gaps_us)
    yield "Before and after", time_text(overall.outside_us)
    if overall.device_us is not None:
        yield "On the device", time_text(overall.device_us)


def _gain(advice: Advice, overall: Overall) -> str:
    whole = (overall.plain or overall.profiled).median_us
    share = f" ({advice.gain_us / whole:.1%} of a run)" if whole else ""
    return f"at most {time_text(advice.gain_us)}{share}"


def _nodes(rows: Sequence[Row], labels: Sequence[str]) -> Mapping[str, object]:
    return {
        "name": [row.name for row in rows],
        "op": _interned(labels),
        "provider": _interned(row.provider for row in rows),
        **_times(rows),
        **_work([row.work for row in rows]),
        "intensity": [_intensity(row.work) for row in rows],
        "bytes": [row.work.bytes_moved for row in rows],
        "inputs": _interned(_shapes(row.inputs) for row in rows),
        "outputs": _interned(_shapes(row.outputs) for row in rows),
        "origins": [list(row.origins) for row in rows],
    }


def _ops(rows: Sequence[OpRow], labels: Sequence[str]) -> Mapping[str, object]:
    return {
        "op": labels,
        "provider": [row.provider for row in rows],
        "nodes": [row.nodes for row in rows],
        **_times(rows),
        **_work([row.work for row in rows]),
    }


def _kernels(rows: Sequence[KernelRow]) -> Mapping[str, object]:
    return {
        "name": [row.name for row in rows],
        "kind": [row.kind for row in rows],
        "calls": [_number(row.calls) for row in rows],
        "time": [_number(row.us) for row in rows],
        "share": [_number(row.share) for row in rows],
        "bytes": [row.bytes for row in rows],
    }


def _times(rows: Sequence[Row] | Sequence[OpRow]) -> Mapping[str, object]:
    return {
        "calls": [_number(row.calls) for row in rows],
        "time": [_number(row.own_us) for row in rows],
        "device": [_number(row.device_us) for row in rows],
        "share": [_number(row.share) for row in rows],
        "mean": [_number(row.call.mean_us) for row in rows],
        "p50": [_number(row.call.median_us) for row in rows],
        "p95": [_number(row.call.p95_us) for row in rows],
    }


def _work(works: Sequence[Work]) -> Mapping[str, object]:
    return {
        "gflops": [_number(work.gflops) for work in works],
        "gbs": [_number(work.gbs) for work in works],
    }


def _peaks(peaks: Peaks | None, rows: Sequence[Row]) -> Mapping[str, object] | None:
    """Return the rates of the types that occur, and the bandwidths near and far."""
    if peaks is None:
        return None
    used = {dtype for row in rows if row.work.flops for dtype, _ in row.inputs}
    rates = [
        {"name": dtype, "value": _number(rate)}
        for dtype, rate in peaks.gflops.items()
        if dtype in used
    ]
    bandwidths = {"memory": peaks.bandwidths[-1][1]}
    if len(peaks.bandwidths) > 1:
        bandwidths["caches"] = max(rate for _, rate in peaks.bandwidths)
    slopes = [{"name": name, "value": _number(rate)} for name, rate in bandwidths.items()]
    return {"rates": rates, "bandwidths": slopes} if rates else None


def _intensity(work: Work) -> float | None:
    if not work.flops or not work.bytes_moved:
        return None
    return _number(work.flops / work.bytes_moved)


def _number(value: float | None) -> float | None:
    """Return a number as short as it can be read; JSON has neither NaN nor infinity."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{_DIGITS}g}")


def _interned(texts: Iterable[str]) -> Mapping[str, object]:
    """Return each text once, and where it stands: thousands of nodes have the same shapes."""
    positions: dict[str, int] = {}
    index = [positions.setdefault(text, len(positions)) for text in texts]
    return {"values": list(positions), "index": index}


def _shapes(shapes: Sequence[TensorShape]) -> str:
    return ", ".join(f"{dtype}[{','.join(map(str, dims))}]" for dtype, dims in shapes)
