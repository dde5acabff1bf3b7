"""What is inferred for names, against the tensors that ONNX Runtime makes for numbers."""

# ruff: noqa: E501 - a table, one case a line
from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from shape_text import parse, values

from models.catalog import BUILDERS, build, spellings
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.symbolic.dims import Size, names, substitute

ATTENTION = (
    "q = MatMul(x, w)\n s = Shape(x)\n b = Gather(s, i0)\n n = Gather(s, i1)\n"
    "b1 = Unsqueeze(b, z)\n n1 = Unsqueeze(n, z)\n t = Concat<axis = 0>(b1, n1, hd)\n"
    "r = Reshape(q, t)\n k = Transpose<perm = [0, 2, 3, 1]>(r)\n v = Transpose<perm = [0, 2, 1, 3]>(r)\n"
    "p = MatMul(v, k)\n m = Softmax(p)\n o = MatMul(m, v)\n u = Transpose<perm = [0, 2, 1, 3]>(o)\n"
    "h = Shape(u)\n h2 = Slice(h, z, two)\n f = Concat<axis = 0>(h2, minus)\n y = Reshape(u, f)"
)

#: Nodes, inputs, constants: one name may stand for several sizes at once.
MODELS: dict[str, tuple[str, str, str]] = {
    "attention": (
        ATTENTION,
        "float[b, n, 8] x, float[8, 8] w",
        "int64 i0 = {0}, int64 i1 = {1}, int64[1] z = {0}, int64[2] hd = {2, 4}, int64[1] two = {2}, int64[1] minus = {-1}",
    ),
    "slices": (
        "s1 = Slice(x, one, far)\n s2 = Slice(x, zero, minus)\n s3 = Slice(x, minus, far)\n s4 = Slice(x, two, five)\n"
        "s5 = Slice(x, zero, far, zero, two)\n s6 = Slice(x, minus, back, zero, minus)\n s7 = Slice(x, five, far, one, two)\n"
        "y = Slice(x, m3, minus)",
        "float[a, b] x",
        "int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] five = {5}, int64[1] minus = {-1}, int64[1] m3 = {-3}, int64[1] far = {9223372036854775807}, int64[1] back = {-9223372036854775807}",
    ),
    "half": (
        "s = Shape(x)\n d = Gather(s, one)\n h = Div(d, two)\n h1 = Unsqueeze(h, zero)\n l = Slice(x, zero, h1, ax)\n"
        "r = Slice(x, h1, far, ax)\n n = Neg(r)\n y = Concat<axis = -1>(n, l)",
        "float[a, b] x",
        "int64 one = {1}, int64 two = {2}, int64[1] zero = {0}, int64[1] ax = {1}, int64[1] far = {9223372036854775807}",
    ),
    "convolutions": (
        "c1 = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, w)\n c2 = Conv<strides = [3, 2], dilations = [1, 2], pads = [2, 2, 2, 2]>(x, w)\n"
        'c3 = Conv<auto_pad = "SAME_LOWER", strides = [2, 3]>(x, w)\n p1 = MaxPool<kernel_shape = [2, 3], strides = [2, 2], pads = [0, 1, 1, 1]>(c1)\n'
        "p2 = AveragePool<kernel_shape = [2, 2]>(x)\n u = ConvTranspose<strides = [2, 2], pads = [1, 0, 1, 0], output_padding = [1, 1]>(c1, w2)\n"
        "g = GlobalMaxPool(u)\n d = DepthToSpace<blocksize = 2>(c1)\n y = Flatten(g)",
        "float[n, 3, h, w] x, float[4, 3, 3, 3] w, float[4, 2, 3, 3] w2",
        "",
    ),
    "resizes": (
        "r1 = Resize(x, , s1)\n r2 = Resize(x, , , s2)\n r3 = Resize<axes = [2]>(x, , s3)\n s = Shape(x)\n hw = Slice(s, two, four)\n"
        "dbl = Mul(hw, two)\n r4 = Resize<axes = [2, 3]>(x, , , dbl)\n y = Add(r1, r1)",
        "float[n, 3, h, w] x",
        "float[4] s1 = {1, 1, 2, 0.5}, int64[4] s2 = {2, 3, 4, 5}, float[1] s3 = {1.5}, int64[1] two = {2}, int64[1] four = {4}",
    ),
    "broadcasts": (
        "a1 = Add(x, z)\n a2 = Mul(x, o)\n c = Less(x, z)\n a3 = Where(c, x, z)\n s = Shape(a1)\n e = Expand(o, s)\n"
        "m = Max(x, z, o)\n t = Tile(z, rep)\n y = Add(e, m)",
        "float[a, 1, b] x, float[c, 1] z, float[1] o",
        "int64[2] rep = {2, 3}",
    ),
    "indexing": (
        "g1 = Gather<axis = 1>(x, i)\n g2 = GatherElements<axis = 1>(x, i)\n nz = NonZero(x)\n nt = Transpose(nz)\n gn = GatherND(x, nt)\n"
        "oh = OneHot(i, depth, vals)\n tk, ti = TopK<axis = 1>(x, one)\n cs = CumSum(x, zero)\n tr = Trilu(x)\n sc = ScatterElements<axis = 1>(x, i, g2)\n"
        "am = ArgMax<axis = -1, keepdims = 0>(x)\n y = Compress<axis = 1>(x, flag)",
        "float[a, b] x, int64[a, c] i, bool[b] flag",
        "int64 depth = {5}, float[2] vals = {0, 1}, int64[1] one = {1}, int64 zero = {0}",
    ),
    "reductions": (
        "r1 = ReduceSum(x, t)\n r2 = ReduceMean<keepdims = 0>(x, t)\n r3 = ReduceMax(x)\n r4 = ReduceMin<noop_with_empty_axes = 1>(x)\n"
        "l, m, v = LayerNormalization<axis = -1>(x, g)\n y = ReduceL2<keepdims = 0>(x)",
        "float[a, b, 4] x, float[4] g",
        "int64[2] t = {-1, 0}",
    ),
    "ranges": (
        "s = Shape(x)\n d = Gather(s, zero)\n r = Range(zero, d, one)\n r2 = Range(one, d, two)\n f = Cast<to = 1>(d)\n h = Div(f, three)\n"
        "c = Ceil(h)\n k = Cast<to = 7>(c)\n k1 = Unsqueeze(k, ax)\n z = ConstantOfShape(k1)\n sz = Size(x)\n y = Range(d, sz, one)",
        "float[a, b] x",
        "int64 zero = {0}, int64 one = {1}, int64 two = {2}, float three = {3}, int64[1] ax = {0}",
    ),
    "splits": (
        "p, q = Split<axis = 1, num_outputs = 2>(x)\n u, v = Split<axis = 1>(x, parts)\n s = Shape(x)\n e, o = Split<num_outputs = 2>(s)\n"
        "sq = Squeeze(e)\n un = Unsqueeze(x, ax)\n st = Squeeze(un, ax)\n y = Reshape(st, s)",
        "float[a, 6] x",
        "int64[2] parts = {4, 2}, int64[2] ax = {0, -1}",
    ),
    "recurrence": (
        'l, lh, lc = LSTM<hidden_size = 3, direction = "bidirectional">(x, w, r)\n gy, gh = GRU<hidden_size = 4>(x, w3, r3)\n y = Squeeze(gy, one)',
        "float[t, n, 5] x, float[2, 12, 5] w, float[2, 12, 3] r, float[1, 12, 5] w3, float[1, 12, 4] r3",
        "int64[1] one = {1}",
    ),
    "einsum": (
        'e1 = Einsum<equation = "bid,bjd->bij">(x, x)\n e2 = Einsum<equation = "...d,de">(x, w)\n e3 = Einsum<equation = "bii->ib">(e1)\n'
        "m = MatMul(x, w)\n gm = Gemm<transA = 1>(w, w)\n fm = com.microsoft.FusedMatMul<transA = 1>(x, x)\n ge = com.microsoft.Gelu(m)\n y = Identity(e3)",
        "float[b, n, d] x, float[d, e] w",
        "",
    ),
    "quantization": (
        "q, s, z = DynamicQuantizeLinear(x)\n d = DequantizeLinear(q, s, z)\n m = MatMulInteger(q, w, z)\n qq = QuantizeLinear(d, s, z)\n"
        "y = QLinearMatMul(q, s, z, w, s, z, s, z)",
        "float[a, 4] x, uint8[4, b] w",
        "",
    ),
}  # fmt: skip

