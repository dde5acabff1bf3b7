"""Copies between host and device as nodes: MemcpyFromHost and MemcpyToHost.

ONNX Runtime puts such nodes where a value crosses. A provider with memory of its own has to
bring their kernels: without them the CPU provider's run, and a copy to the device stays in the
host's memory (seen with onnxruntime 1.31.1, 2026-11).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from ctypes import CFUNCTYPE, c_char_p, c_int32, c_int64, c_void_p

import onnx_ir as ir

from ortkit.errors import UserError
from ortkit.provider.bridge import KernelContext, View
from ortkit.provider.devices import DeviceMemory, Place
from ortkit.provider.failures import describe
from ortkit.provider.handles import OBJECTS
from ortkit.provider.op_kernels import NOT_IN_RUNTIMES, OpEntry, OpKernel
from ortkit.provider.views import spec_of

_DEVICE = 12  # kDLExtDev, as kernel.h calls the provider's own memory
_FAIL = 1  # OrtErrorCode
_FAIL_TYPE = CFUNCTYPE(c_int32, c_void_p, c_int32, c_char_p)
_MAKE_OUTPUT_TYPE = CFUNCTYPE(c_int32, c_void_p, c_int32, c_void_p, c_int32, c_void_p)
_TYPES = tuple(
    one
    for one in ir.DataType
    if ir.DataType.UNDEFINED < one <= ir.DataType.FLOAT8E5M2FNUZ
    and one != ir.DataType.STRING
    and one not in NOT_IN_RUNTIMES
)


def memcpy_entries() -> tuple[OpEntry, OpEntry]:
    """Return the operators that copy to and from a device."""
    return (
        _entry("MemcpyFromHost", OpKernel(_copied, cpu_inputs=(0,))),
        _entry("MemcpyToHost", OpKernel(_copied, cpu_outputs=(0,))),
    )


def _copied(*_: object) -> object:
    raise AssertionError("copies are made by memcpy_kernel")


def _entry(op_type: str, kernel: OpKernel) -> OpEntry:
    return OpEntry("", op_type, 1, 1, {"T": _TYPES}, kernel, ())


def memcpy_kernel(memories: Mapping[int, DeviceMemory]) -> Callable[[int], int]:
    """Return the kernel of both operators, by the number of the device."""

    def kernel(context: int) -> int:
        call = KernelContext.from_address(context)
        try:
            return _copy(call, context, memories)
        except BaseException as error:  # noqa: BLE001 - it must not leave the callback
            fail = _FAIL_TYPE(ctypes.cast(call.fail, c_void_p).value or 0)
            code: int = fail(context, _FAIL, describe(error, "").encode("utf-8", "replace"))
            return code or _FAIL

    return kernel


def _copy(call: KernelContext, context: int, memories: Mapping[int, DeviceMemory]) -> int:
    source, target = call.inputs[0], View()
    spec = spec_of(source)
    if spec is None or not spec.is_plain:
        raise UserError("only tensors of numbers are copied between host and device")
    make = _MAKE_OUTPUT_TYPE(ctypes.cast(call.make_output, c_void_p).value or 0)
    dims = (c_int64 * max(len(spec.shape), 1))(*spec.shape)
    code: int = make(context, 0, dims, len(spec.shape), ctypes.addressof(target))
    if code or not spec.nbytes:
        return code
    here, there = _place(source), _place(target)
    device = there.device if here.device is None else here.device
    if device is None:
        ctypes.memmove(there.address, here.address, spec.nbytes)
    else:
        memories[device].copy(here, there, spec.nbytes, OBJECTS.get(call.stream or 0))
    return 0


def _place(view: View) -> Place:
    tensor = view.tensor
    return Place(tensor.data or 0, tensor.device.id if tensor.device.type == _DEVICE else None)
