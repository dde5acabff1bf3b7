"""One rule at a time, with names in place of sizes; the edges of each operator."""

# ruff: noqa: E501 - tables, one case a line
from __future__ import annotations

import pytest
from shape_text import contents_of, parse, shape_of, values

from ortkit.graph.shapes.infer import Shapes

X = "float[a, b, 64] x"


@pytest.mark.parametrize(
    ("body", "inputs", "constants", "opset", "expected"),
    [
        # Broadcasting
        ("y = Add(x, z)", "float[a, 1, 64] x, float[b, 64] z", "", 21, "a, b, 64"),
        ("y = Add(x, z)", "float[a] x, float[b] z", "", 21, "broadcast(a, b)"),
        ("y = Add(x, z)", "float[a] x, float[5] z", "", 21, "5"),
        ("y = Add(x, z)", "float[0] x, float[1] z", "", 21, "0"),
        ("y = Add(x, z)", "float[3] x, float[4] z", "", 21, "none"),
        ("y = Add<axis = 0>(x, z)", "float[a, b] x, float[a] z", "", 6, "a, b"),
        ("y = Where(c, x, z)", "bool[a, 1] c, float[b] x, float z", "", 21, "a, b"),
        ("y = PRelu(x, z)", f"{X}, float[64] z", "", 21, "a, b, 64"),
        ("y = PRelu(x, z)", "float[1] x, float[a, 3] z", "", 21, "a, 3"),
        ("y = Sum(x, z, x)", "float[a, 1] x, float[1, b] z", "", 21, "a, b"),
        # Reshape
        ("y = Reshape(x, t)", X, "int64[2] t = {0, -1}", 21, "a, 64*b"),
        ("y = Reshape(x, t)", X, "int64[4] t = {0, 0, 4, -1}", 21, "a, b, 4, 16"),
        ("y = Reshape(x, t)", X, "int64[3] t = {-1, 4, 16}", 21, "a*b, 4, 16"),
        ("y = Reshape(x, t)", "float[0, 3] x", "int64[2] t = {3, 0}", 21, "3, 3"),
        ("y = Reshape<allowzero = 1>(x, t)", "float[0, 3] x", "int64[2] t = {3, 0}", 21, "3, 0"),
        ("y = Reshape(x, t)", "float[a, 10] x", "int64[2] t = {-1, 4}", 21, "2*a + a//2, 4"),
        ("y = Reshape(x, t)", f"{X}, int64[2] t", "", 21, "?, ?"),
        ("y = Reshape(x, t)", f"{X}, int64[n] t", "", 21, "none"),
        ("y = Reshape<shape = [0, -1]>(x)", X, "", 1, "a, 64*b"),
        ("y = Reshape(x, t)", X, "int64[2] t = {-1, -1}", 21, "none"),
        ("y = Reshape(x, t)", "float[7] x", "int64[2] t = {2, -1}", 21, "none"),
        ("y = Flatten<axis = 2>(x)", X, "", 21, "a*b, 64"),
        ("y = Flatten<axis = 0>(x)", X, "", 21, "1, 64*a*b"),
        ("y = Flatten<axis = -1>(x)", X, "", 21, "a*b, 64"),
        ("y = Flatten<axis = 3>(x)", X, "", 21, "64*a*b, 1"),
        ("s = Shape(z)\n y = Reshape(x, s)", "float[2, n] x, float[n, 2] z", "", 21, "n, 2"),
        # Where n is 0 it copies k; the number of elements stays in any case.
        ("s = Shape(z)\n y = Reshape(x, s)", "float[k] x, float[n] z", "", 21, "k"),
        # Squeeze, Unsqueeze, Transpose
        ("y = Squeeze(x, t)", "float[1, a, 1] x", "int64[2] t = {0, -1}", 21, "a"),
        ("y = Squeeze(x)", "float[1, 3, 1] x", "", 21, "3"),
        ("y = Squeeze(x)", "float[1, a, 1] x", "", 21, "none"),
        ("y = Squeeze<axes = [0]>(x)", "float[1, a] x", "", 11, "a"),
        ("y = Unsqueeze(x, t)", "float[a, b] x", "int64[2] t = {0, -1}", 21, "1, a, b, 1"),
        ("y = Unsqueeze<axes = [1]>(x)", "float[a, b] x", "", 11, "a, 1, b"),
        ("y = Unsqueeze(x, t)", "float[a] x", "int64[2] t = {0, 0}", 21, "none"),
        ("y = Transpose(x)", X, "", 21, "64, b, a"),
        ("y = Transpose<perm = [1, 0, 2]>(x)", X, "", 21, "b, a, 64"),
        ("y = Transpose<perm = [1, 1, 2]>(x)", X, "", 21, "none"),
        # Concat, Split
        ("y = Concat<axis = -2>(x, z)", f"{X}, float[a, c, 64] z", "", 21, "a, b + c, 64"),
        ("y = Concat<axis = 0>(x, z)", "float[a, b] x, float[3, 8] z", "", 21, "a + 3, 8"),
        ("y = Concat<axis = 1>(x, z)", "float[a, 0] x, float[a, c] z", "", 21, "a, c"),
        ("y, z = Split<axis = 2>(x)", X, "", 13, "a, b, 32"),
        ("y, z = Split<axis = -1>(x, t)", X, "int64[2] t = {60, 4}", 21, "a, b, 60"),
        ("y, z = Split<axis = 2, split = [60, 4]>(x)", X, "", 11, "a, b, 60"),
        ("y, z = Split<num_outputs = 2>(x)", "float[7] x", "", 21, "4"),
        ("z, y = Split<num_outputs = 2>(x)", "float[7] x", "", 21, "3"),
        ("z, y = Split<num_outputs = 2>(x)", "float[a] x", "", 21, "a - (a + 1)//2"),
        # Slice
        ("y = Slice(x, s, e)", "float[a] x", "int64[1] s = {1}, int64[1] e = {9223372036854775807}", 21, "max(0, a - 1)"),
        ("y = Slice(x, s, e)", "float[a] x", "int64[1] s = {0}, int64[1] e = {-1}", 21, "max(0, a - 1)"),
        ("y = Slice(x, s, e)", "float[a] x", "int64[1] s = {-1}, int64[1] e = {2147483647}", 21, "min(1, a)"),
        ("y = Slice(x, s, e)", "float[a] x", "int64[1] s = {2}, int64[1] e = {5}", 21, "max(0, min(a, 5) - 2)"),
        ("y = Slice(x, s, e, s, e)", "float[7, 9] x", "int64[1] s = {1}, int64[1] e = {3}", 21, "7, 1"),
        ("y = Slice(x, s, e, z, t)", "float[a] x", "int64[1] s = {-1}, int64[1] e = {-9223372036854775807}, int64[1] z = {0}, int64[1] t = {-1}", 21, "a"),
        ("y = Slice(x, s, e, z, t)", "float[7] x", "int64[1] s = {-1}, int64[1] e = {-99}, int64[1] z = {0}, int64[1] t = {-2}", 21, "4"),
        ("y = Slice(x, s, e, z, t)", "float[a] x", "int64[1] s = {0}, int64[1] e = {9223372036854775807}, int64[1] z = {0}, int64[1] t = {2}", 21, "(a + 1)//2"),
        ("y = Slice(x, s, e, z, t)", "float[1] x", "int64[1] s = {-2}, int64[1] e = {-99}, int64[1] z = {0}, int64[1] t = {-2}", 21, "?"),
        ("y = Slice(x, s, e, z, t)", "float[2] x", "int64[1] s = {1}, int64[1] e = {2147483647}, int64[1] z = {0}, int64[1] t = {-1}", 21, "?"),
        ("y = Slice<starts = [0], ends = [3], axes = [1]>(x)", "float[a, 9] x", "", 9, "a, 3"),
        ("y = Slice(x, s, e)", "float[a, b] x, int64[1] e", "int64[1] s = {0}", 21, "?, b"),
        ("y = Slice(x, s, e, z)", "float[a, b] x, int64[1] z", "int64[1] s = {0}, int64[1] e = {1}", 21, "?, ?"),
        # Gather and friends
        ("y = Gather(x, i)", f"{X}, int64[c, d] i", "", 21, "c, d, b, 64"),
        ("y = Gather<axis = -1>(x, i)", f"{X}, int64 i", "", 21, "a, b"),
        ("y = GatherElements(x, i)", f"{X}, int64[c, d, 1] i", "", 21, "c, d, 1"),
        ("y = GatherND(x, i)", f"{X}, int64[c, 2] i", "", 21, "c, 64"),
        ("y = GatherND<batch_dims = 1>(x, i)", f"{X}, int64[a, 1] i", "", 21, "a, 64"),
        ("y = ScatterND(x, i, u)", f"{X}, int64[c, 1] i, float[c, b, 64] u", "", 21, "a, b, 64"),
        ("y = OneHot(i, n, v)", "int64[a, b] i, float[2] v", "int64 n = {9}", 21, "a, b, 9"),
        ("y = OneHot<axis = 0>(i, n, v)", "int64[a] i, float[2] v, int64 n", "", 21, "?, a"),
        ("y = NonZero(x)", X, "", 21, "3, ?"),
        ("y = NonMaxSuppression(x, s)", "float[1, n, 4] x, float[1, c, n] s", "", 21, "?, 3"),
        ("y, i = TopK<axis = 1>(x, k)", X, "int64[1] k = {5}", 21, "a, 5, 64"),
        ("y, i = TopK<k = 3>(x)", X, "", 1, "a, b, 3"),
        # Expand, Tile, Pad
        ("y = Expand(x, t)", "float[a, 1] x", "int64[3] t = {2, 1, 5}", 21, "2, a, 5"),
        ("y = Expand(x, t)", "float[a, 3] x, int64[3] t", "", 21, "?, broadcast(a, !2), 3"),
        ("y = Tile(x, t)", "float[a, 3] x", "int64[2] t = {2, 0}", 21, "2*a, 0"),
        ("y = Pad(x, p)", "float[a, b] x", "int64[4] p = {1, 0, 2, -1}", 21, "a + 3, b - 1"),
        ("y = Pad(x, p, , t)", "float[a, b] x", "int64[2] p = {1, 2}, int64[1] t = {-1}", 21, "a, b + 3"),
        ("y = Pad<pads = [0, 1, 0, 1]>(x)", "float[a, b] x", "", 10, "a, b + 2"),
        ("y = DepthToSpace<blocksize = 2>(x)", "float[a, 12, h, w] x", "", 21, "a, 3, 2*h, 2*w"),
        ("y = SpaceToDepth<blocksize = 2>(x)", "float[a, 3, h, 8] x", "", 21, "a, 12, h//2, 4"),
        # Reductions
        ("y = ReduceSum(x, t)", X, "int64[1] t = {-1}", 21, "a, b, 1"),
        ("y = ReduceSum<keepdims = 0>(x, t)", X, "int64[2] t = {0, -1}", 21, "b"),
        ("y = ReduceSum<keepdims = 0>(x)", X, "", 21, ""),
        ("y = ReduceSum<noop_with_empty_axes = 1>(x)", X, "", 21, "a, b, 64"),
        ("y = ReduceSum<noop_with_empty_axes = 1, keepdims = 0>(x, t)", X, "int64[0] t = {}", 21, "a, b, 64"),
        ("y = ReduceSum(x, t)", X, "int64[0] t = {}", 21, "1, 1, 1"),
        ("y = ReduceSum(x, t)", f"{X}, int64[1] t", "", 21, "?, ?, ?"),
        ("y = ReduceSum<keepdims = 0>(x, t)", f"{X}, int64[1] t", "", 21, "none"),
        ("y = ReduceMean<axes = [1], keepdims = 0>(x)", X, "", 13, "a, 64"),
        ("y = ArgMax<axis = 1, keepdims = 0>(x)", X, "", 21, "a, 64"),
        ("y = Softmax(x)", X, "", 21, "a, b, 64"),
        # Products
        ("y = MatMul(x, w)", X, "float[64, 2] w = {" + ", ".join("0" * 128) + "}", 21, "a, b, 2"),
        ("y = MatMul(x, w)", "float[4, 1, n, k] x, float[b, k, m] w", "", 21, "4, b, n, m"),
        ("y = MatMul(x, w)", "float[k] x, float[k] w", "", 21, ""),
        ("y = MatMul(x, w)", "float[a, n, k] x, float[k] w", "", 21, "a, n"),
        ("y = MatMul(x, w)", "float[k] x, float[a, k, m] w", "", 21, "a, m"),
        ("y = Gemm<transA = 1, transB = 1>(x, w)", "float[k, n] x, float[m, k] w", "", 21, "n, m"),
        ("y = MatMulInteger(x, w)", "uint8[n, k] x, int8[k, m] w", "", 21, "n, m"),
        ('y = Einsum<equation = "bhid,bhjd->bhij">(x, w)', "float[b, 8, n, d] x, float[b, 8, m, d] w", "", 21, "b, 8, n, m"),
        ('y = Einsum<equation = "...ij,jk">(x, w)', "float[a, b, n, d] x, float[d, m] w", "", 21, "a, b, n, m"),
        ('y = Einsum<equation = "ii->i">(x)', "float[n, n] x", "", 21, "n"),
        # Convolutions and pools
        ("y = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w)", "float[n, 3, h, 224] x, float[8, 3, 3, 3] w", "", 21, "n, 8, (h + 1)//2, 112"),
        ("y = Conv<dilations = [2], kernel_shape = [3]>(x, w)", "float[n, 3, t] x, float[o, 3, 3] w", "", 21, "n, o, t - 4"),
        ('y = Conv<auto_pad = "SAME_UPPER", strides = [2]>(x, w)', "float[n, 3, t] x, float[8, 3, 3] w", "", 21, "n, 8, (t + 1)//2"),
        ('y = Conv<auto_pad = "VALID">(x, w)', "float[n, 3, 9] x, float[8, 3, 3] w", "", 21, "n, 8, 7"),
        ("y = ConvTranspose<strides = [2, 2], group = 2, output_padding = [1, 1]>(x, w)", "float[n, 4, h, 5] x, float[4, 3, 3, 3] w", "", 21, "n, 6, 2*h + 2, 12"),
        ("y = ConvTranspose<output_shape = [10], strides = [2]>(x, w)", "float[n, 4, t] x, float[4, 3, 3] w", "", 21, "n, 3, 10"),
        ("y = MaxPool<kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]>(x)", "float[n, c, h, 7] x", "", 21, "n, c, (h + 1)//2, 4"),
        ("y = MaxPool<kernel_shape = [2], strides = [2], ceil_mode = 1>(x)", "float[n, c, 7] x", "", 21, "n, c, 4"),
        # The third window would start in the padding.
        ("y = AveragePool<kernel_shape = [2], strides = [3], pads = [1, 1], ceil_mode = 1>(x)", "float[n, c, 5] x", "", 21, "n, c, 2"),
        ("y = GlobalAveragePool(x)", "float[n, c, h, w] x", "", 21, "n, c, 1, 1"),
        ("y = GridSample(x, g)", "float[n, c, h, w] x, float[n, p, q, 2] g", "", 21, "n, c, p, q"),
        # Resize
        ("y = Resize(x, , s)", "float[n, c, h, 5] x", "float[4] s = {1, 1, 2, 0.5}", 21, "n, c, 2*h, 2"),
        ("y = Resize(x, , s)", "float[n, c, h, 5] x", "float[4] s = {1, 1, 0.5, 2}", 21, "n, c, h//2, 10"),
        ("y = Resize(x, , , s)", "float[n, c, h, w] x", "int64[4] s = {2, 3, 4, 5}", 21, "2, 3, 4, 5"),
        ("y = Resize<axes = [2, 3]>(x, , , s)", "float[n, c, h, w] x", "int64[2] s = {4, 5}", 21, "n, c, 4, 5"),
        ("y = Resize(x, s)", "float[n, h] x", "float[2] s = {1, 3}", 10, "n, 3*h"),
        ("y = Upsample<scales = [1.0, 2.0]>(x)", "float[n, h] x", "", 7, "n, 2*h"),
        # Normalization, recurrence, quantization
        ("z, y = LayerNormalization<axis = -2>(x, s)", f"{X}, float[b, 64] s", "", 21, "a, 1, 1"),
        ("y = LSTM<hidden_size = 8, direction = \"bidirectional\">(x, w, r)", "float[t, n, i] x, float[2, 32, i] w, float[2, 32, 8] r", "", 21, "t, 2, n, 8"),
        ("z, y = GRU<hidden_size = 8, layout = 1>(x, w, r)", "float[n, t, i] x, float[1, 24, i] w, float[1, 24, 8] r", "", 21, "n, 1, 8"),
        ("y, s, z = DynamicQuantizeLinear(x)", X, "", 21, "a, b, 64"),
        ("z, y, s = DynamicQuantizeLinear(x)", X, "", 21, ""),
        # Creation
        ("y = ConstantOfShape(t)", "int64[n] t", "", 21, "none"),
        ("y = ConstantOfShape(t)", "", "int64[0] t = {}", 21, ""),
        ("y = Range(s, l, d)", "", "int64 s = {10}, int64 l = {4}, int64 d = {-3}", 21, "2"),
        ("y = Range(s, l, d)", "", "int64 s = {4}, int64 l = {1}, int64 d = {1}", 21, "0"),
        ("y = Range(s, l, d)", "", "float s = {0}, float l = {1}, float d = {0.3}", 21, "4"),
        # By the onnx package
        ("y = Det(x)", "float[a, b, n, n] x", "", 21, "a, b"),
        ("y = Unique<sorted = 0>(x)", X, "", 21, "?"),
        # com.microsoft
        ("y = com.microsoft.FusedMatMul<transB = 1>(x, w)", "float[a, n, k] x, float[a, m, k] w", "", 21, "a, n, m"),
        ("y = com.microsoft.SkipLayerNormalization(x, x, g)", f"{X}, float[64] g", "", 21, "a, b, 64"),
        ("y = com.microsoft.MultiHeadAttention<num_heads = 4>(x, k, v)", "float[a, n, 64] x, float[a, m, 64] k, float[a, m, 32] v", "", 21, "a, n, 32"),
        ("y = com.microsoft.GatherBlockQuantized<bits = 4, quantize_axis = 1>(w, x, c)", "int64[a, b] x, uint8[50, 32] w, float[50, 4] c", "", 21, "a, b, 64"),
        ("y = com.microsoft.GatherBlockQuantized<gather_axis = 1>(w, x, c)", "int64[a] x, int4[50, 32] w, float[50, 4] c", "", 21, "50, a"),
        ("y = com.microsoft.QLinearGlobalAveragePool(x, s, z, s, z)", "uint8[a, 3, h, w] x, float s, uint8 z", "", 21, "a, 3, 1, 1"),
        ("y = com.microsoft.QLinearAveragePool<kernel_shape = [2, 2], strides = [2, 2]>(x, s, z, s, z)", "int8[a, 3, 8, 6] x, float s, int8 z", "", 21, "a, 3, 4, 3"),
        ("y = com.microsoft.QLinearWhere(c, x, s, z, k, s, z, s, z)", "bool[3, 1] c, int8[a, 1, 4] x, int8[1, 4] k, float s, int8 z", "", 21, "a, 3, 4"),
        ("y = com.microsoft.QLinearGlobalAveragePool<channels_last = 1>(x, s, z, s, z)", "int8[a, h, w, 3] x, float s, int8 z", "", 21, "a, 1, 1, 3"),
        ("y = com.microsoft.Attention<num_heads = 4>(x, w, c)", "float[a, n, 64] x, float[64, 192] w, float[192] c", "", 21, "a, n, 64"),
        ("y = com.microsoft.QGemm<transB = 1>(x, s, z, w, s, v, c, s, z)", "uint8[a, 24] x, int8[48, 24] w, int32[48] c, float s, uint8 z, int8 v", "", 21, "a, 48"),
        ("y = custom.Thing(x)", X, "", 21, "none"),
    ],
)  # fmt: skip
def test_shape(body: str, inputs: str, constants: str, opset: int, expected: str) -> None:
    assert shape_of(body, inputs, constants, opset) == expected


