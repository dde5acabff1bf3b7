"""Kernels timed on a GPU in a process of their own; see `timing_cuda.py`.

Through CUDA's driver interface alone, so that nothing has to be installed in addition to the
driver. All kernels compute the same on the same memory, interleaved, in an order that changes from
round to round. Each turn begins with a fill of more memory than the L2 cache holds, so that
kernels find it cold; events of the GPU around the launches take the time. Source: CUDA driver API
12 (docs.nvidia.com/cuda/cuda-driver-api).
"""

from __future__ import annotations

import ctypes
import fcntl
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ortkit.runtime.rounds import interleaved
from ortkit.tune.timing_child import KernelTimes, TimedTensor, empty, filled, is_equal, times_of

_SUCCESS, _OUT_OF_MEMORY = 0, 2
_L2_BYTES, _MAJOR, _MINOR = 38, 75, 76  # CU_DEVICE_ATTRIBUTE_...
_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_WARM_UPS = 2


@dataclass(frozen=True)
class Gpu:
    """The GPU that kernels are timed on: the first one that CUDA shows."""

    name: str
    architecture: int
    """Major * 10 + minor."""

    @property
    def level(self) -> str:
        """Its own images, as targets name them."""
        return f"sm_{self.architecture}"


@dataclass(frozen=True)
class CudaLaunch:
    """One step of a kernel."""

    image: Path
    """A cubin or PTX."""
    entry: str
    grid: tuple[int, ...]
    threads: int
    shared: int
    arguments: tuple[tuple[str, int], ...]
    """"tensor" or "scratch" and its place; "size32", "size64", "null"."""


@dataclass(frozen=True)
class CudaTimingJob:
    """Kernels, the first of which is what the others are compared with."""

    kernels: tuple[tuple[CudaLaunch, ...], ...]
    scratch: tuple[tuple[int, ...], ...]
    """Bytes of each block of each kernel."""
    inputs: tuple[TimedTensor, ...]
    outputs: tuple[TimedTensor, ...]
    rounds: int
    seconds: float
    """When to stop, after one round at least."""
    lock: Path
    """Whoever has it locked times on this GPU."""
    device: int = 0


def gpu_here(device: int) -> Gpu:
    """Say which GPU there is."""
    cuda = _Cuda(device)
    return Gpu(cuda.name, cuda.architecture)


def time_on_cuda(job: CudaTimingJob) -> KernelTimes:
    """Time kernels while no other process does on this GPU."""
    cuda = _Cuda(job.device)
    cuda.open()
    with job.lock.open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _timed_alone(cuda, job)


class _Cuda:
    """One GPU and its calls, which raise where they fail."""

    def __init__(self, device: int) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        number = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(number), device)
        self.number = number
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, 256, number)
        self.name = name.value.decode()
        self.architecture = 10 * self.attribute(_MAJOR) + self.attribute(_MINOR)

    def open(self) -> None:
        """Make the GPU's memory and streams those of this process."""
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.number)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.library, name)(*arguments)
        if status != _SUCCESS:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(status, ctypes.byref(text))
            raise RuntimeError(f"{name} failed: {(text.value or b'?').decode()}")

    def attribute(self, which: int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), which, self.number)
        return value.value

    def memory(self, size: int) -> int:
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(16, size)))
        return pointer.value

    def event(self) -> ctypes.c_void_p:
        found = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(found), 0)
        return found


class _Step:
    """One launch, ready to be called."""

    def __init__(
        self, cuda: _Cuda, step: CudaLaunch, tensors: list[int], scratch: list[int]
    ) -> None:
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        image = step.image.read_bytes()
        cuda.call("cuModuleLoadData", ctypes.byref(module), image)
        entry = step.entry.encode()
        cuda.call("cuModuleGetFunction", ctypes.byref(self.function), module, entry)
        if step.shared > 48 << 10:
            size = ctypes.c_int(step.shared)
            cuda.call("cuFuncSetAttribute", self.function, _SHARED_BYTES, size)
        self.cuda, self.step = cuda, step
        indices = {"tensor": tensors, "scratch": scratch}
        self.values: list[Any] = []
        for kind, value in [*step.arguments, ("null", 0), ("null", 0)]:
            if kind in indices:
                self.values.append(ctypes.c_uint64(indices[kind][value]))
            elif kind == "size32":
                self.values.append(ctypes.c_int32(value))
            else:
                self.values.append(ctypes.c_int64(value))
        addresses = (ctypes.addressof(value) for value in self.values)
        self.parameters = (ctypes.c_void_p * len(self.values))(*addresses)

    def launch(self) -> None:
        grid = self.step.grid
        if 0 in grid:
            return
        self.cuda.call(
            "cuLaunchKernel", self.function, *grid, self.step.threads, 1, 1,
            self.step.shared, None, self.parameters, None,
        )  # fmt: skip


