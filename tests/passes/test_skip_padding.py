"""skip-padding: what padding cannot change is computed for the other tokens alone.

Each encoder is compared with itself before, on masks of every kind: outputs are equal in all of
them, or the pass has to refuse.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from ortkit.optimization.padding import PADDING_KEY, NamedPadding, zero_padding
from ortkit.passes.skip_padding import SkipPadding
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.pipeline import Pipeline, PipelineResult

#: [samples, positions] of a mask, for a size.
Mask = Callable[[np.random.Generator, int, int], np.ndarray]


def right(random: np.random.Generator, samples: int, length: int) -> np.ndarray:
    counts = random.integers(1, length + 1, (samples, 1))
    return (np.arange(length) < counts).astype(np.int64)


def left(random: np.random.Generator, samples: int, length: int) -> np.ndarray:
    return right(random, samples, length)[:, ::-1].copy()


def with_holes(random: np.random.Generator, samples: int, length: int) -> np.ndarray:
    return random.integers(0, 2, (samples, length))


def one_empty(random: np.random.Generator, samples: int, length: int) -> np.ndarray:
    mask = right(random, samples, length)
    mask[samples // 2] = 0
    return mask


def all_empty(_: np.random.Generator, samples: int, length: int) -> np.ndarray:
    return np.zeros((samples, length), np.int64)


def full(_: np.random.Generator, samples: int, length: int) -> np.ndarray:
    return np.ones((samples, length), np.int64)


def other_numbers(random: np.random.Generator, samples: int, length: int) -> np.ndarray:
    return right(random, samples, length) * random.integers(-2, 4, (samples, length))


def one_below_zero(_: np.random.Generator, samples: int, length: int) -> np.ndarray:
    return np.tile(-(np.arange(length) == 1).astype(np.int64), (samples, 1))


MASKS: tuple[Mask, ...] = (
    right, left, with_holes, one_empty, all_empty, full, other_numbers, one_below_zero,
)  # fmt: skip

#: How a mask of keys is written from `mask`, an input of int64.
WRITTEN = {
    "added": "k = Cast<to = 1>(mask)\n o = Sub(one, k)\n w = Mul(o, lowest)\n"
    " bk = Unsqueeze(w, axes12)",
    "chosen": "k = Cast<to = 9>(mask)\n c = Unsqueeze(k, axes12)\n bk = Where(c, zero, lowest)",
    "bool": "k = Cast<to = 9>(mask)\n bk = Unsqueeze(k, axes12)",
    "infinite": "k = Cast<to = 9>(mask)\n c = Unsqueeze(k, axes12)\n bk = Where(c, zero, minus)",
    "equal to one": "k = Equal(mask, i1)\n c = Unsqueeze(k, axes12)\n bk = Where(c, zero, lowest)",
    "of both": "a = Unsqueeze(mask, axes12)\n b = Unsqueeze(mask, axes13)\n p = Mul(a, b)\n"
    " k = Cast<to = 9>(p)\n bk = Where(k, zero, lowest)",
}
#: What is made of the last hidden state `h`.
HEADS = {
    "mean": "m = Unsqueeze(mask, axis2)\n f = Cast<to = 1>(m)\n hm = Mul(h, f)\n"
    " s = ReduceSum<keepdims = 0>(hm, i1)\n n = ReduceSum<keepdims = 0>(f, i1)\n"
    " n1 = Max(n, tiny)\n y = Div(s, n1)",
    "chosen mean": "mb = Cast<to = 9>(mask)\n m = Unsqueeze(mb, axis2)\n hm = Where(m, h, zero)\n"
    " y = ReduceSum<keepdims = 0>(hm, i1)",
    "maximum": "mb = Cast<to = 9>(mask)\n m = Unsqueeze(mb, axis2)\n"
    " hm = Where(m, h, lowest)\n y = ReduceMax<keepdims = 0>(hm, i1)",
    "first": "y = Gather<axis = 1>(h, first)",
    "slice of the first": "y = Slice(h, i0, i1, i1)",
    "all": "y = Identity(h)",
    "mean of all": "y = ReduceMean<keepdims = 0>(h, i1)",
    "second": "y = Gather<axis = 1>(h, second)",
    "last": "n = ReduceSum<keepdims = 1>(mask, i1)\n at = Sub(n, i1)\n"
    " y = GatherND<batch_dims = 1>(h, at)",
    "mean by another mask": "o = Neg(mask)\n oo = Add(o, i1)\n m = Unsqueeze(oo, axis2)\n"
    " f = Cast<to = 1>(m)\n hm = Mul(h, f)\n y = ReduceSum<keepdims = 0>(hm, i1)",
    "sum over a shift": "m = Unsqueeze(mask, axis2)\n f = Cast<to = 1>(m)\n"
    " g = CumSum(f, second)\n hm = Mul(h, g)\n y = ReduceSum<keepdims = 0>(hm, i1)",
    "quantized": "da, db, dc = DynamicQuantizeLinear(h)\n d = DequantizeLinear(da, db, dc)\n"
    " y = Gather<axis = 1>(d, first)",
}
LAYER = """
  q{n} = MatMul({x}, wq)
  k{n} = MatMul({x}, wk)
  v{n} = MatMul({x}, wv)
  a{n} = Attention<q_num_heads = 2, kv_num_heads = 2{causal}>(q{n}, k{n}, v{n}, bias)
  r{n} = Add(a{n}, {x})
  l{n} = LayerNormalization<axis = -1>(r{n}, scale)
  g{n} = MatMul(l{n}, wq)
  t{n} = Tanh(g{n})
  h{n} = Add(t{n}, l{n})