SIZES = (1, 2, 3, 5, 8)


def numbers(model: ir.Model, shapes: Shapes, turn: int) -> dict[str, int]:
    """Choose a number for each name of the inputs, differently in each turn."""
    found = {n for v in model.graph.inputs for size in shapes.shape(v) or () for n in names(size)}
    return {name: SIZES[(zlib.crc32(name.encode()) + turn) % len(SIZES)] for name in sorted(found)}


def feed(value: ir.Value, shape: Sequence[int], turn: int) -> np.ndarray:
    rng = np.random.default_rng(turn)
    dtype = value.dtype
    assert dtype is not None
    kind = dtype.numpy()
    if dtype == ir.DataType.BOOL:
        return rng.integers(0, 2, shape).astype(kind)
    if kind.kind in "iu":
        # Small enough to index whatever it indexes.
        return np.zeros(shape, kind)
    return rng.standard_normal(shape).astype(kind)


def run_all(
    proto: onnx.ModelProto, shapes: Shapes, model: ir.Model, at: Mapping[str, int], turn: int
) -> dict[str, np.ndarray]:
    """Return every tensor of the main graph."""
    import onnxruntime as ort

    declared = {output.name for output in proto.graph.output}
    for node in model.graph:
        for value in node.outputs:
            if value.name and value.name not in declared:
                proto.graph.output.append(onnx.helper.make_empty_tensor_value_info(value.name))
    for output in proto.graph.output:
        output.ClearField("type")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = {}
    for value in model.graph.inputs:
        sizes = [substitute(size, at) for size in shapes.shape(value) or ()]
        feeds[value.name or ""] = feed(value, [n for n in sizes if isinstance(n, int)], turn)
    wanted = [output.name for output in session.get_outputs()]
    return dict(zip(wanted, session.run(wanted, feeds), strict=True))


