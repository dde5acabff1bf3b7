"""What a GPU does during runs: kernels, copies and fills, and when the host launched them.

ONNX Runtime's own wheels are built without it: their traces show of CUDA nodes only what the host
did. So NVIDIA's profiling library CUPTI is asked directly, where it is installed.
Source: CUPTI's activity API (docs.nvidia.com/cupti), tried with 13.0 on an H100.
"""

from __future__ import annotations

import ctypes
import importlib.util
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ortkit.runtime.native_library import NotAvailableError, runtime_library
from ortkit.runtime.profiling.trace.events import DeviceEvent

#: Newest first: the one of CUDA's version is the one that is there.
_NAMES = ("libcupti.so.13", "libcupti.so.12", "libcupti.so")
_TOOLKIT = Path("/usr/local/cuda/extras/CUPTI/lib64")
_COPY, _FILL, _DRIVER, _RUNTIME, _KERNEL = 1, 2, 4, 5, 10
_KINDS = (_KERNEL, _COPY, _FILL, _RUNTIME, _DRIVER)
_FORCED = 1  # CUPTI_ACTIVITY_FLAG_FLUSH_FORCED
_SYSTEM_THREAD_IDS = 1  # CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM
_DIRECTIONS = {
    1: "host to device", 2: "device to host", 8: "device to device", 10: "peer to peer",
}  # fmt: skip
#: custom_ops/native/runtime/activity.cc
_WORK = np.dtype(
    [
        ("start", "u8"), ("end", "u8"), ("bytes", "u8"), ("name", "u8"),
        ("kind", "u4"), ("device", "u4"), ("stream", "u4"), ("correlation", "u4"),
        ("copy_kind", "u4"), ("registers", "u4"), ("grid", "i4", 3), ("block", "i4", 3),
        ("static_shared", "u4"), ("dynamic_shared", "u4"),
    ]
)  # fmt: skip
_CALL = np.dtype([("start", "u8"), ("end", "u8"), ("thread", "u4"), ("correlation", "u4")])


class CudaActivity:
    """Records what all GPUs do in this process between its beginning and its end.

    One at a time: CUPTI has one recorder in a process, and torch's profiler is another.
    """

    def __init__(self, cupti: Any = None) -> None:
        """Load CUPTI.

        Args:
            cupti: The library, if it is loaded already.

        Raises:
            NotAvailableError: It is not installed, or does not load.
        """
        self._cupti = _cupti() if cupti is None else cupti
        self._library = runtime_library().native
        self._clock_offset_ns = 0
        self._works: npt.NDArray[np.void] = np.empty(0, _WORK)
        self._calls: npt.NDArray[np.void] = np.empty(0, _CALL)
        self._names: dict[int, str] = {}
        self.lost = 0
        """Records that there was no memory for."""

    def __enter__(self) -> CudaActivity:
        """Begin.

        Raises:
            NotAvailableError: CUPTI refuses, which it does where another profiler is at work.
        """
        library = self._library
        _check(
            self._cupti,
            self._cupti.cuptiActivityRegisterCallbacks(
                library.ortkit_activity_requested, library.ortkit_activity_completed
            ),
        )
        if hasattr(self._cupti, "cuptiSetThreadIdType"):
            self._cupti.cuptiSetThreadIdType(_SYSTEM_THREAD_IDS)
        self._clock_offset_ns = _clock_offset(self._cupti)
        for kind in _KINDS:
            try:
                _check(self._cupti, self._cupti.cuptiActivityEnable(kind))
            except NotAvailableError:
                self._disable()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        # Records are taken while what they name is loaded.
        self._cupti.cuptiActivityFlushAll(_FORCED)
        self._disable()
        self._take()

    def events(self, origin_ns: int) -> tuple[DeviceEvent, ...]:
        """Return what was recorded, by start.

        Args:
            origin_ns: When the clock of the events begins, in `time.time_ns`: for the clock of
                a session's trace its `get_profiling_start_time_ns`.
        """
        origin = origin_ns - self._clock_offset_ns
        works = self._works[np.argsort(self._works["start"], kind="stable")]
        calls = _launches(self._calls, works["correlation"])
        return tuple(
            _event(_Work(*work), call, self._names, origin)
            for work, call in zip(works.tolist(), calls, strict=True)
        )

    def _disable(self) -> None:
        for kind in _KINDS:
            self._cupti.cuptiActivityDisable(kind)

    def _take(self) -> None:
        rows = [ctypes.c_void_p(), ctypes.c_void_p()]
        counts = [ctypes.c_size_t(), ctypes.c_size_t()]
        lost = ctypes.c_uint64()
        self._library.ortkit_activity_take(
            self._cupti.cuptiActivityGetNextRecord,
            *(ctypes.byref(item) for pair in zip(rows, counts, strict=True) for item in pair),
            ctypes.byref(lost),
        )
        kinds = (_WORK, _CALL)
        self._works, self._calls = (
            _copied(row, count.value, kind)
            for row, count, kind in zip(rows, counts, kinds, strict=True)
        )
        for row in rows:
            self._library.ortkit_activity_free(row)
        self.lost = lost.value
        self._names = {
            int(address): plain_name(ctypes.string_at(int(address)).decode(errors="replace"))
            for address in np.unique(self._works["name"])
            if address
        }