@pytest.mark.parametrize(
    ("body", "inputs", "constants", "expected"),
    [
        ("y = Shape(x)", X, "", "a, b, 64"),
        ("y = Shape<start = -2>(x)", X, "", "b, 64"),
        ("y = Shape<start = 1, end = -1>(x)", X, "", "b"),
        ("y = Size(x)", X, "", "64*a*b"),
        ("s = Shape(x)\n y = Gather(s, i)", X, "int64 i = {-2}", "b"),
        ("s = Shape(x)\n y = Slice(s, i, e)", X, "int64[1] i = {0}, int64[1] e = {2}", "a, b"),
        ("s = Shape(x)\n y = Concat<axis = 0>(s, s)", X, "", "a, b, 64, a, b, 64"),
        ("s = Shape(x)\n y = ReduceProd<keepdims = 0>(s)", X, "", "64*a*b"),
        ("s = Shape(x)\n y = Mul(s, s)", X, "", "a**2, b**2, 4096"),
        ("s = Shape(x)\n y = Div(s, d)", X, "int64[3] d = {2, 1, -3}", "a//2, b, -21"),
        ("s = Shape(x)\n y = Mod(s, d)", X, "int64[3] d = {2, 1, 60}", "a%2, 0, 4"),
        ("s = Shape(x)\n y = Max(s, d)", X, "int64 d = {2}", "max(a, 2), max(b, 2), 64"),
        ("s = Shape(x)\n n = Neg(s)\n y = Abs(n)", "float[3] x", "", "3"),
        ("s = Shape(x)\n y = Equal(s, d)", X, "int64 d = {-1}", "0, 0, 0"),
        ("s = Shape(x)\n y = Equal(s, d)", X, "int64 d = {64}", "?, ?, 1"),
        ("s = Shape(x)\n y = Greater(s, d)", X, "int64 d = {-1}", "1, 1, 1"),
        ("s = Shape(x)\n c = Equal(s, d)\n y = Where(c, d, s)", X, "int64 d = {-1}", "a, b, 64"),
        ("s = Shape(x)\n y = Transpose(s)", X, "", "a, b, 64"),
        ("s = Shape(x)\n y, z, w = Split(s)", X, "", "a"),
        ("s = Shape(x)\n y = Cast<to = 6>(s)", X, "", "a, b, 64"),
        ("s = Shape(x)\n f = Cast<to = 1>(s)\n h = Mul(f, d)\n g = Floor(h)\n y = Cast<to = 7>(g)", "float[a] x", "float d = {0.5}", "a//2"),
        ("s = Shape(x)\n f = Cast<to = 1>(s)\n h = Div(f, d)\n g = Ceil(h)\n y = Cast<to = 7>(g)", "float[a] x", "float d = {4.0}", "(a + 3)//4"),
        ("s = Shape(x)\n f = Cast<to = 1>(s)\n g = Sqrt(f)\n y = Cast<to = 7>(g)", "float[a] x", "", "?"),
        ("y = Range(s, l, d)", "", "int64 s = {1}, int64 l = {6}, int64 d = {2}", "1, 3, 5"),
        ("y = ConstantOfShape<value = int64[1] {7}>(t)", "", "int64[1] t = {3}", "7, 7, 7"),
        ("y = Expand(x, t)", "", "int64[1] x = {5}, int64[1] t = {3}", "5, 5, 5"),
        ("y = Tile(x, t)", "", "int64[2] x = {5, 6}, int64[1] t = {2}", "5, 6, 5, 6"),
        ("y = Add(x, x)", "", "int32[1] x = {2147483647}", "?"),
        ("y = Cast<to = 6>(x)", "", "int64[1] x = {4294967297}", "?"),
        ("y = Clip(x, t)", "", "int64[2] x = {-5, 6}, int64 t = {0}", "0, 6"),
        ("y = Identity(x)", "int64[2] x", "", "?, ?"),
        ("y = Identity(x)", "int64[100] x", "", "none"),
    ],
)  # fmt: skip
def test_contents(body: str, inputs: str, constants: str, expected: str) -> None:
    assert contents_of(body, inputs, constants) == expected


