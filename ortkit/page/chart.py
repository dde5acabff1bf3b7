"""A chart of bars and lines as one SVG, light or dark as the reader's system asks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#b07aa1", "#edc948")
_HEAD, _LEFT, _RIGHT = 46, 64, 12
_CHARACTER = 6.5
"""Pixels that one takes, nearly."""
_LONGEST = 26
#: More labels than this are written as their number alone.
_MOST_NAMED = 60
#: More labels than this have no tooltip.
_MOST_TOOLTIPS = 2_000
_STYLE = """
.chart { --c-card: #ffffff; --c-ink: #1b1f24; --c-soft: #59626d; --c-edge: #d8dce2;
  font: 12px system-ui, "Segoe UI", "Liberation Sans", Arial, sans-serif; fill: var(--c-ink); }
@media (prefers-color-scheme: dark) {
  .chart { --c-card: #14171b; --c-ink: #e6e8eb; --c-soft: #a3abb5; --c-edge: #363c44; } }
:root[data-theme] .chart { --c-card: var(--card); --c-ink: var(--ink); --c-soft: var(--soft);
  --c-edge: var(--edge); }
.chart .card { fill: var(--c-card); } .chart .title { font-weight: 600; font-size: 14px; }
.chart .soft { fill: var(--c-soft); } .chart .grid { stroke: var(--c-edge); }
.chart .level { stroke: var(--c-soft); stroke-dasharray: 4 4; }
.chart .middle { text-anchor: middle; } .chart .end { text-anchor: end; }
.chart .line { fill: none; stroke-width: 1.8; } .chart .tooltip { fill: transparent; }
"""


@dataclass(frozen=True)
class Series:
    """Values of one name, one for each label; None where there is none.

    What is infinite or no number is in the tooltip and not drawn, what is negative is drawn as 0.
    """

    name: str
    values: Sequence[float | None]
    kind: Literal["bars", "line", "steps", "points"] = "bars"

    @property
    def drawn(self) -> list[float | None]:
        """The values as they are drawn."""
        return [
            max(0.0, value) if value is not None and math.isfinite(value) else None
            for value in self.values
        ]


@dataclass(frozen=True)
class Chart:
    """Series over the same labels."""

    title: str
    unit: str
    """What is along the upright axis."""
    labels: Sequence[str]
    series: Sequence[Series]
    across: str = ""
    """What is along the other."""
    stacked: bool = False
    """Bars stand on each other, not beside each other."""
    level: tuple[str, float] | None = None
    """A line across, and what it is."""
    note: str = ""
    """Below the chart: date, machine, versions."""
    digits: int | None = None
    """Digits after the point of values above their bars; None: they have none."""
    tooltip: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    """More values, which the tooltip of a label shows."""
    size: tuple[int, int] = (900, 360)


def draw_chart(chart: Chart) -> str:
    """Return a chart as SVG.

    Raises:
        ValueError: It has no label, or a series has another number of values.
    """
    if not chart.labels or any(len(series.values) != len(chart.labels) for series in chart.series):
        raise ValueError("a chart needs one value for each label")
    width, height = chart.size
    parts = "\n".join(_Drawing(chart).parts())
    return (
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" role="img" aria-label="{escape(chart.title)}">\n'
        f"<style>{_STYLE}</style>\n{parts}\n</svg>\n"
    )


def round_ticks(most: float, count: int = 5) -> list[float]:
    """Return round numbers from 0 up to the first that is not below `most`, about `count`."""
    rough = most / count if most > 0 else 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * item for item in (1, 2, 2.5, 5, 10) if power * item >= rough * (1 - 1e-9))
    return [step * at for at in range(math.ceil(most / step - 1e-9) + 1)]


class _Drawing:
    """One chart with its scales."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart
        width, height = chart.size
        self.right = width - _RIGHT
        self.step = (self.right - _LEFT) / len(chart.labels)
        longest = max(map(len, chart.labels))
        self.is_turned = len(chart.labels) <= _MOST_NAMED and longest * _CHARACTER > self.step - 3
        below = 16 + 0.87 * _CHARACTER * min(longest, _LONGEST) if self.is_turned else 20
        self.bottom = height - below - 18 * bool(chart.across) - 18 * bool(chart.note)
        self.ticks = round_ticks(self._most())

    def _most(self) -> float:
        chart = self.chart
        bars = [series.drawn for series in chart.series if series.kind == "bars"]
        tops = [value or 0.0 for item in chart.series for value in item.drawn]
        if chart.stacked:
            tops += [sum(value or 0.0 for value in each) for each in zip(*bars, strict=True)]
        tops += [chart.level[1]] if chart.level else []
        return max(tops, default=0.0)

    def y(self, value: float) -> float:
        return self.bottom - value / self.ticks[-1] * (self.bottom - _HEAD - 12)

    def x(self, index: int) -> float:
        """Return the middle of a position on the axis."""
        return _LEFT + (index + 0.5) * self.step

    def parts(self) -> Iterator[str]:
        """Yield all elements, back to front."""
        chart = self.chart
        width, height = chart.size
        yield f'<rect class="card" width="{width}" height="{height}"/>'
        yield _text(_LEFT - 40, 18, chart.title, "title")
        yield from self._axes()
        yield from self._legend()
        bars = [at for at, item in enumerate(chart.series) if item.kind == "bars"]
        yield from self._stacks(bars) if chart.stacked else self._groups(bars)
        for at, series in enumerate(chart.series):
            if series.kind != "bars":
                yield from self._line(series, _COLOURS[at % len(_COLOURS)])
        if chart.level:
            name, value = chart.level
            yield _path(f"M{_LEFT} {self.y(value):.1f}H{self.right}", "level")
            yield _text(self.right, self.y(value) - 4, name, "soft end")
        if len(chart.labels) <= _MOST_TOOLTIPS:
            yield from map(self._tooltip, range(len(chart.labels)))
        if chart.note:
            yield _text(_LEFT - 40, height - 6, chart.note, "soft")

    def _axes(self) -> Iterator[str]:
        chart = self.chart
        for tick in self.ticks:
            yield _path(f"M{_LEFT} {self.y(tick):.1f}H{self.right}", "grid")
            yield _text(_LEFT - 6, self.y(tick) + 4, f"{tick:,.4g}", "soft end")
        turned = f'transform="rotate(-90 14 {(self.bottom + _HEAD) / 2:.1f})"'
        yield _text(14, (self.bottom + _HEAD) / 2, chart.unit, "soft middle", turned)
        every = 1 if self.is_turned else self._every()
        for at in range(0, len(chart.labels), every):
            name, x, y = _short(chart.labels[at]), self.x(at), self.bottom + 16
            if self.is_turned:
                turn = f'transform="rotate(-60 {x:.1f} {y:.1f})"'
                yield _text(x + 4, y, name, "end", turn)
            else:
                yield _text(x, y, name, "middle")
        if chart.across:
            down = chart.size[1] - 6 - 18 * bool(chart.note)
            yield _text((_LEFT + self.right) / 2, down, chart.across, "soft middle")

    def _every(self) -> int:
        """Return how many labels each name that is written stands for."""
        needed = min(max(map(len, self.chart.labels)), _LONGEST) * _CHARACTER + 3
        return max(1, math.ceil(needed / self.step))

    def _legend(self) -> Iterator[str]:
        x = float(_LEFT)
        for at, series in enumerate(self.chart.series if len(self.chart.series) > 1 else ()):
            yield _rect(x, 28, 10, 10, _COLOURS[at % len(_COLOURS)])
            yield _text(x + 15, 37, series.name, "soft")
            x += 15 + _CHARACTER * len(series.name) + 36

    def _groups(self, bars: Sequence[int]) -> Iterator[str]:
        each = 0.78 * self.step / max(1, len(bars))
        for nth, at in enumerate(bars):
            for index, value in enumerate(self.chart.series[at].drawn):
                if value is None:
                    continue
                x = self.x(index) - 0.39 * self.step + nth * each
                yield self._bar(x, each - 1, 0.0, value, at)
                if self.chart.digits is not None:
                    text = f"{value:.{self.chart.digits}f}"
                    yield _text(x + each / 2 - 0.5, self.y(value) - 4, text, "middle")

    def _stacks(self, bars: Sequence[int]) -> Iterator[str]:
        for index in range(len(self.chart.labels)):
            base = 0.0
            for at in bars:
                value = self.chart.series[at].drawn[index] or 0.0
                x = self.x(index) - 0.3 * self.step
                yield self._bar(x, 0.6 * self.step, base, base + value, at)
                base += value

    def _bar(self, x: float, width: float, low: float, high: float, series: int) -> str:
        top = self.y(high)
        return _rect(x, top, width, self.y(low) - top, _COLOURS[series % len(_COLOURS)])

    def _line(self, series: Series, colour: str) -> Iterator[str]:
        points = [
            (self.x(at), self.y(value))
            for at, value in enumerate(series.drawn)
            if value is not None
        ]
        join: Callable[[float, float], str] = (
            (lambda x, y: f"H{x:.1f}V{y:.1f}")
            if series.kind == "steps"
            else (lambda x, y: f"L{x:.1f} {y:.1f}")
        )
        if points and series.kind != "points":
            (x, y), *rest = points
            path = f"M{x:.1f} {y:.1f}" + "".join(join(*item) for item in rest)
            yield f'<path class="line" stroke="{colour}" d="{path}"/>'
        if series.kind != "steps":
            radius = 6 if series.kind == "points" else 3
            yield from (
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}"/>'
                for x, y in points
            )

    def _tooltip(self, index: int) -> str:
        """Return what the tooltip of a position shows."""
        named = {series.name: series.values for series in self.chart.series} | dict(
            self.chart.tooltip
        )
        values = [
            f"{name}: {value:,.4g}"
            for name, of in named.items()
            if (value := of[index]) is not None
        ]
        tooltip = escape("\n".join([self.chart.labels[index], *values]))
        x, height = _LEFT + index * self.step, self.bottom - _HEAD
        return (
            f'<rect class="tooltip" x="{x:.1f}" y="{_HEAD}" width="{self.step:.2f}" '
            f'height="{height:.1f}"><title>{tooltip}</title></rect>'
        )


def _short(name: str) -> str:
    """Cut a name in its middle: names differ at their ends."""
    return name if len(name) <= _LONGEST else f"{name[:8]}…{name[9 - _LONGEST :]}"


def _text(x: float, y: float, text: str, kind: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" {more}>{escape(text)}</text>'


def _path(path: str, kind: str) -> str:
    return f'<path class="{kind}" d="{path}"/>'


def _rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" width="{max(0.5, width):.1f}" height="{height:.1f}"'
    return f'<rect {where} fill="{colour}"/>'
