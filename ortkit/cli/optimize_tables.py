"""What `ortkit optimize` prints of a report: one line, a summary, or tables."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ortkit.cli import show
from ortkit.targets.catalog import traits_of
from ortkit.text import plural

if TYPE_CHECKING:
    from ortkit.measure.short_timing import ShortTiming
    from ortkit.optimization.report import Report
    from ortkit.runtime.intervals import Speedup

#: Names in a line of the summary; the tables have all.
_SHOWN = 6
#: An interval whose ends are further apart than this ratio says little of what lies between.
_WIDE = 2.0
#: Inputs whose shapes are in the line of a timing.
_INPUTS = 3


def headline(report: Report, name: str) -> str:
    """Return the one line that says what came of a model."""
    kernels = Counter(region.emitted_as for region in report.regions if region.emitted_as)
    parts = [f"{report.before.nodes:,} -> {plural(report.after.nodes, 'node')}"]
    if kernels:
        nodes = kernels.total()
        where = "" if nodes == len(kernels) else f" in {plural(nodes, 'place')}"
        parts.append(f"{plural(len(kernels), 'kernel')}{where}")
    parts += [_verified(report), _timed(report)]
    return f"{name}: {', '.join(parts)}"


def show_summary(report: Report) -> None:
    """Print what was fused and rewritten, one line each."""
    kinds = Counter(region.kind for region in report.regions if region.emitted_as)
    if kinds:
        show.labelled("kernels", _listed(kinds))
    left = Counter(
        region_report.kind for region_report in report.regions if not region_report.emitted_as
    )
    if left:
        show.labelled("unfused", f"{_listed(left)}; -v says why")
    plain: Counter[str] = Counter()
    for op, count in report.after.ops.items():
        if not op.startswith("ortkit.fused::"):
            plain[op.rpartition("::")[2]] += count
    if plain:
        show.labelled("operators", _listed(plain))
    if hits := report.rewrites_by_pass():
        show.labelled("rewrites", _listed(Counter(hits)))


def show_tables(report: Report) -> None:
    """Print operators before and after, rewrites by pass, and regions."""
    show.table("", ("op", "before", "after"), _operators(report))
    if passes := report.rewrites_by_pass():
        show.table("", ("pass", "rewrites"), list(passes.items()))
    if not report.regions:
        return
    columns = ("region", "nodes", "places", "before, µs", "as a kernel", "became")
    show.table("", columns, _regions(report))
    where = traits_of(report.target).predicted_on
    sizes = "sizes that are not known count as 128, the first as 1 where a kernel pays only then"
    show.line(f"predicted for each place, {where}; {sizes}")
    show.line()


def show_why(report: Report, what: str) -> None:
    """Print what became of what `--why` names: refused, rewritten, in a kernel, or not there."""
    near = report.unknown(what)
    if near is not None:
        hint = f"; did you mean {near!r}?" if near else ""
        show.line(f"why       no pass, operator, node or region is called {what!r}{hint}")
        return
    refusals = report.why(what)
    if refusals:
        rows = [
            (refusal.pass_name, refusal.node, refusal.reason, refusal.times)
            for refusal in refusals
        ]
        show.table("", ("pass", "node", "refused because", "times"), rows)
    else:
        show.line(f"why       nothing that {what!r} names was refused")
    done = Counter(hit.pass_name for hit in report.done(what))
    if done:
        listed = ", ".join(f"{name} {times}" for name, times in done.most_common())
        show.line(f"done      {listed}")
    for region in report.regions_of(what):
        if region.emitted_as is not None:
            nodes = plural(region.nodes, "node")
            show.labelled("fused", f"{region.at}: {region.kind}, {nodes} as one kernel")


def _operators(report: Report) -> list[tuple[str, int, int]]:
    """Return a row for each operator whose count changed, what is gone first."""
    before, after = report.before.ops, report.after.ops
    rows = [(op, before.get(op, 0), after.get(op, 0)) for op in {*before, *after}]
    changed = [row for row in rows if row[1] != row[2]]
    changed.sort(key=lambda row: (row[2] - row[1], row[0]))
    return [*changed, ("all nodes", report.before.nodes, report.after.nodes)]


def _regions(
    report: Report,
) -> list[tuple[str, int, int, float | None, float | None, str]]:
    """Return a row for each kind of region and what became of it, what saves most first.

    Nothing is predicted of nodes that are kept as the source has them.
    """
    alike = Counter(
        (
            region.kind,
            region.nodes,
            None if region.kept_from else region.predicted_before_ns / 1e3,
            None if region.kept_from else region.predicted_after_ns / 1e3,
            region.emitted_as or f"unchanged: {region.reason}",
        )
        for region in report.regions
    )
    rows = [(*row[:2], nodes, *row[2:]) for row, nodes in alike.items()]
    return sorted(rows, key=lambda row: row[2] * ((row[4] or 0) - (row[3] or 0)))


def _verified(report: Report) -> str:
    checked = report.verification
    if checked is None:
        return "not verified"
    words = {"yes": "verified", "partly": "verified in part", "not possible": "not verified"}
    return words.get(checked.verdict, "wrong")


def _timed(report: Report) -> str:
    measured = None if report.measurement is None else report.measurement.model
    if measured is not None:
        is_clear = measured.verdict != "no difference"
        return f"{ratio_text(measured.ratio) if is_clear else 'no clear difference'} (measured)"
    timing = report.timing
    if timing is None or timing.speedup is None:
        return "not timed"
    if timing.speedup.direction in ("faster", "slower"):
        return f"{_surely(timing.speedup)} on {timing.where} (measured)"
    if timing.is_disturbed:
        return "not timed reliably: the machine is busy"
    return f"no clear difference on {timing.where} (measured)"


def _surely(found: Speedup) -> str:
    """Return a ratio, or the end of its interval that is nearer to 1 where it is wide."""
    low, high = found.low, found.high
    if low is None or high is None or high <= _WIDE * low:
        return ratio_text(found.ratio)
    return f"at least {ratio_text(low)}" if low > 1 else f"at most {ratio_text(high)}"


def timing_text(timing: ShortTiming) -> str:
    """Return times and their ratio with its interval, or why there are none."""
    if timing.speedup is None:
        return f"no: {timing.problem}"
    shapes = {name: shape for name, shape in timing.inputs.items() if shape}
    names = [f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes.items()]
    more = [f"{len(names) - _INPUTS} more"] if len(names) > _INPUTS else []
    times = f"{timing.before_ms:.3f} ms before, {timing.after_ms:.3f} ms after"
    return f"{times}: {timing.ratio_text}; {', '.join([*names[:_INPUTS], *more])}"


def ratio_text(ratio: float) -> str:
    """Return how many times as fast something is: `1.07x`, `2.6x`, `12x`."""
    digits = 2 if ratio < 2 else 1 if ratio < 10 else 0
    return f"{ratio:.{digits}f}x"


def _listed(counts: Counter[str]) -> str:
    """Return names with their counts, the most frequent first."""
    common = counts.most_common()
    names = [f"{name} {count}" if count > 1 else name for name, count in common[:_SHOWN]]
    if len(common) > _SHOWN:
        names.append(f"{len(common) - _SHOWN} more")
    return ", ".join(names)
