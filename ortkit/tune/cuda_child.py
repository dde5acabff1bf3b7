"""The process that times kernels on a GPU; see `processes.run_child`.

Through CUDA's driver interface alone, so that nothing has to be installed in addition to the
driver. All kernels compute the same on the same memory, interleaved, in an order that changes from
round to round. Each turn begins with a fill of more memory than the L2 cache holds, so that
kernels find it cold; events of the GPU around the launches take the time. Source: CUDA driver API
12 (docs.nvidia.com/cuda/cuda-driver-api).
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import sys
import time
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from ortkit.tune.timing_child import Result, Tensor, empty, filled, is_equal

_SUCCESS, _OUT_OF_MEMORY = 0, 2
_L2_BYTES, _MAJOR, _MINOR = 38, 75, 76  # CU_DEVICE_ATTRIBUTE_...
_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_WARM_UPS = 2


class Launch(TypedDict):
    """One step of a kernel."""

    image: str  # a cubin or PTX
    entry: str
    grid: list[int]
    threads: int
    shared: int
    arguments: list[list[Any]]  # "tensor" or "scratch" and its place; "size32", "size64", "null"


class Job(TypedDict):
    """Kernels, the first of which is what the others are compared with."""

    kernels: list[list[Launch]]
    scratch: list[list[int]]  # bytes of each block of each kernel
    inputs: list[Tensor]
    outputs: list[Tensor]
    rounds: int
    seconds: float  # when to stop, after one round at least
    device: int
    lock: str  # a file: whoever has it locked times on this GPU
    result: str


def main(job_file: str = "") -> None:
    """Run a job and write its result; without one say which GPU there is."""
    if not job_file:
        cuda = _Cuda(0)
        answer = {"name": cuda.name, "architecture": cuda.architecture}
        sys.stdout.write(json.dumps(answer))
        return
    job: Job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    written = Path(job["result"] + ".new")
    written.write_text(json.dumps(_timed(job)), encoding="utf-8")
    written.replace(job["result"])


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

    def __init__(self, cuda: _Cuda, step: Launch, tensors: list[int], scratch: list[int]) -> None:
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        image = Path(step["image"]).read_bytes()
        cuda.call("cuModuleLoadData", ctypes.byref(module), image)
        entry = step["entry"].encode()
        cuda.call("cuModuleGetFunction", ctypes.byref(self.function), module, entry)
        if step["shared"] > 48 << 10:
            size = ctypes.c_int(step["shared"])
            cuda.call("cuFuncSetAttribute", self.function, _SHARED_BYTES, size)
        self.cuda, self.step = cuda, step
        places = {"tensor": tensors, "scratch": scratch}
        self.values: list[Any] = []
        for kind, value in [*step["arguments"], ["null", 0], ["null", 0]]:
            if kind in places:
                self.values.append(ctypes.c_uint64(places[kind][value]))
            elif kind == "size32":
                self.values.append(ctypes.c_int32(value))
            else:
                self.values.append(ctypes.c_int64(value))
        addresses = (ctypes.addressof(value) for value in self.values)
        self.parameters = (ctypes.c_void_p * len(self.values))(*addresses)

    def launch(self) -> None:
        grid = self.step["grid"]
        if 0 in grid:
            return
        self.cuda.call(
            "cuLaunchKernel", self.function, *grid, self.step["threads"], 1, 1,
            self.step["shared"], None, self.parameters, None,
        )  # fmt: skip


def _timed(job: Job) -> Result:
    cuda = _Cuda(job["device"])
    cuda.open()
    with Path(job["lock"]).open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _timed_alone(cuda, job)


def _timed_alone(cuda: _Cuda, job: Job) -> Result:
    random = np.random.default_rng(0)
    inputs = [filled(tensor, random) for tensor in job["inputs"]]
    outputs = [empty(tensor) for tensor in job["outputs"]]
    tensors = [cuda.memory(array.nbytes) for array in (*inputs, *outputs)]
    for pointer, array in zip(tensors, inputs, strict=False):
        _copy(cuda, "cuMemcpyHtoD_v2", pointer, array)
    count = len(job["kernels"])
    problems, kernels = [""] * count, list[list[_Step]]()
    first: list[np.ndarray] = []
    for number, (steps, sizes) in enumerate(zip(job["kernels"], job["scratch"], strict=True)):
        try:
            scratch = [cuda.memory(size) for size in sizes]
            kernels.append([_Step(cuda, one, tensors, scratch) for one in steps])
            found = _computed(cuda, kernels[-1], outputs, tensors[len(inputs) :])
        except RuntimeError as error:
            if not number or "ILLEGAL" in str(error) or "LAUNCH_FAILED" in str(error):
                raise  # nothing else can run in this process
            kernels = [*kernels[:number], []]
            problems[number] = str(error)
            continue
        first = first or found
        if not all(map(is_equal, job["outputs"], first, found)):
            problems[number] = "it computes something else than the default"
    times: list[list[float]] = [[] for _ in range(count)]
    alive = [number for number in range(count) if not problems[number]]
    cold = _Cold(cuda)
    for number in alive * _WARM_UPS:
        cold.nanoseconds(kernels[number])
    until = time.monotonic() + job["seconds"]
    for turn in range(job["rounds"]):
        if turn and time.monotonic() > until:
            break
        for number in random.permutation(alive):
            times[number].append(cold.nanoseconds(kernels[int(number)]))
    return {"times": times, "problems": problems}


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
        taken = ctypes.c_float()
        cuda.call("cuEventElapsedTime", ctypes.byref(taken), self.begin, self.end)
        return max(1.0, 1e6 * taken.value)


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
