"""Kernels that users write in TE and TIR: built, run by ONNX Runtime, and checked."""

# ruff: noqa: F722, F821, UP037

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest
from ortkit.custom_ops.tvm.tile.emitter import TileEmitter

import ortkit
from ortkit.errors import UserError
from ortkit.extend.build.library import build_ops
from ortkit.extend.check.op_check import check_op
from ortkit.runtime.python_ops import OPS
from ortkit.targets.cpu import LEVELS

te = pytest.importorskip("tvm.te")

HEAD = '<ir_version: 10, opset_import: ["" : 20, "tests.te" : 1]> '
RANDOM = np.random.default_rng(0)
#: Rows ahead of a tensor at which no process has memory.
FAR = 1 << 40


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    before = dict(OPS)
    yield
    OPS.clear()
    OPS.update(before)


def scaled_op() -> ortkit.CustomOp:
    @ortkit.custom_op("tests.te::Scaled")
    def scaled(x: ortkit.Float["*s"], *, alpha: float = 2.0) -> ortkit.Float["*s"]:
        return x * np.asarray(alpha, x.dtype)

    return scaled


def add_scaled(op: ortkit.CustomOp, **options: Any) -> None:
    @op.kernel("tvm", split="s", **options)
    def scaled_te(x, *, alpha):
        return te.compute(x.shape, lambda i: x[i] * alpha.astype(x.dtype), "y")


def centered_op() -> ortkit.CustomOp:
    @ortkit.custom_op("tests.te::Centered")
    def centered(
        x: ortkit.Float32["m n"], b: ortkit.Float32["n"] | None = None
    ) -> ortkit.Float32["m n"]:
        y = x - x.sum(-1, keepdims=True)
        return y if b is None else y + b

    return centered


def add_centered(op: ortkit.CustomOp, **options: Any) -> None:
    @op.kernel("tvm", split="m", **options)
    def centered_te(x, b):
        m, n = x.shape
        k = te.reduce_axis((0, n), "k")
        total = te.compute((m,), lambda i: te.sum(x[i, k], axis=k), "total")
        twice = te.compute((m, n), lambda i, j: x[i, j] - total[i], "twice")
        return te.compute((m, n), lambda i, j: twice[i, j] + b[j], "y")


def add_centered_tir(op: ortkit.CustomOp) -> None:
    from tvm.script import tirx as T

    @op.kernel("tvm", split="m", without=["b"])
    @T.prim_func
    def centered_tir(x: T.handle, y: T.handle):
        m = T.int64()
        n = T.int64()
        rows = T.match_buffer(x, (m, n), "float32")
        out = T.match_buffer(y, (m, n), "float32")
        for i in range(m):
            total = T.alloc_buffer((1,), "float32", scope="local")
            total[0] = 0.0
            for j in range(n):
                total[0] = total[0] + rows[i, j]
            for j in range(n):
                out[i, j] = rows[i, j] - total[0]


def run(path: Path, text: str, **feeds: np.ndarray) -> np.ndarray:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(path))
    model = onnx.parser.parse_model(HEAD + text).SerializeToString()
    providers = ["CPUExecutionProvider"]
    return ort.InferenceSession(model, options, providers=providers).run(None, feeds)[0]


def test_te_of_any_number_of_axes_with_an_attribute(tmp_path: Path) -> None:
    op = scaled_op()
    add_scaled(op, dtypes=["float32", "float16"])
    found = check_op(op, dtypes=["float32", "float16"])
    assert found.faults == () and found.kernels == found.cases == 18
    build = build_ops([op], tmp_path / "ops.so", dtypes=["float32", "float64"])
    assert [form.text for form in build.built] == ["float32 by scaled_te (tvm)"]
    assert build.refused == (("tests.te::Scaled", "float64", "there is no body"),)
    x = RANDOM.standard_normal((3, 5, 7)).astype(np.float32)
    text = "g (float[a,b,c] x) => (y) { y = tests.te.Scaled <alpha = 3.0> (x) }"
    np.testing.assert_array_equal(run(tmp_path / "ops.so", text, x=x), x * np.float32(3))


