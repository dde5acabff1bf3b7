"""Regions that together have every kind of kernel for CUDA, and sizes for each of its variants."""

from __future__ import annotations

from dataclasses import dataclass, field

from ortkit.kernels.signature import RegionSignature, TensorSpec
from scripts.sanitizer.attention_bodies import attention_body, packed_rows_body

_HALF, EIGHT = "float16", "float8_e4m3fn"
#: A matrix in eight bits, its columns' factors, and the matrix as a product reads it.
_WIDE = "D = DequantizeLinear <axis = 0> (W, S)  V = Transpose <perm = [1, 0]> (D)"
Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class Case:
    """One region.

    Args:
        name: An identifier.
        body: Of its function, ONNX text with opset 23.
        inputs: Name -> shape.
        outputs: Name -> shape.
        sizes: Of the named sizes; each variant runs on the first that it takes.
        dtype: Of all tensors that `dtypes` does not name.
        dtypes: By name.
        factors: What random inputs are multiplied by, by name, where it is not 1.
    """

    name: str
    body: str
    inputs: dict[str, Shape]
    outputs: dict[str, Shape]
    sizes: tuple[dict[str, int], ...] = ({},)
    dtype: str = _HALF
    dtypes: dict[str, str] = field(default_factory=dict)
    factors: dict[str, float] = field(default_factory=dict)

    def signature(self) -> RegionSignature:
        """Return the region."""
        inputs, outputs = (
            tuple(
                TensorSpec(item, self.dtypes.get(item, self.dtype), shape) for item, shape in each
            )
            for each in (self.inputs.items(), self.outputs.items())
        )
        names = ", ".join(self.inputs), ", ".join(self.outputs)
        opsets = '"" : 23' + (', "com.microsoft" : 1' if "com.microsoft." in self.body else "")
        text = f"<opset_import: [{opsets}]> f ({names[0]}) => ({names[1]}) {{ {self.body} }}"
        return RegionSignature(self.name, text, inputs, outputs)


def _integers(name: str, *values: int) -> str:
    return f"{name} = Constant <value_ints = [{', '.join(map(str, values))}]> ()  "


_IN, _OUT = "<perm = [0, 3, 1, 2]>", "<perm = [0, 2, 3, 1]>"
#: A convolution in NHWC layout: X and W are transposed to P and V, and the result C back.
_TURNED = f"P = Transpose {_IN} (X)  V = Transpose {_IN} (W)  "
#: The sums of bytes C become bytes Y.
_BYTES = (
    f"T = Transpose {_OUT} (C)  F = Cast <to = 1> (T)  M = Mul (F, S)"
    "  Y = QuantizeLinear (M, Q, Z)"
)
_BYTE_TYPES = {
    "X": "uint8", "W": "int8", "O": "uint8", "S": "float32", "Q": "float32", "Z": "uint8",
    "Y": "uint8",
}  # fmt: skip
_BACK = f"R = Relu (C)  Y = Transpose {_OUT} (R)"


_ROWS = ({"n": 3, "m": 96}, {"n": 5, "m": 1000}, {"n": 2, "m": 8000}, {"n": 3, "m": 20_000},
         {"n": 2, "m": 40_000}, {"n": 40, "m": 30_000}, {"n": 5, "m": 99}, {"n": 5, "m": 999},
         {"n": 3, "m": 40_001}, {"n": 40, "m": 30_001})  # fmt: skip
_FEW_AND_MANY = ({"n": 1}, {"n": 3}, {"n": 7}, {"n": 13}, {"n": 29}, {"n": 64}, {"n": 70},
                 {"n": 128}, {"n": 131}, {"n": 1030})  # fmt: skip
