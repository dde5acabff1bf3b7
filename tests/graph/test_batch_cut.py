"""A fixed batch is cut where each row is computed on its own, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import models
from ortkit.graph.batch.cut import Cut, cut_batch, fixed_batch
from ortkit.graph.batch.place import Mixed, Rows, relocated
from ortkit.runtime.ort import import_onnxruntime

B, ROWS = 16, 3
RNG = np.random.default_rng(0)
W = {"w": RNG.standard_normal((8, 8)).astype(np.float32)}
POSITIONS = np.broadcast_to(RNG.standard_normal((1, 4, 8)).astype(np.float32), (B, 4, 8))


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def model(body: str, weights: Mapping[str, np.ndarray], opset: int = 21) -> ir.Model:
    """Return a model of x [16, 4, 8]; `body` computes y."""
    text = f"g (float[{B}, 4, 8] x) => (float y) {{ {body} }}"
    head = f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>\n'
    proto = onnx.parser.parse_model(head + text)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    for name, array in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.array(array), name))
    return ir.from_proto(proto)


#: Bodies that compute each row on its own.
ROW_BY_ROW: dict[str, tuple[str, Mapping[str, np.ndarray]]] = {
    "elementwise": ("a = Relu(x) b = Mul(a, c) y = Add(b, x)", {"c": np.float32([2.0])}),
    "merged with the length": (
        "a = Reshape(x, s) b = MatMul(a, w) y = Reshape(b, t)",
        {**W, "s": ints(B * 4, 8), "t": ints(B, 4, 8)},
    ),
    "merged and the rest": (
        "a = Reshape(x, s) b = MatMul(a, w) c = Softmax<axis = 1>(b) y = Reshape(c, t)",
        {**W, "s": ints(-1, 8), "t": ints(B, -1, 8)},
    ),
    "heads in front": (
        "a = Reshape(x, s) b = Transpose<perm = [2, 0, 1, 3]>(a) c = ReduceSum(b, axes)"
        " d = Transpose<perm = [1, 0, 2, 3]>(c) y = Identity(d)",
        {"s": ints(B, 4, 2, 4), "axes": ints(3)},
    ),
    "heads merged with the batch": (
        "a = Reshape(x, s) b = Transpose<perm = [0, 2, 1, 3]>(a) q = Reshape(b, m)"
        " k = Transpose<perm = [0, 2, 1]>(q) p = MatMul(q, k) z = Softmax(p) o = MatMul(z, q)"
        " y = Reshape(o, t)",
        {"s": ints(B, 4, 2, 4), "m": ints(B * 2, 4, 4), "t": ints(B, 2, 4, 4)},
    ),
    "equal rows of a constant": ("y = Add(x, p)", {"p": POSITIONS}),
    "equal rows in front": (
        "y = Concat<axis = 1>(p, x)",
        {"p": np.ones((B, 1, 8), np.float32)},
    ),
    "an expanded row": (
        "e = Expand(p, s) y = Concat<axis = 1>(e, x)",
        {"p": np.ones((1, 1, 8), np.float32), "s": ints(B, 1, 8)},
    ),
    "rows looked up at equal places": (
        "i = Expand(n, s) r = Gather(w, i) y = Add(x, r)",
        {**W, "n": ints(0, 1, 2, 3), "s": ints(B, 4)},
    ),
    "a shape of the input": (
        "s = Shape(x) b = Gather(s, i) l = Unsqueeze(b, i0) t = Concat<axis = 0>(l, r)"
        " y = Reshape(x, t)",
        {"i": np.int64(0), "i0": ints(0), "r": ints(32)},
    ),
    "zeros of the input's shape": (
        "s = Shape(x) z = ConstantOfShape(s) y = Add(x, z)", {},
    ),
    "another size of the shape": (
        "s = Shape(x) n = Gather(s, i) f = Cast<to = 1>(n) r = Sqrt(f) y = Div(x, r)",
        {"i": np.int64(2)},
    ),
    "a part of the shape": (
        "s = Shape(x) n = Slice(s, one, three) t = Concat<axis = 0>(b, n) y = Reshape(x, t)",
        {"one": ints(1), "three": ints(3), "b": ints(B)},
    ),
    "statistics of a row": (
        "m = ReduceMean(x, axes) a = Sub(x, m) y = LayerNormalization(a, g)",
        {"axes": ints(1, 2), "g": np.ones(8, np.float32)},
    ),
    "norm of batches in inference": (
        "y = BatchNormalization(x, g, g, g, g)", {"g": np.ones(4, np.float32)},
    ),
    "recurrent": (
        "t = Transpose<perm = [1, 0, 2]>(x)"
        " o, h = GRU<hidden_size = 5>(t, u, v, , , z) y = Identity(h)",
        {
            "u": RNG.standard_normal((1, 15, 8)).astype(np.float32),
            "v": RNG.standard_normal((1, 15, 5)).astype(np.float32),
            "z": np.zeros((1, B, 5), np.float32),
        },
    ),
    "einsum": ('y = Einsum<equation = "bij,jk->kbi">(x, w)', W),
    "largest": ("v, i = TopK<axis = 1>(x, k) y = Identity(v)", {"k": ints(2)}),
    "columns of a product": ("t = Transpose<perm = [1, 2, 0]>(x) y = MatMul(w, t)", W),
    "padded rows": ("y = Pad(x, p)", {"p": ints(0, 1, 0, 0, 0, 2)}),
    "softmax of old": ("y = Softmax<axis = 2>(x)", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", ROW_BY_ROW)
def test_a_copy_for_fewer_rows_computes_these_rows(name: str) -> None:
    body, weights = ROW_BY_ROW[name]
    original = model(body, weights, 12 if "old" in name else 21)
    before = ir.to_proto(original).SerializeToString()
    found = cut_batch(original, ROWS)
    assert isinstance(found, Cut), found
    assert (found.batch, found.rows) == (B, ROWS)
    assert ir.to_proto(original).SerializeToString() == before
    x = RNG.standard_normal((B, 4, 8)).astype(np.float32)
    whole, part = _run(original, x), _run(found.model, x[:ROWS])
    (axis,) = (i for i in range(whole.ndim) if whole.shape[i] != part.shape[i])
    step = whole.shape[axis] // B
    expected = np.take(whole, range(ROWS * step), axis)
    np.testing.assert_allclose(part, expected, rtol=1e-6, atol=1e-6)


def _run(built: ir.Model, x: np.ndarray) -> np.ndarray:
    ort = import_onnxruntime()
    (y,) = ort.InferenceSession(ir.to_proto(built).SerializeToString()).run(None, {"x": x})
    return np.asarray(y)


#: Bodies that do not, or of which that is not known, and what is said of them.
MIXED: dict[str, tuple[str, Mapping[str, np.ndarray], str]] = {
    "softmax over the batch": ("y = Softmax<axis = 0>(x)", {}, "Softmax 'y': it mixes"),
    "old softmax over all": ("y = Softmax<axis = 0>(x)", {}, "Softmax 'y': it mixes"),
    "norm of batches in training": (
        "y, m, v = BatchNormalization<training_mode = 1>(x, g, g, g, g)",
        {"g": np.ones(4, np.float32)}, "BatchNormalization 'y': it mixes",
    ),
    "mean of all rows": ("m = ReduceMean(x, a) y = Sub(x, m)", {"a": ints(0)}, "it mixes"),
    "mean of everything": ("m = ReduceMean(x) y = Sub(x, m)", {}, "it mixes"),
    "taken apart": ("y = Reshape(x, s)", {"s": ints(4, 4, 4, 8)}, "takes the batch apart"),
    "merged behind another axis": (
        "t = Transpose<perm = [1, 0, 2]>(x) r = Reshape(t, s) p = ReduceSum(r, a) y = Relu(p)",
        {"s": ints(4 * B, 8), "a": ints(0)}, "it mixes",
    ),
    "rows of a constant": (
        "y = Add(x, p)", {"p": np.arange(B, dtype=np.float32).reshape(B, 1, 1)},
        "a constant has a row",
    ),
    "size as a number": (
        "s = Shape(x) b = Gather(s, i) f = Cast<to = 1>(b) y = Div(x, f)",
        {"i": np.int64(0)}, "computes with the size of the batch",
    ),
    "all sizes as a number": (
        "n = Size(x) f = Cast<to = 1>(n) y = Div(x, f)", {}, "computes with the size",
    ),
    "rows counted": (
        "s = Shape(x) b = Gather(s, i) r = Range(z, b, o) f = Cast<to = 1>(r)"
        " u = Unsqueeze(f, a) y = Add(x, u)",
        {"i": np.int64(0), "z": np.int64(0), "o": np.int64(1), "a": ints(1, 2)},
        "computes with the size",
    ),
    "product of rows with rows": (
        "r = Reshape(x, s) t = Transpose<perm = [1, 0]>(r) y = MatMul(r, t)",
        {"s": ints(B, 32)}, "on different axes",
    ),
    "product over rows": (
        "t = Transpose<perm = [1, 2, 0]>(x) y = MatMul(t, c)",
        {"c": np.ones((B, 2), np.float32)}, "it mixes",
    ),
    "sum along rows": ("y = CumSum(x, a)", {"a": np.int64(0)}, "it mixes"),
    "rows in another order": ("y = Gather(x, i)", {"i": ints(*reversed(range(B)))}, "it mixes"),
    "rows put behind rows": ("y = Concat<axis = 0>(x, x)", {}, "it mixes"),
    "row by row with the next": (
        "a = Slice(x, z, e, a0) y = Identity(a)",
        {"z": ints(1), "e": ints(B), "a0": ints(0)}, "it mixes",
    ),
    "largest row": ("i = ArgMax<axis = 0>(x) y = Cast<to = 1>(i)", {}, "it mixes"),
    "scale of all rows": (
        "q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z)", {}, "is not known",
    ),
    "einsum over rows": ('y = Einsum<equation = "bij,bik->jk">(x, x)', {}, "it mixes"),
    "a loop": (
        "y = Loop(n, , x) <body = b (int64 i, bool g, float[16, 4, 8] s)"
        " => (bool k, float[16, 4, 8] t) { k = Identity(g) t = Neg(s) }>",
        {"n": np.int64(2)}, "its body reads the batch",
    ),
    "a branch that reads it": (
        "c = Constant<value = bool {1}>() y = If (c) <then_branch = t () => (float p)"
        " { p = Softmax<axis = 0>(x) }, else_branch = e () => (float q) { q = Relu(x) }>",
        {}, "its body reads the batch",
    ),
    "dropout in training": (
        "y = Dropout(x, r, t)", {"r": np.float32(0.5), "t": np.bool_(True)}, "it mixes",
    ),
    "random": ("n = RandomNormalLike(x) y = Add(n, x)", {}, "is not known"),
}  # fmt: skip


@pytest.mark.parametrize("name", MIXED)
def test_what_mixes_rows_is_named(name: str) -> None:
    body, weights, said = MIXED[name]
    found = cut_batch(model(body, weights, 12 if name.startswith("old") else 21), ROWS)
    assert isinstance(found, Mixed), found
    assert said in found.reason


def test_a_function_is_looked_into() -> None:
    for axis, is_cut in ((0, False), (1, True)):
        inner = helper.make_function(
            "own", "F", ["a"], ["b"], [helper.make_node("Softmax", ["a"], ["b"], axis=axis)],
            [helper.make_opsetid("", 21)],
        )  # fmt: skip
        proto = ir.to_proto(model("y = Relu(x)", {}))
        proto.graph.node[0].domain, proto.graph.node[0].op_type = "own", "F"
        proto.functions.append(inner)
        proto.opset_import.append(helper.make_opsetid("own", 1))
        assert isinstance(cut_batch(ir.from_proto(proto), ROWS), Cut) == is_cut


def test_a_shape_that_contradicts_the_operators_is_not_believed() -> None:
    proto = ir.to_proto(model("t = Relu(x) y = Relu(t)", {}))
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "s"
    proto.graph.value_info.append(helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, [B]))
    assert isinstance(cut_batch(ir.from_proto(proto), ROWS), Cut)


def test_a_reshape_moves_the_batch() -> None:
    assert relocated((B, 4, 8), Rows(0), (B * 4, 8), B) == Rows(0, 1, 4)
    assert relocated((B * 4, 8), Rows(0, 1, 4), (B, 2, 16), B) == Rows(0)
    assert relocated((4, B, 8), Rows(1), (4 * B * 2, 4), B) == Rows(0, 4, 2)
    assert relocated((4, B, 8), Rows(1), (2, 2 * B, 8), B) == Rows(1, 2, 1)
    assert relocated((B, 8), Rows(0), (B // 2, 2, 8), B) is None
    assert relocated((1, B, 8), Rows(1), (B, 1, 8), B) == Rows(0)


def test_the_batch_is_the_first_size_of_most_inputs() -> None:
    assert fixed_batch(model("y = Relu(x)", {})) == B
    text = '<ir_version: 10, opset_import: ["" : 21]> g (float[n, 4] x) => (float[n, 4] y) {'
    assert fixed_batch(ir.from_proto(onnx.parser.parse_model(text + "y = Relu(x) }"))) == 0
    scalar = text.replace("float[n, 4] x", "float x")
    assert fixed_batch(ir.from_proto(onnx.parser.parse_model(scalar + "y = Relu(x) }"))) == 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "spelling"),
    [("bert", "legacy"), ("gpt2", "ts"), ("vit", "ts"), ("resnet50", "dynamo"), ("unet", "ts"),
     ("lstm", "ts"), ("llama", "ts"), ("whisper_encoder", "dynamo23")],
)  # fmt: skip
def test_architectures_compute_each_row_on_its_own(name: str, spelling: str) -> None:
    built = models.build(name, "tiny", spelling)
    for value in (*built.graph.input, *built.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = (
                    B if "batch" in dim.dim_param else 64 if "h" in dim.dim_param else 8
                )
    del built.graph.value_info[:]
    assert isinstance(found := cut_batch(ir.from_proto(built), ROWS), Cut), found