def test_te_with_a_reduction_and_tir_without_the_optional_input(tmp_path: Path) -> None:
    op = centered_op()
    add_centered(op)
    add_centered_tir(op)
    found = check_op(op)
    assert found.faults == () and found.kernels == found.cases > 30
    build_ops([op], tmp_path / "ops.so")
    x, b = (RANDOM.standard_normal(item).astype(np.float32) for item in ((40, 33), (33,)))
    text = "g (float[m,n] x, float[n] b) => (y) { y = tests.te.Centered(x, b) }"
    np.testing.assert_allclose(run(tmp_path / "ops.so", text, x=x, b=b), op(x, b), atol=1e-4)
    text = "g (float[m,n] x) => (y) { y = tests.te.Centered(x) }"
    np.testing.assert_allclose(run(tmp_path / "ops.so", text, x=x), op(x, None), atol=1e-4)


def test_a_function_over_pointers_computes_a_range_of_units() -> None:
    """It gets the processor's level, and how many units a part has at least."""
    levels: list[str] = []

    @ortkit.custom_op("tests.te::Shifted")
    def shifted(x: ortkit.Float32["m n"]) -> ortkit.Float32["m n"]:
        return x + np.float32(1)

    @shifted.kernel("tvm", units="m", least=4)
    def shifted_rows(x, *, level):
        levels.append(level)
        e = TileEmitter("shifted")
        source, sink = (e.pointer(name, "float32") for name in ("x", "y"))
        _, n, begin, end = (e.size(name) for name in ("m", "n", "begin", "end"))
        with e.loop((end - begin) * n) as index:
            at = e.share(begin * n + index)
            e.store(sink, source[at] + e.f32(1.0), at)
        return e.function()

    found = check_op(shifted)
    assert [str(fault) for fault in found.faults] == []
    assert found.kernels > 8
    assert set(levels) <= set(LEVELS)


def test_the_first_kernel_whose_sizes_fit_runs(tmp_path: Path) -> None:
    """Which one ran shows, as they do not compute the same."""
    op = centered_op()
    for number, when in enumerate(("n % 8 == 0 and n <= 32", "m*n <= 12", "")):

        @op.kernel("tvm", split="m", when=when, constants={"number": number})
        def constant(x, b, number):
            return te.compute(x.shape, lambda i, j: x[i, j] * 0.0 + number, "y")

    build_ops([op], tmp_path / "ops.so")
    text = "g (float[m,n] x, float[n] b) => (y) { y = tests.te.Centered(x, b) }"
    for shape, number in (((9, 16), 0), ((9, 32), 0), ((3, 4), 1), ((9, 40), 2), ((4, 5), 2)):
        x = np.ones(shape, np.float32)
        assert (run(tmp_path / "ops.so", text, x=x, b=x[0]) == number).all(), shape


def test_sizes_that_no_kernel_is_for(tmp_path: Path) -> None:
    op = centered_op()
    add_centered(op, when="n <= 8")
    build_ops([op], tmp_path / "ops.so")
    text = "g (float[m,n] x, float[n] b) => (y) { y = tests.te.Centered(x, b) }"
    x = np.ones((2, 9), np.float32)
    with pytest.raises(Exception, match="no kernel for the sizes of the node's inputs"):
        run(tmp_path / "ops.so", text, x=x, b=x[0])


def test_behind_a_kernel_for_some_sizes_comes_the_generated_one(tmp_path: Path) -> None:
    op = scaled_op()
    op.body(
        '<opset_import: ["" : 20]> f <alpha: float = 2.0> (x) => (y) '
        "{ a = Constant <value_float: float = @alpha> () b = CastLike(a, x) y = Mul(x, b) }"
    )
    add_scaled(op, when="s % 16 == 0")
    build = build_ops([op], tmp_path / "ops.so", dtypes=["float32"])
    assert [form.text for form in build.built] == [
        "float32 by scaled_te (tvm) where s % 16 == 0", "float32",
    ]  # fmt: skip
    for count in (16, 17):
        x = np.ones(count, np.float32)
        text = "g (float[n] x) => (y) { y = tests.te.Scaled <alpha = 5.0> (x) }"
        assert (run(tmp_path / "ops.so", text, x=x) == 5).all()
    assert check_op(op, dtypes=["float32"]).faults == ()