@cache
def _cupti() -> Any:
    """Load the library once: it stays in the process.

    Raises:
        NotAvailableError: There is none, or the runtime library has no room for its records.
    """
    for path in _libraries():
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise NotAvailableError(
        "NVIDIA's profiling library CUPTI is not installed",
        fix="pip install nvidia-cuda-cupti",
    )


def _libraries() -> Iterator[str]:
    """Yield where the library may be: in NVIDIA's wheels, on the loader's path, in a toolkit."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []
    for name in _NAMES:
        yield from sorted(str(path) for root in roots for path in root.glob(f"*/lib/{name}"))
        yield name
        yield str(_TOOLKIT / name)


def _check(cupti: Any, outcome: int) -> None:
    if outcome == 0:
        return
    text = ctypes.c_char_p()
    cupti.cuptiGetResultString(outcome, ctypes.byref(text))
    why = (text.value or b"").decode(errors="replace") or f"error {outcome}"
    raise NotAvailableError(f"CUPTI does not record: {why}", fix="end other profilers first")


def _clock_offset(cupti: Any) -> int:
    """Return the nanoseconds from CUPTI's clock to `time.time_ns`, from the closest of 5 pairs."""
    best, offset = None, 0
    for _ in range(5):
        stamp = ctypes.c_uint64()
        before = time.time_ns()
        _check(cupti, cupti.cuptiGetTimestamp(ctypes.byref(stamp)))
        after = time.time_ns()
        if best is None or after - before < best:
            best, offset = after - before, (before + after) // 2 - stamp.value
    return offset


def _copied(rows: ctypes.c_void_p, count: int, kind: np.dtype[Any]) -> npt.NDArray[np.void]:
    if not count or rows.value is None:
        return np.empty(0, kind)
    return np.frombuffer(ctypes.string_at(rows.value, count * kind.itemsize), kind)


def _launches(
    calls: npt.NDArray[np.void], wanted: npt.NDArray[np.uint32]
) -> Sequence[tuple[int, int] | None]:
    """Return for each correlation the start and thread of the call that made it.

    A call of CUDA's runtime and the driver's call in it have the same: the outer begins first.
    """
    if not len(calls):
        return [None] * len(wanted)
    ordered = calls[np.lexsort((calls["start"], calls["correlation"]))]
    positions = np.searchsorted(ordered["correlation"], wanted, side="left")
    found = ordered[np.minimum(positions, len(ordered) - 1)]
    return [
        (start, thread) if is_known else None
        for start, thread, is_known in zip(
            found["start"].tolist(),
            found["thread"].tolist(),
            (found["correlation"] == wanted).tolist(),
            strict=True,
        )
    ]


class _Work(NamedTuple):
    """A row of `_WORK`."""

    start: int
    end: int
    bytes: int
    name: int
    kind: int
    device: int
    stream: int
    correlation: int
    copy_kind: int
    registers: int
    grid: Sequence[int]
    block: Sequence[int]
    static_shared: int
    dynamic_shared: int


def _event(
    work: _Work, call: tuple[int, int] | None, names: Mapping[int, str], origin: int
) -> DeviceEvent:
    details = {"device": str(work.device)}
    kind: Literal["kernel", "copy", "fill"]
    if work.kind == _KERNEL:
        kind, name = "kernel", names.get(work.name, "kernel")
        details |= {
            "grid": " ".join(map(str, work.grid)),
            "block": " ".join(map(str, work.block)),
            "registers": str(work.registers),
            "shared_bytes": str(work.static_shared + work.dynamic_shared),
        }
    elif work.kind == _COPY:
        kind, name = "copy", f"copy {_DIRECTIONS.get(work.copy_kind, 'other')}"
    else:
        kind = name = "fill"
    return DeviceEvent(
        kind=kind,
        name=name,
        start_us=(work.start - origin) / 1e3,
        duration_us=(work.end - work.start) / 1e3,
        stream=str(work.stream),
        bytes=None if kind == "kernel" else work.bytes,
        launch_us=None if call is None else (call[0] - origin) / 1e3,
        thread=None if call is None else call[1],
        details=details,
    )


@cache
def _demangler() -> Any:
    try:
        demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except (OSError, AttributeError):
        return None
    demangle.restype = ctypes.c_void_p
    return demangle


def plain_name(mangled: str) -> str:
    """Return a kernel's name as its source has it, without its return type and parameters."""
    demangle = _demangler()
    if demangle is None or not mangled.startswith("_Z"):
        return mangled
    status = ctypes.c_int()
    text = demangle(mangled.encode(), None, None, ctypes.byref(status))
    if not text or status.value != 0:
        return mangled
    name = ctypes.string_at(text).decode(errors="replace")
    libc = ctypes.CDLL(None)
    libc.free(ctypes.c_void_p(text))
    return _without_parameters(name).removeprefix("void ")


def _without_parameters(name: str) -> str:
    """Cut the last parenthesis outside of template arguments, which is that of the parameters."""
    depth = 0
    for index, letter in enumerate(name):
        if letter in "<>":
            depth += 1 if letter == "<" else -1
        elif letter == "(" and depth == 0 and not name.startswith("(anonymous namespace)", index):
            return name[:index]
    return name