def check(value: ir.Value, actual: np.ndarray, shapes: Shapes, at: Mapping[str, int]) -> int:
    """Compare one tensor with what was inferred; return how many sizes were known."""
    dtype, shape = shapes.dtype(value), shapes.shape(value)
    if dtype is not None:
        assert dtype.numpy() == actual.dtype, value.name
    if shape is None:
        return 0
    found = [substitute(size, at) for size in shape]
    assert len(found) == actual.ndim, f"{value.name}: {shape} is {actual.shape}"
    known = 0
    for size, expected in zip(found, actual.shape, strict=True):
        if isinstance(size, int):
            assert size == expected, f"{value.name}: {shape} is {actual.shape} at {at}"
            known += 1
    check_contents(value, actual, shapes.contents(value), at)
    return known


def check_contents(
    value: ir.Value, actual: np.ndarray, contents: tuple[Size, ...] | None, at: Mapping[str, int]
) -> None:
    for size, expected in zip(contents or (), actual.reshape(-1), strict=contents is not None):
        element = substitute(size, at)
        if isinstance(element, int):
            assert element == expected, f"{value.name}: {contents} is {actual} at {at}"


def check_model(proto: onnx.ModelProto, at: Mapping[str, int] | None, turn: int) -> float:
    """Run a model and check every tensor; return the share of sizes that were known."""
    model = ir.serde.deserialize_model(proto)
    shapes = Shapes.infer(model)
    given = numbers(model, shapes, turn) if at is None else at
    tensors = run_all(proto, shapes, model, given, turn)
    found = values(model)
    known = sum(check(found[name], tensor, shapes, given) for name, tensor in tensors.items())
    return known / max(1, sum(tensor.ndim for tensor in tensors.values()))


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("turn", range(4))
def test_inferred_sizes_are_the_sizes_of_the_tensors(name: str, turn: int) -> None:
    proto = ir.serde.serialize_model(parse(*MODELS[name]))
    if name == "convolutions":
        at = {"n": 1 + turn, "h": 9 + turn, "w": 8 + 3 * turn}
        assert check_model(proto, at, turn) == 1
    elif name == "resizes":
        assert check_model(proto, {"n": 2, "h": 4 + turn, "w": 5 + 2 * turn}, turn) > 0.9
    elif name == "broadcasts":
        assert check_model(proto, {"a": turn, "b": 1 + turn, "c": 4}, turn) == 1
    elif name == "indexing":
        assert check_model(proto, {"a": 1 + turn, "b": 3 + turn, "c": 2}, turn) > 0.8
    elif name == "slices":
        assert check_model(proto, {"a": 3 * turn, "b": 4 + turn}, turn) == 1
    else:
        assert check_model(proto, None, turn) == 1