CASES = (
    Case("pointwise", "S = Add (X, B)  Y = Gelu (S)", {"X": ("n", 768), "B": (768,)},
         {"Y": ("n", 768)}, ({"n": 5},)),
    Case("pointwise_of_any_size", "Y = Tanh (X)", {"X": ("n",)}, {"Y": ("n",)},
         ({"n": 4096}, {"n": 4099}), dtype="float32"),
    Case("chosen", "Y = Where (C, X, Z)", {"C": ("n", 33), "X": ("n", 33), "Z": (33,)},
         {"Y": ("n", 33)}, ({"n": 16}, {"n": 7}), dtypes={"C": "bool"}),
    Case("integers", "Y = Mod (X, Z)  V = Cast <to = 1> (Y)", {"X": ("n", 5), "Z": (5,)},
         {"Y": ("n", 5), "V": ("n", 5)}, ({"n": 64}, {"n": 3}), "int64", {"V": "float32"}),
    Case("two_outputs", "S = Add (X, R)  Y = LayerNormalization <axis = -1> (S, G, B)",
         {"X": ("n", 768), "R": ("n", 768), "G": (768,), "B": (768,)},
         {"Y": ("n", 768), "S": ("n", 768)}, ({"n": 3},)),
    Case("rows_looked_up", "R = Gather (W, I)  Q = Gather (V, J)  S = Add (R, Q)"
         "  Y = LayerNormalization <axis = -1> (S, G)",
         {"W": (160, 96), "I": ("n", "m"), "V": (100, 96), "J": (1, "m"), "G": (96,)},
         {"Y": ("n", "m", 96), "S": ("n", "m", 96)}, ({"n": 3, "m": 16}, {"n": 2, "m": 7}),
         dtypes={"I": "int64", "J": "int64"}),
    Case("short_rows", "S = Add (X, M)  Y = Softmax <axis = -1> (S)",
         {"X": ("n", 12, 128), "M": ("n", 1, 128)}, {"Y": ("n", 12, 128)}, ({"n": 3},)),
    Case("rows_of_any_length", "Y = Softmax <axis = -1> (X)", {"X": ("n", "m")}, {"Y": ("n", "m")},
         _ROWS),
    Case("long_rows", "Y = RMSNormalization <axis = -1> (X, G)",
         {"X": (300, 20_000), "G": (20_000,)}, {"Y": (300, 20_000)}),
    Case("split_rows", "Y = LayerNormalization <axis = -1> (X, G)",
         {"X": (2, 100_003), "G": (100_003,)}, {"Y": (2, 100_003)}, dtype="float32"),
    Case("across_rows", _integers("A", 0) + "S = ReduceSum (X, A)  Y = Sub (X, S)",
         {"X": ("n", 96)}, {"Y": ("n", 96), "S": (1, 96)}, ({"n": 80}, {"n": 77}),
         dtype="float32"),
    Case("turned", "T = Transpose <perm = [0, 2, 1]> (X)  Y = Relu (T)",
         {"X": ("n", 96, 80)}, {"Y": ("n", 80, 96)}, ({"n": 3},)),
    Case("turned_of_any_size", "Y = Transpose <perm = [1, 0]> (X)", {"X": ("n", "m")},
         {"Y": ("m", "n")}, ({"n": 160, "m": 96}, {"n": 33, "m": 70})),
    Case("joined", "J = Concat <axis = -1> (X, Z)  Y = Neg (J)", {"X": ("n", 40), "Z": ("n", 24)},
         {"Y": ("n", 64)}, ({"n": 9},)),
    Case("sliced", _integers("F", 8) + _integers("E", 40) + _integers("A", 1)
         + "C = Slice (X, F, E, A)  Y = Relu (C)", {"X": ("n", 64)}, {"Y": ("n", 32)},
         ({"n": 9},)),
    Case("padded", _integers("P", 0, 3, 0, 2) + "Q = Pad (X, P)  Y = Relu (Q)", {"X": ("n", 27)},
         {"Y": ("n", 32)}, ({"n": 9},)),
    Case("rotated", "Y = RotaryEmbedding <num_heads = 4> (X, C, D)",
         {"X": ("n", "m", 64), "C": ("n", "m", 8), "D": ("n", "m", 8)}, {"Y": ("n", "m", 64)},
         ({"n": 2, "m": 9},), dtype="float32"),
    Case("convolution", _TURNED + "C = Conv <kernel_shape = [3, 3], pads = [1, 1, 0, 1],"
         f" strides = [2, 1]> (P, V, B)  E = Transpose {_IN} (Z)  S = Add (C, E)  "
         + _BACK.replace("(C)", "(S)"),
         {"X": ("n", 9, 11, 24), "Z": ("n", 4, 11, 40), "W": (40, 3, 3, 24), "B": (40,)},
         {"Y": ("n", 4, 11, 40)}, ({"n": 2}, {"n": 30}, {"n": 200}, {"n": 1200})),
    Case("convolution_with_a_gate", _TURNED + f"T = Transpose {_IN} (G)  M = Mul (P, T)"
         "  C = Conv <kernel_shape = [1, 1]> (M, V, B)  " + _BACK,
         {"X": ("n", 7, 7, 104), "G": ("n", 1, 1, 104), "W": (72, 1, 1, 104), "B": (72,)},
         {"Y": ("n", 7, 7, 72)}, ({"n": 3}, {"n": 40}, {"n": 500}, {"n": 1100})),
    Case("convolution_of_boxes", _TURNED + "C = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1],"
         f" strides = [2, 2]> (P, V)  E = Transpose {_IN} (Z)  S = Add (C, E)  "
         + _BACK.replace("(C)", "(S)"),
         {"X": ("n", 14, 10, 128), "Z": ("n", 7, 5, 72), "W": (72, 3, 3, 128)},
         {"Y": ("n", 7, 5, 72)}, ({"n": 3}, {"n": 60}, {"n": 300}, {"n": 1500})),
    Case("convolution_of_bytes", _TURNED + "C = ConvInteger <kernel_shape = [3, 3],"
         " pads = [1, 1, 1, 1], strides = [2, 1]> (P, V, O)  " + _BYTES,
         {"X": ("n", 9, 11, 24), "W": (40, 3, 3, 24), "O": (1,), "S": (40,), "Q": (1,), "Z": (1,)},
         {"Y": ("n", 5, 11, 40)}, ({"n": 2}, {"n": 40}),
         dtypes=_BYTE_TYPES),
    Case("convolution_of_boxes_of_bytes", _TURNED + "C = ConvInteger <kernel_shape = [3, 3],"
         " pads = [1, 1, 1, 1], strides = [2, 2]> (P, V)  " + _BYTES,
         {"X": ("n", 14, 10, 128), "W": (80, 3, 3, 128), "S": (80,), "Q": (1,), "Z": (1,)},
         {"Y": ("n", 7, 5, 80)}, ({"n": 3}, {"n": 60}),
         dtypes=_BYTE_TYPES),
    Case("expanding_convolution_of_bytes", _TURNED + "C = ConvInteger <kernel_shape = [1, 1]>"
         f" (P, V)  T = Transpose {_OUT} (C)  F = Cast <to = 1> (T)  M = Mul (F, S)"
         "  D = DequantizeLinear (R, U, I)  A = Add (M, D)  L = Relu (A)"
         "  Y = QuantizeLinear (L, Q, Z)",
         {"X": ("n", 14, 14, 64), "W": (256, 1, 1, 64), "S": (256,), "R": ("n", 14, 14, 256),
          "U": (1,), "I": (1,), "Q": (1,), "Z": (1,)},
         {"Y": ("n", 14, 14, 256)}, ({"n": 3}, {"n": 60}, {"n": 200}),
         dtypes=_BYTE_TYPES | {"R": "uint8", "U": "float32", "I": "uint8"}),
    Case("deep_convolution_of_one_tap", _TURNED + "C = Conv <kernel_shape = [1, 1]> (P, V, B)  "
         + _BACK, {"X": (1, 7, 7, 2048), "W": (264, 1, 1, 2048), "B": (264,)},
         {"Y": (1, 7, 7, 264)}),
    Case("first_convolution", f"V = Transpose {_IN} (W)  C = Conv <kernel_shape = [3, 3],"
         " pads = [1, 1, 1, 1], strides = [2, 2]> (X, V)  " + _BACK,
         {"X": (2, 3, 17, 19), "W": (24, 3, 3, 3)}, {"Y": (2, 9, 10, 24)}),
    Case("first_convolution_of_many_taps", f"V = Transpose {_IN} (W)  C = Conv <kernel_shape ="
         " [7, 7], pads = [3, 3, 3, 3], strides = [2, 2]> (X, V)  " + _BACK,
         {"X": ("n", 3, 17, 19), "W": (24, 7, 7, 3)}, {"Y": ("n", 9, 10, 24)},
         ({"n": 2}, {"n": 30}, {"n": 300}, {"n": 900})),
    Case("depthwise_convolution", f"P = Transpose {_IN} (X)  V = Transpose <perm = [3, 2, 0, 1]>"
         " (W)  C = Conv <group = 40, kernel_shape = [5, 5], pads = [2, 2, 2, 2]> (P, V, B)  "
         + _BACK + "  " + _integers("A", 3) + "L = ReduceMean <keepdims = 0> (R, A)"
         "  M = Transpose <perm = [0, 2, 1]> (L)",
         {"X": ("n", 5, 131, 40), "W": (5, 5, 1, 40), "B": (40,)},
         {"Y": ("n", 5, 131, 40), "M": ("n", 5, 40)}, ({"n": 2}, {"n": 300})),
    Case("expand_depthwise", _TURNED + "E = Conv <kernel_shape = [1, 1]> (P, V, B)  F = Relu (E)"
         "  G = Transpose <perm = [3, 2, 0, 1]> (K)  C = Conv <group = 72, kernel_shape = [5, 5],"
         " pads = [2, 2, 2, 2], strides = [2, 2]> (F, G, D)  " + _BACK + "  " + _integers("A", 3)
         + "L = ReduceMean <keepdims = 0> (R, A)  M = Transpose <perm = [0, 2, 1]> (L)",
         {"X": (2, 15, 17, 40), "W": (72, 1, 1, 40), "B": (72,), "K": (5, 5, 1, 72), "D": (72,)},
         {"Y": (2, 8, 9, 72), "M": (2, 8, 72)}),
    Case("squeeze_excite_of_few", "P = Transpose <perm = [0, 2, 1]> (X)  "
         + _integers("S", 0, 0, -1, 1) + "Q = Reshape (P, S)  M = GlobalAveragePool (Q)"
         "  H = Conv <kernel_shape = [1, 1]> (M, W, B)  I = Relu (H)"
         "  V = Transpose <perm = [3, 2, 0, 1]> (U)  C = Conv <kernel_shape = [1, 1]> (I, V, D)"
         f"  R = Sigmoid (C)  Y = Transpose {_OUT} (R)",
         {"X": (2, 9, 60), "W": (7, 60, 1, 1), "B": (7,), "U": (1, 1, 7, 60), "D": (60,)},
         {"Y": (2, 1, 1, 60)}),
    Case("squeeze_excite", "P = Transpose <perm = [0, 2, 1]> (X)  " + _integers("S", 0, 0, -1, 1)
         + "Q = Reshape (P, S)  M = GlobalAveragePool (Q)  H = Conv <kernel_shape = [1, 1]>"
         " (M, W, B)  I = Relu (H)  V = Transpose <perm = [3, 2, 0, 1]> (U)"
         "  C = Conv <kernel_shape = [1, 1]> (I, V, D)  R = Sigmoid (C)"
         f"  Y = Transpose {_OUT} (R)",
         {"X": ("n", 9, 600), "W": (66, 600, 1, 1), "B": (66,), "U": (1, 1, 66, 600), "D": (600,)},
         {"Y": ("n", 1, 1, 600)}, ({"n": 2}, {"n": 3}, {"n": 5})),
    Case("max_pool", f"P = Transpose {_IN} (X)  C = MaxPool <kernel_shape = [3, 3],"
         f" pads = [1, 1, 1, 1], strides = [2, 2]> (P)  Y = Transpose {_OUT} (C)",
         {"X": ("n", 9, 11, 40)}, {"Y": ("n", 5, 6, 40)}, ({"n": 2}, {"n": 3})),
    Case("attention_of_parts", attention_body(3, 3, 64, packed=True), {"X0": ("b", "n", 576)},
         {"Y": ("b", "n", 192)}, ({"b": 2, "n": 128}, {"b": 1, "n": 99})),
    Case("attention_in_eight_bits", attention_body(3, 3, 64, packed=True).replace("Y =", "Yh =")
         + "  Yw = Cast <to = 1> (Yh)  F = Constant <value = float {0.0078125}> ()"
         "  Yd = Div (Yw, F)  Y = Cast <to = 17> (Yd)",
         {"X0": ("b", "n", 576)}, {"Y": ("b", "n", 192)}, ({"b": 2, "n": 128}, {"b": 1, "n": 99}),
         dtypes={"Y": EIGHT}),
    Case("attention_causal", attention_body(4, 2, 128, seen="first"),
         {"X0": ("b", "n", 512), "X1": ("b", "n", 256), "X2": ("b", "n", 256)},
         {"Y": ("b", "n", 512)}, ({"b": 2, "n": 128}, {"b": 1, "n": 99})),
    Case("attention_of_wide_heads", attention_body(16, 16, 128),
         {"X0": ("b", "n", 2048), "X1": ("b", "n", 2048), "X2": ("b", "n", 2048)},
         {"Y": ("b", "n", 2048)}, ({"b": 1, "n": 128}, {"b": 1, "n": 99})),
    Case("attention_masked_by_key", attention_body(2, 2, 48, mask="M"),
         {"X0": ("b", "n", 96), "X1": ("b", "m", 96), "X2": ("b", "m", 96),
          "M": ("b", 1, 1, "m")}, {"Y": ("b", "n", 96)},
         ({"b": 2, "n": 128, "m": 256}, {"b": 1, "n": 99, "m": 1100})),
    Case("attention_masked_by_query", attention_body(2, 2, 64, mask="M"),
         {"X0": ("b", "n", 128), "X1": ("b", "n", 128), "X2": ("b", "n", 128),
          "M": (1, 2, "n", "n")}, {"Y": ("b", "n", 128)}, ({"b": 2, "n": 128}, {"b": 1, "n": 99})),
    Case("attention_of_packed_rows", packed_rows_body(2, 64),
         {"X0": (1, "t", 384), "M": ("b", 1, 1, "n"), "P": ("b", "n"), "I": (1, "t")},
         {"Y": (1, "t", 128)}, ({"b": 3, "n": 150, "t": 200},),
         dtypes={"P": "int64", "I": "int64"}),
    Case("attention_of_one_query", attention_body(8, 2, 80),
         {"X0": ("b", 1, 640), "X1": ("b", "m", 160), "X2": ("b", "m", 160)},
         {"Y": ("b", 1, 640)}, ({"b": 2, "m": 1000},)),
    Case("attention_appended", attention_body(8, 2, 80, mask="M", appended=True),
         {"X0": ("b", 1, 640), "X1": ("b", 1, 160), "X2": ("b", 1, 160), "M": ("b", 1, 1, "m"),
          "PK": ("b", 2, "p", 80), "PV": ("b", 2, "p", 80)},
         {"GK": ("b", 2, "m", 80), "GV": ("b", 2, "m", 80), "Y": ("b", 1, 640)},
         ({"b": 2, "m": 1000, "p": 999},)),
    Case("attention_over_caches", "Y, GK, GV = com.microsoft.GroupQueryAttention"
         " <num_heads: int = 32, kv_num_heads: int = 2, do_rotary: int = 1>"
         ' (X, "", "", PK, PV, L, T, C, S)',
         {"X": ("b", "n", 1152), "PK": ("b", 2, "p", 32), "PV": ("b", 2, "p", 32), "L": ("b",),
          "T": (), "C": (1100, 16), "S": (1100, 16)},
         {"Y": ("b", "n", 1024), "GK": ("b", 2, "m", 32), "GV": ("b", 2, "m", 32)},
         ({"b": 2, "n": 1, "p": 1000, "m": 1001}, {"b": 1, "n": 5, "p": 90, "m": 95},
          {"b": 1, "n": 600, "p": 33, "m": 633}), dtypes={"L": "int32", "T": "int32"}),
    Case("product_of_a_row", "V = Transpose <perm = [1, 0]> (W)  U = MatMul (X, V)"
         "  S = Add (U, B)  Y = Add (S, R)",
         {"X": (1, 1, 1500 * 4), "W": (77 * 8, 1500 * 4), "B": (77 * 8,), "R": (1, 1, 77 * 8)},
         {"Y": (1, 1, 77 * 8)}),
    Case("gated_products_of_a_normed_row", "N = LayerNormalization <axis = -1> (X, G, H)"
         "  V = Transpose <perm = [1, 0]> (W)  T = Transpose <perm = [1, 0]> (Z)"
         "  U = MatMul (N, V)  D = MatMul (N, T)  S = Sigmoid (U)  Y = Mul (S, D)",
         {"X": (1, 520), "G": (520,), "H": (520,), "W": (168, 520), "Z": (168, 520)},
         {"Y": (1, 168)}),
    Case("product_with_a_norm_behind", "U = MatMul (X, W)  T = Add (U, B)  S = Add (T, R)"
         "  Y = LayerNormalization <axis = -1> (S, G, H)",
         {"X": (70, 904), "W": (904, 136), "B": (136,), "R": (70, 136), "G": (136,), "H": (136,)},
         {"Y": (70, 136), "S": (70, 136)}),
    Case("product_of_few_rows_with_a_norm_behind", "U = MatMul (X, W)  S = Add (U, R)"
         "  Y = RMSNormalization <axis = -1> (S, G)",
         {"X": (5, 3080), "W": (3080, 72), "R": (5, 72), "G": (72,)}, {"Y": (5, 72)}),
    Case("product_of_many_rows", "U = MatMul (X, W)  S = Add (U, B)  A = Gelu (S)  Y = Add (A, R)",
         {"X": ("n", 264), "W": (264, 1032), "B": (1032,), "R": ("n", 1032)}, {"Y": ("n", 1032)},
         ({"n": 70}, {"n": 1000}, {"n": 5000})),
    Case("products_of_many_matrices", "V = Transpose <perm = [0, 2, 1]> (W)  U = MatMul (X, V)"
         "  S = Add (U, B)  Y = Gelu (S)",
         {"X": ("n", 3, "m", 136), "W": (3, 264, 136), "B": (3, 1, 264)},
         {"Y": ("n", 3, "m", 264)}, ({"n": 2, "m": 50}, {"n": 2, "m": 200})),
    Case("gated_products_of_many_rows", "V = Transpose <perm = [1, 0]> (W)  U = MatMul (X, V)"
         "  T = Transpose <perm = [1, 0]> (Z)  D = MatMul (X, T)  S = Sigmoid (U)  Y = Mul (S, D)",
         {"X": ("n", 264), "W": (520, 264), "Z": (520, 264)}, {"Y": ("n", 520)},
         ({"n": 1}, {"n": 300}, {"n": 9000})),
    Case("product_behind_a_norm_of_a_sum", "T = Add (X, K)"
         "  N = RMSNormalization <axis = -1> (T, G)  V = Transpose <perm = [1, 0]> (W)"
         "  U = MatMul (N, V)  Y = Add (U, B)",
         {"X": ("n", 2056), "K": ("n", 2056), "G": (2056,), "W": (136, 2056), "B": (136,)},
         {"T": ("n", 2056), "Y": ("n", 136)}, ({"n": 1}, {"n": 70})),
    Case("gated_products_behind_a_norm_of_a_sum", "T = Add (X, K)"
         "  N = LayerNormalization <axis = -1> (T, G, H)  V = Transpose <perm = [1, 0]> (W)"
         "  O = Transpose <perm = [1, 0]> (Z)  U = MatMul (N, V)  D = MatMul (N, O)"
         "  S = Sigmoid (U)  Y = Mul (S, D)",
         {"X": ("n", 264), "K": ("n", 264), "G": (264,), "H": (264,), "W": (520, 264),
          "Z": (520, 264)}, {"T": ("n", 264), "Y": ("n", 520)},
         ({"n": 1}, {"n": 300}, {"n": 9000})),
    Case("rows_in_eights", "A = Cast <to = 1> (X)  B = Abs (A)"
         "  C = Constant <value = int64[1] {-1}> ()  M = ReduceMax <keepdims = 1> (B, C)"
         "  L = Constant <value_float = 0.002232142857142857> ()  P = Mul (M, L)"
         "  E = Constant <value_float = 1e-30> ()  F = Max (P, E)  D = Div (A, F)"
         "  Q = Cast <to = 17> (D)",
         {"X": ("n", 520)}, {"F": ("n", 1), "Q": ("n", 520)}, ({"n": 37},),
         dtypes={"F": "float32", "Q": EIGHT}),
    Case("product_of_a_row_in_eights", f"{_WIDE}  U = MatMul (X, V)  Y = Relu (U)",
         {"X": (1, 528), "W": (80, 528), "S": (80,)}, {"Y": (1, 80)}, dtypes={"W": EIGHT}),
    Case("product_of_few_rows_in_eights", f"{_WIDE}  U = MatMul (X, V)  Y = Add (U, R)",
         {"X": (5, 528), "W": (80, 528), "S": (80,), "R": (5, 80)}, {"Y": (5, 80)},
         dtypes={"W": EIGHT}),
    Case("product_of_many_rows_in_eights", "A = Cast <to = 1> (Q)  B = Mul (A, F)"
         f"  X = Cast <to = 10> (B)  {_WIDE}  Y = MatMul (X, V)",
         {"Q": ("n", 272), "F": ("n", 1), "W": (1040, 272), "S": (1040,)}, {"Y": ("n", 1040)},
         ({"n": 70}, {"n": 1000}, {"n": 5000}), dtypes={"F": "float32", "Q": EIGHT, "W": EIGHT}),
    Case("product_of_weights_in_four_bits", "U = com.microsoft.MatMulNBits <K: int = 512,"
         " N: int = 2064, bits: int = 4, block_size: int = 32> (X, W, S)  T = Sigmoid (U)"
         "  Y = Mul (U, T)", {"X": ("n", 512), "W": (2064, 16, 16), "S": (2064 * 16,)},
         {"Y": ("n", 2064)}, _FEW_AND_MANY, dtypes={"W": "uint8"}),
    Case("gated_products_of_weights_in_four_bits", "U = com.microsoft.MatMulNBits <K: int = 4192,"
         " N: int = 77, bits: int = 4, block_size: int = 32> (X, W, S, Z)"
         "  D = com.microsoft.MatMulNBits <K: int = 4192, N: int = 77, bits: int = 4,"
         " block_size: int = 32> (X, V, R, Q)  T = Sigmoid (U)  Y = Mul (T, D)",
         {"X": ("n", 4192), "W": (77, 131, 16), "S": (77 * 131,), "Z": (77 * 66,),
          "V": (77, 131, 16), "R": (77 * 131,), "Q": (77 * 66,)}, {"Y": ("n", 77)},
         _FEW_AND_MANY,
         dtypes={"W": "uint8", "Z": "uint8", "V": "uint8", "Q": "uint8"},
         # Sums near 1, as in a model: a gate of 400 turns its last bits into whole results.
         factors={"S": 2.0**-9, "R": 2.0**-9}),
    Case("product_in_four_bits_behind_a_norm_of_a_sum", "T = Add (X, K)"
         "  N = RMSNormalization <axis = -1> (T, G)  Y = com.microsoft.MatMulNBits <K: int = 4192,"
         " N: int = 77, bits: int = 4, block_size: int = 32> (N, W, S)",
         {"X": ("n", 4192), "K": ("n", 4192), "G": (4192,), "W": (77, 131, 16), "S": (77 * 131,)},
         {"T": ("n", 4192), "Y": ("n", 77)}, _FEW_AND_MANY, dtypes={"W": "uint8"}),
    *(Case(f"product_of_{rows}_rows_with_zeros_in_four_bits", "U = com.microsoft.MatMulNBits"
           " <K: int = 576, N: int = 520, bits: int = 4, block_size: int = 64> (X, W, S, Z)"
           "  Y = Add (U, R)",
           {"X": (rows, 576), "W": (520, 9, 32), "S": (520 * 9,), "Z": (520 * 5,),
            "R": (rows, 520)}, {"Y": (rows, 520)}, dtypes={"W": "uint8", "Z": "uint8"})
      for rows in (29, 515)),
    Case("product_of_wide_blocks_in_four_bits", "Y = com.microsoft.MatMulNBits <K: int = 768,"
         " N: int = 8200, bits: int = 4, block_size: int = 128> (X, W, S)",
         {"X": ("n", 768), "W": (8200, 6, 64), "S": (8200 * 6,)}, {"Y": ("n", 8200)},
         _FEW_AND_MANY, dtypes={"W": "uint8"}),
)  # fmt: skip
