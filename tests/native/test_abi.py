"""The hand-written ABI header against the ONNX Runtime that runs; the shim against made ones."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.targets.target import Target

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "custom_ops" / "native"
COMPILER = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Slot -> "ok ..." or "wrong ...", after one session with a model of one Probe node."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    library = tmp_path_factory.mktemp("probe") / "libprobe.so"
    command = [COMPILER, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command += [f"-I{NATIVE}", str(HERE / "abi_probe.cc"), "-o", str(library)]
    subprocess.run(command, check=True)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.register_custom_ops_library(str(library))
    x = helper.make_tensor_value_info("X", TensorProto.FLOAT, [2, "rows", None])
    y = helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)
    graph = helper.make_graph(
        [helper.make_node("Probe", ["X", "W"], ["Y"], domain="probe", scale=0.5, axis=7)],
        "g", [x], [y], [helper.make_tensor("W", TensorProto.FLOAT, [], [42.0])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("probe", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    assert session.get_outputs()[0].shape == [2, "rows", "invented"]
    counting = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.testing.assert_array_equal(session.run(None, {"X": counting})[0], -counting)
    with pytest.raises(Exception, match=r"INVALID_ARGUMENT.*the probe refuses"):
        session.run(None, {"X": counting + 1})
    del session  # the kernel ends before the report is read
    probe = ctypes.CDLL(str(library))
    probe.probe_report.restype = ctypes.c_char_p
    lines = probe.probe_report().decode().splitlines()
    found: dict[str, str] = {}
    for line in lines:  # a slot that was wrong once stays wrong
        slot, _, outcome = line.partition(" ")
        if not found.get(slot, "").startswith("wrong"):
            found[slot] = outcome
    return found


def slots_of_the_header() -> list[str]:
    headers = "".join((NATIVE / name).read_text() for name in ("ort_abi.h", "cuda_ort.h"))
    return re.findall(r"Slot<\d+,[^;]*>\s+(\w+);", headers)


@pytest.mark.parametrize("slot", slots_of_the_header())
def test_each_slot_does_what_the_header_says(slot: str, report: dict[str, str]) -> None:
    assert report.get(slot, "was not called").startswith("ok"), report.get(slot)


def test_the_header_declares_nothing_that_the_shim_does_not_use() -> None:
    sources = "".join(path.read_text() for path in NATIVE.glob("*.[ch]*"))
    assert slots_of_the_header()
    for slot in slots_of_the_header():
        assert f"ort::{slot}(" in sources, f"{slot} is not used"


# ---- a runtime that is not there: the base it would hand over, made by hand
GET_API = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
GET_VERSION = ctypes.CFUNCTYPE(ctypes.c_size_t)  # the address of a text
CREATE_STATUS = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int32, ctypes.c_char_p)


class ApiBase(ctypes.Structure):
    _fields_ = (("get_api", GET_API), ("get_version", GET_VERSION))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ctypes.CDLL]:
    folder = tmp_path_factory.mktemp("library")
    body = '<opset_import: ["" : 20]> f (X) => (Y) { Y = Exp (X) }'
    x, y = TensorSpec("X", "float32", ("n",)), TensorSpec("Y", "float32", ("n",))
    signature = RegionSignature("exp", body, (x,), (y,))
    build_library([signature], Target(), folder / "x.so", cache=KernelCache(folder))
    loaded = ctypes.CDLL(str(folder / "x.so"))
    loaded.RegisterCustomOps.restype = ctypes.c_void_p
    yield loaded


def test_an_older_runtime_is_refused_with_its_version(library: ctypes.CDLL) -> None:
    messages: list[tuple[int, bytes]] = []
    version = ctypes.create_string_buffer(b"1.23.2")
    create = CREATE_STATUS(lambda code, text: messages.append((code, text)) or 1)
    table = (ctypes.c_void_p * 1)(ctypes.cast(create, ctypes.c_void_p))
    base = ApiBase(
        GET_API(lambda asked: ctypes.addressof(table) if asked < 24 else None),
        GET_VERSION(lambda: ctypes.addressof(version)),
    )
    assert library.RegisterCustomOps(None, ctypes.byref(base)) == 1
    expected = (
        b"ortkit.fused: this kernel library needs ONNX Runtime 1.24 or newer, and this is 1.23.2"
    )
    assert messages == [(1, expected)]


def test_each_runtime_of_a_process_gets_its_own_ops(library: ctypes.CDLL) -> None:
    """Two runtimes may live in one process, and neither may see the other's pointers."""
    seen: list[tuple[str, int, int]] = []
    keep: list[object] = []

    def runtime(name: str) -> ApiBase:
        def create_domain(_text: bytes, out: int) -> None:
            ctypes.cast(out, ctypes.POINTER(ctypes.c_void_p))[0] = ord(name)

        pointer = ctypes.c_void_p
        two = ctypes.CFUNCTYPE(pointer, pointer, pointer)
        three = ctypes.CFUNCTYPE(pointer, pointer, pointer, pointer)
        functions = {
            26: ctypes.CFUNCTYPE(pointer, ctypes.c_char_p, pointer)(create_domain),
            27: two(lambda domain, op: seen.append((name, domain, op))),
            28: two(lambda _options, domain: seen.append((name, domain, 0))),
            130: three(lambda _options, _key, _value: None),
            237: three(lambda _options, _key, _has: None),  # nothing is there
        }
        table = (ctypes.c_void_p * 240)()
        for slot, function in functions.items():
            table[slot] = ctypes.cast(function, pointer).value
        base = ApiBase(GET_API(lambda _: ctypes.addressof(table)), GET_VERSION(lambda: 0))
        keep.extend([functions, table, base])
        return base

    first, second = runtime("a"), runtime("b")
    for base in (first, second, first):
        assert library.RegisterCustomOps(None, ctypes.byref(base)) is None
    added = [(name, domain) for name, domain, op in seen if op]
    assert added == [("a", ord("a")), ("b", ord("b")), ("a", ord("a"))]
    assert len({(name, op) for name, _, op in seen if op}) == 2, "each runtime's ops are made once"
    used = [(name, domain) for name, domain, op in seen if not op]
    assert used == [("a", ord("a")), ("b", ord("b")), ("a", ord("a"))], "each session's domain"
