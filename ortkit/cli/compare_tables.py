"""How `ortkit compare` prints what it found."""

from __future__ import annotations

from collections.abc import Sequence

from ortkit.cli import show
from ortkit.comparison.differences import OutputDifference
from ortkit.comparison.first_node import FirstNode
from ortkit.comparison.result import BatchResult, Comparison, RowResult, Spread
from ortkit.comparison.rows import Row
from ortkit.comparison.values import Statistics
from ortkit.runtime.intervals import Interval, Speedup
from ortkit.runtime.targets import short_name

_MOST_OUTPUTS = 8
_MOST_NODES = 3


def show_comparison(found: Comparison) -> None:
    """Print everything; models and settings are named once, by the number of their row."""
    _show_rows([result.row for result in found.batches[0].rows])
    for batch in found.batches:
        _show_batch(batch)
    _show_phases(found.batches)
    for note in found.notes:
        show.labelled("note", note)
    machine = found.machine
    load = "not known" if machine.others_cpus is None else f"{machine.others_cpus:.2f}"
    for batch in found.batches:
        for text in upgrades(batch):
            show.labelled("upgrade", text)
    show.labelled(
        "machine",
        f"{machine.cpus} processors, others used {load} of them, governor "
        f"{machine.governor or 'not readable'}; ONNX Runtime {found.version}",
    )
    if machine.warning:
        show.labelled("warning", f"{machine.warning}: the noise is larger than it need be")
    show.line(f"outputs   {found.equality}")


def _show_phases(batches: Sequence[BatchResult]) -> None:
    """Print tokens a second of each row and phase side by side, if a decoder was compared."""
    named = [(batch.phase.name, batch.rows) for batch in batches if batch.phase is not None]
    if not named:
        return
    rows = [(phase, *map(_tokens_cell, results)) for phase, results in named]
    columns = ("phase", *(f"row {result.row.number}, tokens/s" for result in named[0][1]))
    show.table("tokens a second", columns, rows)


def _tokens_cell(result: RowResult) -> str:
    if result.latency is None:
        return "did not run"
    rate, gain = number(result.latency.items_per_second), result.speedup
    return rate if gain is None else f"{rate} ({gain.ratio:.2f} times)"


def upgrades(batch: BatchResult) -> list[str]:
    """Return a sentence for each row that differs from its reference in the ONNX Runtime."""
    by_number = {result.row.number: result for result in batch.rows}
    found = []
    for result in batch.rows:
        row = result.row
        before = None if row.against is None else by_number[row.against]
        if before is not None and before.row.onnxruntime != row.onnxruntime:
            title = f"{row.name}, " if len({row.row.name for row in batch.rows}) > 1 else ""
            pair = f"{before.row.onnxruntime} -> {row.onnxruntime}"
            found.append(f"{title}{pair}: {_upgraded(before, result)}")
    return found


def _upgraded(before: RowResult, after: RowResult) -> str:
    if after.problem:
        return f"does not run: {after.problem}"
    parts = [f"outputs {after.equality}"]
    if after.equality == "equal":
        exact = all(each.distance and not each.distance.unequal for each in after.outputs)
        parts = ["outputs equal, bit by bit" if exact else "outputs equal within the tolerance"]
    if (gain := after.speedup) is not None:
        parts.append(
            f"{gain.ratio:.3f} times as fast"
            + (f" ({gain.direction})" if gain.direction != "not known" else "")
        )
    sizes = [
        None if row_result.memory is None else row_result.memory.peak
        for row_result in (before, after)
    ]
    if all(sizes):
        parts.append(f"peak memory {' -> '.join(map(_megabytes, sizes))} MB")
    return ", ".join(parts)