TINY = [(name, spelling) for name in sorted(BUILDERS) for spelling in spellings(name)[:2]]


@pytest.mark.sampled(13)
@pytest.mark.parametrize(("name", "spelling"), TINY)
def test_every_size_of_a_whole_model(name: str, spelling: str) -> None:
    proto = build(name, "tiny", spelling)
    model = ir.serde.deserialize_model(proto)
    found = numbers(model, Shapes.infer(model), 0)
    # Images must be divisible by all the strides.
    at = {key: 64 if key in ("height", "width") else 3 for key in found}
    share = check_model(proto, at, 0)
    assert share > 0.95


def test_the_check_itself_sees_a_wrong_size() -> None:
    model = parse("y = Relu(x)", "float[a, 3] x")
    shapes = Shapes.infer(model)
    with pytest.raises(AssertionError):
        check(values(model)["y"], np.zeros((4, 3), np.float32), shapes, {"a": 5})
    with pytest.raises(AssertionError):
        check(values(model)["y"], np.zeros((5,), np.float32), shapes, {"a": 5})
    assert check(values(model)["y"], np.zeros((5, 3), np.float32), shapes, {"a": 5}) == 2


# ---- the node cases of the onnx package ------------------------------------------------------


@pytest.mark.slow
def test_the_node_cases_of_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every output that we claim to know, for numbers, for names and for constant inputs."""
    monkeypatch.setitem(os.environ, "ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")
    from onnx.backend.test.loader import load_model_tests

    known = 0
    for case in load_model_tests(kind="node"):
        if case.model is None or not case.data_sets:
            continue
        for manner in ("numbers", "names", "constants"):
            known += _check_case(case.model, *case.data_sets[0], manner)
    assert known > 9000


def _check_case(
    proto: onnx.ModelProto, inputs: Sequence[object], outputs: Sequence[object], manner: str
) -> int:
    copy, at = onnx.ModelProto(), dict[str, int]()
    copy.CopyFrom(proto)
    for index, (info, array) in enumerate(zip(proto.graph.input, inputs, strict=False)):
        if not isinstance(array, np.ndarray):
            continue
        if manner == "constants" and array.dtype.kind in "ib" and array.ndim < 2:
            copy.graph.initializer.append(onnx.numpy_helper.from_array(array, info.name))
        elif manner != "numbers":
            for axis, dim in enumerate(copy.graph.input[index].type.tensor_type.shape.dim):
                dim.dim_param = f"i{index}_{axis}"
                at[dim.dim_param] = array.shape[axis]
    constant = {tensor.name for tensor in copy.graph.initializer}
    kept = [info for info in copy.graph.input if info.name not in constant]
    del copy.graph.input[:]
    copy.graph.input.extend(kept)
    for info in copy.graph.output:
        if info.type.HasField("tensor_type"):
            info.ClearField("type")
    model = ir.serde.deserialize_model(copy)
    shapes = Shapes.infer(model)
    known = 0
    for value, array in zip(model.graph.outputs, outputs, strict=False):
        if isinstance(array, onnx.TensorProto):
            array = onnx.numpy_helper.to_array(array)
        if isinstance(array, np.ndarray) and array.dtype.kind != "O":
            known += check(value, array, shapes, at)
    return known
