"""Whether a model in a lower precision is faster as a whole, interleaved with the float32 one."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ortkit.graph.io.npz import write_npz
from ortkit.runtime.timing.variants import NotTimed, Variant, speedup, time_variants
from ortkit.verify.exchange import read_values

#: Where the noise leaves it open, this part of the time must be saved.
_MUCH = 0.05
#: The part of the time by which one of several choices must be faster than the first.
_LITTLE = 0.02
_SECONDS, _TIMEOUT_SECONDS = 3.0, 300.0


@dataclass(frozen=True)
class WholeTime:
    """Medians of one run of the whole model, in ms."""

    float_ms: float
    lowered_ms: float
    is_slower: bool
    """Whether fewer bits make it slower, beyond the noise."""
    is_faster: bool = True
    """Whether they make it faster: beyond the noise, or by much."""


@dataclass(frozen=True)
class Fastest:
    """Which of several models is the fastest."""

    index: int
    ratios: tuple[float, ...]
    """The time of each, by the first one's: medians of the ratios of turns."""


@dataclass(frozen=True)
class _Timed:
    seconds: tuple[tuple[float, ...], ...]

    @property
    def medians_ms(self) -> list[float]:
        return [1e3 * statistics.median(rounds) for rounds in self.seconds]


def time_whole(
    lowered: Variant, plain: Variant, feeds: Path, folder: Path, threads: int
) -> WholeTime | str:
    """Time both in turns.

    Args:
        lowered: The model in a lower precision.
        plain: The same in float32.
        feeds: Folder of an input set, as `verify.exchange` writes it.
        folder: For files.
        threads: Of a session; 0: ONNX Runtime decides.

    Returns:
        The times, or why there are none.
    """
    found = _timed([lowered, plain], feeds, folder, threads)
    if isinstance(found, str):
        return found
    times = found.medians_ms
    gain = speedup(found.seconds[1], found.seconds[0])
    is_much = times[0] <= (1 - _MUCH) * times[1]
    is_faster = gain.direction == "faster" or (gain.direction != "slower" and is_much)
    return WholeTime(times[1], times[0], gain.direction == "slower", is_faster)


def fastest(variants: Sequence[Variant], feeds: Path, folder: Path, threads: int) -> Fastest | str:
    """Time several models in turns; the first one counts unless another is faster by 2 %.

    A busy machine is slow for whole turns, so that the times of one turn are compared.

    Args:
        variants: The models.
        feeds: Folder of an input set, as `verify.exchange` writes it.
        folder: For files.
        threads: Of a session; 0: ONNX Runtime decides.

    Returns:
        The fastest, or why there are no times.
    """
    found = _timed(variants, feeds, folder, threads)
    if isinstance(found, str):
        return found
    ratios = [
        statistics.median(one / first for one, first in zip(times, found.seconds[0], strict=False))
        for times in found.seconds
    ]
    best = min(range(len(ratios)), key=lambda index: ratios[index])
    return Fastest(best if ratios[best] < 1 - _LITTLE else 0, tuple(ratios))


def _timed(variants: Sequence[Variant], feeds: Path, folder: Path, threads: int) -> _Timed | str:
    values = read_values(feeds)
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    if len(arrays) < len(values) or any(
        array.dtype.kind not in "fiub" for array in arrays.values()
    ):
        return "an input is of a type that an npz file cannot hold"
    folder.mkdir(parents=True, exist_ok=True)
    write_npz(folder / "feeds.npz", arrays)
    found = time_variants(
        variants, [folder / "feeds.npz"], folder, seconds=_SECONDS * len(variants) / 2,
        timeout_seconds=_TIMEOUT_SECONDS, threads=threads,
    )  # fmt: skip
    if isinstance(found, NotTimed):
        return found.reason
    return _Timed(found.seconds)
