"""How much arithmetic one node does, as a size that may depend on named sizes.

A multiply-add is two operations. Whatever is computed element by element counts one per
element, however costly one is (an Exp as much as an Add); softmax counts five, the other
normalizations eight. Moving data counts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import onnx_ir as ir

from ortkit.graph.symbolic.dims import Size, add, minimum, multiply, product

SOFTMAX, NORM, AFFINE = 5, 8, 2


class UnknownCostError(Exception):
    """A size that the cost depends on is not known, or the operator is not."""


class KnownShapes(Protocol):
    """Where types and shapes come from: `Shapes`, or what a run has shown."""

    def shape(self, value: ir.Value, /) -> Sequence[Size] | None:
        """Return a value's shape, None if it is not known."""
        ...

    def dtype(self, value: ir.Value, /) -> ir.DataType | None:
        """Return the type of its elements, None if it is not known."""
        ...


@dataclass(frozen=True)
class Operands:
    """What a rule may read of a node."""

    node: ir.Node
    shapes: KnownShapes

    def has(self, index: int) -> bool:
        """Say whether input `index` is there."""
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def shape(self, index: int) -> Sequence[Size]:
        """Return the shape of an input.

        Raises:
            UnknownCostError: It is absent, or its rank is not known.
        """
        return self._shape(self.node.inputs[index] if self.has(index) else None)

    def result(self, index: int = 0) -> Sequence[Size]:
        """Return the shape of an output; raises as `shape` does."""
        return self._shape(self.node.outputs[index])

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        attribute = self.node.attributes.get(name)
        return default if attribute is None or attribute.is_ref() else attribute.as_int()

    def _shape(self, value: ir.Value | None) -> Sequence[Size]:
        shape = None if value is None else self.shapes.shape(value)
        if shape is None:
            raise UnknownCostError
        return shape


FlopRule: TypeAlias = Callable[[Operands], Size]


def node_flops(node: ir.Node, shapes: KnownShapes) -> Size:
    """Return the arithmetic operations of one node; its subgraphs are not included.

    Raises:
        UnknownCostError: A shape is not known, or the operator is nobody's we know.
    """
    is_default = node.domain in ("", "ai.onnx")
    rule = _RULES.get(node.op_type if is_default else f"{node.domain}::{node.op_type}")
    if rule is None and not is_default:
        raise UnknownCostError
    try:
        return (rule or _elementwise)(Operands(node, shapes))
    except (IndexError, KeyError, ValueError) as error:  # fewer than the operator needs
        raise UnknownCostError from error


# ---- element by element ----------------------------------------------------------------


def _per_output(count: int) -> FlopRule:
    return lambda call: multiply(count, product(call.result()))


def _per_input(count: int) -> FlopRule:
    return lambda call: multiply(count, product(call.shape(0)))


def _nothing(_call: Operands) -> Size:
    return 0


_elementwise = _per_output(1)


def _pool(call: Operands) -> Size:
    attribute = call.node.attributes.get("kernel_shape")
    if attribute is None:
        raise UnknownCostError
    return product((*call.result(), *attribute.as_ints()))


# ---- products --------------------------------------------------------------------------


def _matmul(call: Operands) -> Size:
    """Two operations for each output element and each element that is summed for it."""
    transposed = call.integer("transA", 0)
    left = call.shape(0)
    depth = left[-2] if transposed else left[-1]
    return product((2, *call.result(), depth))


def _gemm(call: Operands) -> Size:
    bias = product(call.result()) if call.has(2) else 0
    return add(_matmul(call), bias)


def _conv(weights: int) -> FlopRule:
    def rule(call: Operands) -> Size:
        # [out channels, in channels of a group, kernel...]
        return product((2, *call.result(), *call.shape(weights)[1:]))

    return rule


def _conv_with_bias(call: Operands) -> Size:
    bias = product(call.result()) if call.has(2) else 0
    return add(_conv(1)(call), bias)


