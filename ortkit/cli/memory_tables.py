"""What `ortkit memory` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ortkit.cli import show
from ortkit.text import kind_of_op

if TYPE_CHECKING:
    from ortkit.cli.memory_shown import Shown, ShownPoint
    from ortkit.runtime.memory.arena_options import ArenaOptions, Range
    from ortkit.runtime.memory.node_table import NodeMemory, Peak
    from ortkit.runtime.memory.point import Point

_MOST_ROWS = 12
_BAR = 40


def show_memory(found: Shown, *, with_nodes: bool) -> None:
    """Print all of it."""
    show.line(f"model     {found.model}")
    tensors = f"{found.weights.tensors} tensors" if found.weights.tensors != 1 else "one tensor"
    show.line(
        f"weights   {show.bytes_text(found.weights.bytes)} in {tensors}, as the file has them"
    )
    if len(found.points) == 1 and not found.stopped:
        _show_point(found.points[0], with_nodes=with_nodes)
    else:
        _show_sweep(found)
        if found.stopped:
            show.line(f"stopped   at {found.stopped}")
        if with_nodes:
            for point in found.points:
                show.line("")
                show.line(f"at        {_sizes(point.sizes)}")
                _show_nodes(point)
    if found.options is not None:
        _show_options(found.options)
    if found.layouts is not None:
        from ortkit.cli.memory_layout import show_layouts

        show_layouts(found.layouts)


def _sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _show_point(shown_point: ShownPoint, *, with_nodes: bool) -> None:
    point = shown_point.point
    inputs = ", ".join(f"{name} {list(shape)}" for name, shape in shown_point.inputs.items())
    outputs = show.bytes_text(point.output_bytes)
    show.labelled("inputs", inputs or "none")
    show.line(
        f"outside   {show.bytes_text(shown_point.input_bytes)} of inputs; outputs are {outputs}"
    )
    show.line(
        f"times     load {1e3 * point.load_seconds:.1f} ms, first run "
        f"{1e3 * point.first_seconds:.2f} ms, then {point.run_ms:.3f} ms "
        f"(median of {len(point.run_seconds)})"
    )
    for note in point.notes:
        show.labelled("note", note)
    _show_process(point)
    _show_arenas(point)
    for device in point.last.devices:
        show.line(
            f"device    {device.device} ({device.name}): {show.bytes_text(device.free)} free of "
            f"{show.bytes_text(device.total)}"
        )
    missing = {
        (unavailable.what, unavailable.reason): None
        for _, report in point.stages
        for unavailable in report.unavailable
    }
    for what, reason in missing:
        show.line(f"not known {what}: {reason}")
    _show_nodes(shown_point, with_table=with_nodes)


def _show_process(point: Point) -> None:
    rows: list[tuple[object, ...]] = []
    stages = [("before loading", point.before)]
    stages += [
        (name, memory_report.process)
        for name, memory_report in point.stages
        if memory_report.process is not None
    ]
    for name, process in stages:
        peak = show.bytes_text(process.peak) if name != "before loading" else None
        rows.append(
            (
                name,
                show.bytes_text(process.resident),
                show.bytes_text(process.anonymous),
                show.bytes_text(process.mapped),
                peak,
            )
        )
    show.table(
        "process", ("after", "resident", "anonymous", "of files", "peak of the stage"), rows
    )
    if not point.peak_is_reset:
        show.line(
            "note      the system does not reset peaks: they are those since the process began"
        )


def _show_arenas(point: Point) -> None:
    for arena in point.last.arenas:
        rows = []
        for name, report in point.stages:
            found = report.arena(arena.memory)
            if found is None:
                continue
            requested = (
                "not counted" if found.requested is None else show.bytes_text(found.requested)
            )
            rows.append(
                (
                    name,
                    show.bytes_text(found.in_use),
                    requested,
                    show.bytes_text(found.peak),
                    show.bytes_text(found.held),
                    show.bytes_text(found.largest),
                    found.allocations,
                    found.reserves,
                    found.extensions,
                    found.shrinkages,
                )
            )
        columns = (
            "after", "in use", "requested", "peak", "held", "largest", "allocations", "reserves",
            "extensions", "shrinkages",
        )  # fmt: skip
        limit = "" if arena.limit is None else f", limit {show.bytes_text(arena.limit)}"
        spare = ("shrinkages", "reserves", "extensions", "allocations", "requested", "largest")
        show.table(f"arena {arena.memory}{limit}", columns, rows, spare=spare)


def _show_nodes(shown_point: ShownPoint, *, with_table: bool = True) -> None:
    from ortkit.runtime.memory.node_table import NodeMemory

    nodes = shown_point.point.nodes
    if not isinstance(nodes, NodeMemory):
        if nodes is not None:
            show.line(f"not known {nodes.what}: {nodes.reason}")
        return
    for peak in nodes.peaks:
        _show_peak(peak)
    if with_table:
        _show_node_table(nodes)
    for missing in nodes.unavailable:
        show.line(f"not known {missing.what}: {missing.reason}")


def _show_peak(peak: Peak) -> None:
    show.line("")
    most = show.bytes_text(peak.bytes)
    show.line(f"peak      {most} in use at {_where(peak.node, peak.op)}, in a traced first run")
    parts = [
        ("activations", show.bytes_text(peak.tensor_bytes)),
        ("workspace", "not known" if peak.workspace is None else show.bytes_text(peak.workspace)),
        ("before the run", show.bytes_text(peak.before_run)),
    ]
    if peak.unexplained > 0:
        parts.append(("not explained", show.bytes_text(peak.unexplained)))
    elif peak.unexplained < 0:
        parts.append(("listed too much", show.bytes_text(-peak.unexplained)))
    show.line(f"          {', '.join(f'{name} {text}' for name, text in parts)}")
    if not peak.tensors:
        return
    rows = [
        (
            show.bytes_text(tensor.bytes),
            tensor.name,
            _where(tensor.node, tensor.op),
            "needed" if tensor.is_needed else "kept for reuse",
            len(tensor.shared) or None,
        )
        for tensor in peak.tensors[:_MOST_ROWS]
    ]
    title = "tensors with memory at the peak"
    show.table(title, ("bytes", "tensor", "made by", "state", "also held"), rows,
               spare=("also held",))  # fmt: skip
    if len(peak.tensors) > _MOST_ROWS:
        rest = peak.tensors[_MOST_ROWS:]
        total = show.bytes_text(sum(tensor.bytes for tensor in rest))
        show.line(f"          and {len(rest)} more with {total}")


def _where(node: str, op: str) -> str:
    return f"{node} ({kind_of_op(op)})"


def _show_node_table(nodes: NodeMemory) -> None:
    fullest = sorted(nodes.nodes, key=lambda one: -one.during)[:_MOST_ROWS]
    rows = [
        (
            node_use.name,
            kind_of_op(node_use.op),
            show.bytes_text(node_use.before),
            show.bytes_text(node_use.kept),
            show.bytes_text(node_use.workspace)
            if node_use.workspace is not None
            else f"up to {show.bytes_text(node_use.workspace_limit)}",
            show.bytes_text(node_use.during),
            show.bytes_text(node_use.held_growth) if node_use.held_growth else None,
        )
        for node_use in fullest
    ]
    columns = ("node", "op", "before", "new outputs", "workspace", "during", "arena grew by")
    spare = ("before", "arena grew by", "workspace")
    show.table(f"the fullest of {len(nodes.nodes)} nodes", columns, rows, spare=spare)


def _show_sweep(found: Shown) -> None:
    rows = []
    for shown_point in found.points:
        peak, point = shown_point.peak, shown_point.point
        arena = point.first.arenas[0] if point.first.arenas else None
        rows.append(
            (
                *(shown_point.sizes[name] for name in found.swept),
                None
                if shown_point.cache_bytes is None
                else show.bytes_text(shown_point.cache_bytes),
                point.run_ms,
                _text(None if peak is None else peak.tensor_bytes),
                _text(None if peak is None else peak.workspace),
                _text(None if arena is None else arena.peak),
                _text(point.held),
                _text(point.peak_resident),
                None if peak is None else _where(peak.node, peak.op),
            )
        )
    columns = (
        *found.swept, "caches", "run ms", "activations", "workspace", "arena peak", "held",
        "resident peak", "fullest at",
    )  # fmt: skip
    show.table("", columns, rows)
    _bars("arena peak", found)


def _arena_peak(shown_point: ShownPoint) -> int | None:
    arenas = shown_point.point.first.arenas
    return arenas[0].peak if arenas else None


def _bars(title: str, found: Shown) -> None:
    """Print a bar for each point, the longest for the most."""
    values = [_arena_peak(point) for point in found.points]
    most = max((value for value in values if value is not None), default=0)
    if not most:
        return
    show.line(title)
    names = [
        ", ".join(f"{name}={shown_point.sizes[name]}" for name in found.swept)
        for shown_point in found.points
    ]
    width = max(map(len, names))
    for name, value in zip(names, values, strict=True):
        if value is not None:
            bar = "█" * max(1, round(_BAR * value / most))
            show.line(f"  {name:<{width}}  {bar} {show.bytes_text(value)}")


def _text(count: int | None) -> str:
    return "not known" if count is None else show.bytes_text(count)


def _show_options(found: ArenaOptions) -> None:
    rows: list[tuple[object, ...]] = []
    for effect in found.effects:
        if effect.problem:
            rows.append((effect.name, None, None, None, None, f"does not run: {effect.problem}"))
            continue
        held = "no arena" if effect.held is None else show.bytes_text(effect.held)
        rows.append(
            (
                effect.name,
                held,
                _range_text(effect.resident),
                _ms(effect.run_ms),
                _ms(effect.load_ms),
                effect.what,
            )
        )
    columns = ("option", "held", "resident MB", "run ms", "load ms", "how")
    show.table(f"options, median (and range) of {found.rounds} processes", columns, rows)
    for line in found.advice or ("no option gains beyond the noise",):
        show.line(f"advice    {line}")


def _range_text(found: Range | None) -> str | None:
    if found is None:
        return None
    low, median, high = (f"{value / 1e6:.1f}" for value in (found.low, found.median, found.high))
    return f"{median} ({low} to {high})"


def _ms(found: Range | None) -> str | None:
    if found is None:
        return None
    return f"{found.median:.2f} ({found.low:.2f} to {found.high:.2f})"
