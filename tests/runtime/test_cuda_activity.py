"""CUPTI's records become events; a library in its place writes such records."""

from __future__ import annotations

import ctypes
import struct
import time
from typing import Any

import pytest

from ortkit.runtime.native_library import NotAvailableError
from ortkit.runtime.profiling.cuda_activity import CudaActivity, plain_name

_NEXT = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)
)
_NAME = ctypes.create_string_buffer(b"_ZN4cuda9my_kernelIfEEvPKT_")


def kernel(start: int, end: int, correlation: int) -> bytes:
    """Lay out a CUpti_ActivityKernel9, as far as it is read."""
    head = struct.pack("<IBBHII", 10, 0, 0, 40, 0, 0)
    times = struct.pack("<QQQIII", start, end, end, 1, 1, 7)
    sizes = struct.pack("<3i3iiiIII", 16, 2, 1, 128, 1, 1, 100, 28, 0, 0, correlation)
    return head + times + sizes + struct.pack("<qQ", 0, ctypes.addressof(_NAME)) + bytes(48)


def transfer(kind: int, direction: int, start: int, end: int, correlation: int) -> bytes:
    """Lay out a CUpti_ActivityMemcpy5 or Memset4."""
    head = struct.pack("<IBBBB", kind, direction, 0, 0, 0)
    return head + struct.pack("<QQQIIII", 4096, start, end, 0, 1, 7, correlation) + bytes(40)


def call(kind: int, start: int, thread: int, correlation: int) -> bytes:
    """Lay out a CUpti_ActivityAPI."""
    return struct.pack("<IIQQIIII", kind, 211, start, start + 5, 1, thread, correlation, 0)


class FakeCupti:
    """Gives records in two buffers when it is flushed; its clock is 1 s behind the host's."""

    def __init__(self, *buffers: list[bytes], refuses: int = 0) -> None:
        self._buffers = buffers
        self._refuses = refuses
        self._sizes: dict[int, int] = {}
        self.enabled: set[int] = set()
        self.cuptiActivityGetNextRecord = _NEXT(self._next)

    def cuptiActivityRegisterCallbacks(self, requested: Any, completed: Any) -> int:
        self._requested, self._completed = requested, completed
        return 0

    def cuptiActivityEnable(self, kind: int) -> int:
        self.enabled.add(kind)
        return 39 if kind == self._refuses else 0

    def cuptiActivityDisable(self, kind: int) -> int:
        self.enabled.discard(kind)
        return 0

    def cuptiGetResultString(self, outcome: int, text: Any) -> None:
        text._obj.value = b"MULTIPLE_SUBSCRIBERS"

    def cuptiGetTimestamp(self, stamp: Any) -> int:
        stamp._obj.value = time.time_ns() - 1_000_000_000
        return 0

    def cuptiActivityFlushAll(self, flag: int) -> int:
        for records in self._buffers:
            data, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(9)
            self._requested(ctypes.byref(data), ctypes.byref(size), ctypes.byref(most))
            content = b"".join(records)
            assert data.value is not None
            assert len(content) <= size.value
            assert most.value == 0
            ctypes.memmove(data.value, content, len(content))
            self._sizes |= {
                data.value + sum(map(len, records[:at])): len(record)
                for at, record in enumerate(records)
            }
            self._completed(None, 0, data, size, ctypes.c_size_t(len(content)))
        return 0

    def _next(self, buffer: int, used: int, record: Any) -> int:
        at = record[0]
        place = buffer if not at else at + self._sizes[at]
        if place >= buffer + used:
            return 12
        record[0] = place
        return 0


def recorded(*buffers: list[bytes]) -> CudaActivity:
    with CudaActivity(FakeCupti(*buffers)) as activity:
        pass
    return activity


def test_records_become_events_by_start_with_their_launch() -> None:
    other = call(3, 1, 1, 1)  # a kind that is not read
    activity = recorded(
        [kernel(5_000, 9_500, 31), call(4, 2_100, 77, 31), other, call(5, 2_000, 77, 31)],
        [transfer(1, 1, 1_000, 1_800, 30), transfer(2, 0, 9_900, 9_950, 32)],
    )
    second = 1_000_000_000
    copy, run, fill = activity.events(second)
    near = pytest.approx
    assert (copy.kind, copy.name, copy.bytes) == ("copy", "copy host to device", 4096)
    assert (copy.launch_us, copy.thread) == (None, None)
    assert (run.kind, run.name, run.thread, run.stream) == (
        "kernel",
        "cuda::my_kernel<float>",
        77,
        "7",
    )
    # The two clocks are compared by asking both: not to the nanosecond.
    assert run.start_us == near(5.0, abs=500)
    assert run.duration_us == 4.5
    assert run.launch_us is not None
    assert run.start_us - run.launch_us == near(3.0)
    assert run.details == {
        "device": "1", "grid": "16 2 1", "block": "128 1 1", "registers": "40",
        "shared_bytes": "128",
    }  # fmt: skip
    assert (fill.kind, fill.bytes, activity.lost) == ("fill", 4096, 0)


def test_nothing_was_done() -> None:
    assert recorded().events(0) == ()


def test_another_profiler_is_at_work() -> None:
    cupti = FakeCupti(refuses=5)
    with pytest.raises(NotAvailableError, match="does not record: MULTIPLE_SUBSCRIBERS"):
        CudaActivity(cupti).__enter__()
    assert cupti.enabled == set()


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_ZN4cuda9my_kernelIfEEvPKT_", "cuda::my_kernel<float>"),
        ("_ZN12_GLOBAL__N_14workEi", "(anonymous namespace)::work"),
        ("ampere_sgemm_32x32_tn", "ampere_sgemm_32x32_tn"),
        ("_Znonsense", "_Znonsense"),
    ],
)
def test_names_of_kernels(mangled: str, name: str) -> None:
    assert plain_name(mangled) == name