def _conv_transpose(call: Operands) -> Size:
    """Each input element is multiplied by [out channels of a group, kernel...]."""
    bias = product(call.result()) if call.has(2) else 0
    return add(product((2, *call.shape(0), *call.shape(1)[1:])), bias)


def _recurrent(call: Operands) -> Size:
    """The products with W and R for each step and batch; the gates are left out.

    X is [steps, batch, in] (or batch first), W [directions, gates, in], R [directions, gates,
    hidden].
    """
    steps = product(call.shape(0)[:2])
    weights = add(product(call.shape(1)), product(call.shape(2)))
    return product((2, steps, weights))


def _einsum(call: Operands) -> Size:
    """One multiplication and addition for each point of the space that the letters span."""
    attribute = call.node.attributes["equation"].as_string().replace(" ", "")
    sizes: dict[str, Size] = {}
    for index, term in enumerate(attribute.partition("->")[0].split(",")):
        shape = call.shape(index)
        if "..." in term or len(term) != len(shape):
            raise UnknownCostError
        sizes.update(zip(term, shape, strict=True))
    return product((2, *sizes.values()))


# ---- attention -------------------------------------------------------------------------


def _scores(batch_heads: Size, queries: Size, keys: Size, width: Size, out: Size) -> Size:
    """Q·K of `width`, softmax, then the product with V of `out`."""
    points = product((batch_heads, queries, keys))
    return add(multiply(points, multiply(2, add(width, out))), multiply(SOFTMAX, points))