"""


def encoder(
    written: str, head: str, *, front: str = "x = Gather(table, ids)", causal: bool = False
) -> onnx.ModelProto:
    text = "".join(
        LAYER.format(n=n, x=x, causal=", is_causal = 1" if causal else "")
        for n, x in ((0, "x"), (1, "h0"))
    )
    source = f"""<ir_version: 10, opset_import: ["" : 23]>
g (int64[b,s] ids, int64[b,s] mask) => (float y)
  <float one = {{1}}, float zero = {{0}}, float lowest = {{-3.0e38}}, float tiny = {{0.000001}},
   int64[2] axes12 = {{1, 2}}, int64[2] axes13 = {{1, 3}}, int64[1] axis2 = {{2}},
   int64[1] i0 = {{0}}, int64[1] i1 = {{1}}, int64 first = {{0}}, int64 second = {{1}}> {{
  {front}
  {WRITTEN[written]}
  zs = Shape<start = 1, end = 2>(mask)
  four = Concat<axis = 0>(i1, i1, zs, zs)
  bias = Expand(bk, four)
{text}
  h = Identity(h1)
  {HEADS[head]}
}}"""
    model = onnx.parser.parse_model(source)
    random = np.random.default_rng(0)
    arrays = {
        "table": (50, 8), "places": (40, 8), "wq": (8, 8), "wk": (8, 8), "wv": (8, 8),
        "scale": (8,),
    }  # fmt: skip
    constants = {name: random.standard_normal(shape) for name, shape in arrays.items()}
    constants["minus"] = np.array(-np.inf)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array.astype(np.float32), name)
        for name, array in constants.items()
    )
    return model


def packed(model: onnx.ModelProto) -> PipelineResult:
    return Pipeline((SkipPadding(),)).run(ir.from_proto(model), RewriteOptions())


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options)


def assert_equal(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    one, other = session(before), session(after)
    for number, mask in enumerate(MASKS):
        for samples, length in ((1, 4), (3, 9)):
            random = np.random.default_rng(number)
            feeds = {
                "ids": random.integers(0, 50, (samples, length)),
                "mask": mask(random, samples, length),
            }
            expected, found = one.run(None, feeds)[0], other.run(None, feeds)[0]
            np.testing.assert_allclose(found, expected, 1e-4, 1e-4, err_msg=mask.__name__)


def assert_packs(model: onnx.ModelProto) -> None:
    result = packed(model)
    assert [hit.rule for hit in result.log.hits] == ["tokens"]
    after = ir.to_proto(result.model)
    onnx.checker.check_model(after)
    assert_equal(model, after)


def reason(model: onnx.ModelProto) -> str:
    result = packed(model)
    assert not result.log.hits
    return " ".join(miss.reason for miss in result.log.misses)


@pytest.mark.parametrize("written", WRITTEN)
def test_masks_as_exporters_write_them(written: str) -> None:
    assert_packs(encoder(written, "mean"))


@pytest.mark.parametrize("head", ["chosen mean", "maximum", "first", "slice of the first"])
def test_what_takes_tokens_or_hides_padding(head: str) -> None:
    assert_packs(encoder("chosen", head))


@pytest.mark.parametrize(
    ("head", "part"),
    [
        ("all", "output 'h' holds all positions|may read padding|holds all"),
        ("mean of all", "ReduceMean"),
        ("second", "Gather"),
        ("last", "GatherND"),
        ("mean by another mask", "ReduceSum"),
        ("sum over a shift", "ReduceSum"),
        ("quantized", "DynamicQuantizeLinear"),
    ],
)
def test_padding_that_reaches_a_result(head: str, part: str) -> None:
    found = reason(encoder("chosen", head))
    assert any(each in found for each in part.split("|")), found


def test_positions_are_added_to_each_sample() -> None:
    front = (
        "e = Gather(table, ids)\n z = Shape<start = 1, end = 2>(ids)\n en = Squeeze(z)\n"
        " r = Range(first, en, second)\n p = Gather(places, r)\n x = Add(e, p)"
    )
    assert_packs(encoder("chosen", "mean", front=front))


def test_positions_are_counted_by_the_mask() -> None:
    front = (
        "e = Gather(table, ids)\n ec = CumSum(mask, second)\n i = Mul(ec, mask)\n"
        " ok = Clip(i, first, i39)\n p = Gather(places, ok)\n x = Add(e, p)"
    )
    model = encoder("chosen", "mean", front=front)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(39), "i39"))
    assert_packs(model)


@pytest.mark.parametrize("head", ["chosen mean", "mean", "first"])
def test_causal_attention(head: str) -> None:
    model = encoder("chosen", head, causal=True)
    result = packed(model)
    assert_equal(model, ir.to_proto(result.model))


def masked_by_size_of_tokens() -> onnx.ModelProto:
    """Return an encoder whose mask has as many keys as what is looked up for its tokens."""
    model = encoder("chosen", "chosen mean")
    next(node for node in model.graph.node if node.output[0] == "zs").input[0] = "x"
    return model


def test_a_mask_of_as_many_keys_as_a_packed_value_has() -> None:
    assert_packs(masked_by_size_of_tokens())


def test_a_mask_whose_size_no_input_has() -> None:
    model = masked_by_size_of_tokens()
    both = onnx.parser.parse_graph("g (int64[2,b,s] both) => () { }").input
    del model.graph.input[:]
    model.graph.input.extend(both)
    for name, place in (("mask", "second"), ("ids", "first")):
        model.graph.node.insert(0, onnx.helper.make_node("Gather", ["both", place], [name]))
    assert reason(model)


def with_numbers_of_keys(model: onnx.ModelProto, **attributes: float) -> onnx.ModelProto:
    """Let attention be com.microsoft's, whose mask is a number for each key."""
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    for node in model.graph.node:
        if node.op_type == "Attention":
            operands = node.input[:3]
            name = node.output[0]
            node.CopyFrom(
                onnx.helper.make_node(
                    "MultiHeadAttention", [*operands, "", "keys"], [name],
                    domain="com.microsoft", num_heads=2, **attributes,
                )
            )  # fmt: skip
    cast = onnx.helper.make_node("Cast", ["mask"], ["keys"], to=onnx.TensorProto.INT32)
    model.graph.node.insert(0, cast)
    return model


