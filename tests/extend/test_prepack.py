"""Inputs that kernels take packed: constants once, as the session is made, others in each run."""

# ruff: noqa: F722, F821, UP037

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnxruntime as ort
import pytest

import ortkit
from ortkit.errors import UserError
from ortkit.extend.build.library import build_ops
from ortkit.extend.check.op_check import check_op
from ortkit.runtime.python_ops import OPS

te = pytest.importorskip("tvm.te")

HEAD = '<ir_version: 10, opset_import: ["" : 20, "tests.pack" : 1]> '
PRODUCT = "{ y = tests.pack.Product(x, w) }"
RANDOM = np.random.default_rng(0)
LANES = 8


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    before = dict(OPS)
    yield
    OPS.clear()
    OPS.update(before)


def product_op(name: str = "Product") -> ortkit.CustomOp:
    @ortkit.custom_op(f"tests.pack::{name}")
    def product(x: ortkit.Float32["m k"], w: ortkit.Float32["k n"]) -> ortkit.Float32["m n"]:
        return x @ w

    @product.prepack("w", shape=("ceil(n / 8)", "k", LANES))
    def panels(w):
        """Panels of 8 columns, with zeros beside the last one."""
        from tvm import tirx

        k, n = w.shape

        def element(panel, row, lane):
            column = panel * LANES + lane
            is_present = column < n
            some = w[row, tirx.if_then_else(is_present, column, 0)]
            return tirx.if_then_else(is_present, some, tirx.const(0, w.dtype))

        return te.compute(((n + (LANES - 1)) // LANES, k, LANES), element, "packed")

    return product


def add_packed(op: ortkit.CustomOp, times: float = 1.0, **options: Any) -> None:
    """Give the op a kernel for packed weights whose results tell it from others."""

    @op.kernel("tvm", split="m", packed="w", **options)
    def from_panels(x, w, *, n):
        m, k = x.shape
        d = te.reduce_axis((0, k), "d")
        return te.compute(
            (m, n), lambda i, j: te.sum(x[i, d] * w[j // LANES, d, j % LANES] * times, axis=d), "y"
        )


def add_plain(op: ortkit.CustomOp) -> None:
    @op.kernel("tvm", split="m")
    def from_rows(x, w):
        m, k = x.shape
        d = te.reduce_axis((0, k), "d")
        return te.compute((m, w.shape[1]), lambda i, j: te.sum(x[i, d] * w[d, j], axis=d), "y")


def built(op: ortkit.CustomOp, tmp_path: Path, *others: ortkit.CustomOp) -> Path:
    build = build_ops([op, *others], tmp_path / "ops.so")
    assert build.refused == ()
    return tmp_path / "ops.so"


def session_of(path: Path, text: str, **fixed: np.ndarray) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(path))
    model = onnx.parser.parse_model(HEAD + text)
    for name, array in fixed.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def some(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("k", "n"), [(5, 19), (5, 16), (1, 1), (0, 3), (4, 0)])
def test_a_constant_is_packed_and_others_take_the_next_kernel(
    tmp_path: Path, k: int, n: int
) -> None:
    op = product_op()
    add_packed(op, times=2.0)
    add_plain(op)
    path, x, w = built(op, tmp_path), some(3, k), some(k, n)
    want = x @ w
    head = "g (float[m,k] x) => (float[m,n] y) "
    constant = session_of(path, head + PRODUCT, w=w)
    for _ in range(2):
        np.testing.assert_allclose(constant.run(None, {"x": x})[0], want * 2, rtol=1e-5, atol=1e-5)
    other = session_of(path, "g (float[m,k] x, float[k,n] w) => (float[m,n] y) " + PRODUCT)
    np.testing.assert_allclose(other.run(None, {"x": x, "w": w})[0], want, rtol=1e-5, atol=1e-5)


def test_an_initializer_that_a_run_may_replace_is_no_constant(tmp_path: Path) -> None:
    op = product_op()
    add_packed(op, times=2.0)
    add_plain(op)
    x, w = some(2, 4), some(4, 9)
    head = "g (float[m,k] x, float[4,9] w) => (float[m,n] y) "
    session = session_of(built(op, tmp_path), head + PRODUCT, w=some(4, 9))
    np.testing.assert_allclose(session.run(None, {"x": x, "w": w})[0], x @ w, rtol=1e-5, atol=1e-5)


def test_without_another_kernel_it_is_packed_in_each_run(tmp_path: Path) -> None:
    op = product_op()
    add_packed(op)
    path = built(op, tmp_path)
    session = session_of(path, "g (float[m,k] x, float[k,n] w) => (float[m,n] y) " + PRODUCT)
    for _ in range(3):
        x, w = some(2, 7), some(7, 21)
        got = session.run(None, {"x": x, "w": w})[0]
        np.testing.assert_allclose(got, x @ w, rtol=1e-5, atol=1e-5)


def test_kernels_for_other_sizes_share_what_is_packed(tmp_path: Path) -> None:
    op = product_op()
    add_packed(op, times=2.0, when="m <= 2")
    add_packed(op, times=3.0)
    w = some(7, 21)
    session = session_of(
        built(op, tmp_path), "g (float[m,k] x) => (float[m,n] y, float[m,n] z) "
        "{ y = tests.pack.Product(x, w) z = tests.pack.Product(x, v) }", w=w, v=w + 1,
    )  # fmt: skip
    for rows, times in ((2, 2), (3, 3)):
        x = some(rows, 7)
        for got, weight in zip(session.run(None, {"x": x}), (w, w + 1), strict=True):
            np.testing.assert_allclose(got, x @ weight * times, rtol=1e-5, atol=1e-5)


def test_several_ops_of_a_library_are_packed(tmp_path: Path) -> None:
    op, other = product_op(), product_op("Other")
    add_packed(op, times=2.0)
    add_packed(other, times=3.0)
    x, w = some(3, 5), some(5, 9)
    session = session_of(
        built(op, tmp_path, other), "g (float[m,k] x) => (float[m,n] y, float[m,n] z) "
        "{ y = tests.pack.Product(x, w) z = tests.pack.Other(x, w) }", w=w,
    )  # fmt: skip
    for got, times in zip(session.run(None, {"x": x}), (2, 3), strict=True):
        np.testing.assert_allclose(got, x @ w * times, rtol=1e-5, atol=1e-5)


def test_a_constant_that_does_not_fit_is_refused_when_the_session_is_made(tmp_path: Path) -> None:
    op = product_op()
    add_packed(op)
    with pytest.raises(Exception, match="Product: input 'w' has rank 3, expected 2"):
        session_of(built(op, tmp_path), "g (float[m,k] x) => (float[m,n] y) " + PRODUCT,
                   w=some(2, 3, 4))  # fmt: skip


def test_in_sessions_of_ortkit_and_models_that_it_optimized(tmp_path: Path) -> None:
    op = product_op()
    add_packed(op, times=2.0)
    path, w, x = built(op, tmp_path), some(6, 10), some(2, 6)
    model = onnx.parser.parse_model(HEAD + "g (float[m,6] x) => (float[m,10] y) "
                                    "{ h = tests.pack.Product(x, w) y = Relu(h) }")  # fmt: skip
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    with ortkit.Session(model, libraries=[path]) as session:
        got = session.run({"x": x})["y"]
    np.testing.assert_allclose(got, np.maximum(x @ w * 2, 0), rtol=1e-5, atol=1e-5)


def test_ops_test_calls_what_packs() -> None:
    op = product_op()
    add_packed(op)
    found = check_op(op)
    assert [str(fault) for fault in found.faults] == []
    assert found.kernels > 8


def test_packing_out_of_bounds_is_a_fault() -> None:
    op = product_op()

    @op.prepack("w", shape=("n", "k"))
    def panels(w):
        k, n = w.shape
        return te.compute((n, k), lambda i, j: w[j, i + 1], "packed")

    @op.kernel("tvm", split="m", packed="w")
    def from_columns(x, w, *, n):
        m, k = x.shape
        d = te.reduce_axis((0, k), "d")
        return te.compute((m, n), lambda i, j: te.sum(x[i, d] * w[j, d], axis=d), "y")

    assert "it reads or writes out of bounds" in " ".join(map(str, check_op(op).faults))


@pytest.mark.parametrize("place", ["beside", "into"])
def test_packing_that_writes_where_it_must_not(place: str) -> None:
    from tvm.script import tirx as T

    op = product_op()

    @op.prepack("w", shape=("k", "n"))
    @T.prim_func
    def panels(w: T.handle, packed: T.handle):
        k = T.int64()
        n = T.int64()
        rows = T.match_buffer(w, (k, n), "float32")
        out = T.match_buffer(packed, (k, n), "float32")
        for i in range(k):
            for j in range(n):
                out[i, j] = rows[i, j]
        if k * n > 0:
            if place == "beside":
                out[k, 0] = 1.0
            else:
                rows[0, 0] = 1.0

    @op.kernel("tvm", split="m", packed="w")
    def from_copy(x, w):
        m, k = x.shape
        d = te.reduce_axis((0, k), "d")
        return te.compute((m, w.shape[1]), lambda i, j: te.sum(x[i, d] * w[d, j], axis=d), "y")

    faults = " ".join(map(str, check_op(op).faults))
    assert {"beside": "beside the packed w", "into": "into its input w"}[place] in faults


def test_tensors_of_pytorch_are_packed_in_each_call() -> None:
    torch = pytest.importorskip("torch")
    op = product_op()
    add_packed(op, times=2.0)
    x, w = some(3, 6), some(6, 11)
    got = op.torch(kernels="always")(torch.from_numpy(x), torch.from_numpy(w))
    np.testing.assert_allclose(got.numpy(), x @ w * 2, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("v", {"shape": ("n",)}, "there is no input 'v'"),
        ("w", {"shape": ()}, "the packed tensor has no shape"),
        ("w", {"shape": ("m",)}, "there is no size 'm'"),
        ("w", {"shape": ("n",), "dtype": "float"}, "'float' is no element type"),
        ("w", {"shape": ("n",), "split": "n"}, "there is no option 'split'"),
    ],
)
def test_packings_that_are_none(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        product_op().prepack(name, lambda w: w, **options)


def test_inputs_of_any_number_are_not_packed() -> None:
    @ortkit.custom_op("tests.pack::Scaled")
    def scaled(x: ortkit.Float32["*s"]) -> ortkit.Float32["*s"]:
        return x

    with pytest.raises(UserError, match="any number of tensors or axes"):
        scaled.prepack("x", lambda x: x, shape=("s",))


def test_a_kernel_names_what_is_packed() -> None:
    with pytest.raises(UserError, match="there is nothing that packs 'x'"):
        product_op().kernel("tvm", lambda x, w: x, packed="x")


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (("n", "k"), "packed has 3 axes, declared are 2"),
        (("ceil(n / 8)", "k", 16), "packed has size 8 along axis 2, declared is 16"),
    ],
)
def test_a_packing_that_contradicts_its_shape(shape: tuple[Any, ...], message: str) -> None:
    op = product_op()
    op.prepack("w", op.packings["w"].kernel.source, shape=shape)
    add_packed(op)
    assert message in " ".join(map(str, check_op(op).faults))


def test_a_packed_axis_is_not_split() -> None:
    @ortkit.custom_op("tests.pack::Added")
    def added(x: ortkit.Float32["m"], w: ortkit.Float32["m"]) -> ortkit.Float32["m"]:
        return x + w

    added.prepack("w", lambda w: te.compute(w.shape, lambda i: w[i], "packed"), shape=("m",))
    added.kernel("tvm", lambda x, w: te.compute(x.shape, lambda i: x[i] + w[i], "y"),
                 split="m", packed="w")  # fmt: skip
    message = "w is packed, and its axis m is not split"
    assert message in " ".join(map(str, check_op(added).faults))
