"""What looks as if each row were computed on its own, and is not, keeps all its rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from ortkit.graph.batch.cut import Cut, cut_batch
from ortkit.graph.batch.place import Mixed
from ortkit.runtime.ort import import_onnxruntime

RNG = np.random.default_rng(0)
F = np.float32


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def model(inputs: str, body: str, weights: Mapping[str, np.ndarray], opset: int = 23) -> ir.Model:
    """Return a model of some inputs with a batch of 16; `body` computes y."""
    head = f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>\n'
    proto = onnx.parser.parse_model(f"{head} g ({inputs}) => (float y) {{ {body} }}")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    for name, array in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.array(array), name))
    return ir.from_proto(proto)


#: The inputs, the body and its constants.
Case = tuple[str, str, Mapping[str, np.ndarray]]
IMAGE, ROWS = "float[16, 2, 4, 4] x", "float[16, 4, 8] x"
BYTES = {"w": np.arange(40, dtype=np.uint8).reshape(1, 8, 5), "a0": np.uint8(1)}
MIXED: dict[str, Case] = {
    "16 rows that are stretched by 1.06 are 16 rows": (
        IMAGE, 'y = Resize<mode = "nearest">(x, , f)', {"f": np.array([1.06, 1, 2, 2], F)},
    ),
    "a region of the batch": (
        IMAGE, 'y = Resize<coordinate_transformation_mode = "tf_crop_and_resize">(x, r, , s)',
        {"r": np.array([0.5, 0, 0, 0, 1, 1, 1, 1], F), "s": ints(16, 2, 4, 4)},
    ),
    "a ratio that all axes share": (
        IMAGE, 'y = Resize<keep_aspect_ratio_policy = "not_larger">(x, , , s)',
        {"s": ints(16, 2, 4, 4)},
    ),
    "a shape from before its first axis on": (
        ROWS, "s = Shape<start = -5, end = 1>(x) f = Cast<to = 1>(s) y = Div(x, f)", {},
    ),
    "an element of a shape that the batch chooses": (
        ROWS, "s = Shape(x) b = Gather(s, z) i = Sub(b, m) n = Gather(s, i)"
        " f = Cast<to = 1>(n) y = Div(x, f)", {"z": ints(0), "m": ints(14)},
    ),
    "a part of a shape whose steps are not known": (
        f"{ROWS}, int64[1] k", "s = Shape(x) p = Slice(s, m, n, z, k) f = Cast<to = 1>(p)"
        " y = Div(x, f)", {"m": ints(-1), "n": ints(-9), "z": ints(0)},
    ),
    "a mask that the heads are aligned with": (
        "float[16, 16, 4, 8] q, float[16, 4, 4] m", "y = Attention(q, q, q, m)", {},
    ),
    "a mask that the queries are aligned with": (
        "float[16, 2, 16, 8] q, float[16, 16] m", "y = Attention(q, q, q, m)", {},
    ),
    "a table with as many positions as rows": (
        "float[16, 2, 4, 8] q, float[16, 4] c, int64[16, 4] p",
        "y = RotaryEmbedding(q, c, c, p)", {},
    ),
    "zero points of each matrix": (
        ROWS, "a = Cast<to = 2>(x) z = MatMulInteger(a, w, a0, b0) y = Cast<to = 1>(z)",
        {**BYTES, "b0": RNG.integers(0, 9, (16, 1, 5)).astype(np.uint8)},
    ),
    "zero points of each column, which is a row": (
        "float[16, 8] x", "t = Transpose(x) b = Cast<to = 2>(t)"
        " z = MatMulInteger(a, b, a0, b0) y = Cast<to = 1>(z)",
        {"a": BYTES["w"][0].T, "a0": BYTES["a0"], "b0": np.arange(16, dtype=np.uint8)},
    ),
    "counted rows": (
        ROWS, "s = Shape(x) o = ConstantOfShape<value = float[1] {1.0}>(s) c = CumSum(o, z)"
        " y = Add(x, c)", {"z": np.int64(0)},
    ),
    "scales of each row": (
        ROWS, "q = QuantizeLinear<axis = 0>(x, s) y = DequantizeLinear<axis = 0>(q, s)",
        {"s": np.linspace(0.1, 1, 16, dtype=F)},
    ),
    "rows that are written over": (
        ROWS, "y = ScatterND(x, i, u)", {"i": ints(0).reshape(1, 1), "u": np.ones((1, 4, 8), F)},
    ),
    "a branch with a row for each element of the batch": (
        f"{ROWS}, bool k", "r = If (k) <then_branch = t () => (float[16, 1, 1] p)"
        " { p = Reshape(c, s) }, else_branch = e () => (float[16, 1, 1] n) { n = Reshape(c, s) }>"
        " y = Add(x, r)", {"c": np.arange(16, dtype=F), "s": ints(16, 1, 1)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MIXED)
def test_rows_that_are_not_on_their_own_are_kept(name: str) -> None:
    found = cut_batch(model(*MIXED[name]), 3)
    assert isinstance(found, Mixed), found


ON_THEIR_OWN: dict[str, Case] = {
    "images that are stretched": (
        IMAGE, 'y = Resize<mode = "linear">(x, , f)', {"f": np.array([1, 1, 2, 2], F)},
    ),
    "a mask for each row": (
        "float[16, 2, 4, 8] q, float[16, 1, 4, 4] m", "y = Attention(q, q, q, m)", {},
    ),
    "a table of positions": (
        "float[16, 2, 4, 8] q", "y = RotaryEmbedding(q, c, c, p)",
        {"c": RNG.standard_normal((9, 4)).astype(F), "p": np.tile(np.arange(4), (16, 1))},
    ),
    "zero points of each column": (
        ROWS, "a = Cast<to = 2>(x) z = MatMulInteger(a, w, a0, b0) y = Cast<to = 1>(z)",
        {**BYTES, "w": BYTES["w"][0], "b0": np.arange(5, dtype=np.uint8)},
    ),
    "one row behind the other": (
        "float[16, 4, 8] x", "t = Transpose<perm = [2, 1, 0]>(x) r = Reshape(t, s)"
        " p = ReduceSum<keepdims = 0>(r, z) u = Reshape(p, v) y = Transpose(u)",
        {"s": ints(8, 64), "z": ints(0), "v": ints(4, 16)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ON_THEIR_OWN)
@pytest.mark.parametrize("rows", [(0, 1, 2), (9, 4, 13)])
def test_any_rows_on_their_own_are_computed_as_among_all(name: str, rows: tuple[int, ...]) -> None:
    original = model(*ON_THEIR_OWN[name])
    found = cut_batch(original, 3)
    assert isinstance(found, Cut), found
    feeds = {
        value.name: RNG.uniform(0, 9, [int(n) for n in value.shape or ()]).astype(F)
        for value in original.graph.inputs
        if not value.is_initializer()
    }
    part = {key: array[list(rows)] for key, array in feeds.items()}
    np.testing.assert_allclose(
        _run(found.model, part), _run(original, feeds)[list(rows)], rtol=1e-5, atol=1e-5
    )


def _run(built: ir.Model, feeds: Mapping[str | None, np.ndarray]) -> np.ndarray:
    ort = import_onnxruntime()
    (y,) = ort.InferenceSession(ir.to_proto(built).SerializeToString()).run(None, dict(feeds))
    return np.asarray(y)
