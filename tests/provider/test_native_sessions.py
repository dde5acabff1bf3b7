"""What a provider is told of sessions and runs; its errors, and its events in the trace."""

from __future__ import annotations

import ctypes
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from ortkit.provider import bridge, native
from tests.provider.native_providers import (
    TRIPLE,
    TestProvider,
    floats,
    guarded,
    model,
    placed,
    python_kernel,
    registered,
    session,
    triple,
    unoptimized,
)

VERSION = tuple(int(part) for part in ort.__version__.split(".")[:2])


class Telling(TestProvider):
    """Notes what it is told, and fails where it is asked to."""

    name = "TellingExecutionProvider"

    def __init__(self) -> None:
        self.told: list[object] = []
        self.failing = ""

    def tell(self, name: str, what: object = None) -> None:
        self.told.append(name if what is None else (name, what))
        if self.failing == name:
            raise ValueError(f"no {name}")

    def get_capability(self, *arguments: Any) -> None:
        self.tell("get_capability")
        super().get_capability(*arguments)

    def extend(self, made: bridge.Provider) -> None:
        made.run_start = bridge.RUN_START(guarded(lambda *_: self.tell("run_start")))
        made.run_end = bridge.RUN_END(
            guarded(
                lambda _user, _ep, _run, synchronous, _error: self.tell("run_end", synchronous)
            )
        )
        made.session_initialized = bridge.SESSION_INITIALIZED(
            guarded(lambda *_: self.tell("session_initialized"))
        )
        made.set_dynamic_options = bridge.SET_DYNAMIC_OPTIONS(
            guarded(
                lambda _user, _ep, options, _error: self.tell("set", options.contents.as_dict())
            )
        )


@pytest.fixture
def telling() -> Any:
    one = Telling()
    with registered(one):
        yield one


def test_a_session_and_its_runs_are_told(telling: Telling) -> None:
    made = session(model(TRIPLE), telling.name)
    begun = ["get_capability", *(["session_initialized"] if VERSION >= (1, 27) else [])]
    assert telling.told == begun
    for _ in range(2):
        telling.told.clear()
        made.run(None, floats("abc", 1, 4))
        assert telling.told == ["run_start", ("run_end", 1)]


@pytest.mark.parametrize("failing", ["run_start", "session_initialized"])
def test_their_errors_are_errors_of_the_session(telling: Telling, failing: str) -> None:
    if failing == "session_initialized" and VERSION < (1, 27):
        pytest.skip("newer ONNX Runtimes call it")
    telling.failing = failing
    with pytest.raises(Exception, match=f"{telling.name}: no {failing}"):
        session(model(TRIPLE), telling.name).run(None, floats("abc", 1, 4))


def test_dynamic_options(telling: Telling) -> None:
    made = session(model(TRIPLE), telling.name)
    if not hasattr(made, "set_ep_dynamic_options"):
        pytest.skip("this ONNX Runtime's Python package does not set them")
    telling.told.clear()
    made.set_ep_dynamic_options({"ep.dynamic.workload_type": "Efficient"})
    assert telling.told == [("set", {"ep.dynamic.workload_type": "Efficient"})]


# ---- errors that ONNX Runtime only logs


def test_an_error_in_get_capability_is_recorded(telling: Telling) -> None:
    telling.failing = "get_capability"
    before = native.library().ortkit_provider_recorded_count()
    made = session(model(TRIPLE), telling.name)
    assert placed(made, telling.name) == []
    feeds = floats("abc", 2, 4)
    np.testing.assert_array_equal(made.run(None, feeds)[0], triple(feeds))
    assert native.recorded_errors(before) == (f"{telling.name}: no get_capability",)


def test_the_last_errors_are_kept(telling: Telling) -> None:
    telling.failing = "get_capability"
    for _ in range(70):
        session(model(TRIPLE), telling.name)
    assert len(native.recorded_errors()) == 64
    assert native.library().ortkit_provider_recorded_count() >= 70


def test_with_strict_an_error_in_get_capability_ends_the_session(telling: Telling) -> None:
    telling.failing = "get_capability"
    with pytest.raises(Exception, match=f"{telling.name}: no get_capability"):
        session(model(TRIPLE), telling.name, {"strict": "1"})


