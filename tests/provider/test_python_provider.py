"""Providers written in Python, in sessions."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnxruntime.capi import _pybind_state
from python_providers import (
    CHAIN,
    NUMPY,
    NumpyProvider,
    chain_feeds,
    chain_result,
    interpreter,
    model,
    options,
    placement,
    registered,
    runs_of,
    session,
)

import ortkit
from ortkit.errors import UserError
from ortkit.provider import (
    Compatibility,
    GraphView,
    Group,
    RunInfo,
    recorded_errors,
    registered_providers,
)

VERSION = tuple(int(part) for part in ort.__version__.split(".")[:2])
RELU = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n] x) => (float[n] y) { y = Relu(x) }
"""
BRANCH = """<ir_version: 10, opset_import: ["" : 20]>
g (float[4] x, bool c) => (float[4] y)
{
  r = Relu(x)
  y = If (c) <
    then_branch = t () => (float[4] p) { u = Add(r, r)  p = Mul(u, r) },
    else_branch = e () => (float[4] q) { q = Identity(r) }
  >
}
"""


def need_providers_by_name(name: str) -> None:
    if name not in ort.get_available_providers():
        pytest.skip(f"ONNX Runtime {ort.__version__} takes these providers by their devices only")


def check_chain(made: ort.InferenceSession, rows: int = 3) -> None:
    feeds = chain_feeds(rows)
    (found,) = made.run(None, feeds)
    np.testing.assert_allclose(found, chain_result(**feeds), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimize", [False, True])
def test_claimed_nodes_run_in_python(optimize: bool) -> None:
    with registered(NumpyProvider()) as name:
        made = session(model(CHAIN), name, session_options=options(optimize=optimize))
        assert placement(made, name) == ["Add", "Add", "Mul", "Relu"]
        assert placement(made, "CPUExecutionProvider") == ["Softmax"]
        for rows in (3, 1, 0, 5, 3):
            check_chain(made, rows)


def test_a_provider_is_asked_for_by_name() -> None:
    with registered(NumpyProvider()) as name:
        need_providers_by_name(name)
        made = ort.InferenceSession(
            model(CHAIN), options(), providers=[name, "CPUExecutionProvider"]
        )
        assert made.get_providers() == [name, "CPUExecutionProvider"]
        check_chain(made)


def test_kernels_without_constants() -> None:
    seen: list[tuple[int, bool]] = []

    class Dropping(NumpyProvider):
        drop_constants = True

        def compile(self, subgraph: GraphView) -> Callable[..., Any]:
            seen.append((len(subgraph.inputs), "w" in subgraph.initializers))
            return interpreter(subgraph)

    class Choosing(NumpyProvider):
        def get_capability(self, graph: GraphView) -> list[Any]:
            return [Group(tuple(run), drop_constants=True) for run in runs_of(graph, NUMPY)]

        compile = Dropping.compile

    for provider in (Dropping(), Choosing()):
        with registered(provider) as name:
            check_chain(session(model(CHAIN), name))
    assert seen == [(3, False), (1, True)] * 2


def test_by_default_constants_are_inputs() -> None:
    seen: list[list[str | None]] = []

    class Looking(NumpyProvider):
        def compile(self, subgraph: GraphView) -> Callable[..., Any]:
            seen.append([value.name for value in subgraph.inputs])
            return interpreter(subgraph)

    with registered(Looking()) as name:
        check_chain(session(model(CHAIN), name))
    assert sorted(seen[1]) == ["p", "w"]


def test_nodes_in_branches_are_claimed() -> None:
    with registered(NumpyProvider()) as name:
        made = session(model(BRANCH), name)
        x = np.arange(4, dtype=np.float32) - 1
        relu = np.maximum(x, 0)
        for condition, expected in ((True, 2 * relu * relu), (False, relu)):
            found = made.run(None, {"x": x, "c": np.array(condition)})[0]
            np.testing.assert_array_equal(found, expected)
        assert placement(made, name) == ["Add", "Mul", "Relu"]


def test_whole_control_flow_is_claimed() -> None:
    seen: list[str] = []

    class Whole(NumpyProvider):
        def get_capability(self, graph: GraphView) -> list[list[ir.Node]]:
            return [list(graph)] if graph.parent_op is None else []

        def compile(self, subgraph: GraphView) -> Callable[..., Any]:
            branch = next(node for node in subgraph if node.op_type == "If")
            seen.extend(node.op_type for node in branch.attributes["then_branch"].as_graph())
            return lambda x, c: np.maximum(x, 0) * (2 if c else 1)

    with registered(Whole()) as name:
        made = session(model(BRANCH), name)
        found = made.run(None, {"x": np.array([-1, 1, 2, 3], np.float32), "c": np.array(True)})
        assert found[0].tolist() == [0, 2, 4, 6]
    assert seen == ["Add", "Mul"]


def test_nodes_in_a_function_are_claimed_once_it_is_written_out() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[n] a, float[n] b) => (float[m] y)
    {
      s = SequenceConstruct (a, b)
      t = SequenceMap (s) <body = f (float[n] x) => (float[n] z) { z = Add(x, x) }>
      y = ConcatFromSequence <axis = 0> (t)
    }"""
    with registered(NumpyProvider()) as name:
        made = session(model(text), name)
        assert placement(made, name) == ["Add"]
        feeds = {item: np.full(2, 3, np.float32) for item in "ab"}
        assert made.run(None, feeds)[0].tolist() == [6, 6, 6, 6]


class Failing(NumpyProvider):
    """Does in one method what a test says."""

    name: ClassVar[str] = "FailingExecutionProvider"

    def __init__(self, method: str, action: Callable[..., Any]) -> None:
        self.method = method
        self.action = action

    def start(self) -> None:
        if self.method == "start":
            self.action()

    def get_capability(self, graph: GraphView) -> list[list[ir.Node]]:
        if self.method == "get_capability":
            found: list[list[ir.Node]] = self.action(graph)
            return found
        return super().get_capability(graph)

    def compile(self, subgraph: GraphView) -> Callable[..., Any]:
        if self.method == "compile":
            made: Callable[..., Any] = self.action(subgraph)
            return made
        if self.method == "kernel":
            return self.action
        return super().compile(subgraph)


def explode(*_: Any) -> Any:
    raise ValueError("boom\nand more")


def test_what_compile_raises_fails_the_session() -> None:
    with registered(Failing("compile", explode)) as name, pytest.raises(Exception) as caught:
        session(model(CHAIN), name)
    text = str(caught.value)
    assert "FailingExecutionProvider: compile: ValueError: boom and more" in text
    assert f"raised at {__file__}:" in text
    assert "in explode" in text


def test_what_start_raises_fails_the_session() -> None:
    with registered(Failing("start", explode)) as name:
        need_providers_by_name(name)
        providers = [name, "CPUExecutionProvider"]
        with pytest.raises(Exception) as caught:
            ort.InferenceSession(model(CHAIN), options(), providers, enable_fallback=0)
    assert "FailingExecutionProvider: start: ValueError: boom and more" in str(caught.value)


def test_what_get_capability_raises_is_recorded() -> None:
    with registered(Failing("get_capability", explode)) as name:
        check_chain(session(model(CHAIN), name))
        text = recorded_errors()[-1]  # only the last ones are kept
    assert "FailingExecutionProvider: get_capability: ValueError: boom and more" in text
    assert f"{__file__}:" in text


def test_what_get_capability_raises_fails_a_strict_session() -> None:
    with (
        registered(Failing("get_capability", explode)) as name,
        pytest.raises(Exception) as caught,
    ):
        session(model(CHAIN), name, settings={"strict": "1"})
    assert "ValueError: boom and more" in str(caught.value)


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        (lambda graph: [[next(iter(graph)), list(graph)[4]]], "waits for itself"),
        (lambda graph: [list(graph.to_model().graph)[:1]], "not a node of graph 'g'"),
        (lambda graph: None, "get_capability returned None"),
    ],
)
def test_claims_that_are_not_right_fail_a_strict_session(claims: Any, message: str) -> None:
    with registered(Failing("get_capability", claims)) as name, pytest.raises(Exception) as caught:
        session(model(CHAIN), name, settings={"strict": "1"})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda graph: None, "compile returned a value of type NoneType; return a function"),
        (lambda graph: 7, "compile returned a value of type int"),
    ],
)
def test_what_compile_returns_is_checked(result: Any, message: str) -> None:
    with registered(Failing("compile", result)) as name, pytest.raises(Exception) as caught:
        session(model(CHAIN), name)
    assert message in str(caught.value)


X = np.array([1, 2], np.float32)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (explode, "ValueError: boom and more"),
        (lambda x: (x, x), "it returned 2 arrays, expected 1 ('y')"),
        (lambda x: (), "it returned 0 arrays, expected 1 ('y')"),
        (lambda x: None, "it returned None; return an array, or a tuple of arrays"),
        (lambda x: x.astype(np.float64), "it returned float64 for 'y', expected float32"),
        (lambda x: x[None], "it returned shape [1, 2] for 'y', expected [?]"),
        (lambda: X, "takes 0 positional arguments but 1 was given"),
        (lambda x: x.__setitem__(0, 1), "assignment destination is read-only"),
        (lambda x: "text", "for 'y', expected"),
    ],
)
def test_what_a_kernel_does_wrong_fails_the_run(kernel: Any, message: str) -> None:
    with registered(Failing("kernel", kernel)) as name:
        made = session(model(RELU), name)
        for _ in range(2):
            with pytest.raises(Exception, match="FailingExecutionProvider") as caught:
                made.run(None, {"x": X})
            assert message in str(caught.value)


def test_a_kernel_that_failed_runs_again() -> None:
    calls: list[int] = []

    def kernel(x: Any) -> Any:
        calls.append(len(calls))
        return explode() if len(calls) == 2 else np.maximum(x, 0)

    with registered(Failing("kernel", kernel)) as name:
        made = session(model(RELU), name)
        made.run(None, {"x": X})
        with pytest.raises(Exception, match="boom"):
            made.run(None, {"x": X})
        assert made.run(None, {"x": -X})[0].tolist() == [0, 0]


def test_a_later_type_that_is_wrong_is_found() -> None:
    kinds = [np.float32, np.float64]

    with registered(Failing("kernel", lambda x: x.astype(kinds.pop(0)))) as name:
        made = session(model(RELU), name)
        made.run(None, {"x": X})
        with pytest.raises(Exception, match="it returned float64, expected float32"):
            made.run(None, {"x": X})


def test_an_array_of_a_constant_is_not_kept() -> None:
    kept: list[Any] = []

    def keep(subgraph: GraphView) -> Any:
        for value in subgraph.initializers.values():
            assert value.const_value is not None
            kept.append(value.const_value.numpy())
        return interpreter(subgraph)

    with registered(Failing("compile", keep)) as name, pytest.raises(Exception) as caught:
        session(model(CHAIN), name)
    assert "compile keeps an array over the initializer 'w'" in str(caught.value)


def test_a_copy_of_a_constant_and_an_array_in_a_cycle_are_no_harm() -> None:
    kept: list[Any] = []

    def keep(subgraph: GraphView) -> Any:
        for value in subgraph.initializers.values():
            assert value.const_value is not None
            kept.append(np.array(value.const_value.numpy()))
            cycle: list[Any] = [value.const_value.numpy()]
            cycle.append(cycle)
        return interpreter(subgraph)

    with registered(Failing("compile", keep)) as name:
        check_chain(session(model(CHAIN), name))
    assert [array.tolist() for array in kept] == [[2]]


def test_sessions_are_told_their_options() -> None:
    told: list[dict[str, str]] = []

    class Told(NumpyProvider):
        def start(self) -> None:
            told.append(dict(self.session.options))
            assert self.session.config["some.key"] == "some value"
            assert self.session.devices == (0,)
            self.session.logger.info("started")

    with registered(Told()) as name:
        for level in ("1", "2"):
            made = options()
            made.add_session_config_entry("some.key", "some value")
            session(model(CHAIN), name, settings={"level": level}, session_options=made)
    assert [item["level"] for item in told] == ["1", "2"]


def test_each_session_has_a_provider_of_its_own() -> None:
    class Counting(NumpyProvider):
        count = 0

        def compile(self, subgraph: GraphView) -> Callable[..., Any]:
            self.count += 1
            counts.append(self.count)
            return interpreter(subgraph)

    counts: list[int] = []
    provider = Counting()
    with registered(provider) as name:
        first, second = session(model(CHAIN), name), session(model(CHAIN), name)
        check_chain(first)
        check_chain(second)
    assert counts == [1, 2, 1, 2]
    assert provider.count == 0
    assert not hasattr(provider, "session")


class Weights:
    """What a kernel holds."""


def test_what_kernels_hold_lives_as_long_as_the_session() -> None:
    held: list[weakref.ref[Weights]] = []
    closed: list[str] = []

    class Holding(NumpyProvider):
        def compile(self, subgraph: GraphView) -> Callable[..., Any]:
            weights, run = Weights(), interpreter(subgraph)
            held.append(weakref.ref(weights))

            def kernel(*arrays: Any) -> Any:
                assert weights
                return run(*arrays)

            return kernel

        def close(self) -> None:
            closed.append(self.session.options.get("level", ""))

    with registered(Holding()) as name:
        made = session(model(CHAIN), name, settings={"level": "3"})
        gc.collect()
        assert all(item() is not None for item in held)
        check_chain(made)
        assert not closed
        del made
        gc.collect()
        assert [one() for one in held] == [None, None]
        assert closed == ["3"]


def test_a_session_outlives_its_registration() -> None:
    with registered(NumpyProvider()) as name:
        made = session(model(CHAIN), name)
    gc.collect()
    check_chain(made)
    with registered(NumpyProvider()) as name:
        check_chain(session(model(CHAIN), name))
        check_chain(made)


def test_names_are_registered_once() -> None:
    others = registered_providers()
    with registered(NumpyProvider()) as name:
        assert registered_providers().keys() - others.keys() == {name}
        with pytest.raises(UserError, match=r"is registered already; unregister it first"):
            ortkit.register_provider(NumpyProvider())
        check_chain(session(model(CHAIN), name))
    assert registered_providers() == others
    with pytest.raises(UserError, match="no provider 'NumpyExecutionProvider' is registered"):
        ortkit.unregister_provider(name)


def test_several_providers_share_a_model() -> None:
    class Adds(NumpyProvider):
        name = "AddExecutionProvider"

        def get_capability(self, graph: GraphView) -> list[list[ir.Node]]:
            return [[node] for node in graph if node.op_type == "Add"]

    class Rest(NumpyProvider):
        name = "RestExecutionProvider"

        def get_capability(self, graph: GraphView) -> list[list[ir.Node]]:
            return [[node] for node in graph if node.op_type in NUMPY]

    with registered(Adds()) as adds, registered(Rest()) as rest:
        both = options()
        for name in (adds, rest):
            devices = [device for device in ort.get_ep_devices() if device.ep_name == name]
            both.add_provider_for_devices(devices, {})
        made = ort.InferenceSession(model(CHAIN), both)
        check_chain(made)
        assert placement(made, adds) == ["Add", "Add"]
        assert placement(made, rest) == ["Mul", "Relu"]


class Nameless(ortkit.ExecutionProvider):
    def get_capability(self, graph: GraphView) -> list[ir.Node]:
        return []


class Empty(ortkit.ExecutionProvider):
    name = "EmptyExecutionProvider"


class Uncompiled(Nameless):
    name = "UncompiledExecutionProvider"


class Cpu(NumpyProvider):
    name = "CPUExecutionProvider"


class Deviceless(NumpyProvider):
    devices = ()


@pytest.mark.parametrize(
    ("provider", "message"),
    [
        (NumpyProvider, "NumpyProvider is a class; make an object of it"),
        (7, "register_provider got a value of type int"),
        (Nameless(), "Nameless: the provider has no name"),
        (Empty(), "Empty: the provider takes no nodes"),
        (Uncompiled(), "Uncompiled: the provider has no compile"),
        (Cpu(), "ONNX Runtime has a provider 'CPUExecutionProvider' already"),
        (Deviceless(), "Deviceless: the provider has no devices"),
    ],
)
def test_what_is_no_provider_is_refused(provider: Any, message: str) -> None:
    others = registered_providers()
    with pytest.raises(UserError) as caught:
        ortkit.register_provider(provider)
    assert message in str(caught.value)
    assert registered_providers() == others


def test_a_group_with_a_sequence_at_its_edge_is_refused() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (seq(float[n]) s) => (float[m] y) { y = ConcatFromSequence<axis = 0>(s) }"""

    class All(NumpyProvider):
        def get_capability(self, graph: GraphView) -> list[list[ir.Node]]:
            return [list(graph)]

    with registered(All()) as name, pytest.raises(Exception) as caught:
        session(model(text), name)
    assert "'s' at its edge, which is Sequence" in str(caught.value)


