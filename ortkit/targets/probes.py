"""What packages and drivers say of themselves when they are loaded, which may end a process.

Each function is called in a process of its own: see `doctor.py`.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass


@dataclass(frozen=True)
class Probed:
    """What was found: a version, and execution providers or GPUs."""

    version: str
    names: tuple[str, ...] = ()


def onnxruntime_here(_: None) -> Probed:
    """Load ONNX Runtime."""
    import onnxruntime

    return Probed(onnxruntime.__version__, tuple(onnxruntime.get_available_providers()))


def tvm_here(_: None) -> Probed:
    """Load TVM; `llvm` is among the names if it has that."""
    import tvm

    return Probed(tvm.__version__, ("llvm",) if tvm.runtime.enabled("llvm") else ())


def gpus_here(_: None) -> Probed:
    """Load CUDA's driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise SystemExit("no driver (libcuda.so.1)") from None
    if code := cuda.cuInit(0):
        raise SystemExit(f"cuInit fails with {code}")
    number, name, gpus = ctypes.c_int(), ctypes.create_string_buffer(256), []
    cuda.cuDriverGetVersion(ctypes.byref(number))
    version = f"{number.value // 1000}.{number.value % 1000 // 10}"
    cuda.cuDeviceGetCount(ctypes.byref(number))
    for index in range(number.value):
        device = ctypes.c_int()
        cuda.cuDeviceGet(ctypes.byref(device), index)
        cuda.cuDeviceGetName(name, 256, device)
        gpus.append(name.value.decode())
    return Probed(version, tuple(gpus))