def test_with_strict_an_error_after_some_groups_ends_the_session() -> None:
    class Late(Telling):
        name = "LateExecutionProvider"

        def get_capability(self, *arguments: Any) -> None:
            super().get_capability(*arguments)
            raise ValueError("too late")

    for options in (unoptimized(), ort.SessionOptions()):
        with registered(Late()), pytest.raises(Exception, match=f"{Late.name}: too late"):
            session(model(TRIPLE), Late.name, {"strict": "1"}, options=options)


def test_a_group_without_nodes_is_an_error() -> None:
    class Nothing(TestProvider):
        name = "NothingExecutionProvider"

        def groups(self, graph: Any) -> list[list[int]]:
            return [[]]

    with registered(Nothing()), pytest.raises(Exception, match="a group has no nodes"):
        session(model(TRIPLE), Nothing.name, {"strict": "1"})


def test_onnxruntime_does_not_take_a_group_around_a_node() -> None:
    """Without a word: whoever writes a provider has to look at what was placed."""

    class Apart(TestProvider):
        name = "ApartExecutionProvider"

        def groups(self, graph: Any) -> list[list[int]]:
            return [[graph.nodes[0], graph.nodes[2]]]

    with registered(Apart()):
        made = session(model(TRIPLE), Apart.name, {"strict": "1"}, options=unoptimized())
        assert placed(made, Apart.name) == []


# ---- the trace


@pytest.mark.skipif(VERSION < (1, 25), reason="ONNX Runtime 1.25 takes events of providers")
def test_kernels_and_their_parts_are_in_the_trace(tmp_path: Path) -> None:
    class Traced(TestProvider):
        name = "TracedExecutionProvider"

        def make(self, *_: object) -> bridge.Kernel:
            kernel = python_kernel(self.run)
            kernel.label = b"my region"
            kernel.arguments = native.entries({"nodes": "Add Mul Relu", "where": "layer 3"})
            return kernel

        def run(self, context: bridge.KernelContext) -> int:
            library, here = native.library(), ctypes.addressof(context)
            assert library.ortkit_provider_is_profiling(here) == is_profiled
            begin = library.ortkit_provider_now()
            time.sleep(0.005)
            arguments = native.entries({"part": "first"})
            library.ortkit_provider_add_event(
                here, b"a part", begin, library.ortkit_provider_now(), ctypes.byref(arguments)
            )
            address = (ctypes.c_void_p * 1)()
            return int(context.make_outputs(ctypes.pointer(context), context.signature, address))

    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "trace")
    feeds = floats("abc", 2, 4)
    with registered(Traced()):
        is_profiled = True
        made = session(model(TRIPLE), Traced.name, options=options)
        for _ in range(3):
            made.run(None, feeds)
        events = json.loads(Path(made.end_profiling()).read_text())
        is_profiled = False
        made.run(None, feeds)
    whole = [event for event in events if event["name"] == "my region"]
    parts = [event for event in events if event["name"] == "a part"]
    nodes = [
        event
        for event in events
        if event["cat"] == "Node" and event["args"].get("provider") == Traced.name
    ]
    assert len(whole) == len(parts) == len(nodes) == 3
    for node, kernel, part in zip(nodes, whole, parts, strict=True):
        assert kernel["cat"] == "Kernel"
        assert kernel["args"]["nodes"] == "Add Mul Relu"
        assert kernel["args"]["where"] == "layer 3"
        assert part["args"]["part"] == "first"
        assert kernel["dur"] >= part["dur"] >= 5000
        # On ONNX Runtime's clock: the kernel lies in its node, to within what rounding takes.
        assert node["ts"] - 50 <= kernel["ts"] <= part["ts"]
        assert kernel["ts"] + kernel["dur"] <= node["ts"] + node["dur"] + 50


def test_runs_of_a_session_may_be_kept_apart() -> None:
    class Serial(TestProvider):
        name = "SerialExecutionProvider"
        flags = bridge.SERIAL_RUNS

    with registered(Serial()):
        made = session(model(TRIPLE), Serial.name)
        feeds = floats("abc", 5, 4)
        with ThreadPoolExecutor(4) as pool:
            for found in pool.map(lambda _: made.run(None, feeds)[0], range(100)):
                np.testing.assert_array_equal(found, triple(feeds))
    made = Serial().definition()
    made.flags = bridge.SERIAL_RUNS | bridge.PYTHON
    with pytest.raises(Exception, match="take a lock of your own"):
        native.define("X", made)
