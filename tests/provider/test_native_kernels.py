"""Kernels of providers: functions in C and in Python, and what they see and may do."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime as ort
import pytest

from ortkit.provider import bridge, native
from tests.provider.native_providers import (
    TRIPLE,
    Graph,
    Groups,
    TestProvider,
    arrange,
    floats,
    function_kernel,
    kernels,
    model,
    placed,
    python_kernel,
    registered,
    session,
    triple,
    unoptimized,
)


@pytest.fixture(scope="module")
def provider() -> Iterator[TestProvider]:
    test_provider = TestProvider()
    test_provider.name = "KernelsExecutionProvider"
    with registered(test_provider):
        yield test_provider


@pytest.fixture(autouse=True)
def whole_graphs(request: pytest.FixtureRequest) -> None:
    """Each test begins with a provider that claims all nodes."""
    if "provider" in request.fixturenames:
        vars(request.getfixturevalue("provider")).clear()
        request.getfixturevalue("provider").name = "KernelsExecutionProvider"


def take_all(provider: TestProvider, kernel: str | bridge.Kernel) -> None:
    provider.groups = lambda graph: [graph.nodes] if graph.nodes else []
    provider.make = lambda *_: function_kernel(kernel) if isinstance(kernel, str) else kernel


def test_a_function_in_c_runs_a_group(provider: TestProvider) -> None:
    feeds = floats("abc", 3, 4)
    made = session(model(TRIPLE), provider.name)
    np.testing.assert_array_equal(made.run(None, feeds)[0], triple(feeds))
    assert placed(made, provider.name) == [["Add", "Mul", "Relu"]]


@pytest.mark.parametrize("rows", [0, 1, 7, 1000])
def test_sizes_may_differ_from_run_to_run(provider: TestProvider, rows: int) -> None:
    made = session(model(TRIPLE), provider.name)
    for count in (3, rows):
        feeds = floats("abc", count, 4)
        np.testing.assert_array_equal(made.run(None, feeds)[0], triple(feeds))


def test_a_function_in_python_sees_its_inputs(provider: TestProvider) -> None:
    seen: list[tuple[list[int], int]] = []

    def run(context: bridge.KernelContext) -> int:
        seen.append((context.signature[: context.signature_count], context.size))
        shape = tuple(context.signature[1:3])
        views = [
            np.ctypeslib.as_array(
                ctypes.cast(context.data[i], ctypes.POINTER(ctypes.c_float)), shape
            )
            for i in range(context.input_count)
        ]
        address = (ctypes.c_void_p * 1)()
        code = context.make_outputs(ctypes.pointer(context), context.signature, address)
        out = ctypes.cast(address[0], ctypes.POINTER(ctypes.c_float))
        np.maximum((views[0] + views[1]) * views[2], 0, out=np.ctypeslib.as_array(out, shape))
        return int(code)

    take_all(provider, python_kernel(run))
    feeds = floats("abc", 3, 4)
    made = session(model(TRIPLE), provider.name)
    np.testing.assert_array_equal(made.run(None, feeds)[0], triple(feeds))
    assert seen == [([2, 3, 4] * 3, ctypes.sizeof(bridge.KernelContext))]


@pytest.mark.parametrize("threads", [1, 4])
def test_work_is_spread_over_the_threads_of_the_session(
    provider: TestProvider, threads: int
) -> None:
    take_all(provider, "double_rows")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    text = '<ir_version: 10, opset_import: ["" : 20]> g (float[n, 8] x) => (float[n, 8] y) '
    made = session(model(text + "{ y = Add(x, x) }"), provider.name, options=options)
    for rows in (0, 1, 5000):
        feeds = floats("x", rows, 8)
        np.testing.assert_array_equal(made.run(None, feeds)[0], 2 * feeds["x"])


def differences(inputs: str, outputs: str) -> Callable[[bridge.Compile, int], bridge.Kernel]:
    def make(request: bridge.Compile, index: int) -> bridge.Kernel:
        kernel = function_kernel("difference_and_product")
        return arrange(kernel, request, index, inputs, outputs)

    return make


def test_scratch_memory_and_several_outputs(provider: TestProvider) -> None:
    take_all(provider, "difference_and_product")
    provider.make = differences("ab", "dp")
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[n] a, float[n] b) => (float[n] d, float[n] p) { d = Sub(a, b)  p = Mul(a, b) }"""
    made = session(model(text), provider.name)
    for count in (0, 3, 5000):
        feeds = floats("ab", count)
        difference, product = made.run(["d", "p"], feeds)
        np.testing.assert_array_equal(difference, feeds["a"] - feeds["b"])
        np.testing.assert_array_equal(product, feeds["a"] * feeds["b"])


