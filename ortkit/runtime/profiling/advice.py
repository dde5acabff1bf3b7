"""What to do about what takes most of the time, with the most that each can give.

Each piece of advice is drawn from numbers of the profile and names them. A gain is a bound, not
a forecast: what the nodes concerned take now, less what the machine's peaks allow at best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ortkit.operators import where
from ortkit.runtime.heavy import HEAVY
from ortkit.runtime.profiling.products import REASONS, waiting, why_slow
from ortkit.runtime.profiling.providers import ASYNCHRONOUS
from ortkit.runtime.profiling.result import Profile, Row
from ortkit.text import plural

MOST = 5
#: Part of a run below which nothing is said.
LEAST_GAIN = 0.01
_CPU = "CPUExecutionProvider"
#: Gather and its like are none of them: a table that is looked up in has to be read.
_MOVES = where(moves_only=True, indexed=False) | {"Cast", "Pad"}
_REORDERS = frozenset({"ReorderInput", "ReorderOutput"})
_COPIES = frozenset({"MemcpyFromHost", "MemcpyToHost"})
#: Tensors of up to this many integers are sizes and indices, not data.
_SMALL = 64
_INTEGERS = frozenset({"int64", "int32", "bool"})


@dataclass(frozen=True)
class Advice:
    """One thing that may be done, with the numbers that speak for it."""

    title: str
    detail: str
    """What was seen, with its numbers, and what to do."""
    rows: tuple[int, ...]
    """The nodes concerned, as indices of `Profile.rows`; none: the run as a whole."""
    gain_us: float
    """What a run gains at most."""


def advice_on(profile: Profile, most: int = MOST) -> tuple[Advice, ...]:
    """Return what may be done, the largest gain first."""
    if not profile.rows:
        return ()
    found = _Adviser(profile).all()
    least = LEAST_GAIN * profile.overall.run_us
    worth = [advice for advice in found if advice.gain_us >= least]
    return tuple(sorted(worth, key=lambda one: -one.gain_us)[:most])


class _Adviser:
    """One call of `advice_on`: no node is counted in two pieces of advice of its kind."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.rows = profile.rows
        self.run_us = profile.overall.run_us
        self.tracing_us = profile.tracing_us()
        self.taken: set[int] = set()

    def all(self) -> Iterator[Advice]:
        yield from self._copies_between_devices()
        yield from self._reorders()
        yield from self._regions()
        yield from self._sizes()
        yield from self._moves()
        yield from self._products()
        yield from self._gaps()

    # ---- kinds -------------------------------------------------------------------------

    def _copies_between_devices(self) -> Iterator[Advice]:
        devices = {row.provider for row in self.rows if row.provider in ASYNCHRONOUS}
        if not devices:
            return
        copies = self._take(lambda row: row.op in _COPIES)
        on_cpu = self._take(lambda row: row.provider == _CPU and row.op not in _COPIES)
        if copies:
            yield self._advice(
                "copies between CPU and device",
                f"{plural(len(copies), 'node')} for copies of tensors, {self._us(copies)}: keep "
                f"their neighbours on one device; see which nodes are where with `ortkit run`",
                copies,
            )
        if on_cpu:
            ops = self._ops(on_cpu)
            yield self._advice(
                "nodes on the CPU between those of the device",
                f"{plural(len(on_cpu), 'node')}, {self._us(on_cpu)} ({ops}): the device waits for "
                f"what they compute; fixed sizes{self._made('', ' (`ortkit optimize`)')} often "
                f"leave none",
                on_cpu,
            )

    def _reorders(self) -> Iterator[Advice]:
        rows = self._take(lambda row: _is_timed(row) and row.op in _REORDERS)
        if rows:
            yield self._advice(
                "data transposed between layouts",
                f"{plural(len(rows), 'node')} for blocks of channels and back, {self._us(rows)}, "
                f"around nodes that ONNX Runtime has in one layout only"
                + self._made(
                    "",
                    ": `ortkit optimize` keeps one layout through such blocks where that is "
                    "faster",
                ),
                rows,
            )

    def _regions(self) -> Iterator[Advice]:
        """Neighbours that wait for memory more than once."""
        regions: dict[int, list[int]] = {}
        for at, row in enumerate(self.rows):
            if row.region is not None and at not in self.taken and _is_timed(row):
                regions.setdefault(row.region, []).append(at)
        peaks = self.profile.peaks
        chosen: list[int] = []
        now = least = moved = 0.0
        for number, rows in regions.items():
            if len(rows) < 2 or any(self.rows[at].work.bound == "arithmetic" for at in rows):
                continue
            size = self.profile.regions.get(number, 0)
            chosen += rows
            now += sum(map(self._row_us, rows))
            least += 0.0 if peaks is None else peaks.move_us(size)
            moved += sum(self.rows[at].work.bytes_moved or 0 for at in rows)
        if not chosen:
            return
        self.taken.update(chosen)
        rate = moved / now / 1e3 if now else 0.0
        bound = ""
        if peaks is not None:
            part = sum(self.rows[at].work.least_us or 0.0 for at in chosen) / now if now else 0.0
            bound = f", {part:.0%} of what memory allows node by node"
        yield self._advice(
            "neighbours that one kernel could compute",
            f"{plural(len(chosen), 'node')} in {plural(len(regions), 'group')} "
            f"({self._ops(chosen)}) take {self._us(chosen)} at {rate:.1f} GB/s{bound}; "
            f"together they would move less: "
            + self._made(
                "`--why` of the call that made this model says why ortkit left them",
                "`ortkit optimize` makes one kernel of such a group, `--why` says why not",
            ),
            chosen,
            gain=now - least,
        )

    def _sizes(self) -> Iterator[Advice]:
        rows = self._take(lambda row: _is_timed(row) and _computes_sizes(row))
        if len(rows) > 1:
            yield self._advice(
                "nodes that compute sizes",
                f"{plural(len(rows), 'node')} for sizes and indices of at most {_SMALL} integers, "
                f"{self._us(rows)} ({self._ops(rows)}): "
                + self._made(
                    "with fixed sizes they are constants",
                    "`ortkit optimize` folds those that follow from fixed sizes",
                ),
                rows,
            )

    def _moves(self) -> Iterator[Advice]:
        by_op: dict[str, list[int]] = {}
        for at in self._take(lambda row: _is_timed(row) and row.op in _MOVES):
            by_op.setdefault(self.rows[at].op, []).append(at)
        for op, rows in by_op.items():
            yield self._advice(
                f"{op}: nodes that only move data",
                f"{plural(len(rows), 'node')}, {self._us(rows)}: computing none, they go where a "
                f"neighbour can read the data as it lies; "
                + self._made(
                    "ortkit found none for these",
                    "`ortkit optimize` removes and merges those for which it can",
                ),
                rows,
            )

    def _products(self) -> Iterator[Advice]:
        """Heavy operators far below the machine's rate, by what the numbers say of them."""
        groups: dict[tuple[str, str], list[int]] = {}
        threads = self.profile.about.threads or 1
        for at, row in enumerate(self.rows):
            reason = why_slow(row, threads) if row.op in HEAVY else None
            if reason is not None:
                groups.setdefault((row.op, reason), []).append(at)
        for (op, reason), rows in groups.items():
            now = sum(map(self._row_us, rows))
            least = sum(self.rows[at].work.least_us or 0.0 for at in rows)
            attained = least / now if now else 0.0
            seen = f"{plural(len(rows), 'node')}, {self._us(rows)}, at {attained:.0%} of the peak"
            gain = now - least
            if reason == "waits":
                waits = sum(self._row_us(at) * waiting(self.rows[at]) for at in rows)
                gain = waits
                seen += f", {waits / now:.0%} of it waiting for the slowest thread"
            yield self._advice(f"{op}: {REASONS[reason][0]}", f"{seen}: {REASONS[reason][1]}",
                               rows, gain=gain)  # fmt: skip

    def _gaps(self) -> Iterator[Advice]:
        overall = self.profile.overall
        calls = sum(row.calls for row in self.rows)
        if overall.plain is None or not calls:
            return
        # Of the fastest runs, which other processes disturbed least.
        plain = overall.plain.least_us
        if overall.device_us is not None:
            idle = plain - overall.device_us
            yield Advice(
                "the device waits for the host",
                f"the fastest run takes {plain:,.0f} µs, and the device works in "
                f"{overall.device_us:,.0f} µs of a run: `Session(..., cuda_graph=True)` launches "
                f"all at once{self._made('', ', fewer nodes (`ortkit optimize`) launch less')}",
                (),
                idle,
            )
            return
        # Never more than what lies between the nodes of traced runs: tracing only adds to it.
        nodes = max(0.0, overall.least_covered_us - self.tracing_us * calls)
        idle = min(plain - nodes, overall.gaps_us + overall.outside_us)
        if idle > 0:
            yield Advice(
                "time outside of nodes",
                f"the fastest run without tracing takes {plain:,.0f} µs, {nodes:,.0f} µs of it in "
                f"{calls:,.0f} calls of nodes: {idle / calls:.2f} µs for each call; "
                f"{self._made('', 'fewer nodes (`ortkit optimize`) and ')}"
                f"memory bound once (`session.bind`) takes less",
                (),
                idle,
            )

    # ---- details -----------------------------------------------------------------------

    def _made(self, by_ortkit: str, otherwise: str) -> str:
        """Choose a text: `ortkit optimize` is no advice for a model that came out of it."""
        return by_ortkit if self.profile.about.made_by_ortkit else otherwise

    def _take(self, wanted: Callable[[Row], bool]) -> list[int]:
        found = [at for at, row in enumerate(self.rows) if at not in self.taken and wanted(row)]
        self.taken.update(found)
        return found

    def _row_us(self, at: int) -> float:
        """Return what a node takes in a run, without what tracing adds."""
        row = self.rows[at]
        if row.provider in ASYNCHRONOUS and row.device_us is not None:
            return row.device_us
        return max(0.0, row.own_us - self.tracing_us * row.calls)

    def _us(self, rows: Iterable[int]) -> str:
        elapsed = sum(map(self._row_us, rows))
        return f"{elapsed:,.0f} µs ({elapsed / self.run_us:.1%} of a run)"

    def _ops(self, rows: Sequence[int]) -> str:
        elapsed: dict[str, float] = {}
        for at in rows:
            op = self.rows[at].op
            elapsed[op] = elapsed.get(op, 0.0) + self._row_us(at)
        ordered = sorted(elapsed, key=lambda op: -elapsed[op])
        return ", ".join(ordered[:4]) + (", ..." if len(ordered) > 4 else "")

    def _advice(
        self, title: str, detail: str, rows: Sequence[int], *, gain: float | None = None
    ) -> Advice:
        elapsed = sum(map(self._row_us, rows)) if gain is None else gain
        return Advice(title, detail, tuple(rows), min(elapsed, self.run_us))


def _is_timed(row: Row) -> bool:
    """Say whether it is known how long the work took, and not only how long launching it."""
    return row.provider not in ASYNCHRONOUS or row.device_us is not None


def _computes_sizes(row: Row) -> bool:
    tensors = row.outputs
    return bool(tensors) and all(
        dtype in _INTEGERS and math.prod(dims) <= _SMALL for dtype, dims in tensors
    )