@pytest.mark.parametrize(
    ("body", "inputs", "expected"),
    [
        ("y = Cast<to = 10>(x)", X, "FLOAT16"),
        ("y = CastLike(x, z)", f"{X}, int8[1] z", "INT8"),
        ("y = Equal(x, x)", X, "BOOL"),
        ("y = Shape(x)", X, "INT64"),
        ("y = ArgMax(x)", X, "INT64"),
        ("z, y = TopK(x, k)", f"{X}, int64[1] k", "INT64"),
        ("y = QuantizeLinear(x, s, z)", f"{X}, float s, int8 z", "INT8"),
        ("y = QuantizeLinear(x, s)", f"{X}, float s", "UINT8"),
        ("y = DequantizeLinear(q, s)", "int8[a] q, float16 s", "FLOAT16"),
        ("y = MatMulInteger(q, q)", "uint8[n, n] q", "INT32"),
        ("z, y = Dropout(x)", X, "BOOL"),
        ("y = Pow(x, z)", f"{X}, int64 z", "FLOAT"),
        ("y = Where(c, q, q)", "bool[a] c, int32[a] q", "INT32"),
        ("y = ConstantOfShape(q)", "int64[1] q", "FLOAT"),
        ("y = OneHot(q, n, v)", "int64[a] q, int64 n, float16[2] v", "FLOAT16"),
        ("y = Compress(x, c)", f"{X}, bool[a] c", "FLOAT"),
    ],
)
def test_type(body: str, inputs: str, expected: str) -> None:
    model = parse(body, inputs)
    dtype = Shapes.infer(model).dtype(values(model)["y"])
    assert dtype is not None
    assert dtype.name == expected


def test_an_unknown_size_takes_the_size_that_it_must_have() -> None:
    body = "s = NonZero(x)\n f = Cast<to = 1>(s)\n y = MatMul(f, w)"
    found = shape_of(body, "float[3, a] x, float[7, 2] w", output="f")
    assert found == "2, 7"


def test_two_uses_of_one_unknown_size_are_equal() -> None:
    body = "i = NonZero(x)\n f = Cast<to = 1>(i)\n y = Mul(f, f)"
    model = parse(body, "float[3, a] x")
    found = values(model)
    shapes = Shapes.infer(model)
    assert shapes.same_shape(found["i"], found["y"])
    again = parse("i = NonZero(x)\n y = NonZero(x)", "float[3, a] x")
    assert not Shapes.infer(again).same_shape(values(again)["i"], values(again)["y"])
