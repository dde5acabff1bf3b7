"""Operators of the com.microsoft domain."""

from __future__ import annotations

import onnx_ir as ir

from ortkit.graph.shapes.rules import layout, linear, quantize, spatial
from ortkit.graph.shapes.rules.call import Call, Rule, Shape, UnknownError
from ortkit.graph.shapes.rules.elementwise import broadcast_shapes, same
from ortkit.graph.symbolic.dims import Size, add, divide_exactly, floor_divide, multiply

FLOAT = ir.DataType.FLOAT


# ---- products ----------------------------------------------------------------------------


def _swapped(shape: Shape, swaps: bool) -> Shape:
    return (*shape[:-2], shape[-1], shape[-2]) if swaps and len(shape) > 1 else shape


def _fused_matmul(call: Call) -> None:
    call.out(dtype=call.dtype(0))
    if call.integer("transBatchA", 0) or call.integer("transBatchB", 0):
        raise UnknownError
    left = _swapped(call.shape(0), call.integer("transA", 0) != 0)
    right = _swapped(call.shape(1), call.integer("transB", 0) != 0)
    call.out(shape=linear.matmul_shape(call, left, right))


def _matmul_integer_to_float(call: Call) -> None:
    call.out(dtype=call.dtype(2))
    call.out(shape=linear.matmul_shape(call, call.shape(0), call.shape(1)))


def _quantized_gemm(call: Call) -> None:
    """A result in float32, or in the type of A where it has a zero point of its own."""
    is_rounded = call.inputs > 8
    call.out(dtype=call.dtype(0) if is_rounded else FLOAT)
    left = _swapped(call.shape(0), call.integer("transA", 0) != 0)
    right = _swapped(call.shape(3), call.integer("transB", 0) != 0)
    call.out(shape=linear.matmul_shape(call, left, right))


def _dynamic_quantize_matmul(call: Call) -> None:
    call.out(dtype=call.dtype(0))
    call.out(shape=linear.matmul_shape(call, call.shape(0), call.shape(1)))


def _matmul_nbits(call: Call) -> None:
    call.out(dtype=call.dtype(0))
    columns = call.integer("N", 0)
    shape = call.shape(0)
    if columns <= 0 or not shape:
        raise UnknownError
    call.out(shape=(*shape[:-1], columns))


