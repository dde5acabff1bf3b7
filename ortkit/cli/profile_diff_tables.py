"""Tables of `ortkit profile diff`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ortkit.cli import show
from ortkit.text import kind_of_op, plural

if TYPE_CHECKING:
    from ortkit.runtime.profiling.diff import Change, ProfileDiff

_MOST_OPS = 4
_MOST_NAME = 48


def show_diff(found: ProfileDiff, top: int) -> None:
    """Print whole runs, then the work that changed most."""
    before, after = found.before, found.after
    show.pairs(
        [
            ("A", f"{before.label}: {_side(before.run_us, len(before.nodes))}"),
            ("B", f"{after.label}: {_side(after.run_us, len(after.nodes))}"),
            ("run", _speedup(found)),
            ("memory", _memory(before.peak_bytes, after.peak_bytes)),
            ("nodes", _matched(found)),
        ]
    )
    gains = [change for change in found.changes if change.direction == "faster"]
    losses = [item for item in found.changes if item.direction == "slower"]
    unknown = [one for one in found.changes if one.direction == "not known"]
    _table("faster in B", gains, top)
    _table("slower in B", losses[::-1], top)
    if unknown:
        ordered = sorted(unknown, key=lambda one: -abs(one.gain_us))
        _table("not known whether it is noise (too few runs)", ordered, top)
    same = [one for one in found.changes if one.direction == "no difference"]
    if same:
        total = sum(one.gain_us for one in same)
        show.line(f"no difference beyond the noise: {_count(same)}, {total:+,.1f} µs together")
    for note in found.notes:
        show.line(f"note: {note}")


def _table(title: str, changes: Sequence[Change], top: int) -> None:
    if not changes:
        return
    shown = changes[:top]
    columns = {
        "gain µs": [f"{item.gain_us:+,.1f}" for item in shown],
        "interval": [_interval(change) for change in shown],
        "A µs": [f"{one.before_us:,.1f}" for one in shown],
        "B µs": [f"{one.after_us:,.1f}" for one in shown],
        "written": [_written(one) for one in shown],
        "what": [_what(one) for one in shown],
    }
    aligned = [
        cells if name in ("written", "what") else _right(cells) for name, cells in columns.items()
    ]
    if shown:
        show.table(title, tuple(columns), list(zip(*aligned, strict=True)))
    else:
        show.line(title)
    if left := changes[top:]:
        total = sum(one.gain_us for one in left)
        show.line(f"and {_count(left)} more, {total:+,.1f} µs together (--top shows more)")


def _right(cells: Sequence[str]) -> list[str]:
    width = max(map(len, cells), default=0)
    return [cell.rjust(width) for cell in cells]


def _side(run_us: Mapping[str, float | None], nodes: int) -> str:
    median, low, high = (run_us.get(name) for name in ("median", "low", "high"))
    text = "" if median is None else f"{median / 1e3:,.3f} ms"
    if low is not None and high is not None:
        text += f" ({low / 1e3:,.3f} to {high / 1e3:,.3f})"
    return f"{text}, {plural(nodes, 'node')}"


def _speedup(found: ProfileDiff) -> str:
    gain = found.speedup
    interval = "too few runs for an interval"
    if gain.low is not None and gain.high is not None:
        interval = f"{gain.confidence:.0%} interval {gain.low:.3f} to {gain.high:.3f}"
    turns = "" if found.in_turns else "; not measured interleaved"
    return f"B is {gain.ratio:.3f} times as fast ({interval}{turns}): {gain.direction}"


def _memory(before: int | None, after: int | None) -> str:
    if before is None or after is None:
        return "not known: a trace does not say how much is in use"
    return f"{show.bytes_text(before)} -> {show.bytes_text(after)} in use at most"


def _matched(found: ProfileDiff) -> str:
    how = "through the models" if found.matched_by == "model" else "by their names only"
    return f"matched {how}: {len(found.changes)} pieces of work"


def _count(changes: Sequence[Change]) -> str:
    return f"{len(changes)} piece{'s' * (len(changes) != 1)} of work"


def _interval(change: Change) -> str:
    if change.low_us is None or change.high_us is None:
        return ""
    return f"{change.low_us:,.1f} to {change.high_us:,.1f}"


def _written(change: Change) -> str:
    sides = [
        "?" if size is None else show.bytes_text(size)
        for size in (change.before_bytes, change.after_bytes)
    ]
    return " -> ".join(sides)


def _what(change: Change) -> str:
    """Return operators and where: `3 -> 1: MatMul, Add, Gelu -> FusedMatMul at /layer.0/mlp`."""
    if not change.before or not change.after:
        ops = _ops(change.before or change.after)
        return f"only in {'A' if change.before else 'B'}: {ops} at {_subject(change)}"
    counts = f"{len(change.before)} -> {len(change.after)}: "
    before, after = _ops(change.before), _ops(change.after)
    if len(change.before) == len(change.after) == 1:
        counts = ""
    ops = before if before == after else f"{before} -> {after}"
    return f"{counts}{ops} at {_subject(change)}"


def _ops(nodes: Sequence[tuple[str, str]]) -> str:
    counts = Counter(kind_of_op(op).removeprefix("ortkit.fused::") for _, op in nodes)
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    parts = [op if count == 1 else f"{count} {op}" for op, count in ordered]
    shown = ", ".join(parts[:_MOST_OPS])
    return shown if len(parts) <= _MOST_OPS else f"{shown}, ..."


def _subject(change: Change) -> str:
    from ortkit.runtime.profiling.diff_match import common_name

    names = [name for name, _ in (change.before or change.after)]
    name = names[0] if len(names) == 1 else common_name(names) or names[-1]
    return name if len(name) <= _MOST_NAME else f"...{name[3 - _MOST_NAME :]}"
