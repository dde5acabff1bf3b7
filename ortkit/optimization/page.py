"""The page of an optimization: both graphs, what became of each node, and the report's tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import onnx_ir as ir

from ortkit.errors import OrtkitError
from ortkit.fusion.regions.report import RegionReport
from ortkit.kernels.tuning.calibration import machine
from ortkit.optimization.report import Report
from ortkit.page.graph.build import document_of_two
from ortkit.page.graph.document import Document, Graph, Table
from ortkit.page.shell import Card
from ortkit.page.text import bytes_text, time_text
from ortkit.runtime.ort import import_onnxruntime
from ortkit.text import plural
from ortkit.version import __version__

_Rows = list[tuple[str, str]]


def page_of(report: Report, before: ir.Model, after: ir.Model) -> Document:
    """Return the page of an optimization.

    Args:
        report: What it says of `after`.
        before: The source.
        after: What it became.
    """
    name = Path(report.source).name
    subtitle = f"for {report.target}, level {report.level}; {_made_by()}"
    document = document_of_two(before, after, (name, f"{name}, optimized"), subtitle)
    facts = _Facts(report)
    first, second = document.graphs
    return replace(
        document,
        title=name,
        cards=tuple(_cards(report)),
        facts=(facts.of(first), facts.of(second)),
        tables=tuple(table for table in _tables(report) if table.rows),
        notes=tuple(_notes(report)),
    )


def _made_by() -> str:
    """Return what a page's figures hold for: versions, the machine and the day."""
    try:
        runtime = f"onnxruntime {import_onnxruntime().__version__}, "
    except OrtkitError:
        runtime = ""
    return f"ortkit {__version__}, {runtime}{machine()}, {date.today().isoformat()}"


def _cards(report: Report) -> Iterable[Card]:
    before, after = report.before, report.after
    yield Card("Nodes", f"{before.nodes:,} → {after.nodes:,}")
    emitted = [region.emitted_as for region in report.regions if region.emitted_as]
    if emitted:
        remark = f"in {plural(len(emitted), 'place')}"
        yield Card("Generated kernels", str(len(set(emitted))), remark)
    checked = report.verification
    if checked is None:
        yield Card("Verified", "not asked for")
    else:
        yield Card("Verified", checked.verdict, checked.reason)
    yield _timing_card(report)
    if before.weight_bytes or after.weight_bytes:
        weights = bytes_text(before.weight_bytes), bytes_text(after.weight_bytes)
        yield Card("Weights", " → ".join(dict.fromkeys(weights)))
    seconds = ", ".join(
        f"{stage} {elapsed:.2f}\N{NO-BREAK SPACE}s" for stage, elapsed in report.seconds.items()
    )
    yield Card("Optimized in", f"{sum(report.seconds.values()):.1f} s", seconds)


def _timing_card(report: Report) -> Card:
    """Return what a run takes before and after, or why that is not known."""
    measured = report.measurement.model if report.measurement is not None else None
    timing = report.timing
    if measured is not None:
        before, after = measured.before_ms, measured.after_ms
        verdict = f"{measured.verdict} (noise {measured.noise:.1%})"
        remark = f"{measured.ratio:.2f} times as fast: {verdict}"
    elif timing is not None and timing.speedup is not None:
        before, after = timing.before_ms or 0.0, timing.after_ms or 0.0
        remark = f"on {timing.where}: {timing.ratio_text}"
    else:
        reason = "" if timing is None else timing.problem
        return Card("A run", "not timed", reason or "measure it with --measure")
    times = f"{time_text(1e3 * before)} → {time_text(1e3 * after)}"
    return Card("A run, measured", times, remark)


def _notes(report: Report) -> Iterable[str]:
    yield from (f"rolled back: {item}" for item in report.rolled_back)
    yield from (failed.text for failed in report.failed_passes)
    if report.kernel_note:
        yield report.kernel_note
    if report.sizes_note:
        yield report.sizes_note
    if report.verification is not None:
        yield from (
            f"not compared: {gap.what}: {gap.reason}" for gap in report.verification.not_compared
        )