def test_any_number_of_inputs(tmp_path: Path) -> None:
    @ortkit.custom_op("tests.te::Sum")
    def add_all(*xs: ortkit.Float32["*s"]) -> ortkit.Float32["*s"]:
        return np.sum(xs, axis=0)

    @add_all.kernel("tvm", split="s", counts=(1, 3))
    def add_te(*xs):
        return te.compute(xs[0].shape, lambda i: sum((x[i] for x in xs[1:]), xs[0][i]), "y")

    found = check_op(add_all)
    assert found.faults == () and found.kernels > found.cases
    build_ops([add_all], tmp_path / "ops.so")
    x = np.ones((2, 3), np.float32)
    for count in (1, 3):
        inputs = ", ".join(["x"] * count)
        text = f"g (float[m,n] x) => (y) {{ y = tests.te.Sum({inputs}) }}"
        assert (run(tmp_path / "ops.so", text, x=x) == count).all()
    with pytest.raises(Exception, match="no kernel for the inputs that the node has"):
        run(tmp_path / "ops.so", "g (float[m,n] x) => (y) { y = tests.te.Sum(x, x) }", x=x)


def test_in_place() -> None:
    op = scaled_op()
    add_scaled(op, inplace=[("x", "y")])
    assert check_op(op, dtypes=["float32"]).faults == ()

    @ortkit.custom_op("tests.te::Turn")
    def turn(x: ortkit.Float32["n"]) -> ortkit.Float32["n"]:
        return x[::-1]

    @turn.kernel("tvm", inplace=[("x", "y")])
    def turn_te(x):
        return te.compute(x.shape, lambda i: x[x.shape[0] - 1 - i], "y")

    faults = check_op(turn).faults
    assert faults and all("in place, it gives another result" in str(fault) for fault in faults)


def bad_schedule(schedule: Any) -> None:
    schedule.vectorize(schedule.get_loops(schedule.get_sblock("nowhere"))[-1])