@pytest.mark.parametrize("attributes", [{}, {"unidirectional": 1}])
def test_keys_with_a_number_above_zero_are_seen(attributes: dict[str, float]) -> None:
    assert_packs(with_numbers_of_keys(encoder("chosen", "chosen mean"), **attributes))


@pytest.mark.parametrize("fill", [-1.0, float("-inf")])
def test_keys_that_another_number_is_added_to_may_be_seen(fill: float) -> None:
    model = with_numbers_of_keys(encoder("chosen", "mean"), mask_filter_value=fill)
    result = packed(model)
    assert not result.log.hits
    assert_equal(model, ir.to_proto(result.model))


def test_attention_without_a_mask_reads_padding() -> None:
    model = encoder("chosen", "mean")
    last = [node for node in model.graph.node if node.op_type == "Attention"][-1]
    del last.input[3:]
    assert "may read padding" in reason(model)


def test_it_finds_nothing_to_do_again() -> None:
    first = packed(encoder("chosen", "mean"))
    again = Pipeline((SkipPadding(),)).run(first.model, RewriteOptions())
    assert not again.log.hits


def test_a_layer_whose_keys_are_masked_is_packed_alone() -> None:
    model = encoder("chosen", "mean")
    first = next(node for node in model.graph.node if node.op_type == "Attention")
    del first.input[3:]
    assert_packs(model)


def test_padding_is_computed_where_there_is_no_product() -> None:
    model = encoder("chosen", "mean")
    kept = [node for node in model.graph.node if node.op_type != "MatMul"]
    renamed = {"q0": "x", "k0": "x", "v0": "x", "g0": "l0"}
    renamed |= {"q1": "h0", "k1": "h0", "v1": "h0", "g1": "l1"}
    for node in kept:
        node.input[:] = [renamed.get(name, name) for name in node.input]
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    assert not packed(model).log.hits


def test_outputs_that_hold_zeros_are_named_as_the_model_names_them() -> None:
    model = ir.from_proto(encoder("chosen", "all"))
    zero_padding(model, NamedPadding("mask", 0))
    assert model.metadata_props[PADDING_KEY] == "mask=0 zeroes y"


@pytest.mark.parametrize("shape", [(1, 6), (3, 5), (3, 1)])
def test_a_mask_of_other_sizes_than_declared(shape: tuple[int, int]) -> None:
    model = encoder("chosen", "first")
    before, after = session(model), session(ir.to_proto(packed(model).model))
    feeds = {"ids": np.arange(18).reshape(3, 6), "mask": np.ones(shape, np.int64)}
    if shape == (1, 6):
        expected, found = before.run(None, feeds)[0], after.run(None, feeds)[0]
        np.testing.assert_allclose(found, expected, 1e-4, 1e-4)
        return
    for each in (before, after):
        with pytest.raises(Exception, match="ONNXRuntimeError"):
            each.run(None, feeds)
