"""The runtime library: what it links, what it answers, and that each slot is as declared."""

from __future__ import annotations

import ctypes
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

from ortkit.runtime.memory.address import session_address
from ortkit.runtime.native_library import (
    RUNTIME_LIBRARY,
    NotAvailableError,
    RuntimeLibrary,
    runtime_library,
)
from tests.native.elf import read_library

NATIVE = Path(__file__).parents[2] / "custom_ops" / "native"
MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n] x, float[n] y) => (float[n] z) { z = Add (x, y) }"""
GET_API = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
GET_VERSION = ctypes.CFUNCTYPE(ctypes.c_size_t)
CREATE_STATUS = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int32, ctypes.c_char_p)


class ApiBase(ctypes.Structure):
    _fields_ = (("get_api", GET_API), ("get_version", GET_VERSION))


@pytest.fixture(scope="module")
def path() -> Path:
    folders = [Path(item) for item in import_module("ortkit.custom_ops").__path__]
    return next(
        folder / RUNTIME_LIBRARY for folder in folders if (folder / RUNTIME_LIBRARY).is_file()
    )


@pytest.fixture(scope="module")
def session() -> ort.InferenceSession:
    model = onnx.parser.parse_model(MODEL).SerializeToString()
    return ort.InferenceSession(model, providers=["CPUExecutionProvider"])


def test_it_links_neither_python_nor_onnxruntime_nor_cxx(path: Path) -> None:
    library = read_library(path)
    assert set(library.needs) <= {"libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
    exports = {"RegisterCustomOps", "ortkit_arena_statistics", "ortkit_session_input_count"}
    exports |= {f"ortkit_activity_{what}" for what in ("requested", "completed", "take", "free")}
    assert set(library.exports) == exports
    assert library.search_paths == ()
    assert not [name for name in library.imports if name.startswith(("_Z", "Py", "Ort"))]


def test_a_session_tells_its_inputs(session: ort.InferenceSession) -> None:
    assert runtime_library().input_count(session_address(session)) == 2


def test_an_arena_tells_its_counters(session: ort.InferenceSession) -> None:
    address = session_address(session)
    x = np.ones(1 << 16, np.float32)
    session.run(None, {"x": x, "y": x})
    counted = runtime_library().arena_statistics(address, "Cpu", 0, 0)
    assert counted["MaxInUse"] == counted["MaxAllocSize"] == x.nbytes
    assert counted["NumAllocs"] == 1


def test_a_memory_that_the_session_lacks_is_refused_in_words(
    session: ort.InferenceSession,
) -> None:
    address = session_address(session)
    with pytest.raises(NotAvailableError, match="No requested allocator available"):
        runtime_library().arena_statistics(address, "Cuda", 0, 0)
    with pytest.raises(NotAvailableError, match="Specified device is not supported"):
        runtime_library().arena_statistics(address, "nowhere", 0, 0)


def test_an_allocator_without_counters_has_none(session: ort.InferenceSession) -> None:
    options = ort.SessionOptions()
    options.enable_cpu_mem_arena = False
    model = onnx.parser.parse_model(MODEL).SerializeToString()
    plain = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    assert runtime_library().arena_statistics(session_address(plain), "Cpu", 0, 0) == {}


def test_too_little_room_is_said(path: Path, session: ort.InferenceSession) -> None:
    library = ctypes.CDLL(str(path))
    answer = ctypes.create_string_buffer(b"?" * 16, 16)
    outcome = library.ortkit_arena_statistics(
        ctypes.c_void_p(session_address(session)), b"Cpu", 0, 0, answer, ctypes.c_size_t(8)
    )
    assert outcome == 3
    assert answer.raw[8:] == b"?" * 8, "wrote beyond its room"


def test_an_older_runtime_is_refused_with_its_version(path: Path) -> None:
    runtime_library()
    messages: list[bytes] = []
    version = ctypes.create_string_buffer(b"1.23.2")
    create = CREATE_STATUS(lambda code, text: messages.append(text) or 1)
    table = (ctypes.c_void_p * 1)(ctypes.cast(create, ctypes.c_void_p))
    base = ApiBase(
        GET_API(lambda asked: ctypes.addressof(table) if asked < 24 else None),
        GET_VERSION(lambda: ctypes.addressof(version)),
    )
    library = ctypes.CDLL(str(path))
    library.RegisterCustomOps.restype = ctypes.c_void_p
    assert library.RegisterCustomOps(None, ctypes.byref(base)) == 1
    assert messages == [b"ortkit needs ONNX Runtime 1.24 or newer for this, and this is 1.23.2"]


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_text("nothing")
    with pytest.raises(NotAvailableError, match=r"x\.so does not load"):
        RuntimeLibrary(tmp_path / "x.so")


def test_the_header_declares_nothing_that_is_not_used() -> None:
    """Each is then called above: on success, on refusal, or when the arena is off."""
    header = (NATIVE / "runtime" / "session_abi.h").read_text()
    source = (NATIVE / "runtime" / "runtime.cc").read_text()
    slots = re.findall(r"(\w+);(?:  //.*)?$", header, re.MULTILINE)
    slots = [name for name in slots if f"struct {name};" not in header]
    assert len(slots) == header.count("Slot<")
    for slot in slots:
        assert f"ort::{slot}(" in source, f"{slot} is not used"