def test_runs_are_told() -> None:
    told: list[tuple[str, str | None]] = []

    class Told(NumpyProvider):
        def run_started(self, run: RunInfo) -> None:
            told.append(("start", run.config("some.key")))

        def run_ended(self, run: RunInfo, *, synchronous: bool) -> None:
            told.append(("end" if synchronous else "later", run.config("other")))

    with registered(Told()) as name:
        made = session(model(CHAIN), name)
        run_options = ort.RunOptions()
        run_options.add_run_config_entry("some.key", "7")
        made.run(None, chain_feeds(), run_options)
    assert told == [("start", "7"), ("end", None)]


def test_a_run_that_may_not_start_fails() -> None:
    class Strict(NumpyProvider):
        def run_started(self, run: RunInfo) -> None:
            explode()

    with registered(Strict()) as name:
        made = session(model(CHAIN), name)
        with pytest.raises(Exception, match=r"run_started: ValueError: boom and more"):
            made.run(None, chain_feeds())


def test_options_are_set_between_runs() -> None:
    told: list[dict[str, str]] = []

    class Dynamic(NumpyProvider):
        def set_dynamic_options(self, options: Any) -> None:
            told.append(dict(options))

    with registered(Dynamic()) as name:
        session(model(CHAIN), name).set_ep_dynamic_options({"workload": "efficient"})
    assert told == [{"workload": "efficient"}]
    with registered(NumpyProvider()) as name:
        made = session(model(CHAIN), name)
        with pytest.raises(Exception, match="has no dynamic options"):
            made.set_ep_dynamic_options({"workload": "efficient"})


@pytest.mark.skipif(VERSION < (1, 27), reason="ONNX Runtime says so from 1.27 on")
def test_a_session_that_is_ready_is_told() -> None:
    told: list[str] = []

    class Ready(NumpyProvider):
        def session_initialized(self) -> None:
            told.append(self.session.options.get("level", ""))

    with registered(Ready()) as name:
        session(model(CHAIN), name, settings={"level": "4"})
    assert told == ["4"]


def test_models_compiled_earlier_are_judged() -> None:
    class Judging(NumpyProvider):
        def validate(self, compatibility: str) -> Compatibility:
            return Compatibility.OPTIMAL if compatibility == "v1" else Compatibility.UNSUPPORTED

    with registered(Judging()) as name:
        devices = [device for device in ort.get_ep_devices() if device.ep_name == name]
        judge = _pybind_state.get_model_compatibility_for_ep_devices
        verdicts = [judge(devices, text) for text in ("v1", "v2")]
    kinds = _pybind_state.OrtCompiledModelCompatibility
    assert verdicts == [kinds.EP_SUPPORTED_OPTIMAL, kinds.EP_UNSUPPORTED]