def _attention(call: Operands) -> Size:
    """The default domain's: 3-D [batch, length, heads * width] or 4-D with heads apart."""
    query, key, value = (call.shape(index) for index in range(3))
    past = call.shape(4)[2] if call.has(4) else 0
    if len(query) == 4:
        heads = multiply(query[0], query[1])
        return _scores(heads, query[2], add(past, key[2]), query[3], value[3])
    heads, groups = call.integer("q_num_heads", 0), call.integer("kv_num_heads", 0)
    if heads <= 0 or groups <= 0:
        raise UnknownCostError
    points = product((query[0], query[1], add(past, key[1])))
    # Over all heads the widths add up to the last axis, for V as often as a group is shared.
    width = add(query[2], multiply(heads // groups, value[2]))
    return add(product((2, points, width)), product((SOFTMAX, heads, points)))


def _packed_attention(call: Operands) -> Size:
    """`com.microsoft`: input [batch, seq, in], weights [in, 3 * hidden]."""
    data, weights, result = call.shape(0), call.shape(1), call.result()
    projection = product((2, *data, weights[1]))
    points = product((data[0], data[1], data[1]))
    heads = call.integer("num_heads", 1)
    scores = product((4, points, result[-1]))
    return add(projection, add(scores, product((SOFTMAX, heads, points))))


def _multi_head(call: Operands) -> Size:
    """`com.microsoft`: query [batch, seq, hidden], key [batch, length, hidden] or 4-D."""
    query, key = call.shape(0), call.shape(1)
    if len(query) != 3:
        raise UnknownCostError
    points = product((query[0], query[1], key[2] if len(key) == 4 else key[1]))
    heads = call.integer("num_heads", 1)
    width = add(query[2], call.result()[-1])
    return add(product((2, points, width)), product((SOFTMAX, heads, points)))


def _grouped_query(call: Operands) -> Size:
    """`com.microsoft`: query [batch, new, hidden], caches [batch, groups, tokens, width].

    The query may have keys and values behind it. A token sees all rows of the cache; with a
    window, at most those of the window.
    """
    result, cache = call.result(), call.result(1)
    window = call.integer("local_window_size", -1)
    keys = minimum(cache[2], window) if window > 0 else cache[2]
    points = product((result[0], result[1], keys))
    heads = call.integer("num_heads", 0)
    if heads <= 0:
        raise UnknownCostError
    return add(product((4, points, result[2])), product((SOFTMAX, heads, points)))


_NO_ARITHMETIC = (
    "Cast CastLike Compress Concat ConcatFromSequence Constant ConstantOfShape DepthToSpace "
    "Expand EyeLike Flatten Gather GatherElements GatherND Identity If Loop NonZero OneHot "
    "Optional OptionalGetElement OptionalHasElement Pad Range Reshape ReverseSequence Scan "
    "ScatterElements ScatterND SequenceAt SequenceConstruct SequenceEmpty SequenceErase "
    "SequenceInsert SequenceLength SequenceMap Shape Size Slice SpaceToDepth Split "
    "SplitToSequence Squeeze StringConcat StringSplit Tile Transpose Trilu Unique Unsqueeze "
    "Where RandomNormal RandomNormalLike RandomUniform RandomUniformLike Bernoulli Dropout"
)
_PER_INPUT = (
    "ArgMax ArgMin CumSum CumProd GlobalAveragePool GlobalMaxPool ReduceL1 ReduceL2 ReduceLogSum "
    "ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare TopK"
)
_NORMS = (
    "LayerNormalization InstanceNormalization GroupNormalization RMSNormalization "
    "LpNormalization MeanVarianceNormalization LRN"
)
_CONTRIB_NORMS = (
    "SkipLayerNormalization SkipSimplifiedLayerNormalization GroupNorm SkipGroupNorm "
    "SimplifiedLayerNormalization EmbedLayerNormalization LayerNormalization"
)
_CONTRIB_ELEMENTWISE = (
    "Gelu FastGelu QuickGelu BiasGelu BiasAdd BiasSplitGelu QLinearAdd QLinearMul "
    "QLinearSigmoid QLinearLeakyRelu QuantizeLinear DequantizeLinear RotaryEmbedding"
)
_CONTRIB_PRODUCTS = (
    "FusedMatMul TransposeMatMul MatMulNBits MatMulBnb4 MatMulIntegerToFloat DynamicQuantizeMatMul"
)


def _contrib(names: str, rule: FlopRule) -> dict[str, FlopRule]:
    return {f"com.microsoft::{name}": rule for name in names.split()}


_RULES: Mapping[str, FlopRule] = {
    **dict.fromkeys(_NO_ARITHMETIC.split(), _nothing),
    **dict.fromkeys(_PER_INPUT.split(), _per_input(1)),
    **dict.fromkeys(_NORMS.split(), _per_input(NORM)),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), _per_output(SOFTMAX)),
    **dict.fromkeys(
        ("BatchNormalization", "QuantizeLinear", "DequantizeLinear"), _per_output(AFFINE)
    ),
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _pool),
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul"), _matmul),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    "Gemm": _gemm,
    "Conv": _conv_with_bias,
    "DeformConv": _conv(1),
    "ConvInteger": _conv(1),
    "QLinearConv": _conv(3),
    "ConvTranspose": _conv_transpose,
    "Einsum": _einsum,
    "Attention": _attention,
    **_contrib(_CONTRIB_NORMS, _per_input(NORM)),
    **_contrib(_CONTRIB_ELEMENTWISE, _per_output(1)),
    **_contrib("BiasSoftmax QLinearSoftmax", _per_output(SOFTMAX)),
    **_contrib(_CONTRIB_PRODUCTS, _matmul),
    # What ONNX Runtime makes of convolution nets on the CPU: channels in blocks, padded to whole
    # ones. The arithmetic is that of the padded sizes, which is what is computed.
    "com.microsoft.nchwc::Conv": _conv_with_bias,
    **{f"com.microsoft.nchwc::{name}": _pool for name in ("MaxPool", "AveragePool")},
    **{f"com.microsoft.nchwc::Global{name}Pool": _per_input(1) for name in ("Max", "Average")},
    **{f"com.microsoft.nchwc::{name}": _nothing for name in ("ReorderInput", "ReorderOutput")},
    "com.microsoft::FusedGemm": _gemm,
    "com.microsoft::FusedConv": _conv_with_bias,
    "com.microsoft::Attention": _packed_attention,
    "com.microsoft::MultiHeadAttention": _multi_head,
    "com.microsoft::GroupQueryAttention": _grouped_query,
}
