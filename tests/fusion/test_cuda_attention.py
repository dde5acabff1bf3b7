"""Attention ops become regions on CUDA, with bodies that compute the same anywhere."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.checker
import onnx_ir as ir
import onnxruntime as ort
import pytest
from ortkit.custom_ops.triton.attention.attention import ANCHOR
from region_models import Eager, accept, found_by, scope_of

from ortkit.fusion.attention.cuda import without_readers
from ortkit.fusion.regions.cuda_cost_model import CudaCostModel
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.lower import lower_region
from ortkit.graph.io.text import from_text
from ortkit.rewrite.scope import Scope

HEAD = '<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
ROWS = "float16[b, s, 64] q, float16[b, s, 64] k, float16[b, s, 64] v"
STACKED = "float16[b, 4, s, 16] q, float16[b, 4, t, 16] k, float16[b, 4, t, 8] v"
BIAS = f"{ROWS}, float16[b, 1, s, s] m"
KEYS = f"{ROWS}, bool[b, 1, 1, s] m"
MULTI = "y = com.microsoft.MultiHeadAttention<num_heads = 4{}> (q, k, v{})"
PLAIN = "Attention<q_num_heads = 4, kv_num_heads = 4{}>"
GROUPED_ROWS = "float16[1, 7, 64] q, float16[1, 7, 32] k, float16[1, 7, 32] v"
GROUPED = (
    "l = Constant<value = int32[1] {{{}}}> ()  t = Constant<value = int32 {{7}}> ()  "
    "y = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2{}> (q, k, v, , , l, t)"
)
WHERE = "n = Constant<value = float16 {{0}}> ()  f = Constant<value = float16 {{{}}}> ()"
#: A row as the text has it: bits of numbers between 0.125 and 1.
ROW = np.random.default_rng(7).integers(0x3000, 0x3C00, 192)
#: float16 as the text has it: its bits.
FILL = int(np.array(-60000, np.float16).view(np.uint16))
TAKEN = {
    "plain": (ROWS, MULTI.format("", "")),
    "scaled": (ROWS, MULTI.format(", scale = 0.5", "")),
    "unidirectional": (ROWS, MULTI.format(", unidirectional = 1", "")),
    "a bias": (BIAS, MULTI.format("", ", '', '', m").replace("''", "")),
    "a mask of keys": (f"{ROWS}, int32[b, s] m", MULTI.format("", ", , m")),
    "a mask of keys with a fill": (
        f"{ROWS}, int32[b, s] m", MULTI.format(", mask_filter_value = -3.0", ", , m"),
    ),
    "causal": (ROWS, f"y = {PLAIN.format(', is_causal = 1')} (q, k, v)"),
    "a cap": (ROWS, f"y = {PLAIN.format(', softcap = 1.5')} (q, k, v)"),
    "a condition": (KEYS, f"e = Expand (m, z)  y = {PLAIN.format('')} (q, k, v, e)"),
    "heads for themselves": (STACKED, "y = Attention (q, k, v)"),
    "fewer heads of keys": (
        "float16[b, s, 64] q, float16[b, s, 32] k, float16[b, s, 32] v",
        "y = Attention<q_num_heads = 4, kv_num_heads = 2> (q, k, v)",
    ),
    "grouped queries": (GROUPED_ROWS, GROUPED.format(6, ", softcap = 2.5")),
    "grouped queries, a window": (GROUPED_ROWS, GROUPED.format(6, ", local_window_size = 3")),
    "a part of one": (
        "float16[b, s, 192] p",
        f"q, k, v = Split<axis = 2, num_outputs = 3> (p)  {MULTI.format('', '')}",
    ),
    "a part of one with a bias": (
        "float16[b, s, 192] p",
        f"t = Add (r, p)  q, k, v = Split<axis = 2, num_outputs = 3> (t)  {MULTI.format('', '')}",
    ),
    "parts in another order": (
        "float16[b, s, 192] p",
        f"k, v, q = Split<axis = -1, num_outputs = 3> (p)  {MULTI.format('', '')}",
    ),
    "a choice": (
        KEYS,
        f"{WHERE.format(FILL)} w = Where (m, n, f)  e = Expand (w, z)  "
        + MULTI.format("", ", , , e"),
    ),
}  # fmt: skip


def model_of(inputs: str, body: str, opset: int = 23) -> onnx.ModelProto:
    """`y` by a body; `z` are the sizes that a mask is repeated to."""
    head, width = HEAD.format(opset=opset), "16" if "b, 4, s" in inputs else "64"
    output = "float16[b, 4, s, 8] y" if width == "16" else "float16[b, s, 64] y"
    sizes = ""
    if " z)" in body:
        sizes = """o = Constant<value_ints = [1]> ()  l = Shape<start = 1, end = 2> (q)
            a = Shape<start = 0, end = 1> (q)  z = Concat<axis = 0> (a, o, l, l)"""
    held = ""
    if "(r, p)" in body or "(p, r)" in body:
        numbers = ", ".join(str(number) for number in ROW)
        held = f"<float16[192] r = {{{numbers}}}>"
    return ir.to_proto(from_text(f"{head} g ({inputs}) => ({output}) {held} {{ {sizes} {body} }}"))


def find(model: onnx.ModelProto, *, is_eager: bool = True) -> tuple[Scope, list[Candidate]]:
    scope = scope_of(ir.from_proto(model))
    return scope, found_by(ANCHOR, scope, accept, Eager if is_eager else CudaCostModel)


def feeds_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng, sizes = np.random.default_rng(0), {"b": 2, "s": 7, "t": 9}
    feeds = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        shape = [sizes[dim.dim_param] if dim.dim_param else dim.dim_value for dim in dims]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        data = rng.standard_normal(shape)
        if value.name == "m" and dtype != np.float16:
            data = np.arange(shape[-1]) < rng.integers(2, shape[-1], (*shape[:-1], 1))
        feeds[value.name] = data.astype(dtype)
    return feeds


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feeds)[0], np.float64)


def in_float32(inputs: str, body: str) -> onnx.ModelProto:
    """The same in float32: on CPUs ONNX Runtime has no such ops in float16."""
    body = body.replace(f"float16 {{{FILL}}}", "float {-60000}")
    model = model_of(inputs, body)
    text = onnx.printer.to_text(model)
    wide = onnx.parser.parse_model(text.replace("float16", "float"))
    for narrow, made in zip(model.graph.initializer, wide.graph.initializer, strict=True):
        array = onnx.numpy_helper.to_array(narrow).astype(np.float32)
        made.CopyFrom(onnx.numpy_helper.from_array(array, narrow.name))
    return wide


@pytest.mark.parametrize("name", TAKEN)
def test_the_body_computes_what_the_op_does(name: str) -> None:
    model = model_of(*TAKEN[name])
    scope, (one,) = find(model)
    assert one.signature is not None, one.reason
    assert lower_region(scope, one.region, one.signature, {})
    fused = ir.to_proto(scope.model)
    onnx.checker.check_model(fused)
    assert not any("Attention" in node.op_type for node in fused.graph.node)
    feeds = feeds_of(model)
    wide = {
        key: feed.astype(np.float32) if feed.dtype == np.float16 else feed
        for key, feed in feeds.items()
    }
    wanted = run(in_float32(*TAKEN[name]), wide)
    np.testing.assert_allclose(run(fused, feeds), wanted, atol=4e-3)


#: Two heads of keys and values for four of the query, each its own copy, as MultiHeadAttention's.
REPEATED = """i = Constant<value_ints = [2]> ()  n = Constant<value_ints = [1, 1, 2, 1, 1]> ()
    f = Constant<value_ints = [0, 4, -1, 16]> ()  w = Constant<value_ints = [0, 0, 64]> ()
    k1 = Unsqueeze (gk, i)  k2 = Tile (k1, n)  k3 = Reshape (k2, f)
    k4 = Transpose<perm = [0, 2, 1, 3]> (k3)  kk = Reshape (k4, w)
    v1 = Unsqueeze (gv, i)  v2 = Tile (v1, n)  v3 = Reshape (v2, f)
    v4 = Transpose<perm = [0, 2, 1, 3]> (v3)  vv = Reshape (v4, w)
    y = com.microsoft.MultiHeadAttention<num_heads = 4> (q, kk, vv{})"""
SHARED_ROWS = """float16[b, 1, 64] q, float16[b, 2, 1, 16] k, float16[b, 2, 1, 16] v,
    float16[b, 2, p, 16] pk, float16[b, 2, p, 16] pv"""
GROWN = "gk = Concat<axis = 2> (pk, k)  gv = Concat<axis = -2> (pv, v)  "
TURNED = "Transpose<perm = [2, 0, 1, 3]>"
WRITTEN = f"""kt = {TURNED} (pk)  ks = ScatterND (kt, at, k)
    vt = {TURNED} (pv)  vs = ScatterND (vt, at, v)
    gk = Transpose<perm = [1, 2, 0, 3]> (ks)  gv = Transpose<perm = [1, 2, 0, 3]> (vs)  """
#: Steps of decoding: inputs, the node, and the shape of the result.
STEP_ROWS = """float16[b, 2, 64] q, float16[b, 2, 64] k, float16[b, 2, 64] v,
    float16[b, 4, p, 16] pk, float16[b, 4, p, 16] pv"""
STEPS = {
    "MultiHeadAttention": (STEP_ROWS, MULTI.format("", ", , , , pk, pv")),
    "Attention": (STEP_ROWS, f"y = {PLAIN.format(', is_causal = 1')} (q, k, v, , pk, pv)"),
    "shared heads and a mask": (
        """float16[b, 4, 1, 16] q, float16[b, 2, 1, 16] k, float16[b, 2, 1, 16] v,
        bool[b, 1, 1, t] m, float16[b, 2, p, 16] pk, float16[b, 2, p, 16] pv""",
        "y = Attention (q, k, v, m, pk, pv)",
    ),
    "parts of one": (
        "float16[b, 1, 192] w, float16[b, 4, p, 16] pk, float16[b, 4, p, 16] pv",
        "q, k, v = Split<axis = 2, num_outputs = 3> (w)  " + MULTI.format("", ", , , , pk, pv"),
    ),
    "repeated heads": (SHARED_ROWS, GROWN + REPEATED.format("")),
    "a row that is written": (
        """float16[b, 1, 64] q, float16[1, b, 2, 16] k, float16[1, b, 2, 16] v, int64[1, 1] at,
        float16[b, 2, t, 16] pk, float16[b, 2, t, 16] pv, float16[b, 1, 1, t] m""",
        WRITTEN + REPEATED.format(", , , m"),
    ),
}


def step_of(name: str, dtype: str = "float16") -> onnx.ModelProto:
    return step_model(*STEPS[name], dtype)


def step_model(inputs: str, body: str, dtype: str = "float16") -> onnx.ModelProto:
    shape = "b, 4, 1, 16" if "4, 1, 16" in inputs else "b, n, 64"
    heads = 2 if "2, p" in inputs else 4
    caches = ", ".join(f"float16[b, {heads}, t, 16] {item}" for item in ("gk", "gv"))
    text = f"{HEAD.format(opset=23)} g ({inputs}) => (float16[{shape}] y, {caches}) {{ {body} }}"
    text = text if "gk = " in text else text.replace("y = ", "y, gk, gv = ")
    text = text.replace("float16", dtype)
    model = ir.to_proto(from_text(text))
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "t":
                dim.dim_param = "p + 2" if inputs == STEP_ROWS else "p + 1"
    return model


@pytest.mark.parametrize("name", STEPS)
def test_caches_are_appended_to(name: str) -> None:
    scope, (one,) = find(step_of(name))
    assert one.signature is not None, one.reason
    assert [value.name for value in one.region.outputs] == ["gk", "gv", "y"]
    assert lower_region(scope, one.region, one.signature, {})
    fused = ir.to_proto(scope.model)
    rng, sizes = np.random.default_rng(0), {"b": 2, "p": 5, "p + 1": 6}
    feeds = {}
    for value in step_of(name).graph.input:
        dims = value.type.tensor_type.shape.dim
        shape = [sizes.get(dim.dim_param, dim.dim_value) for dim in dims]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        data = rng.standard_normal(shape)
        feeds[value.name] = (data > -1 if dtype.kind == "b" else data).astype(dtype)
        if dtype == np.int64:
            feeds[value.name][...] = 3
    wide = {
        key: feed.astype(np.float32) if feed.dtype == np.float16 else feed
        for key, feed in feeds.items()
    }
    providers = ["CPUExecutionProvider"]
    ours = ort.InferenceSession(fused.SerializeToString(), providers=providers)
    theirs = ort.InferenceSession(step_of(name, "float").SerializeToString(), providers=providers)
    for found, wanted in zip(ours.run(None, feeds), theirs.run(None, wide), strict=True):
        np.testing.assert_allclose(found.astype(np.float32), wanted, atol=4e-3)


def test_heads_are_read_where_they_lie() -> None:
    """Nothing repeats them any more, and what did is not read."""
    _, (one,) = find(step_of("repeated heads"))
    assert {node.op_type for node in one.region.nodes} == {"Concat", "MultiHeadAttention"}
    assert [value.name for value in one.region.inputs] == ["q", "k", "v", "pk", "pv"]
    gone = {node.op_type for node in without_readers([one.region])}
    assert gone == {"Constant", "Reshape", "Tile", "Transpose", "Unsqueeze"}


def test_what_an_operand_is_made_of_stays_outside() -> None:
    """The query waits for the present keys: the attention cannot be what makes them."""
    inputs, body = STEPS["repeated heads"]
    moved = "s = ReduceMax<keepdims = 0> (gk)  r = Add (q, s)  "
    waits = body.replace("y = ", moved + "y = ").replace("(q, kk", "(r, kk")
    _, (one,) = find(step_model(inputs, waits))
    assert one.signature is not None
    assert [value.name for value in one.region.inputs] == ["r", "gk", "gv"]
    assert [value.name for value in one.region.outputs] == ["y"]


def test_caches_without_present_ones_are_left() -> None:
    model = step_of("MultiHeadAttention")
    del model.graph.output[1:]
    node = model.graph.node[0]
    del node.output[1:]
    _, (one,) = find(model)
    assert "without present ones" in one.reason


@pytest.mark.parametrize(
    ("name", "ops", "inputs"),
    [
        ("plain", ["MultiHeadAttention"], "q k v"),
        ("a part of one", ["Split", "MultiHeadAttention"], "p"),
        ("a part of one with a bias", ["Add", "Split", "MultiHeadAttention"], "p r"),
        ("a condition", ["Attention"], "q k v m"),
        ("a choice", ["MultiHeadAttention"], "q k v m"),
    ],
)
def test_what_is_taken_in(name: str, ops: list[str], inputs: str) -> None:
    _, (one,) = find(model_of(*TAKEN[name]))
    assert [node.op_type for node in one.region.nodes] == ops
    assert [value.name for value in one.region.inputs] == inputs.split()


@pytest.mark.parametrize(
    ("batch", "length", "narrow", "ops"),
    [
        (1, 64, True, ["Add", "Split", "MultiHeadAttention"]),
        # So much takes longer with a bias than without one, and the product takes that in.
        (64, 512, True, ["Split", "MultiHeadAttention"]),
        # The product is ONNX Runtime's, which would add it by a kernel of its own.
        (64, 512, False, ["Add", "Split", "MultiHeadAttention"]),
        # Copies of boxes add it to queries and results alone.
        (64, 1024, True, ["Add", "Split", "MultiHeadAttention"]),
    ],
)
@pytest.mark.parametrize("sum_", ["Add (p, r)", "Add (r, p)"])
def test_a_bias_is_left_to_the_product(
    batch: int, length: int, narrow: bool, ops: list[str], sum_: str
) -> None:
    numbers = ", ".join(["14336"] * 64 * 192)
    matrix = f"w = Constant<value = float16[64, 192] {{{numbers}}}> ()"
    if narrow:
        scales = ", ".join(["15360"] * 192)
        matrix = (
            f"a = Constant<value = float8e4m3fn[192, 64] {{{numbers.replace('14336', '56')}}}> ()"
            f"  b = Constant<value = float16[192] {{{scales}}}> ()"
            "  d = DequantizeLinear<axis = 0> (a, b)  w = Transpose<perm = [1, 0]> (d)"
        )
    text = (
        f"{matrix}  p = MatMul (x, w)  t = {sum_}"
        f"  q, k, v = Split<axis = 2, num_outputs = 3> (t)  {MULTI.format('', '')}"
    )
    _, (one,) = find(model_of(f"float16[{batch}, {length}, 64] x", text))
    assert [node.op_type for node in one.region.nodes] == ops


def test_masks_that_nothing_reads_any_more_are_told() -> None:
    _, (one,) = find(model_of(*TAKEN["a choice"]))
    gone = without_readers([one.region])
    assert {node.op_type for node in gone} == {
        "Concat", "Constant", "Expand", "Shape", "Where",
    }  # fmt: skip
    other = "r = Neg (w)  u = ReduceSum (r)  c = Cast<to = 10> (u)"
    inputs, body = TAKEN["a choice"]
    added = body.replace("y = com", f"{other}  x = com") + "  y = Add (x, c)"
    _, (one,) = find(model_of(inputs, added))
    assert "Where" not in {node.op_type for node in without_readers([one.region])}


@pytest.mark.parametrize("both", ["is_row, m", "m, is_row"])
def test_a_condition_that_always_holds_is_left_out(both: str) -> None:
    inputs, body = TAKEN["a choice"]
    range_ = (
        """o0 = Constant<value_int = 0> ()  o1 = Constant<value_int = 1> ()
        sq = Squeeze (l)  places = Range (o0, sq, o1)
        zz = Constant<value_ints = [1, 1, -1, 1]> ()  rows = Reshape (places, zz)
        is_row = GreaterOrEqual (rows, {})  """
        + f"both = And ({both})  "
    )
    for bound, is_row in (("o0", True), ("o1", False)):
        changed = range_.format(bound) + body.replace("Where (m,", "Where (both,")
        _, (one,) = find(model_of(inputs, changed))
        assert ("m" in [value.name for value in one.region.inputs]) == is_row


CAUSAL_HALF = f"{MULTI.format(', unidirectional = 1', '')}"
REFUSED = {
    "float32": (ROWS.replace("float16", "float"), MULTI.format("", ""), "than float16"),
    "packed": ("float16[b, s, 4, 3, 16] q", "y = com.microsoft.MultiHeadAttention"
               "<num_heads = 4> (q)", "packed"),
    "a bias of operands": (f"{ROWS}, float16[192] w", MULTI.format("", ", w"), "a bias of its"),
    "past keys": (f"{ROWS}, float16[b, 4, p, 16] pk, float16[b, 4, p, 16] pv",
                  MULTI.format("", ", , , , pk, pv").replace("y =", "y, gk, gv ="), "past keys"),
    "present keys": (ROWS, MULTI.format("", "").replace("y =", "x, gk, gv =")
                     + "  h = Reshape (gk, o3)  y = Add (x, h)", "are results too"),
    "lengths": (f"{ROWS}, int32[b] m", MULTI.format("", ", , m"), "lengths"),
    "two masks": (f"{ROWS}, int32[b, s] m, float16[b, 1, s, s] n",
                  MULTI.format("", ", , m, n"), "two masks"),
    "other keys": ("float16[b, s, 64] q, float16[b, t, 64] k, float16[b, t, 64] v", CAUSAL_HALF,
                   "causal attention of other keys"),
    "a mask of unknown fit": (f"{ROWS}, float16[b, 1, s, t] m", MULTI.format("", ", , , m"),
                              "not known to fit"),
    "a cap and a mask": (BIAS, f"y = {PLAIN.format(', softcap = 2.0')} (q, k, v, m)", "bound of"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    inputs, body, reason = REFUSED[name]
    if "o3" in body:
        body = "o3 = Constant<value_ints = [0, -1, 64]> ()  " + body
    _, (one,) = find(model_of(inputs, body))
    assert one.signature is None
    assert reason in one.reason


@pytest.mark.parametrize(
    ("last", "more", "reason"),
    [(6, "", ""), (5, "", "lengths are known"), (6, ", do_rotary = 1", "do_rotary"),
     (6, ", local_window_size = 0", "window of 0")],
)  # fmt: skip
def test_grouped_queries_of_whole_samples(last: int, more: str, reason: str) -> None:
    _, (one,) = find(model_of(GROUPED_ROWS, GROUPED.format(last, more)))
    assert reason in one.reason
    assert (one.signature is not None) == (not reason)


def test_old_models_have_no_body() -> None:
    _, (one,) = find(model_of(ROWS, MULTI.format("", ""), opset=14))
    assert "opset 15" in one.reason


def of_length(heads: int, width: int, queries: int, keys: int, more: str = "") -> str:
    columns = heads * width
    inputs = (
        f"float16[1, {queries}, {columns}] q, float16[1, {keys}, {columns}] k, "
        f"float16[1, {keys}, {columns}] v"
    )
    body = f"y = com.microsoft.MultiHeadAttention<num_heads = {heads}{more}> (q, k, v)"
    head = HEAD.format(opset=23)
    return f"{head} g ({inputs}) => (float16[1, {queries}, {columns}] y) {{ {body} }}"


@pytest.mark.parametrize(
    ("sizes", "more", "is_taken"),
    [
        ((12, 64, 512, 512), "", True),
        ((12, 64, 2048, 2048), "", True),
        ((12, 64, 2048, 2048), ", unidirectional = 1", True),
        ((16, 128, 2048, 2048), ", unidirectional = 1", False),
        ((16, 128, 512, 512), ", unidirectional = 1", True),
        ((16, 128, 4096, 4096), "", False),
        ((12, 64, 1, 2048), "", True),
        ((16, 128, 1, 2048), "", False),
    ],
)
def test_it_is_taken_where_it_was_faster(
    sizes: tuple[int, int, int, int], more: str, is_taken: bool
) -> None:
    model = ir.to_proto(from_text(of_length(*sizes, more)))
    _, (one,) = find(model, is_eager=False)
    assert (one.signature is not None) == is_taken
    assert is_taken or "predicted to gain" in one.reason


@pytest.mark.parametrize("name", ["a mask of keys", "plain", "a condition"])
def test_it_is_taken_where_lengths_are_not_known(name: str) -> None:
    _, (one,) = find(model_of(*TAKEN[name]), is_eager=False)
    assert one.signature is not None
