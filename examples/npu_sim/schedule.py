"""The scheduler: cuts a product into tiles that fit the local memory, the fastest way it finds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from examples.npu_sim.machine import Machine, Timeline

_BYTES = 4  # float32


@dataclass(frozen=True)
class Work:
    """A convolution of one image, or a matrix product (rows of one pixel, a kernel of one)."""

    channels: int
    depth: int
    """Products that make one output: input channels times kernel height times width."""
    rows: int
    columns: int
    row_bytes: int
    """Of the input that one more row of output needs."""
    halo_bytes: int = 0
    """Of the input that a tile needs beside its rows: what neighbouring tiles read, too."""

    def local_bytes(self, channels: int, rows: int) -> int:
        """Return what a tile needs of the local memory, twice: one is filled meanwhile."""
        weights = channels * self.depth * _BYTES
        outputs = channels * rows * self.columns * _BYTES
        return 2 * (weights + self.input_bytes(rows) + outputs)

    def input_bytes(self, rows: int) -> int:
        """Return what a tile of so many rows reads."""
        return rows * self.row_bytes + self.halo_bytes


@dataclass(frozen=True)
class Tiling:
    """So many channels and rows of the output at a time."""

    channels: int
    rows: int

    def tiles(self, work: Work) -> Iterator[tuple[slice, slice]]:
        """Yield the channels and rows of each tile: rows inside, so that weights stay."""
        for channel in range(0, work.channels, self.channels):
            for row in range(0, work.rows, self.rows):
                yield (
                    slice(channel, min(channel + self.channels, work.channels)),
                    slice(row, min(row + self.rows, work.rows)),
                )


def _sizes(count: int, unit: int) -> list[int]:
    """Return sizes worth trying: all of it, halves of that, and what fills a unit."""
    sizes = [count]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // 2))
    return sorted({*sizes, min(unit, count)})


def choose(machine: Machine, work: Work) -> Tiling:
    """Return the tiling that takes the fewest cycles.

    Raises:
        ValueError: Not even one row of one channel fits the local memory.
    """
    fits = [
        Tiling(channels, rows)
        for channels, rows in itertools.product(
            _sizes(work.channels, machine.columns), _sizes(work.rows, 1)
        )
        if work.local_bytes(channels, rows) <= machine.local_bytes
    ]
    if not fits:
        raise ValueError(f"no tile of {work} fits {machine.local_bytes} bytes")
    return min(fits, key=lambda tiling: cycles(machine, work, tiling))


def cycles(machine: Machine, work: Work, tiling: Tiling) -> int:
    """Return how long a tiling takes on a machine that does nothing else."""
    timeline = Timeline(machine)
    run(timeline, work, tiling, name="")
    return timeline.now


def run(timeline: Timeline, work: Work, tiling: Tiling, *, name: str, after: int = 0) -> int:
    """Put the tiles on the units of a machine; returns the cycle at which the last is done.

    A tile is computed once it is there, and brought while the one before is computed.
    """
    machine, end = timeline.machine, after
    room = [after, after]  # when each half of the local memory is free again
    weights: slice | None = None
    for number, (channels, rows) in enumerate(tiling.tiles(work)):
        height, width = rows.stop - rows.start, channels.stop - channels.start
        size = work.input_bytes(height)
        if channels != weights:
            size += width * work.depth * _BYTES
            weights = channels
        free = room[number % 2]
        loaded = timeline.add("load", name, machine.transfer(size), after=free, size=size)
        pixels = height * work.columns
        computing = machine.product(pixels, width, work.depth)
        done = timeline.add("array", name, computing, after=loaded)
        size = width * pixels * _BYTES
        end = timeline.add("store", name, machine.transfer(size), after=done, size=size)
        room[number % 2] = end
    return end
