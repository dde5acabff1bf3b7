"""Providers written straight against the bridge, for the tests of the native library."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

from ortkit.provider import bridge, native

HERE = Path(__file__).parent
HEADERS = HERE.parents[1] / "custom_ops" / "native" / "provider"
COMPILER = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
#: What callbacks and their structures need, for as long as the process.
KEPT: list[object] = []

TRIPLE = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 4] a, float[n, 4] b, float[n, 4] c) => (float[n, 4] y)
{ s = Add(a, b)  m = Mul(s, c)  y = Relu(m) }
"""


def model(text: str) -> bytes:
    """Return a model in ONNX's text as bytes."""
    serialized: bytes = onnx.parser.parse_model(text).SerializeToString()
    return serialized


@cache
def kernels() -> ctypes.CDLL:
    """Return the functions of native_kernels.c; skips the test where there is no C compiler."""
    if COMPILER is None:
        pytest.skip("no C compiler")
    folder = tempfile.mkdtemp(prefix="ortkit-test-")
    path = Path(folder) / "libkernels.so"
    command = [*COMPILER.split(), "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared"]
    source = str(HERE / "native_kernels.c")
    subprocess.run([*command, "-fPIC", f"-I{HEADERS}", source, "-o", str(path)], check=True)
    library = ctypes.CDLL(str(path))
    shutil.rmtree(folder)
    return library


def function_kernel(name: str) -> bridge.Kernel:
    """Return a kernel that runs a function of native_kernels.c."""
    kernel = bridge.Kernel(kind=bridge.KERNEL_FUNCTION)
    kernel.function = ctypes.cast(getattr(kernels(), name), ctypes.c_void_p)
    return kernel


def python_kernel(function: Callable[[bridge.KernelContext], int]) -> bridge.Kernel:
    """Return a kernel that runs `function` of a context, which may raise."""

    def run(_user: int, address: int) -> int:
        context = bridge.KernelContext.from_address(address)
        try:
            return function(context)
        except Exception as error:  # noqa: BLE001 - what a test makes it raise
            return context.fail(ctypes.pointer(context), 1, str(error).encode())

    callback = bridge.KERNEL_FUNCTION_TYPE(run)
    KEPT.append(callback)
    kernel = bridge.Kernel(kind=bridge.KERNEL_PYTHON)
    kernel.function = ctypes.cast(callback, ctypes.c_void_p)
    return kernel


class Reader:
    """Reads graphs and nodes through OrtApi."""

    def __init__(self, api: int) -> None:
        self._api = ctypes.cast(api, ctypes.POINTER(ctypes.c_void_p))

    def inputs(self, node: int) -> list[str]:
        """Return the names of a node's inputs."""
        return [self._text(289, value) if value else "" for value in self._array(353, 354, node)]

    def outputs(self, node: int) -> list[str]:
        """Return the names of a node's outputs."""
        return [self._text(289, value) for value in self._array(355, 356, node)]

    def _array(self, count_slot: int, slot: int, what: int) -> list[int]:
        count = ctypes.c_size_t()
        self._call(count_slot, what, ctypes.byref(count))
        array = (ctypes.c_void_p * count.value)()
        self._call(slot, what, array, ctypes.c_size_t(count.value))
        return list(array)

    def _text(self, slot: int, what: int) -> str:
        text = ctypes.c_char_p()
        self._call(slot, what, ctypes.byref(text))
        return (text.value or b"").decode()

    def _call(self, slot: int, what: int, *arguments: Any) -> None:
        function = ctypes.CFUNCTYPE(ctypes.c_void_p)(self._api[slot])
        assert not function(ctypes.c_void_p(what), *arguments)


def guarded(function: Callable[..., None]) -> Callable[..., int]:
    """Return a callback: `function` of all arguments, whose last is where its exception goes."""

    def call(*arguments: Any) -> int:
        try:
            function(*arguments)
        except Exception as error:  # noqa: BLE001 - what a test makes it raise
            native.set_error(arguments[-1], str(error))
            return 1
        return 0

    return call


Groups = list[list[int]]


class Graph(Reader):
    """The nodes of an OrtGraph."""

    def __init__(self, view: bridge.Graph) -> None:
        super().__init__(view.api)
        self.graph: int = view.graph
        self.is_nested = bool(view.is_nested)
        self.nodes = self._array(344, 345, self.graph)
        self.ops = [self._text(350, node) for node in self.nodes]


