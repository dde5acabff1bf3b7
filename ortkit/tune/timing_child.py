"""Kernels timed on a CPU in a process of their own; see `timing_cpu.py`.

All kernels compute the same on the same memory, interleaved, in an order that changes from round
to round, so that what else the machine does hits all alike. The time is taken by code that is
linked with them: a call from Python would take as long as a small kernel.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ortkit.runtime.rounds import interleaved

#: As ONNX Runtime aligns its tensors.
_ALIGNMENT = 64
#: Each byte of outputs before a kernel is run for its results.
POISON = 0xA5
#: Nobody waits for what takes this many times as long as the default, and this many nanoseconds.
_HOPELESS, _SOON = 20.0, 1e8
#: Reductions are summed in another order, so that the last bits differ.
_RELATIVE = {"float64": 1e-10, "float16": 4e-3, "bfloat16": 2e-2}


@dataclass(frozen=True)
class TimedTensor:
    """An input or output."""

    dtype: str
    """numpy's name; "bfloat16" is kept as uint16."""
    shape: tuple[int, ...]
    precision: str = ""
    """The type that values on the way to it are rounded to; empty for its own."""
    terms: int = 0
    """Of the longest sums, where only the kernel's code knows its sums."""


@dataclass(frozen=True)
class CpuTimingJob:
    """Kernels in a library, the first of which is what the others are compared with."""

    library: Path
    units: tuple[int, ...]
    """Of each kernel."""
    inputs: tuple[TimedTensor, ...]
    outputs: tuple[TimedTensor, ...]
    sizes: tuple[int, ...]
    rounds: int
    seconds: float
    """Of one turn."""


@dataclass(frozen=True)
class KernelTimes:
    """By kernel: nanoseconds of a run in each round, and what was wrong, empty if nothing."""

    times: tuple[tuple[float, ...], ...]
    problems: tuple[str, ...]


def time_on_cpu(job: CpuTimingJob) -> KernelTimes:
    """Time the kernels of a library."""
    random = np.random.default_rng(0)
    inputs = [filled(tensor, random) for tensor in job.inputs]
    outputs = [empty(tensor) for tensor in job.outputs]
    tensors = (ctypes.c_void_p * (len(inputs) + len(outputs)))(
        *(array.ctypes.data for array in (*inputs, *outputs))
    )
    sizes = (ctypes.c_int64 * max(1, len(job.sizes)))(*job.sizes)
    run = ctypes.CDLL(str(job.library)).ortkit_time
    run.restype = ctypes.c_int64
    run.argtypes = [ctypes.c_int32, *(ctypes.c_void_p,) * 2, *(ctypes.c_int64,) * 2]
    units, count = job.units, len(job.units)

    def nanoseconds(number: int, runs: int) -> float:
        return float(run(number, tensors, sizes, units[number], runs)) / runs

    def unit(number: int) -> float:
        return float(run(number, tensors, sizes, min(1, units[number]), 1)) * units[number]

    def results(*, reset: bool) -> list[np.ndarray]:
        for array in outputs if reset else ():
            array.view(np.uint8).fill(POISON)
        return [array.copy() for array in outputs]

    def is_same(first: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> bool:
        return all(map(is_equal, job.outputs, first, found))

    return time_kernels(
        count, nanoseconds, results, is_same, job.rounds, job.seconds, random, estimate=unit
    )


def time_kernels(
    count: int,
    nanoseconds: Callable[[int, int], float],
    outputs: Callable[..., list[np.ndarray]],
    is_same: Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], bool],
    rounds: int,
    seconds: float,
    random: np.random.Generator,
    *,
    estimate: Callable[[int], float] = lambda _: 0.0,
) -> KernelTimes:
    """Time kernels interleaved, those that compute what the first one does.

    Args:
        count: Of kernels.
        nanoseconds: Runs a kernel, by its number, some times; returns what one run took.
        outputs: Returns what the last run wrote, after filling it with `POISON` if `reset`.
        is_same: Says whether two results are equal but for rounding.
        rounds: Turns of each.
        seconds: Of one turn; a run that takes longer is a turn.
        random: For the order of turns.
        estimate: Says about how long a run takes, sooner.
    """
    problems = [""] * count
    runs = [1] * count
    first: list[np.ndarray] = []
    most = math.inf
    for number in range(count):
        outputs(reset=True)
        if estimate(number) > most or nanoseconds(number, 1) > most:
            problems[number] = f"it takes more than {_HOPELESS:g} times as long as the default"
            continue
        found = outputs(reset=False)
        first = first or found
        if not is_same(first, found):
            problems[number] = "it computes something else than the default"
            continue
        once = max(1.0, min(nanoseconds(number, 1) for _ in range(3)))
        runs[number] = max(1, int(1e9 * seconds / once))
        most = max(_HOPELESS * once, _SOON) if number == 0 else most
    alive = [number for number in range(count) if not problems[number]]
    turns = [partial(nanoseconds, number, runs[number]) for number in alive]
    elapsed = interleaved(turns, rounds, order=lambda indices, _: random.permutation(indices))
    return times_of(count, alive, elapsed, problems)


def times_of(
    count: int, alive: Sequence[int], elapsed: Sequence[Sequence[float]], problems: Sequence[str]
) -> KernelTimes:
    """Return what those took that were timed, and nothing for the others."""
    times = dict(zip(alive, map(tuple, elapsed), strict=True))
    return KernelTimes(tuple(times.get(number, ()) for number in range(count)), tuple(problems))


def empty(tensor: TimedTensor) -> np.ndarray:
    """Return memory for a tensor, aligned as ONNX Runtime aligns its own."""
    dtype = np.dtype("uint16" if tensor.dtype == "bfloat16" else tensor.dtype)
    size = int(np.prod(tensor.shape, dtype=np.int64)) * dtype.itemsize
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(tensor.shape)


def filled(tensor: TimedTensor, random: np.random.Generator) -> np.ndarray:
    """Return numbers that no operator trips over: between 0.5 and 1, or 0 and 1."""
    array = empty(tensor)
    if tensor.dtype == "bfloat16":
        array[...] = random.uniform(0.5, 1.0, array.shape).astype(np.float32).view(np.uint32) >> 16
    elif array.dtype.kind in "biu":
        array[...] = random.integers(0, 2, array.shape).astype(array.dtype)
    else:
        array[...] = random.uniform(0.5, 1.0, array.shape).astype(array.dtype)
    return array


def is_equal(tensor: TimedTensor, expected: np.ndarray, found: np.ndarray) -> bool:
    """Compare outputs: integers exactly, numbers up to what another order of sums gives."""
    if tensor.dtype == "bfloat16":
        expected, found = (
            (each.astype(np.uint32) << 16).view(np.float32) for each in (expected, found)
        )
    elif expected.dtype.kind not in "fc":
        return bool(np.array_equal(expected, found))
    relative = _RELATIVE.get(tensor.precision or tensor.dtype, 1e-4)
    if found.dtype == np.float32:  # one after another they may each round the wrong way
        of_sums = tensor.terms * float(np.finfo(np.float32).eps)
        relative = max(relative, min(of_sums, 10 * relative))
    return bool(np.isclose(found, expected, relative, relative / 10, equal_nan=True).all())