def _gather_block_quantized(call: Call) -> None:
    """Inputs: data, indices, scales; several narrow numbers lie in a uint8 of data."""
    call.out(dtype=call.dtype(2))
    data = list(call.shape(0))
    if call.dtype(0) == ir.DataType.UINT8:
        data[-1] = multiply(data[-1], 8 // call.integer("bits", 4))
    axis = call.integer("gather_axis", 0) % len(data)
    call.out(shape=(*data[:axis], *call.shape(1), *data[axis + 1 :]))


# ---- elementwise with a bias ---------------------------------------------------------------


def _broadcast_first_two(call: Call) -> None:
    call.out(dtype=call.dtype(0))
    call.out(shape=broadcast_shapes(call.shape(0), call.shape(1)))


def _quantized_pair(call: Call) -> None:
    """QLinearAdd and QLinearMul: A and B are inputs 0 and 3."""
    call.out(dtype=call.dtype(0))
    call.out(shape=broadcast_shapes(call.shape(0), call.shape(3)))


def _quantized_concat(call: Call) -> None:
    """Inputs: the output's scale and zero point, then (tensor, scale, zero point) each."""
    call.out(dtype=call.dtype(1))
    shapes = [call.shape(index) for index in range(2, call.inputs, 3)]
    axis = call.integer("axis", 0) % len(shapes[0])
    total: Size = 0
    for shape in shapes:
        total = add(total, shape[axis])
    call.out(shape=(*shapes[0][:axis], total, *shapes[0][axis + 1 :]))


def _split_in_two(call: Call) -> None:
    """BiasSplitGelu: the last axis is halved."""
    call.out(dtype=call.dtype(0))
    shape = call.shape(0)
    call.out(shape=(*shape[:-1], floor_divide(shape[-1], 2)))


# ---- normalizations ------------------------------------------------------------------------


def _skip_layer_norm(call: Call) -> None:
    same(call)
    # Output 3 is the sum of input, skip and bias.
    call.out(3, dtype=call.dtype(0), shape=call.fact(0).shape)
    call.out(1, dtype=FLOAT)
    call.out(2, dtype=FLOAT)


def _embed_layer_norm(call: Call) -> None:
    call.out(dtype=call.dtype(2))
    ids, table = call.shape(0), call.shape(2)
    call.out(0, shape=(*ids, table[1]))
    call.out(1, dtype=ir.DataType.INT32)
    call.out(2, dtype=call.dtype(2), shape=(*ids, table[1]))


# ---- attention ---------------------------------------------------------------------------


def _packed_attention(call: Call) -> None:
    """Attention: input [batch, seq, in], weights [in, 3 * hidden]."""
    for index in range(call.outputs):
        call.out(index, dtype=call.dtype(0))
    data = call.shape(0)
    parts = call.integers("qkv_hidden_sizes")
    hidden: Size
    if parts:
        hidden = parts[2]
    else:
        packed = call.fact(1).shape if call.has(1) else None
        exact = None if packed is None else divide_exactly(packed[1], 3)
        hidden = call.fresh() if exact is None else exact
    if len(data) == 3:
        call.out(shape=(data[0], data[1], hidden))


def _multi_head_attention(call: Call) -> None:
    for index in range(call.outputs):
        call.out(index, dtype=call.dtype(0))
    query = call.shape(0)
    if len(query) == 5:
        # [batch, seq, heads, 3, width]
        call.out(shape=(query[0], query[1], multiply(query[2], query[4])))
        return
    if len(query) != 3:
        raise UnknownError
    value = call.fact(2).shape
    hidden: Size = call.fresh()
    if value is not None and len(value) == 3:
        hidden = value[2]
    elif value is not None and len(value) == 4:
        hidden = multiply(value[1], value[3])
    elif not call.has(2):
        hidden = query[2]
    call.out(shape=(query[0], query[1], hidden))


def _group_query_attention(call: Call) -> None:
    for index in range(call.outputs):
        call.out(index, dtype=call.dtype(0))
    query = call.shape(0)
    heads, groups = call.integer("num_heads", 0), call.integer("kv_num_heads", 0)
    if len(query) != 3 or heads <= 0 or groups <= 0:
        raise UnknownError
    packed = not call.has(1)
    width = divide_exactly(query[2], heads + 2 * groups if packed else heads)
    if width is None:
        call.out(shape=(query[0], query[1], call.fresh() if packed else query[2]))
        return
    call.out(shape=(query[0], query[1], multiply(width, heads)))
    if "kv_cache_bit_width" in call.node.attributes:
        return  # A quantized cache packs several numbers into one element.
    is_sliding = call.integer("sliding_window_cache", 0) == 1
    for index in (1, 2):
        past = call.fact(index + 2)
        # A sliding cache keeps its size; others grow, by an input that is known when it runs.
        shape = past.shape or ()
        rows = shape[2] if is_sliding and len(shape) == 4 else call.fresh()
        call.out(index, dtype=past.dtype, shape=(query[0], groups, rows, width))


def _quantized_global_pool(call: Call) -> None:
    """Means of images, NCHW or NHWC."""
    call.out(dtype=call.dtype(0))
    batch, *rest = call.shape(0)
    if not rest:
        raise UnknownError
    ones = [1] * (len(rest) - 1)
    is_last = call.integer("channels_last", 0) != 0
    call.out(shape=(batch, *ones, rest[-1]) if is_last else (batch, rest[0], *ones))


def _quantized_pool(call: Call) -> None:
    """Means of windows; of NHWC images the type alone is known."""
    if call.integer("channels_last", 0):
        call.out(dtype=call.dtype(0))
        return
    spatial.pool(call)


def _quantized_choice(call: Call) -> None:
    """QLinearWhere: the condition, X and Y are inputs 0, 1 and 4."""
    call.out(dtype=call.dtype(1))
    both = broadcast_shapes(call.shape(1), call.shape(4))
    call.out(shape=broadcast_shapes(call.shape(0), both))


RULES: dict[str, Rule] = {
    "FusedConv": spatial.conv,
    "FusedMatMul": _fused_matmul,
    "TransposeMatMul": _fused_matmul,
    "FusedGemm": linear.gemm,
    "MatMulIntegerToFloat": _matmul_integer_to_float,
    "QGemm": _quantized_gemm,
    "DynamicQuantizeMatMul": _dynamic_quantize_matmul,
    "MatMulNBits": _matmul_nbits,
    "MatMulBnb4": _matmul_nbits,
    "GatherBlockQuantized": _gather_block_quantized,
    "Gelu": same,
    "FastGelu": same,
    "QuickGelu": same,
    "BiasGelu": _broadcast_first_two,
    "BiasSoftmax": same,
    "BiasDropout": same,
    "BiasAdd": same,
    "BiasSplitGelu": _split_in_two,
    "Inverse": same,
    "Trilu": same,
    "QLinearAdd": _quantized_pair,
    "QLinearMul": _quantized_pair,
    "QLinearSigmoid": same,
    "QLinearLeakyRelu": same,
    "QLinearSoftmax": same,
    "QLinearConcat": _quantized_concat,
    "QLinearAveragePool": _quantized_pool,
    "QLinearWhere": _quantized_choice,
    "QLinearGlobalAveragePool": _quantized_global_pool,
    "QuantizeLinear": quantize.quantize,
    "DequantizeLinear": quantize.dequantize,
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_layer_norm,
    "GroupNorm": same,
    "SkipGroupNorm": same,
    "EmbedLayerNormalization": _embed_layer_norm,
    "RotaryEmbedding": same,
    "GemmaRotaryEmbedding": lambda call: call.out(dtype=call.dtype(1)),
    "Attention": _packed_attention,
    "QAttention": lambda call: call.out(dtype=call.dtype(3)),
    "MultiHeadAttention": _multi_head_attention,
    "GroupQueryAttention": _group_query_attention,
    "Pad": layout.RULES["Pad"],
}
