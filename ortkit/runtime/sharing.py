"""Memory of other frameworks: taken over without a copy, and waited for."""

from __future__ import annotations

import ctypes
import functools
import sys
from types import ModuleType
from typing import Any

import numpy as np

from ortkit.runtime.memory_devices import GPU, HOST
from ortkit.runtime.specs import TensorSpec

#: DLPack's numbers of devices whose work goes on while the host does something else.
_ASYNCHRONOUS = {2: GPU, 13: GPU}
_DEFAULT_STREAM = 0x1  # CU_STREAM_LEGACY
#: Packages in addition to torch that work on the device.
_OTHERS = ("cupy", "jax", "numba", "pycuda", "tensorflow", "cuda", "warp")


def device_of(value: object) -> str:
    """Return `cpu` or `cuda`, where an array or OrtValue lies; others by their DLPack number."""
    if hasattr(value, "device_name"):
        return str(value.device_name()).lower()
    if not hasattr(value, "__dlpack_device__"):
        return HOST
    number = int(value.__dlpack_device__()[0])
    return HOST if number == 1 else _ASYNCHRONOUS.get(number, f"device {number} of DLPack")


def is_on_host(value: object) -> bool:
    """Say whether an array or OrtValue lies in the host's memory."""
    return device_of(value) == HOST


def shared(ort: ModuleType, value: Any) -> Any:
    """Return an OrtValue over the memory of a DLPack tensor.

    Args:
        ort: The onnxruntime module.
        value: Contiguous; torch's gradients are left behind.

    Raises:
        RuntimeError, TypeError, ValueError, BufferError: ONNX Runtime, or the tensor's owner,
            refuses it.
    """
    if not hasattr(ort.OrtValue, "from_dlpack"):  # 1.24 is without it
        raise TypeError(f"ONNX Runtime {ort.__version__} takes arrays of numpy only")
    value = value.detach() if hasattr(value, "detach") else value
    # ONNX Runtime 1.31 does not know DLPack's own code for booleans, which torch sends.
    if str(getattr(value, "dtype", "")) == "torch.bool":
        return ort.OrtValue.from_dlpack(_Booleans(value))
    return ort.OrtValue.from_dlpack(value)


class _Booleans:
    """A boolean tensor that shows its memory as bytes; ONNX Runtime looks at both."""

    dtype = "bool"

    def __init__(self, tensor: Any) -> None:
        self._bytes = tensor.view(sys.modules["torch"].uint8)

    def __dlpack__(self) -> Any:
        return self._bytes.__dlpack__()


def as_array(ort: ModuleType, value: Any, spec: TensorSpec) -> Any:
    """Return an OrtValue's content as an array of numpy's own, or what `OrtValue.numpy` gives."""
    if spec.onnx_code is None or spec.dtype is None:
        return value.numpy()
    # bfloat16 and the like, which ONNX Runtime's Python binding has no array for.
    shape = tuple(value.shape())
    if not is_on_host(value):
        on_host = ort.OrtValue.ortvalue_from_shape_and_type(list(shape), spec.onnx_code)
        copy_into(on_host, value)
        value = on_host
    array = np.empty(shape, spec.dtype)
    ctypes.memmove(array.ctypes.data, value.data_ptr(), array.nbytes)
    return array


def copy_into(target: Any, value: Any) -> None:
    """Copy one OrtValue's content into another's memory, on any device."""
    try:
        target.update_inplace(value)
    except TypeError:  # ONNX Runtime 1.24 takes arrays only
        target.update_inplace(value.numpy())


def wait_for_writers(device: int = 0) -> None:
    """Wait until other frameworks' work on their CUDA stream is done, as far as this thread knows.

    ONNX Runtime works on a stream of its own, which waits for no other: without this a run reads
    what torch or CuPy have not written yet (seen in 10 of 10 runs on an H100, ONNX Runtime
    1.31.1, 2026-11), and writes what they still read. The streams are torch's current one, and
    CUDA's default one, on which others work unless they name another.

    Args:
        device: Number of the GPU.
    """
    modules = sys.modules
    torch = modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        _wait(torch.cuda.current_stream(device).cuda_stream or _DEFAULT_STREAM, device)
    for name in _OTHERS:
        if name in modules:
            wait_for_default_stream(device)
            return


def wait_for_default_stream(device: int = 0) -> None:
    """Wait until the work on CUDA's default stream is done."""
    _wait(_DEFAULT_STREAM, device)


def _wait(stream: int, device: int) -> None:
    driver = _driver()
    if driver is None or not _has_context(driver, device):
        return
    # Asking costs half of what waiting does where there is nothing to wait for.
    if driver.cuStreamQuery(ctypes.c_void_p(stream)) != 0:
        driver.cuStreamSynchronize(ctypes.c_void_p(stream))


@functools.cache
def _driver() -> Any:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return driver if driver.cuInit(0) == 0 else None


def _has_context(driver: Any, device: int) -> bool:
    """Make sure that this thread has a CUDA context: the device's own if it has none yet."""
    context = ctypes.c_void_p()
    if driver.cuCtxGetCurrent(ctypes.byref(context)) == 0 and context.value:
        return True
    context = _primary_context(device)
    return context.value is not None and driver.cuCtxSetCurrent(context) == 0


@functools.cache
def _primary_context(device: int) -> ctypes.c_void_p:
    """Return the context in which ONNX Runtime, torch and CuPy work; empty if there is none."""
    driver, handle, context = _driver(), ctypes.c_int(), ctypes.c_void_p()
    if driver.cuDeviceGet(ctypes.byref(handle), device) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)
    return context
