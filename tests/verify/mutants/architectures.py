"""Small architectures that have what models/ has not: many operators on few values."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

from mutants.draft import Rng

_HEAD = '<ir_version: 10, opset_import: ["" : 20]>\n'
_WIDTH = 16

_MIXED = """
mixed (float[batch, length, 16] x, float[batch, length, 16] r)
    => (float[batch, length, 16] y, float[batch, length] score, float[batch, 16] pooled) {
    half = Constant <value_float = 0.5> ()
    one = Constant <value_float = 1.0> ()
    two = Constant <value_float = 2.0> ()
    root2 = Constant <value_float = 1.4142135> ()
    tiny = Constant <value_float = 0.00001> ()
    slope = Constant <value_float = 0.7> ()
    low = Constant <value_float = -2.5> ()
    high = Constant <value_float = 2.5> ()
    last = Constant <value_ints = [-1]> ()
    middle = Constant <value_ints = [1]> ()
    zero = Constant <value_ints = [0]> ()
    eight = Constant <value_ints = [8]> ()
    most = Constant <value_ints = [1000]> ()
    sum = Add (x, r)
    mean = ReduceMean (sum, last)
    centered = Sub (sum, mean)
    square = Pow (centered, two)
    variance = ReduceMean (square, last)
    safe = Add (variance, tiny)
    deviation = Sqrt (safe)
    normal = Div (centered, deviation)
    scaled = Mul (normal, g1)
    norm = Add (scaled, c1)
    first = MatMul (norm, w1)
    biased = Add (first, b1)
    argument = Div (biased, root2)
    erf = Erf (argument)
    shifted = Add (erf, one)
    product = Mul (biased, shifted)
    gelu = Mul (product, half)
    second = MatMul (gelu, w2)
    out = Add (second, b2)
    residual = Add (out, sum)
    normed = LayerNormalization <axis = -1, epsilon = 0.00001> (residual, g2, c2)
    left = Slice (normed, zero, eight, last)
    right = Slice (normed, eight, most, last)
    gate = Sigmoid (left)
    silu = Mul (left, gate)
    hard = HardSigmoid <alpha = 0.2, beta = 0.5> (right)
    swapped = Concat <axis = -1> (hard, silu)
    clipped = Clip (normed, low, high)
    leaky = LeakyRelu <alpha = 0.1> (clipped)
    soft = Softplus (leaky)
    bent = Elu <alpha = 1.0> (leaky)
    mixed = Sub (soft, bent)
    joined = Mul (mixed, swapped)
    keys = Transpose <perm = [0, 2, 1]> (joined)
    dots = MatMul (joined, keys)
    scores = Mul (dots, slope)
    weights = Softmax <axis = -1> (scores)
    attended = MatMul (weights, norm)
    ratio = Max (attended, joined)
    squashed = Tanh (ratio)
    second_power = Mul (squashed, squashed)
    power_mean = ReduceMean (second_power, last)
    held = Add (power_mean, tiny)
    length_of = Sqrt (held)
    rms = Div (squashed, length_of)
    end = Mul (rms, g3)
    picked = Gather <axis = -1> (end, order)
    activated = Gelu <approximate = "none"> (picked)
    y = Where (chosen, activated, rms)
    total = ReduceSum <keepdims = 0> (y, last)
    score = Neg (total)
    pooled = ReduceMax <keepdims = 0> (end, middle)
}
"""

_CONVS = """
convs (float[batch, 3, height, width] x) => (float[batch, 10] y) {
    zero = Constant <value_float = 0.0> ()
    six = Constant <value_float = 6.0> ()
    places = Constant <value_ints = [2, 3]> ()
    a = Conv <pads = [1, 1, 1, 1], kernel_shape = [3, 3]> (x, w1)
    an = BatchNormalization <epsilon = 0.001> (a, s1, o1, m1, v1)
    ar = Clip (an, zero, six)
    d = Conv <pads = [1, 1, 1, 1], kernel_shape = [3, 3], group = 16> (ar, wd, bd)
    dn = BatchNormalization <epsilon = 0.001> (d, s2, o2, m2, v2)
    dh = HardSwish (dn)
    p = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 0> (dh)
    m = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (ar)
    pm = Add (p, m)
    e = ReduceMean (pm, places)
    e1 = Conv (e, we1, be1)
    er = Relu (e1)
    e2 = Conv (er, we2, be2)
    eg = HardSigmoid <alpha = 0.16666667, beta = 0.5> (e2)
    gated = Mul (pm, eg)
    q = Conv <pads = [1, 1, 1, 1], kernel_shape = [3, 3]> (gated, w2, b2)
    residual = Add (q, ar)
    t = Conv <pads = [1, 1, 1, 1], strides = [2, 2], kernel_shape = [3, 3]> (residual, w3, b3)
    tr = Relu (t)
    g = GlobalAveragePool (tr)
    f = Flatten <axis = 1> (g)
    y = Gemm <alpha = 1.0, beta = 1.0, transB = 1> (f, wf, bf)
}
"""


def mixed(rng: Rng) -> onnx.ModelProto:
    """Build elementwise operators, norms, a softmax and reductions over [batch, length, 16]."""
    width = _WIDTH
    order = np.r_[1:width, 0].astype(np.int64)
    weights: dict[str, np.ndarray] = {
        "w1": _matrix(rng, width, width), "w2": _matrix(rng, width, width),
        "order": order, "chosen": np.arange(width) % 3 != 0,
    }  # fmt: skip
    for name in ("b1", "b2", "c1", "c2"):
        weights[name] = (rng.standard_normal(width) * 0.1).astype(np.float32)
    for name in ("g1", "g2", "g3"):
        weights[name] = (1 + rng.standard_normal(width) * 0.1).astype(np.float32)
    return _model(_MIXED, weights)


def convs(rng: Rng) -> onnx.ModelProto:
    """Build convolutions with norms that are not folded, pools, a gate and a classifier."""
    c = _WIDTH
    weights = {
        "w1": _filters(rng, c, 3, 3), "wd": _filters(rng, c, 1, 3), "we1": _filters(rng, 4, c, 1),
        "we2": _filters(rng, c, 4, 1), "w2": _filters(rng, c, c, 3), "w3": _filters(rng, c, c, 3),
        "wf": _matrix(rng, c, 10).T.copy(),
    }  # fmt: skip
    for name, size in {"bd": c, "be1": 4, "be2": c, "b2": c, "b3": c, "bf": 10}.items():
        weights[name] = (rng.standard_normal(size) * 0.1).astype(np.float32)
    for number in "12":
        weights |= {f"s{number}": np.ones(c), f"o{number}": np.zeros(c)}
        weights |= {f"m{number}": np.zeros(c), f"v{number}": np.ones(c)}
    return _model(_CONVS, weights)


def _matrix(rng: Rng, rows: int, columns: int) -> np.ndarray:
    return (rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)


def _filters(rng: Rng, outputs: int, inputs: int, size: int) -> np.ndarray:
    drawn = rng.standard_normal((outputs, inputs, size, size))
    return (drawn * np.sqrt(2 / (inputs * size * size))).astype(np.float32)


def _model(text: str, weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    model = onnx.parser.parse_model(_HEAD + text)
    for name, array in weights.items():
        kept = array.astype(np.float32) if array.dtype == np.float64 else array
        model.graph.initializer.append(numpy_helper.from_array(kept, name))
    return model