def _show_rows(rows: Sequence[Row]) -> None:
    several = {
        "provider": len({row.provider for row in rows}) > 1,
        "threads": len({row.threads for row in rows}) > 1,
        "optimizations": len({row.optimizations for row in rows}) > 1,
        "onnxruntime": any(row.onnxruntime for row in rows),
    }
    for row in rows:
        threads = f"{row.threads} thread{'s' if row.threads > 1 else ''}"
        parts = {
            "provider": row.provider,
            "threads": threads if row.threads else "ONNX Runtime's choice of threads",
            "optimizations": f"optimizations {row.optimizations}",
            "onnxruntime": f"ONNX Runtime {row.onnxruntime}",
        }
        listed = ", ".join(text for name, text in parts.items() if several[name])
        bodies = " (function bodies, no kernels)" if row.function_bodies else ""
        show.line(f"row {row.number}     {row.name}{bodies}{': ' + listed if listed else ''}")


def _show_batch(batch: BatchResult) -> None:
    shapes = ", ".join(f"{name} {list(shape)}" for name, shape in batch.inputs.items())
    title = "" if batch.batch is None else f"batch {batch.batch}"
    if batch.phase is not None:
        show.line("")
        first = ": the time to the first token" if batch.phase.is_prefill else ""
        show.line(f"phase     {batch.phase.name}{first}")
        shapes = ""
    if title or shapes:
        show.line("")
        show.labelled("inputs", f"{title}{': ' if title and shapes else ''}{shapes}")
    for result in batch.rows:
        if result.problem:
            show.line(f"row {result.row.number}     {result.problem}")
    ran = [result for result in batch.rows if result.latency is not None]
    if ran:
        _show_times(ran, batch)
        _show_concurrency(ran, batch)
        _show_start(ran)
    if batch.control is not None:
        judged = "ratios are not judged"
        if batch.noise is not None:
            judged = f"ratios up to {1 + batch.noise:.3f} are no difference"
        show.labelled("noise", f"row 1 against itself: {_speedup(batch.control)}; {judged}")
    _show_outputs(batch)
    if unsettled := [str(result.row.number) for result in ran if not result.settled]:
        numbers = f"row{'s' if len(unsettled) > 1 else ''} {', '.join(unsettled)}"
        show.labelled("note", f"{numbers}: times had not settled in the warm-up")
    for note in batch.notes:
        show.labelled("note", note)


def _show_times(ran: Sequence[RowResult], batch: BatchResult) -> None:
    rows = []
    for result in ran:
        latency, gain = result.latency, result.speedup
        assert latency is not None
        rows.append(
            (
                result.row.number,
                number(latency.median.value),
                _interval(latency.median),
                number(latency.least),
                number(latency.p95),
                number(latency.per_second),
                *((number(latency.items_per_second),) if batch.items else ()),
                f"{latency.processors:.2f}",
                result.row.against,
                None if gain is None else _speedup(gain),
                None if gain is None else gain.direction,
            )
        )
    columns = ("row", "median ms", "95 % interval", "least", "p95", "runs/s",
               *((f"{batch.items}/s",) if batch.items else ()), "CPUs", "against", "speedup",
               "verdict")  # fmt: skip
    show.table("", columns, rows, spare=("CPUs", "least", "p95", "runs/s", "items/s"))


def _show_concurrency(ran: Sequence[RowResult], batch: BatchResult) -> None:
    rows = [
        (
            result.row.number,
            throughput.callers,
            number(throughput.per_second),
            *((number(throughput.items_per_second),) if batch.items else ()),
            *map(number, (throughput.p50, throughput.p90, throughput.p99)),
        )
        for result in ran
        for throughput in result.concurrency
    ]
    items = (f"{batch.items}/s",) if batch.items else ()
    columns = ("row", "calls at a time", "runs/s", *items, "p50 ms", "p90", "p99")
    show.table("", columns, rows)


def _show_start(ran: Sequence[RowResult]) -> None:
    rows = []
    for result in ran:
        memory = result.memory
        assert memory is not None
        own = None
        if memory.peak is not None and memory.before is not None:
            own = memory.peak - memory.before
        arenas = [f"{arena['memory']} {_megabytes(arena['held'])}" for arena in memory.arenas]
        rows.append(
            (
                result.row.number,
                _spread(result.load_ms),
                _spread(result.first_run_ms),
                _megabytes(memory.peak),
                _megabytes(own),
                ", ".join(arenas) or "not known",
                ", ".join(_nodes(name, count) for name, count in result.nodes.items()),
            )
        )
    columns = ("row", "load ms", "first run ms", "peak RSS MB", "of it the session's",
               "arenas MB", "nodes")  # fmt: skip
    show.table("", columns, rows, spare=("of it the session's", "arenas MB"))
    lacking = dict.fromkeys(
        reason for each in ran if each.memory for reason in each.memory.not_available
    )
    for reason in lacking:
        show.labelled("note", f"not known: {reason}")