def arrange(
    kernel: bridge.Kernel,
    request: bridge.Compile,
    index: int,
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> bridge.Kernel:
    """Say which values of the fused node the kernel takes and makes, in the kernel's order.

    ONNX Runtime decides the order of a fused node's inputs and outputs.
    """
    reader, node = Reader(request.api), request.nodes[index]
    order = [reader.inputs(node).index(name) for name in inputs]
    kernel.input_count, kernel.inputs = len(order), (ctypes.c_int32 * len(order))(*order)
    order = [reader.outputs(node).index(name) for name in outputs]
    kernel.output_count, kernel.outputs = len(order), (ctypes.c_int32 * len(order))(*order)
    return kernel


class TestProvider:
    """A provider; override what a test is about."""

    __test__ = False
    name = "TestExecutionProvider"
    flags = bridge.PYTHON
    vendor_id = 0x0D17
    drop_constants = False
    kernel = "add_mul_relu"

    def groups(self, graph: Graph) -> Groups:
        """Return the nodes of each group: by default all that there are, in one."""
        return [graph.nodes] if "Add" in graph.ops else []

    def make(self, request: bridge.Compile, index: int) -> bridge.Kernel:
        """Return what a group runs."""
        return function_kernel(self.kernel)

    def get_capability(self, _user: int, _ep: int, view: Any, groups: int, error: int) -> None:
        for nodes in self.groups(Graph(view.contents)):
            native.add_group(
                groups, nodes, drop_constant_initializers=self.drop_constants, error=error
            )

    def compile(self, _user: int, _ep: int, request: Any, kernels_: int, error: int) -> None:
        for index in range(request.contents.count):
            native.set_kernel(kernels_, index, self.make(request.contents, index), error)

    def definition(self) -> bridge.Provider:
        """Return it as the library takes it."""
        made = bridge.Provider(
            version=bridge.BRIDGE_VERSION,
            flags=self.flags,
            name=self.name.encode(),
            vendor=b"tests",
            version_text=b"1.2.3",
            vendor_id=self.vendor_id,
            get_capability=bridge.GET_CAPABILITY(guarded(self.get_capability)),
            compile=bridge.COMPILE(guarded(self.compile)),
        )
        self.extend(made)
        KEPT.append(made)
        return made

    def extend(self, made: bridge.Provider) -> None:
        """Add what this provider has more."""


@contextmanager
def registered(provider: TestProvider, registration: str = "") -> Iterator[str]:
    """Register a provider and yield the name of the registration."""
    name = registration or provider.name
    native.define(name, provider.definition())
    ort.register_execution_provider_library(name, str(native.library_path()))
    try:
        yield name
    finally:
        ort.unregister_execution_provider_library(name)
        native.undefine(name)


def session(
    source: bytes | str,
    name: str,
    settings: Mapping[str, str] | None = None,
    *,
    options: ort.SessionOptions | None = None,
    config: Mapping[str, str] | None = None,
) -> ort.InferenceSession:
    """Return a session with the provider of this name, and no second try on the CPU."""
    made = options or ort.SessionOptions()
    made.log_severity_level = 4
    made.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    for key, value in (config or {}).items():
        made.add_session_config_entry(key, value)
    devices = [device for device in ort.get_ep_devices() if device.ep_name == name]
    assert devices, f"{name} has no devices"
    made.add_provider_for_devices(devices, dict(settings or {}))
    return ort.InferenceSession(source, made, enable_fallback=0)


def unoptimized() -> ort.SessionOptions:
    """Return options of a session that keeps the graph as it is."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def placed(of: ort.InferenceSession, name: str) -> list[list[str]]:
    """Return the op types of each subgraph that a provider has got."""
    return [
        [node.op_type for node in subgraph.get_nodes()]
        for subgraph in of.get_provider_graph_assignment_info()
        if subgraph.ep_name == name
    ]


def floats(names: Sequence[str], *shape: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return random inputs of one shape."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(np.float32) for name in names}


def triple(feeds: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return what TRIPLE computes."""
    result: np.ndarray = np.maximum((feeds["a"] + feeds["b"]) * feeds["c"], np.float32(0))
    return result