def _timed_alone(cuda: _Cuda, job: CudaTimingJob) -> KernelTimes:
    random = np.random.default_rng(0)
    inputs = [filled(tensor, random) for tensor in job.inputs]
    outputs = [empty(tensor) for tensor in job.outputs]
    tensors = [cuda.memory(array.nbytes) for array in (*inputs, *outputs)]
    for pointer, array in zip(tensors, inputs, strict=False):
        _copy(cuda, "cuMemcpyHtoD_v2", pointer, array)
    count = len(job.kernels)
    problems, kernels = [""] * count, list[list[_Step]]()
    first: list[np.ndarray] = []
    for number, (steps, sizes) in enumerate(zip(job.kernels, job.scratch, strict=True)):
        try:
            scratch = [cuda.memory(size) for size in sizes]
            kernels.append([_Step(cuda, step, tensors, scratch) for step in steps])
            found = _computed(cuda, kernels[-1], outputs, tensors[len(inputs) :])
        except RuntimeError as error:
            if not number or "ILLEGAL" in str(error) or "LAUNCH_FAILED" in str(error):
                raise  # nothing else can run in this process
            kernels = [*kernels[:number], []]
            problems[number] = str(error)
            continue
        first = first or found
        if not all(map(is_equal, job.outputs, first, found)):
            problems[number] = "it computes something else than the default"
    alive = [number for number in range(count) if not problems[number]]
    cold = _Cold(cuda)
    turns = [partial(cold.nanoseconds, kernels[number]) for number in alive]
    for turn in turns * _WARM_UPS:
        turn()
    elapsed = interleaved(
        turns, job.rounds, order=lambda indices, _: random.permutation(indices),
        until=time.perf_counter() + job.seconds,
    )  # fmt: skip
    return times_of(count, alive, elapsed, problems)


class _Cold:
    """Times launches that find nothing of their tensors in the L2 cache."""

    def __init__(self, cuda: _Cuda) -> None:
        self.cuda = cuda
        self.size = max(32 << 20, 2 * cuda.attribute(_L2_BYTES))
        self.memory = cuda.memory(self.size)
        self.begin, self.end = cuda.event(), cuda.event()

    def nanoseconds(self, steps: list[_Step]) -> float:
        cuda = self.cuda
        # The fill takes longer than it takes the host to launch what comes after it.
        words = ctypes.c_size_t(self.size // 4)
        cuda.call("cuMemsetD32Async", ctypes.c_uint64(self.memory), 0, words, None)
        cuda.call("cuEventRecord", self.begin, None)
        for step in steps:
            step.launch()
        cuda.call("cuEventRecord", self.end, None)
        cuda.call("cuEventSynchronize", self.end)
        elapsed = ctypes.c_float()
        cuda.call("cuEventElapsedTime", ctypes.byref(elapsed), self.begin, self.end)
        return max(1.0, 1e6 * elapsed.value)


def _computed(
    cuda: _Cuda, steps: list[_Step], outputs: list[np.ndarray], pointers: list[int]
) -> list[np.ndarray]:
    """Run a kernel once on outputs that hold something else, and return what they hold then."""
    for pointer, array in zip(pointers, outputs, strict=True):
        size = ctypes.c_size_t(array.nbytes)
        cuda.call("cuMemsetD8Async", ctypes.c_uint64(pointer), ctypes.c_ubyte(0xA5), size, None)
    for step in steps:
        step.launch()
    cuda.call("cuCtxSynchronize")
    for pointer, array in zip(pointers, outputs, strict=True):
        _copy(cuda, "cuMemcpyDtoH_v2", pointer, array)
    return [array.copy() for array in outputs]


def _copy(cuda: _Cuda, name: str, pointer: int, array: np.ndarray) -> None:
    there, here = ctypes.c_uint64(pointer), ctypes.c_void_p(array.ctypes.data)
    order = (there, here) if name == "cuMemcpyHtoD_v2" else (here, there)
    cuda.call(name, *order, ctypes.c_size_t(array.nbytes))
