"""What `scripts/bench cpu` measured: ratios, what is left to the ceiling, geometric means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median

from scripts.benches import output
from scripts.benches.pairs import Ratio, closed_part, geometric_mean, ratio_of_medians

BASE = "original"
OURS = "with kernels"
#: Surely slower: the interval's upper end is below.
_SLOWER = 0.98


@dataclass(frozen=True)
class Row:
    """One model in one setting."""

    model: str
    batch: int
    threads: int
    times: Mapping[str, Sequence[Sequence[float]]]
    """Seconds by variant, process and turn."""
    errors: Mapping[str, float] = field(default_factory=dict)
    """Largest output error by variant, against the original."""
    problems: Mapping[str, str] = field(default_factory=dict)
    ceiling: float | None = None
    problem: str = ""

    @staticmethod
    def failed(model: str, problem: str) -> Row:
        """Return a model that could not be measured."""
        return Row(model, 0, 0, {}, problem=problem)

    @property
    def label(self) -> str:
        """The model and its setting."""
        return f"{self.model} b{self.batch} t{self.threads}"

    def ratio(self, variant: str) -> Ratio:
        """Return how many times as fast as the original a variant is."""
        return ratio_of_medians(self.times[BASE], self.times[variant])

    def to_json(self) -> dict[str, object]:
        """Return the fields, and the ratios."""
        ratios = {name: asdict(self.ratio(name)) for name in self.times if name != BASE}
        return {**asdict(self), "ratios": ratios}


def show(rows: Sequence[Row]) -> None:
    """Print the tables."""
    good = [row for row in rows if not row.problem]
    cells = [line for row in good for line in _lines(row)]
    output.table(
        "Whole models, fp32: how many times as fast as the original in ONNX Runtime",
        ("model", "variant", "ms", "min ms", "ratio [95 %]", "ceiling", "closed", "error"),
        cells,
    )
    for row in rows:
        for name, problem in row.problems.items():
            print(f"  {row.label}: {name}: {problem}")
        if row.problem:
            print(f"  {row.model}: {row.problem}")
    if good:
        _summary(good)


def _lines(row: Row) -> list[list[output.Cell]]:
    lines: list[list[output.Cell]] = []
    for name, times in row.times.items():
        seconds = [item for process in times for item in process]
        found = None if name == BASE else row.ratio(name)
        closed = None
        if name == OURS and found is not None and row.ceiling is not None:
            closed = closed_part(found.value, row.ceiling)
        lines.append(
            [
                row.label,
                name,
                f"{1e3 * median(seconds):.2f}",
                f"{1e3 * min(seconds):.2f}",
                found.text() if found else None,
                row.ceiling if name == BASE else None,
                None if closed is None else f"{closed:.0%}",
                None if name not in row.errors else f"{row.errors[name]:.1e}",
            ]
        )
    return lines


def _summary(rows: Sequence[Row]) -> None:
    """Print means over models for each setting, and what is surely slower."""
    settings = sorted({(row.batch, row.threads) for row in rows})
    variants = list(dict.fromkeys(name for row in rows for name in row.times if name != BASE))
    cells: list[list[output.Cell]] = []
    for batch, threads in settings:
        these = [row for row in rows if (row.batch, row.threads) == (batch, threads)]
        line: list[output.Cell] = [f"batch {batch}, {threads} thread(s), {len(these)} models"]
        for name in variants:
            ratios = [row.ratio(name).value for row in these if name in row.times]
            line.append(f"{geometric_mean(ratios):.3f}" if ratios else None)
        ceilings = [row.ceiling for row in these if row.ceiling is not None]
        line.append(f"{geometric_mean(ceilings):.3f}" if ceilings else None)
        line.append(_ahead(these))
        cells.append(line)
    header = ("geometric mean", *variants, "ceiling", "ahead of openvino")
    output.table("Means over models", header, cells)
    slower = [
        f"{row.label} {name} {row.ratio(name).text()}"
        for row in rows
        for name in row.times
        if name in (OURS, "level 2") and row.ratio(name).high < _SLOWER
    ]
    print(f"  surely below {_SLOWER}: {', '.join(slower) or 'none'}")


def _ahead(rows: Sequence[Row]) -> str | None:
    both = [row for row in rows if "openvino" in row.times and OURS in row.times]
    if not both:
        return None
    ahead = sum(ratio_of_medians(row.times["openvino"], row.times[OURS]).value > 1 for row in both)
    return f"{ahead} of {len(both)}"