def _show_outputs(batch: BatchResult) -> None:
    rows: list[tuple[object, ...]] = []
    lines: list[str] = []
    for result in batch.rows:
        worst = sorted(result.outputs, key=lambda each: (each.judged.equal, -_part(each)))
        rows += [_output(result, each) for each in worst[:_MOST_OUTPUTS]]
        if rest := worst[_MOST_OUTPUTS:]:
            equal = sum(each.judged.equal for each in rest)
            lines.append(
                f"row {result.row.number}     {len(rest)} more outputs, {equal} of them equal"
            )
        lines += [
            f"row {result.row.number}     output {each.judged.name!r}: {each.judged.reason}"
            for each in worst
            if not each.judged.equal or each.judged.is_inconclusive
        ]
    if rows:
        columns = ("row", "output", "type", "max abs", "max rel", "epsilons", "allowed", "cosine",
                   "near ties", "equal")  # fmt: skip
        show.table("", columns, rows, spare=("cosine", "type", "max rel", "max abs"))
    for text in lines:
        show.line(text)
    for result in batch.rows:
        if (first := result.first_node) is not None:
            _show_first_node(result.row.number, first)


def _show_first_node(number: int, first: FirstNode) -> None:
    """Say where a row parts from the one that it is compared with."""
    if not first.value:
        show.line(f"row {number}     first node that differs: not found: {first.reason}")
        return
    show.line(f"row {number}     first node that differs: {first.value!r}: {first.reason}")
    for name, labels in (("before", first.before), ("after", first.after)):
        show.line(f"          {name:<7} {', '.join(labels[:_MOST_NODES]) or 'a constant'}")


def _output(result: RowResult, each: OutputDifference) -> tuple[object, ...]:
    judged, distance = each.judged, each.distance
    return (
        result.row.number,
        judged.name,
        judged.dtype,
        _largest(None if distance is None else distance.absolute),
        _largest(None if distance is None else distance.relative),
        f"{judged.max_error_eps:.3g}",
        f"{judged.allowed_eps:.4g}",
        None if distance is None or distance.cosine is None else f"{distance.cosine:.9f}",
        judged.near_ties or None,
        "no" if not judged.equal else "not known" if judged.is_inconclusive else "yes",
    )


def _largest(distance: Statistics | None) -> str | None:
    return None if distance is None or distance.maximum is None else f"{distance.maximum:.3g}"


def _part(each: OutputDifference) -> float:
    """Return the error as a part of what is allowed."""
    return each.judged.max_error_eps / (each.judged.allowed_eps or 1.0)


def number(value: float | None) -> str:
    """Return a number with four digits that count: `0.1182`, `12.35`, `1,234`."""
    if value is None:
        return ""
    digits = max(0, 3 - len(str(int(abs(value)))) + (int(abs(value)) == 0) + 1)
    return f"{value:,.{digits}f}"


def _interval(value: Interval) -> str:
    if value.low is None or value.high is None:
        return "too few rounds"
    return f"{number(value.low)} to {number(value.high)}"


def _speedup(gain: Speedup) -> str:
    if gain.low is None or gain.high is None:
        return f"{gain.ratio:.3f} (too few rounds)"
    return f"{gain.ratio:.3f} ({gain.low:.3f} to {gain.high:.3f})"


def _nodes(provider: str, count: int | None) -> str:
    return short_name(provider) if count is None else f"{short_name(provider)} {count}"


def _spread(value: Spread | None) -> str:
    if value is None:
        return ""
    if value.least == value.most:
        return number(value.median)
    return f"{number(value.median)} ({number(value.least)} to {number(value.most)})"


def _megabytes(count: object) -> str:
    return f"{count / 1e6:.1f}" if isinstance(count, int) else "not known"
