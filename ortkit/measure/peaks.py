"""What this machine can do at most: matrix products and copies, by provider and threads.

A few seconds once; the result lies in the cache folder.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

from ortkit.errors import RunError, UserError
from ortkit.kernels.tuning.calibration import machine
from ortkit.runtime.profiling.peaks import CPU, Peaks, load_peaks, save_peaks
from ortkit.runtime.session import Session

#: Sides of square products: the largest rate counts, which a small cache or packing holds down.
_SIDES = {CPU: (256, 512, 1024)}
_DEVICE_SIDES = (2048, 4096)
_TYPES = {CPU: ("float32",)}
_DEVICE_TYPES = ("float32", "float16")
#: Bytes in use; the memory's own rate is that of the last, larger than any cache it may share.
_SIZES = (1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28)
_DEVICE_SIZES = (1 << 22, 1 << 24, 1 << 26, 1 << 28, 1 << 30)
_SECONDS = 0.15
_LEAST_ROUNDS = 3
#: Nodes in a row on a device, so that starting and ending a run takes no part.
_CHAIN = 20
_SMALL_NODES = 200


def peaks_of(
    provider: str, threads: int, progress: Callable[[str], None] | None = None
) -> tuple[Peaks | None, str]:
    """Return the peaks, measured now unless they were before, and what there is to say.

    Args:
        provider: An execution provider's full name.
        threads: Of a run within an operator.
        progress: Called when the measuring begins.
    """
    known = load_peaks(provider, threads, machine())
    if known is not None:
        return known, ""
    if progress is not None:
        progress("measure the machine's peaks")
    try:
        found = measure_peaks(provider, threads)
    except (RunError, UserError) as error:
        return None, f"the machine's peaks are not known: {error.problem}"
    try:
        save_peaks(found)
    except UserError as error:
        return found, str(error)
    return found, ""


def measure_peaks(provider: str, threads: int) -> Peaks:
    """Measure now.

    Raises:
        RunError: ONNX Runtime does not run a product or a copy on it.
        UserError: There is no such provider.
    """
    is_cpu = provider == CPU
    types = _TYPES.get(provider, _DEVICE_TYPES)
    sides = _SIDES.get(provider, _DEVICE_SIDES)
    gflops = {
        dtype: max(_product_rate(provider, threads, dtype, side) for side in sides)
        for dtype in types
    }
    if is_cpu:
        rates = [(size, _copy_rate(size, max(1, threads))) for size in _SIZES]
    else:
        rates = [(size, _device_rate(provider, size)) for size in _DEVICE_SIZES]
    # What much memory can do less can do too: a lower rate there is the overhead's.
    best = np.maximum.accumulate([rate for _, rate in reversed(rates)])[::-1].tolist()
    sizes = [size for size, _ in rates]
    tracing_us = _tracing_us(provider, threads)
    bandwidths = tuple(zip(sizes, best, strict=True))
    return Peaks(provider, threads, machine(), gflops, bandwidths, tracing_us)


def _product_rate(provider: str, threads: int, dtype: str, side: int) -> float:
    """Return GFLOP/s of products with constant weights, as a model's layers are."""
    kind = {"float32": "float", "float16": "float16"}[dtype]
    count = 1 if provider == CPU else _CHAIN
    shape = f"{kind}[{side}, {side}]"
    body = " ".join(f"x{at + 1} = MatMul (x{at}, w)" for at in range(count))
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20]> g ({shape} x0) '
        f"=> ({shape} x{count}) {{ {body} }}"
    )
    weights = np.full((side, side), 1 / side, dtype)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    elapsed = _fastest(model, np.ones((side, side), dtype), provider, threads)
    return 2.0 * side**3 * count / elapsed / 1e9


def _device_rate(provider: str, in_use: int) -> float:
    """Return GB/s read and written by nodes that read one buffer and write another."""
    count = in_use // 8
    body = " ".join(f"x{at + 1} = Neg (x{at})" for at in range(_CHAIN))
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20]> g (float[{count}] x0) '
        f"=> (float[{count}] x{_CHAIN}) {{ {body} }}"
    )
    elapsed = _fastest(model, np.ones(count, np.float32), provider, 0)
    return in_use * _CHAIN / elapsed / 1e9


def _fastest(model: onnx.ModelProto, feed: np.ndarray, provider: str, threads: int) -> float:
    """Return the seconds of the fastest run, inputs and outputs staying where they are."""
    with Session(model, [provider], threads=threads, optimizations="basic") as session:
        binding = session.bind({"x0": feed if provider == CPU else feed.shape})
        return min(_rounds(binding.run))


def _tracing_us(provider: str, threads: int) -> float:
    """Return what a node takes longer for being traced: small nodes, with tracing and without."""
    body = " ".join(f"x{at + 1} = Neg (x{at})" for at in range(_SMALL_NODES))
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 20]> g (float[16] x0) '
        f"=> (float[16] x{_SMALL_NODES}) {{ {body} }}"
    )
    feed = {"x0": np.ones(16, np.float32)}
    with Session(model, [provider], threads=threads, optimizations="basic") as session:
        plain = min(_rounds(lambda: session.run(feed)))
        with session.profile(provenance=False) as recording:
            _rounds(lambda: session.run(feed))
    times = recording.result.run_times
    traced = float("inf") if times is None else float(times.sum(axis=0).min())
    return max(0.0, traced - 1e6 * plain) / _SMALL_NODES


def _rounds(call: Callable[[], Any]) -> list[float]:
    call()
    elapsed: list[float] = []
    until = time.perf_counter() + _SECONDS
    while len(elapsed) < _LEAST_ROUNDS or time.perf_counter() < until:
        started = time.perf_counter()
        call()
        elapsed.append(time.perf_counter() - started)
    return elapsed


def _copy_rate(in_use: int, threads: int) -> float:
    """Return GB/s read and written by threads that copy, each from and to its own memory."""
    count = max(1, in_use // 8 // threads)
    pairs = [(np.ones(count, np.float32), np.empty(count, np.float32)) for _ in range(threads)]
    alone = 8 * count / min(_rounds(lambda: np.copyto(pairs[0][1], pairs[0][0]))) / 1e9
    if threads == 1:
        return alone
    together = _together(pairs)
    # A short copy is over before the other threads have begun; caches are each core's own.
    return max(together, alone)


def _together(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    """Return GB/s of all threads from the first begin to the last end, several copies each."""
    size = 2 * pairs[0][0].nbytes
    repeats = max(1, int(_SECONDS / 4 * 10e9 / (size * len(pairs))))
    best = 0.0
    for _ in range(_LEAST_ROUNDS):
        barrier = threading.Barrier(len(pairs))
        times: list[tuple[float, float]] = []

        def copy(source: np.ndarray, target: np.ndarray, ready: threading.Barrier = barrier,
                 into: list[tuple[float, float]] = times) -> None:  # fmt: skip
            ready.wait()
            started = time.perf_counter()
            for _ in range(repeats):
                np.copyto(target, source)
            into.append((started, time.perf_counter()))

        workers = [threading.Thread(target=copy, args=pair) for pair in pairs]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        elapsed = max(end for _, end in times) - min(begin for begin, _ in times)
        best = max(best, size * repeats * len(pairs) / elapsed / 1e9)
    return best
