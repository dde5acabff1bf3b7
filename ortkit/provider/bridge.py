"""The structures of bridge.h and kernel.h (custom_ops/native/provider), by ctypes, in order."""

from __future__ import annotations

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    c_char_p,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)

BRIDGE_VERSION = 1

KERNEL_FUNCTION = 0
KERNEL_LIBRARY_OP = 1
KERNEL_PYTHON = 2

READS_CONTEXTS = 1
PYTHON = 2
SERIAL_RUNS = 4


class DLDevice(ctypes.Structure):
    """DLPack's device: 1 is the CPU, 12 the provider's own memory."""

    _fields_ = (("type", c_int32), ("id", c_int32))


class DLDataType(ctypes.Structure):
    """DLPack's element type."""

    _fields_ = (("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16))


class DLTensor(ctypes.Structure):
    """DLPack's tensor; no strides: compact."""

    _fields_ = (
        ("data", c_void_p),
        ("device", DLDevice),
        ("rank", c_int32),
        ("type", DLDataType),
        ("dims", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


class View(ctypes.Structure):
    """One input or output of a kernel; element type 0: absent."""

    _fields_ = (
        ("tensor", DLTensor),
        ("element_type", c_int32),
        ("reserved", c_int32),
        ("value", c_void_p),
    )


class KernelContext(ctypes.Structure):
    """One call of a kernel."""


BODY = CFUNCTYPE(None, c_void_p, c_size_t)
MAKE_OUTPUT = CFUNCTYPE(
    c_int32, POINTER(KernelContext), c_int32, POINTER(c_int64), c_int32, POINTER(View)
)
PARALLEL_FOR = CFUNCTYPE(c_int32, POINTER(KernelContext), BODY, c_size_t, c_void_p)
SCRATCH = CFUNCTYPE(c_void_p, POINTER(KernelContext), c_size_t)
FAIL = CFUNCTYPE(c_int32, POINTER(KernelContext), c_int32, c_char_p)
MAKE_OUTPUTS = CFUNCTYPE(c_int32, POINTER(KernelContext), POINTER(c_int64), POINTER(c_void_p))

KernelContext._fields_ = (
    ("size", c_uint32),
    ("input_count", c_int32),
    ("output_count", c_int32),
    ("reserved", c_int32),
    ("inputs", POINTER(View)),
    ("make_output", MAKE_OUTPUT),
    ("parallel_for", PARALLEL_FOR),
    ("scratch", SCRATCH),
    ("fail", FAIL),
    ("stream", c_void_p),
    ("ort_context", c_void_p),
    ("ort_api", c_void_p),
    ("signature", POINTER(c_int64)),
    ("signature_count", c_int64),
    ("data", POINTER(c_void_p)),
    ("make_outputs", MAKE_OUTPUTS),
)

#: (user, address of the KernelContext) -> 0, or an error code.
KERNEL_FUNCTION_TYPE = CFUNCTYPE(c_int32, c_void_p, c_void_p)
RELEASE = CFUNCTYPE(None, c_void_p)


class Entries(ctypes.Structure):
    """Keys and values."""

    _fields_ = (
        ("count", c_int64),
        ("keys", POINTER(c_char_p)),
        ("values", POINTER(c_char_p)),
    )

    def as_dict(self) -> dict[str, str]:
        """Return a copy."""
        return {self.keys[i].decode(): (self.values[i] or b"").decode() for i in range(self.count)}


class Kernel(ctypes.Structure):
    """What one group or node runs."""

    _fields_ = (
        ("size", c_uint32),
        ("kind", c_int32),
        ("label", c_char_p),
        ("arguments", Entries),
        ("function", c_void_p),
        ("user", c_void_p),
        ("release", c_void_p),
        ("library", c_void_p),
        ("op_type", c_char_p),
        ("input_count", c_int32),
        ("inputs", POINTER(c_int32)),
        ("output_count", c_int32),
        ("outputs", POINTER(c_int32)),
    )


class Session(ctypes.Structure):
    """What a provider's instance is made from."""

    _fields_ = (
        ("api", c_void_p),
        ("options", Entries),
        ("config", Entries),
        ("logger", c_void_p),
        ("device_count", c_int32),
        ("devices", POINTER(c_int32)),
    )


class Graph(ctypes.Structure):
    """A graph to claim nodes of."""

    _fields_ = (
        ("api", c_void_p),
        ("graph", c_void_p),
        ("is_nested", c_int32),
        ("is_context", c_int32),
    )


class Compile(ctypes.Structure):
    """Groups to compile."""

    _fields_ = (
        ("api", c_void_p),
        ("count", c_int32),
        ("is_context", c_int32),
        ("graphs", POINTER(c_void_p)),
        ("nodes", POINTER(c_void_p)),
    )


class KernelRequest(ctypes.Structure):
    """A node that a kernel entry is asked for."""

    _fields_ = (("api", c_void_p), ("info", c_void_p))


class Run(ctypes.Structure):
    """A run that starts or ends."""

    _fields_ = (("api", c_void_p), ("options", c_void_p))


class TypeConstraint(ctypes.Structure):
    """Element types that a type parameter of a schema may stand for."""

    _fields_ = (("name", c_char_p), ("count", c_int32), ("element_types", POINTER(c_int32)))


CREATE_KERNEL = CFUNCTYPE(c_int32, c_void_p, c_void_p, POINTER(KernelRequest), c_void_p, c_void_p)


class KernelEntry(ctypes.Structure):
    """A kernel for single nodes of an op."""

    _fields_ = (
        ("domain", c_char_p),
        ("op_type", c_char_p),
        ("first_version", c_int32),
        ("last_version", c_int32),
        ("constraint_count", c_int32),
        ("constraints", POINTER(TypeConstraint)),
        ("cpu_input_count", c_int32),
        ("cpu_inputs", POINTER(c_int32)),
        ("cpu_output_count", c_int32),
        ("cpu_outputs", POINTER(c_int32)),
        ("user", c_void_p),
        ("create", CREATE_KERNEL),
    )


class Place(ctypes.Structure):
    """Where a tensor lies: on the provider's device, else in the CPU's memory."""

    _fields_ = (("is_ours", c_int32), ("device", c_int32))


ALLOCATE = CFUNCTYPE(c_void_p, c_void_p, c_int32, c_size_t, c_uint64)
FREE = CFUNCTYPE(None, c_void_p, c_int32, c_void_p)
COPY = CFUNCTYPE(c_int32, c_void_p, c_void_p, Place, c_void_p, Place, c_size_t, c_uint64, c_void_p)
CREATE_STREAM = CFUNCTYPE(c_int32, c_void_p, c_int32, POINTER(c_uint64), c_void_p)
RELEASE_HANDLE = CFUNCTYPE(None, c_void_p, c_uint64)
WITH_HANDLE = CFUNCTYPE(c_int32, c_void_p, c_uint64, c_void_p)
CREATE_NOTIFICATION = CFUNCTYPE(c_int32, c_void_p, c_uint64, POINTER(c_uint64), c_void_p)
WAIT_ON_DEVICE = CFUNCTYPE(c_int32, c_void_p, c_uint64, c_uint64, c_void_p)


class Memory(ctypes.Structure):
    """A device's own memory."""

    _fields_ = (
        ("name", c_char_p),
        ("device_type", c_int32),
        ("has_streams", c_int32),
        ("alignment", c_uint64),
        ("allocate", ALLOCATE),
        ("free", FREE),
        ("copy", COPY),
        ("create_stream", CREATE_STREAM),
        ("release_stream", RELEASE_HANDLE),
        ("flush", WITH_HANDLE),
        ("stream_run_end", WITH_HANDLE),
        ("create_notification", CREATE_NOTIFICATION),
        ("release_notification", RELEASE_HANDLE),
        ("activate", WITH_HANDLE),
        ("wait_on_device", WAIT_ON_DEVICE),
        ("wait_on_host", WITH_HANDLE),
    )


class Device(ctypes.Structure):
    """What a provider offers to sessions."""

    _fields_ = (
        ("hardware_type", c_int32),
        ("vendor_id", c_uint32),
        ("metadata", Entries),
        ("memory", POINTER(Memory)),
    )


CREATE_EP = CFUNCTYPE(c_int32, c_void_p, POINTER(Session), POINTER(c_void_p), c_void_p)
RELEASE_EP = CFUNCTYPE(None, c_void_p, c_void_p)
GET_CAPABILITY = CFUNCTYPE(c_int32, c_void_p, c_void_p, POINTER(Graph), c_void_p, c_void_p)
COMPILE = CFUNCTYPE(c_int32, c_void_p, c_void_p, POINTER(Compile), c_void_p, c_void_p)
RUN_START = CFUNCTYPE(c_int32, c_void_p, c_void_p, POINTER(Run), c_void_p)
RUN_END = CFUNCTYPE(c_int32, c_void_p, c_void_p, POINTER(Run), c_int32, c_void_p)
SET_DYNAMIC_OPTIONS = CFUNCTYPE(c_int32, c_void_p, c_void_p, POINTER(Entries), c_void_p)
SESSION_INITIALIZED = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p)
COMPATIBILITY = CFUNCTYPE(c_int32, c_void_p, c_void_p, POINTER(Graph), c_void_p)
VALIDATE = CFUNCTYPE(c_int32, c_void_p, c_char_p, POINTER(c_int32), c_void_p)


class Provider(ctypes.Structure):
    """A definition. Its functions and `user` must live as long as the process."""

    _fields_ = (
        ("version", c_uint32),
        ("flags", c_uint32),
        ("name", c_char_p),
        ("vendor", c_char_p),
        ("version_text", c_char_p),
        ("vendor_id", c_uint32),
        ("device_count", c_int32),
        ("devices", POINTER(Device)),
        ("kernel_count", c_int32),
        ("kernels", POINTER(KernelEntry)),
        ("user", c_void_p),
        ("create_ep", CREATE_EP),
        ("release_ep", RELEASE_EP),
        ("get_capability", GET_CAPABILITY),
        ("compile", COMPILE),
        ("run_start", RUN_START),
        ("run_end", RUN_END),
        ("set_dynamic_options", SET_DYNAMIC_OPTIONS),
        ("session_initialized", SESSION_INITIALIZED),
        ("compatibility", COMPATIBILITY),
        ("validate", VALIDATE),
    )
