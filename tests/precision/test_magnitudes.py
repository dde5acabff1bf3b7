"""Limits of magnitudes: no input exceeds them, and the worst one comes close."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortkit.graph.shapes.infer import Shapes
from ortkit.precision import magnitudes as limits
from ortkit.precision.fp8 import factor_of
from ortkit.precision.magnitudes import Magnitude, magnitudes

WIDTH, INNER, HEADS = 64, 96, 4
LAYER = "n = LayerNormalization<axis = -1> (x, g, s)"
RMS = "n = SimplifiedLayerNormalization<axis = -1> (x, g)"
SKIP = "n = com.microsoft.SkipLayerNormalization (x, r, g, s)"
UP = "h = MatMul (n, u)  i = Add (h, b)"
PARTS = "q, k, v = Split<axis = -1> (m, sizes)"
#: Lines of nodes, and the value that is looked at; None where it has no limit.
LIMITED = {
    "a norm": (LAYER, "n"),
    "a norm by root mean squares": (RMS, "n"),
    "a norm of a sum": (SKIP, "n"),
    "a product of a norm": (f"{LAYER}  {UP}", "i"),
    "a transposed product with its bias": (f"{LAYER}  i = Gemm<transB = 1> (n1, t, b)", "i"),
    "GELU": (f"{RMS}  {UP}  j = Gelu (i)", "j"),
    "GELU, decomposed": (
        f"{LAYER}  {UP}  c = Div (i, root)  d = Erf (c)  e = Add (d, one)  f = Mul (i, e)"
        "  j = Mul (f, half)", "j",
    ),
    "a gate": (
        f"{RMS}  {UP}  a = Sigmoid (i)  c = Mul (i, a)  d = MatMul (n, w)  j = Mul (c, d)", "j",
    ),
    "attention": (
        f"{LAYER}  m = MatMul (n, p)  {PARTS}"
        f"  j = com.microsoft.MultiHeadAttention<num_heads = {HEADS}> (q, k, v)", "j",
    ),
    "a product of attention": (
        f"{LAYER}  m = MatMul (n, p)  {PARTS}"
        f"  a = com.microsoft.MultiHeadAttention<num_heads = {HEADS}> (q, k, v)"
        "  j = MatMul (a, u)", "j",
    ),
    "parts of rows": (f"{LAYER}  m = MatMul (n, p)  {PARTS}", "v"),
    "moved rows": (
        f"{LAYER}  a = Transpose<perm = [0, 2, 1]> (n)  j = Concat<axis = 1> (a, a)", "j",
    ),
}  # fmt: skip


UNLIMITED = {
    "rows as they are": ("j = MatMul (x, u)", "j"),
    "a residual sum": (f"{LAYER}  j = Add (n, x)", "j"),
    "a norm along another axis": ("j = LayerNormalization<axis = 1> (x, whole)", "j"),
    "a matrix that is an input": (f"{LAYER}  j = MatMul (n, y)", "j"),
    "a product of a residual sum": (f"{LAYER}  a = Add (n, x)  j = MatMul (a, u)", "j"),
    "a division by a small number": (f"{LAYER}  a = Add (n, x)  j = Div (n, a)", "j"),
    "values from before": (
        f"{LAYER}  m = MatMul (n, p)  {PARTS}"
        f"  j = com.microsoft.MultiHeadAttention<num_heads = {HEADS}>"
        " (q, k, v, , , , past, past)", "j",
    ),
    "an exponential": (f"{LAYER}  j = Exp (n)", "j"),
}  # fmt: skip


def model_of(text: str) -> onnx.ModelProto:
    """Return nodes on x and r of [2, 5, WIDTH] and constants."""
    rng = np.random.default_rng(3)
    sizes: Mapping[str, tuple[int, ...]] = {
        "g": (WIDTH,), "s": (WIDTH,), "b": (INNER,), "u": (WIDTH, INNER), "w": (WIDTH, INNER),
        "t": (INNER, WIDTH), "p": (WIDTH, 3 * WIDTH), "whole": (5, WIDTH),
    }  # fmt: skip
    held = [
        numpy_helper.from_array(rng.standard_normal(size).astype(np.float32), name)
        for name, size in sizes.items()
    ]
    numbers = {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}
    held += [numpy_helper.from_array(np.asarray(each), name) for name, each in numbers.items()]
    held.append(numpy_helper.from_array(np.full(3, WIDTH, np.int64), "sizes"))
    if "n1" in text:
        held.append(numpy_helper.from_array(np.array([10, WIDTH], np.int64), "flat"))
        text = f"x1 = Reshape (x, flat)  {text.replace('(x,', '(x1,').replace('n = ', 'n1 = ')}"
    given = ["float[2, 5, 64] x", "float[2, 5, 64] r", "float[64, 96] y",
             "float[2, 4, 3, 16] past"]  # fmt: skip
    graph = f"g ({', '.join(given)}) => () {{ {text} }}"
    header = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>'
    model = onnx.parser.parse_model(f"{header} {graph}")
    model.graph.initializer.extend(held)
    return model


def found_of(text: str) -> dict[str, Magnitude]:
    model = ir.from_proto(model_of(text))
    found = magnitudes(model, Shapes.infer(model))
    return {value.name or "": each for value, each in found.items()}


def hard_rows() -> list[np.ndarray]:
    """Return rows that are hard on norms: outliers, constants, zeros, huge and tiny ones."""
    rng = np.random.default_rng(8)
    plain = rng.standard_normal((2, 5, WIDTH))
    outlier = plain.copy()
    outlier[..., 7] = 1e4
    single = np.zeros_like(plain)
    single[..., 3] = 1e4
    return [plain, outlier, single, np.zeros_like(plain), plain * 1e6, plain * 1e-6,
            np.full_like(plain, 3.0)]  # fmt: skip


@pytest.mark.parametrize("name", LIMITED)
def test_no_input_exceeds_the_limit(name: str) -> None:
    text, value = LIMITED[name]
    limit = found_of(text)[value]
    model = model_of(text)
    model.graph.output.append(helper.make_tensor_value_info(value, TensorProto.FLOAT, None))
    session = ort.InferenceSession(model.SerializeToString())
    largest = 0.0
    for rows in hard_rows():
        feeds = {"x": rows.astype(np.float32), "r": rows[::-1].astype(np.float32)}
        wanted = {each.name for each in session.get_inputs()}
        feeds |= {"y": np.zeros((WIDTH, INNER), np.float32)}
        feeds |= {"past": np.zeros((2, HEADS, 3, WIDTH // HEADS), np.float32)}
        (made,) = session.run([value], {key: each for key, each in feeds.items() if key in wanted})
        assert (np.abs(made) <= 1.0001 * limit.most + 1e-5).all()
        largest = max(largest, float(np.abs(made).max()))
    # Not so far away that eight bits would be lost.
    assert limit.limit <= 512 * largest


def test_the_worst_row_reaches_the_limit_of_a_product() -> None:
    """Rows that a norm makes parallel to a column."""
    text, value = LIMITED["a product of a norm"]
    model = model_of(text)
    held = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    limit = found_of(text)[value]
    column = held["g"][:, None] * held["u"]
    rows = (column / np.linalg.norm(column, axis=0)).T
    model.graph.output.append(helper.make_tensor_value_info(value, TensorProto.FLOAT, None))
    session = ort.InferenceSession(model.SerializeToString())
    rows = np.resize(1e3 * rows, (2, 5, WIDTH)).astype(np.float32)
    feeds = {"x": rows, "r": rows, "y": np.zeros((WIDTH, INNER), np.float32)}
    feeds |= {"past": np.zeros((2, HEADS, 3, WIDTH // HEADS), np.float32)}
    wanted = {each.name for each in session.get_inputs()}
    (made,) = session.run([value], {key: each for key, each in feeds.items() if key in wanted})
    reached = np.abs(made).reshape(-1, INNER)[range(10), range(10)] / limit.most[:10]
    assert (reached <= 1.0001).all()
    assert reached.max() > 0.9


@pytest.mark.parametrize("name", LIMITED)
def test_what_is_wanted_alone_has_the_same_limit(name: str) -> None:
    text, value = LIMITED[name]
    model = ir.from_proto(model_of(text))
    (wanted,) = [each for node in model.graph for each in node.outputs if each.name == value]
    alone = magnitudes(model, Shapes.infer(model), [wanted])[wanted]
    usual = found_of(text)[value]
    assert np.array_equal(alone.most, usual.most)
    assert np.array_equal(alone.usual, usual.usual)


@pytest.mark.parametrize("layout", ["C", "F"])
@pytest.mark.parametrize("size", [1.0, 1e30])
@pytest.mark.parametrize("shape", [(1, 1), (7, 130), (130, 7)])
def test_sums_of_parts(
    shape: tuple[int, int], size: float, layout: Literal["C", "F"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "_PART", 64)
    rng = np.random.default_rng(4)
    matrix = np.asarray(rng.standard_normal(shape).astype(np.float16), order=layout)
    by_square, by = size**2 * rng.random(shape[0]), size * rng.random(shape[0])
    squares, sums = limits._sums(matrix, by_square, by, of=np.abs)
    wide = matrix.astype(np.float64)
    assert squares == pytest.approx(by_square @ np.square(wide), rel=1e-5)
    assert sums == pytest.approx(by @ np.abs(wide), rel=1e-5)


@pytest.mark.parametrize("name", UNLIMITED)
def test_what_has_no_limit(name: str) -> None:
    text, value = UNLIMITED[name]
    assert value not in found_of(text)


@pytest.mark.parametrize(
    ("most", "usual", "dtype", "want"),
    [
        (389.0, 20.0, ir.DataType.FLOAT16, 1.0), (390.0, 20.0, ir.DataType.FLOAT16, 2.0),
        (3.0, 1.0, ir.DataType.BFLOAT16, 2.0**-7), (100.0, 0.1, ir.DataType.FLOAT16, None),
        (60000.0, 900.0, ir.DataType.FLOAT16, None), (60000.0, 900.0, ir.DataType.BFLOAT16, 256.0),
        (0.0, 0.0, ir.DataType.FLOAT16, None),
    ],
)  # fmt: skip
def test_the_factor_of_all_rows(
    most: float, usual: float, dtype: ir.DataType, want: float | None
) -> None:
    made = factor_of(Magnitude(np.array([most]), np.array([usual])), dtype)
    assert made == want
    if made is not None:  # what is largest is inside, with what rounding may add
        assert float(np.float32(1.13 * most / made).astype(ml_dtypes.float8_e4m3fn)) <= 448


def test_rows_without_a_limit_have_no_factor() -> None:
    assert factor_of(None, ir.DataType.FLOAT16) is None
