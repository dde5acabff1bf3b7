"""What `ortkit optimize --precision` shows of a lower precision on a CPU."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ortkit.cli import show

if TYPE_CHECKING:
    from ortkit.precision.result import PrecisionReport

#: Points of the curve that are shown; `--json` and `--report` have all.
_POINTS = 8


def show_precision(report: PrecisionReport) -> None:
    """Print the forms, the trade-off and how far the outputs are off."""
    total = max(len(report.nodes), *(point.lowered for point in report.curve), 0)
    forms = Counter((node.op, node.form, node.reason or "lowered") for node in report.nodes)
    if forms:
        rows = [(*what, count) for what, count in forms.most_common()]
        show.table("", ("product", "as", "became", "times"), rows)
    if len(report.curve) > 1:
        step = max(1, (len(report.curve) - 1) // (_POINTS - 1))
        points = [*report.curve[:-1][::step], report.curve[-1]]
        rows_of_curve = [
            (
                f"{point.lowered} of {total}" + (" ← taken" if _is_chosen(point, report) else ""),
                f"{point.error:.2e}",
                None if point.saved_us is None else point.saved_us / 1e3,
            )
            for point in points
        ]
        show.table("", ("lowered", "error", "saved, ms"), rows_of_curve)
    if report.outputs:
        rows_of_outputs = [
            (
                output.name, f"{output.error:.2e}", f"{output.relative_error:.2e}",
                f"{output.worst_row:.2e}",
                f"{output.cosine:.6f}", "" if output.top1 is None else f"{output.top1:.1%}",
            )
            for output in report.outputs
        ]  # fmt: skip
        columns = ("output", "error", "relative", "worst row", "cosine", "top-1 agreement")
        show.table("", columns, rows_of_outputs)
    show.line(_summary(report))
    if (time := report.time) is not None:
        show.line(
            f"measured  {time.float_ms:.3f} ms in float32, {time.lowered_ms:.3f} ms: "
            f"{time.float_ms / time.lowered_ms:.2f} times as fast"
        )
    for text in report.notes:
        show.note(f"note      {text}")
    if report.is_random:
        show.note("note      judged on random inputs: give real ones with --inputs or --calibrate")


def _is_chosen(point: object, report: PrecisionReport) -> bool:
    return getattr(point, "lowered", None) == report.taken


def _summary(report: PrecisionReport) -> str:
    text = f"precision {report.lowered} of {len(report.nodes)} products in {report.precision}"
    rounded = sum(node.lowered and node.form == "bf16" for node in report.nodes)
    if rounded and report.precision != "bf16":
        text += f", {rounded} of them in bf16"
    if report.error is None:
        return text
    return f"{text}; error {report.error:.2e} of {report.max_error:g} allowed, on {report.data}"