def _tables(report: Report) -> Iterable[Table]:
    alike = Counter(
        (
            region.kind,
            region.nodes,
            _gain(region),
            region.emitted_as or f"unchanged: {region.reason}",
        )
        for region in report.regions
    )
    yield Table(
        "Regions",
        ("kind", "nodes", "places", "predicted ratio", "became"),
        tuple((*row[:2], nodes, *row[2:]) for row, nodes in alike.items()),
        "ONNX Runtime's nodes against one kernel, on one thread or GPU; a size that is not known "
        "counts as 128, the first as 1 where a kernel pays only then",
    )
    counts = {op: (report.before.ops.get(op, 0), report.after.ops.get(op, 0))
              for op in {**report.before.ops, **report.after.ops}}  # fmt: skip
    rows = tuple((op, *count) for op, count in counts.items())
    yield Table("Operators", ("operator", "before", "after"), rows)
    passes = tuple(report.rewrites_by_pass().items())
    yield Table("Passes", ("pass", "rewrites"), passes)
    if report.verification is not None:
        outputs = tuple(
            (output.name, output.dtype, output.max_error_eps, output.allowed_eps,
             "yes" if output.equal else f"no: {output.reason}")
            for output in report.verification.outputs
        )  # fmt: skip
        columns = ("output", "type", "error (epsilons)", "allowed (epsilons)", "agrees")
        yield Table("Verified outputs", columns, outputs, report.verification.reason)
    if report.measurement is not None:
        timed = tuple(
            (region_timing.op, len(region_timing.nodes), region_timing.body_us,
             region_timing.kernel_us, region_timing.ratio,
             region_timing.problem or ("kept" if region_timing.kept else "dropped"))
            for region_timing in report.measurement.regions
        )  # fmt: skip
        titles = ("kernel", "nodes", "without µs", "with µs", "ratio", "")
        yield Table("Kernels, measured", titles, timed, report.measurement.machine)
    refused = Counter((miss.pass_name, miss.node.partition(" ")[0], miss.reason)
                      for miss in report.misses)  # fmt: skip
    yield Table(
        "Not rewritten",
        ("pass", "operator", "because", "times"),
        tuple((*row, times) for row, times in refused.items()),
    )


def _gain(region: RegionReport) -> float | None:
    """Return how many times as fast a kernel is predicted to be; None for what is kept."""
    if region.kept_from or not region.predicted_after_ns:
        return None
    return region.predicted_before_ns / region.predicted_after_ns


class _Facts:
    """What the report says of nodes, by the values that they make."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._regions = {region.at: region for region in report.regions}
        self._rewrites: dict[str, dict[str, None]] = defaultdict(dict)
        for hit in report.hits:
            pass_name, _, rest = hit.id.partition(":")
            rule, _, output = rest.partition(":")
            self._rewrites[output][f"{pass_name} ({rule})"] = None
        self._refused: dict[str, dict[tuple[str, str], None]] = defaultdict(dict)
        for miss in report.misses:
            for output in miss.outputs:
                self._refused[output][f"not by {miss.pass_name}", miss.reason] = None
        rows = () if report.kernel_check is None else report.kernel_check.rows
        self._checks = {row.op_type: row for row in rows}
        regions = () if report.measurement is None else report.measurement.regions
        self._timings = {timing.op: timing for timing in regions}

    def of(self, graph: Graph) -> Mapping[int, Sequence[tuple[str, str]]]:
        """Return the facts of each node of one of the two graphs that has some."""
        found = {}
        for at, node in enumerate(graph.nodes):
            names = [graph.values[value].name for value in node.outputs]
            rows = self._kernel(node.op, names) if node.is_fused else []
            if not node.is_fused:
                rows += [row for name in names for row in self._unfused(name)]
                rows += [row for name in names for row in self._refused.get(name, ())]
            rewrites = [rewrite for name in names for rewrite in self._rewrites.get(name, ())]
            if rewrites:
                rows.append(("rewritten by", ", ".join(dict.fromkeys(rewrites))))
            if node.role == "node" and rows:
                found[at] = rows
        return found

    def _unfused(self, name: str) -> _Rows:
        region = self._regions.get(name)
        if region is None or region.emitted_as is not None:
            return []
        return [(f"no kernel of {region.kind}", region.reason), *_predicted(region)]

    def _kernel(self, op: str, names: Sequence[str]) -> _Rows:
        op_type = op.rpartition("::")[2]
        rows = [("kernel", op_type)]
        region = next((self._regions[name] for name in names if name in self._regions), None)
        if region is not None and region.emitted_as == op_type:
            rows += [("region", f"{region.kind}, {plural(region.nodes, 'node')}")]
            rows += _predicted(region)
        if (check := self._checks.get(op_type)) is not None:
            error = "" if check.ratio is None else f", {check.ratio:.0%} of the allowed error"
            text = f"{check.verdict}: {plural(check.cases, 'case')} against {check.reference}"
            rows.append(("checked alone", text + error))
        if (timing := self._timings.get(op_type)) is not None and timing.kernel_us is not None:
            body = "" if timing.body_us is None else f"{time_text(timing.body_us)} → "
            rows.append(("measured", f"{body}{time_text(timing.kernel_us)}"))
        return rows


def _predicted(region: RegionReport) -> _Rows:
    gain = _gain(region)
    if gain is None:
        return []
    times = (region.predicted_before_ns, region.predicted_after_ns)
    before, after = (time_text(ns / 1e3) for ns in times)
    return [("predicted", f"{gain:.2f} times as fast ({before} → {after}; unknown sizes as 128)")]