ELEMENT_TYPES = {
    "float": (np.float32, (1, 2, 32)), "uint8": (np.uint8, (2, 1, 8)),
    "int8": (np.int8, (3, 0, 8)), "uint16": (np.uint16, (4, 1, 16)),
    "int16": (np.int16, (5, 0, 16)), "int32": (np.int32, (6, 0, 32)),
    "int64": (np.int64, (7, 0, 64)), "bool": (np.bool_, (9, 6, 8)),
    "float16": (np.float16, (10, 2, 16)), "double": (np.float64, (11, 2, 64)),
    "uint32": (np.uint32, (12, 1, 32)), "uint64": (np.uint64, (13, 1, 64)),
}  # fmt: skip


@pytest.mark.parametrize("name", ELEMENT_TYPES)
def test_views_tell_type_rank_and_dims(provider: TestProvider, name: str) -> None:
    take_all(provider, "describe")
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
    g ({name}[n, 3] x) => (int64[k, 6] y)
    {{ i = Cast<to = 7>(x) s = Shape(i) y = Unsqueeze(i, s) }}"""
    made = session(model(text), provider.name, options=unoptimized())
    dtype, (element_type, code, bits) = ELEMENT_TYPES[name]
    (found,) = made.run(None, {"x": np.ones((2, 3), dtype)})
    np.testing.assert_array_equal(found, [[element_type, 2, 2, code, bits, 1]])


def test_views_of_scalars_and_strings(provider: TestProvider) -> None:
    take_all(provider, "describe")
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (string[n] x, float s) => (int64[k, 6] y) { y = Cast<to = 7>(x)  z = Neg(s) }"""
    made = session(model(text), provider.name, options=unoptimized())
    (found,) = made.run(None, {"x": np.array(["a", "b"]), "s": np.array(1, np.float32)})
    assert sorted(found.tolist()) == [[1, 0, -1, 2, 32, 1], [8, 1, 2, 3, 0, 1]]


def test_many_inputs(provider: TestProvider) -> None:
    take_all(provider, "sum_all")
    names = [f"x{i}" for i in range(40)]
    inputs = ", ".join(f"float[n] {name}" for name in names)
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
    g ({inputs}) => (float[n] y) {{ y = Sum({", ".join(names)}) }}"""
    made = session(model(text), provider.name)
    feeds = floats(names, 6)
    np.testing.assert_allclose(made.run(None, feeds)[0], sum(feeds.values()), rtol=1e-5)


def test_inputs_and_outputs_may_be_ordered_otherwise(provider: TestProvider) -> None:
    take_all(provider, "difference_and_product")
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[n] a, float[n] b) => (float[n] p, float[n] d) { p = Mul(a, b)  d = Sub(a, b) }"""
    feeds = floats("ab", 5)
    want = {"d": feeds["a"] - feeds["b"], "p": feeds["a"] * feeds["b"]}
    for inputs, outputs in (("ab", "dp"), ("ba", "dp"), ("ab", "pd"), ("ba", "pd")):
        provider.make = differences(inputs, outputs)
        found = dict(
            zip("dp", session(model(text), provider.name).run(["d", "p"], feeds), strict=True)
        )
        np.testing.assert_array_equal(found[outputs[1]], want["p"])
        sign = 1 if inputs == "ab" else -1
        np.testing.assert_array_equal(found[outputs[0]], sign * want["d"])