@pytest.mark.parametrize(
    ("kernel", "options", "message"),
    [
        (lambda x, b: te.compute(x.shape, lambda i, j: x[i, j] - b[i], "y"), {}, "off by|bounds"),
        (lambda x, b: te.compute(x.shape, lambda i, j: x[i + FAR, j], "y"), {}, "of bounds"),
        (
            lambda x, b: te.compute(x.shape, lambda i, j: x[i, j].astype("int32"), "y"), {},
            "y is int32, declared is float32 here",
        ),
        (lambda x, b: te.compute((7,), lambda i: b[i], "y"), {}, "y has 1 axes, declared are 2"),
        (lambda x, b: (x, b), {}, "it returns 2 tensors, declared are 1"),
        (lambda x, b: 3, {}, "it returns int for y, and no te.Tensor"),
        (lambda x, b: undefined, {}, "NameError: name 'undefined' is not defined"),
        (lambda x: x, {}, "TypeError"),
        (
            lambda x, b: te.compute(x.shape, lambda i, j: x[i, j], "y"),
            {"schedule": bad_schedule}, "Cannot find a block",
        ),
        (lambda x, b: x, {"split": "n"}, "n is not the first axis of x"),
        (lambda x, b: x, {"split": "q"}, "split names no size 'q'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_fault(kernel: Any, options: dict[str, Any], message: str) -> None:
    op = centered_op()
    op.kernel("tvm", kernel, **options)
    faults = [str(fault) for fault in check_op(op).faults]
    assert faults and all("\n" not in one for one in faults)
    assert all(re.search(message, item) for item in faults), faults


@pytest.mark.parametrize(
    ("backend", "options", "message"),
    [
        ("cuda", {}, "there is no kernel language 'cuda'"),
        ("tvm", {"grid": ["n"]}, "grid means nothing to tvm kernels"),
        ("tvm", {"when": "n < 4"}, "'n < 4' is no condition"),
        ("tvm", {"when": "q <= 4"}, "there is no size 'q'"),
        ("tvm", {"speed": 3}, "there is no option 'speed'"),
        ("tvm", {"dtypes": ["float31"]}, "has no element type 'float31'"),
        ("tvm", {"without": ["x"]}, "the input 'x' is not optional"),
        ("tvm", {"split": "m", "units": "m"}, "exclude each other"),
        ("triton", {}, "a grid of 0 axes"),
        ("triton", {"grid": ["n"], "warps": 3}, "3 warps"),
    ],
)
def test_declarations_that_are_none(backend: str, options: dict[str, Any], message: str) -> None:
    op = centered_op()
    with pytest.raises(UserError, match=message) as caught:
        op.kernel(backend, lambda x, b: x, **options)
    assert "\n" not in str(caught.value)
    assert op.kernels == []


def test_attributes_that_no_kernel_can_take() -> None:
    @ortkit.custom_op("tests.te::Mode")
    def mode(x: ortkit.Float32["n"], *, mode: str = "a") -> ortkit.Float32["n"]:
        return x

    with pytest.raises(UserError, match="the attribute mode is a text or a list"):
        mode.kernel("tvm", lambda x: x)


def test_an_attribute_that_a_kernel_does_not_take_is_built_in(tmp_path: Path) -> None:
    op = scaled_op()

    @op.kernel("tvm", split="s")
    def twice(x):
        return te.compute(x.shape, lambda i: x[i] + x[i], "y")

    build_ops([op], tmp_path / "ops.so", dtypes=["float32"])
    x = np.ones(3, np.float32)
    assert (
        run(tmp_path / "ops.so", "g (float[n] x) => (y) { y = tests.te.Scaled(x) }", x=x) == 2
    ).all()
    with pytest.raises(Exception, match="no kernel for the values of its attributes"):
        run(
            tmp_path / "ops.so",
            "g (float[n] x) => (y) { y = tests.te.Scaled <alpha = 3.0> (x) }",
            x=x,
        )


def test_intermediate_tensors_of_unknown_size() -> None:
    op = centered_op()

    @op.kernel("tvm")
    def kept(x, b):
        m, n = x.shape
        k = te.reduce_axis((0, n), "k")
        total = te.compute((m,), lambda i: te.sum(x[i, k], axis=k), "total")
        return te.compute((m, n), lambda i, j: x[i, j] - total[i] + b[j], "y")

    (fault,) = check_op(op).faults
    assert "a size that only a run tells" in fault.problem


def test_sums_of_columns_are_computed_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    from ortkit.extend.tvm import tuning
    from ortkit.extend.tvm.schedule import scheduled

    def product(x: Any, w: Any) -> Any:
        d = te.reduce_axis((0, x.shape[1]), "d")
        shape = (x.shape[0], w.shape[1])
        return te.compute(shape, lambda i, j: te.sum(x[i, d] * w[d, j], axis=d), "y")

    m, k, n = (te.var(name, "int64") for name in "mkn")
    x, w = te.placeholder((m, k), "float32", "x"), te.placeholder((k, n), "float32", "w")
    d = te.reduce_axis((0, k), "d")
    sums = te.compute((m,), lambda i: te.sum(x[i, d], axis=d), "y")
    made = [te.create_prim_func([x, w, product(x, w)]), te.create_prim_func([x, sums])]
    is_wide = ["T.vectorized" in scheduled(item, None, "m").script() for item in made]
    assert is_wide == [True, False]

    @ortkit.custom_op("tests.te::Product")
    def op(x: ortkit.Float32["m k"], w: ortkit.Float32["k n"]) -> ortkit.Float32["m n"]:
        return x @ w

    op.kernel("tvm", product, split="m")
    monkeypatch.setattr(tuning, "chosen_for", lambda *_: "vector=4,unroll=2")
    found = check_op(op)
    assert [str(fault) for fault in found.faults] == []
    assert found.kernels > 8
