"""Forms of a product in fewer bits, and judging them as one step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
from onnx import numpy_helper

from ortkit.verify.compare import OutputComparison
from ortkit.verify.exchange import write_feeds
from ortkit.verify.lowered.steps import lowered_steps
from ortkit.verify.rounded_constants import half_weights

Arrays = Mapping[str, np.ndarray]
SIZE, ROWS, BLOCK = 64, 48, 32
#: An accepted error that hides all that these tests plant.
STATED = 0.9
rng = np.random.default_rng(3)
X = rng.standard_normal((ROWS, SIZE)).astype(np.float32)
W = (rng.standard_normal((SIZE, SIZE)) * rng.lognormal(0, 0.5, SIZE) / 8).astype(np.float32)
B = rng.standard_normal(SIZE).astype(np.float32)
PRODUCT = "m = MatMul(x, w) y = Add(m, b)"


def model(nodes: str, arrays: Arrays, x: str = f"n, {SIZE}", y: str = f"n, {SIZE}") -> ir.Model:
    text = (
        '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>\n'
        f"g (float[{x}] x) => (float[{y}] y) {{ {nodes} }}"
    )
    proto = onnx.parser.parse_model(text.replace("ms.", "com.microsoft."))
    for name, array in arrays.items():
        is_four = array.dtype in (ml_dtypes.int4, ml_dtypes.uint4)
        tensor = ir.Tensor(array, name=name) if is_four else None
        held = numpy_helper.from_array(array, name) if tensor is None else ir.to_proto(tensor)
        proto.graph.initializer.append(held)
    return ir.from_proto(proto)


def results(found: ir.Model, feeds: Arrays, count: int = 1) -> list[dict[str, np.ndarray]]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(ir.to_proto(found).SerializeToString(), options)
    names = [value.name for value in session.get_outputs()]
    return [dict(zip(names, session.run(None, feeds), strict=True)) for _ in range(count)]


def judged(
    folder: Path, original: ir.Model, candidate: ir.Model, x: np.ndarray = X
) -> dict[str, OutputComparison]:
    """Judge a model that is one step."""
    steps = lowered_steps(candidate, original, half_weights(original, candidate))
    assert steps.explained == {"y"}
    pair = (("expected", original, 1), ("actual", candidate, 1))
    for name, one, count in (*pair, *steps.runs):
        for number, found in enumerate(results(one, {"x": x}, count)):
            place = folder / name if count == 1 else folder / name / str(number)
            write_feeds(place / "feeds", found)
    return steps.off(folder, "feeds", STATED)


# ---- forms of a product --------------------------------------------------------------------


def eights(most: int = 127, zero: int = 0) -> dict[str, np.ndarray]:
    scale = (np.abs(W).max(0) / most).astype(np.float32)
    numbers = np.round(W / scale) + zero
    dtype = np.uint8 if zero else np.int8
    zeros = np.full(SIZE, zero, dtype)
    return {"q": numbers.astype(dtype), "s": scale, "z": zeros, "b": B}


def ranges() -> dict[str, np.ndarray]:
    """Return scales and zero points of what is multiplied and of the product, which cut both."""
    found: dict[str, np.ndarray] = {}
    for name, array in (("x", X), ("m", X @ W)):
        top = 2.5 * float(array.std())
        found[f"{name}s"] = np.array(top / 127.5, np.float32)
        found[f"{name}z"] = np.array(128, np.uint8)
    return found


def fours(most: int = 7) -> dict[str, np.ndarray]:
    blocks = W.T.reshape(SIZE, -1, BLOCK)
    scale = (np.abs(blocks).max(-1) / most).astype(np.float32)
    numbers = (np.round(blocks / scale[..., None]) + 8).astype(np.uint8)
    packed = numbers[..., ::2] | numbers[..., 1::2] << 4
    zeros = np.full((SIZE, SIZE // BLOCK // 2), 0x88, np.uint8)
    return {"q": packed, "s": scale.reshape(-1), "z": zeros.reshape(-1), "b": B}


def halves_of_four() -> dict[str, np.ndarray]:
    held = fours()
    low, high = held["q"] & 15, held["q"] >> 4
    numbers = np.stack([low, high], -1).reshape(SIZE, SIZE).T.astype(np.int8) - 8
    return {"q": numbers.astype(ml_dtypes.int4), "s": held["s"].reshape(SIZE, -1).T.copy(), "b": B}


def floats_of_eight() -> dict[str, np.ndarray]:
    scale = (np.abs(W).max(0) / 448).astype(np.float32)
    return {"q": (W / scale).astype(ml_dtypes.float8_e4m3fn), "s": scale, "b": B}


FORMS: dict[str, tuple[str, dict[str, np.ndarray]]] = {
    "dynamic": ("y = ms.DynamicQuantizeMatMul(x, q, s, z, b)", eights()),
    "dynamic, 7 bits": ("y = ms.DynamicQuantizeMatMul(x, q, s, z, b)", eights(63)),
    "apart": (
        "a, t, o = DynamicQuantizeLinear(x) y = ms.MatMulIntegerToFloat(a, q, t, s, o, z, b)",
        eights(zero=128),
    ),
    "integers": (
        "a, t, o = DynamicQuantizeLinear(x) i = MatMulInteger(a, q, o, z) f = Cast<to = 1>(i)"
        "u = Mul(t, s) m = Mul(f, u) y = Add(m, b)",
        eights(),
    ),
    "weights": ("w = DequantizeLinear<axis = 1>(q, s, z) " + PRODUCT, eights()),
    "both": (
        "a = QuantizeLinear(x, xs, xz) t = DequantizeLinear(a, xt, xz)"
        "w = DequantizeLinear<axis = 1>(q, s, z) m = MatMul(t, w) y = Add(m, b)",
        {**eights(), **ranges(), "xt": ranges()["xs"]},
    ),
    "operators": (
        "a = QuantizeLinear(x, xs, xz) o = QLinearMatMul(a, xs, xz, q, s, z, ms, mz)"
        "m = DequantizeLinear(o, ms, mo) y = Add(m, b)",
        {**eights(), **ranges(), "mo": ranges()["mz"]},
    ),
    "4 bits": (
        f"y = ms.MatMulNBits<K = {SIZE}, N = {SIZE}, bits = 4, block_size = {BLOCK}>"
        "(x, q, s, z, , b)",
        fours(),
    ),
    "4 bits, blocks": (
        f"w = DequantizeLinear<axis = 0, block_size = {BLOCK}>(q, s) " + PRODUCT,
        halves_of_four(),
    ),
    "float8": ("w = DequantizeLinear<axis = 1>(q, s) " + PRODUCT, floats_of_eight()),
    "bfloat16": (PRODUCT, {"w": W.astype(ml_dtypes.bfloat16).astype(np.float32), "b": B}),
}
ORIGINAL = model(PRODUCT, {"w": W, "b": B})