@pytest.mark.parametrize("drops", [False, True])
def test_constants_are_inputs_unless_dropped(provider: TestProvider, drops: bool) -> None:
    provider.drop_constants = drops
    take_all(provider, "sum_all")
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[2] a) => (float[2] y) <float[2] w = {1, 2}> { y = Add(a, w) }"""
    made = session(model(text), provider.name)
    (found,) = made.run(None, {"a": np.array([1, 1], np.float32)})
    np.testing.assert_array_equal(found, [1, 1] if drops else [2, 3])


@pytest.mark.parametrize(
    ("kernel", "error", "says"),
    [
        ("fails_with_a_reason", "InvalidArgument", r"the reasonx{2980,2985} end"),
        ("fails_without_a_reason", "Fail", "the kernel returned 77"),
        ("makes_a_third_output", "InvalidArgument", "the kernel makes output 2 of 1"),
        ("makes_a_negative_output", "InvalidArgument", "output 0 has size -1 in dim 1"),
    ],
)
def test_a_failure_tells_the_provider_the_kernel_and_the_reason(
    provider: TestProvider, kernel: str, error: str, says: str
) -> None:
    failing = function_kernel(kernel)
    failing.label = b"a label"
    take_all(provider, failing)
    made = session(model(TRIPLE), provider.name)
    for _ in range(2):  # the session stays usable
        with pytest.raises(Exception, match=f"{provider.name}: a label: {says}") as caught:
            made.run(None, floats("abc", 3, 4))
        assert type(caught.value).__name__ == error


def test_a_python_exception_is_the_reason(provider: TestProvider) -> None:
    def run(_: bridge.KernelContext) -> int:
        raise ValueError("it went wrong: ö")

    take_all(provider, python_kernel(run))
    made = session(model(TRIPLE), provider.name)
    with pytest.raises(Exception, match="it went wrong: ö"):
        made.run(None, floats("abc", 3, 4))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": 9}, "the kernel is of kind 9"),
        ({"function": None}, "the kernel has no function"),
        ({"inputs": [0, 5]}, "input 1 of the kernel is the node's 5, and it has 3"),
        ({"outputs": [0, 0]}, "the kernel's 2 outputs are not the node's 1, each once"),
        ({"kind": 1, "function": None}, "the kernel names no library, or no op of it"),
    ],
)
def test_kernels_that_do_not_fit_are_refused(
    provider: TestProvider, change: dict[str, object], says: str
) -> None:
    kernel = function_kernel("add_mul_relu")
    for field, value in change.items():
        if isinstance(value, list):
            setattr(kernel, field, (ctypes.c_int32 * len(value))(*value))
            setattr(kernel, f"{field[:-1]}_count", len(value))
        else:
            setattr(kernel, field, value)
    take_all(provider, kernel)
    with pytest.raises(Exception, match=f"{provider.name}: {says}"):
        session(model(TRIPLE), provider.name)


def test_a_kernel_is_released_once_also_if_it_is_refused(provider: TestProvider) -> None:
    count = kernels().release_count
    count.restype = ctypes.POINTER(ctypes.c_int32)
    counter = count()

    def kernel(*_: object) -> bridge.Kernel:
        made = function_kernel(name)
        made.user = ctypes.cast(counter, ctypes.c_void_p)
        made.release = ctypes.cast(kernels().release, ctypes.c_void_p)
        return made

    provider.make = kernel
    name, before = "add_mul_relu", counter[0]
    made = session(model(TRIPLE), provider.name)
    assert counter[0] == before
    del made
    assert counter[0] == before + 1

    def refused(*_: object) -> bridge.Kernel:
        bad = kernel()
        bad.kind = 9
        return bad

    provider.make = refused
    with pytest.raises(Exception, match="kind 9"):
        session(model(TRIPLE), provider.name)
    assert counter[0] == before + 2


def test_a_group_without_a_kernel_fails() -> None:
    made = TestProvider()
    made.name = "ForgetfulExecutionProvider"
    made.compile = lambda *_: None
    with (
        registered(made),
        pytest.raises(Exception, match="compile made no kernel for ForgetfulExecutionProvider"),
    ):
        session(model(TRIPLE), made.name)


def test_several_sessions_run_at_the_same_time(provider: TestProvider) -> None:
    made = [session(model(TRIPLE), provider.name) for _ in range(3)]

    def run(seed: int) -> bool:
        feeds = floats("abc", 1 + seed % 9, 4, seed=seed)
        return bool(np.array_equal(made[seed % 3].run(None, feeds)[0], triple(feeds)))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(400)))


class Branches(TestProvider):
    """Claims every Add by itself, so that several run side by side."""

    name = "BranchesExecutionProvider"
    kernel = "sum_all"

    def groups(self, graph: Graph) -> Groups:
        return [[node] for node, op in zip(graph.nodes, graph.ops, strict=True) if op == "Add"]


def test_nodes_run_side_by_side_in_one_session() -> None:
    adds = " ".join(f"t{i} = Add(a, b) u{i} = Relu(t{i})" for i in range(20))
    total = ", ".join(f"u{i}" for i in range(20))
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
    g (float[n] a, float[n] b) => (float[n] y) {{ {adds} y = Sum({total}) }}"""
    options = unoptimized()
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.inter_op_num_threads = 4
    with registered(Branches()):
        made = session(model(text), Branches.name, options=options)
        assert len(placed(made, Branches.name)) == 20
        feeds = floats("ab", 300)
        want = 20 * np.maximum(feeds["a"] + feeds["b"], 0)
        for _ in range(50):
            np.testing.assert_allclose(made.run(None, feeds)[0], want, rtol=1e-5)


def test_groups_in_subgraphs() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (bool c, float[n] a, float[n] b) => (float[n] y)
    { y = If(c) <then_branch = t () => (float[n] t) { t = Add(a, b) },
                 else_branch = e () => (float[n] e) { z = Add(a, b) e = Relu(z) }> }"""
    with registered(Branches()):
        made = session(model(text), Branches.name, options=unoptimized())
        assert placed(made, Branches.name) == [["Add"], ["Add"]]
        feeds = floats("ab", 5)
        total = feeds["a"] + feeds["b"]
        for taken, want in ((True, total), (False, np.maximum(total, 0))):
            (found,) = made.run(None, {"c": np.array(taken), **feeds})
            np.testing.assert_array_equal(found, want)


def test_the_library_says_what_is_wrong_with_a_definition() -> None:
    made = TestProvider().definition()
    made.version = 99
    with pytest.raises(Exception, match="provider X: the definition has version 99"):
        native.define("X", made)
    made.version, made.name = bridge.BRIDGE_VERSION, b""
    with pytest.raises(Exception, match="provider X: the provider has no name"):
        native.define("X", made)
