"""What an attention may have on CUDA: kernels compute what ONNX Runtime's ops do, or say why not.

By Triton's interpreter, and for Hopper in numpy, against ONNX Runtime on the CPU in float32.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from ortkit.custom_ops.triton.attention.attention import ANCHOR
from region_models import found_by, scope_of

from ortkit.fusion.regions.duplicate import Candidate
from ortkit.graph.io.text import from_text
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.triton.generate import sources_of
from ortkit.refusal import Refused

sys.path.insert(0, str(Path(__file__).parent.parent / "kernels" / "triton"))

from interpreter import Interpreter

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

MULTI = "y = com.microsoft.MultiHeadAttention<num_heads = 2{}> (q, k, v{})"
GROUPED = (
    "l = Constant<value = int32[1] {{69}}> ()  t = Constant<value = int32 {{70}}> ()  "
    "y = com.microsoft.GroupQueryAttention<num_heads = {}, kv_num_heads = 2{}> "
    "(q, k, v, , , l, t{})"
)
EXPAND = "z = Constant<value_ints = [1, 1, 70, 70]> ()  e = Expand (m, z)  "
STANDARD = "y = Attention<q_num_heads = {}, kv_num_heads = 2{}> (q, k, v{})"


def rows(width: int = 64, heads: int = 2, more: str = "", keys: int = 70) -> str:
    """Operands of 70 queries, and of as many keys: 2 heads."""
    q = f"T[1, 70, {heads * width}] q"
    return f"{q}, T[1, {keys}, {2 * width}] k, T[1, {keys}, {2 * width}] v{more}"


def stacked(width: int) -> str:
    return ", ".join(f"T[1, 2, 70, {width}] {name}" for name in "qkv")


PLAIN = MULTI.format("", "")
CAUSAL = MULTI.format(", unidirectional = 1", "")
BY_HEAD = ", T[1, 2, 70, 70] m"
KEPT = ", bool[1, 1, 1, 70] m"
TAKEN = {
    **{f"heads of {width}": (rows(width), PLAIN) for width in range(32, 257, 32)},
    **{f"heads of {width}": (rows(width), PLAIN) for width in (8, 16, 24, 40, 48, 72, 80, 112)},
    **{f"heads of {width}, causal": (rows(width), CAUSAL) for width in (48, 80, 128)},
    "other keys": (rows(keys=150), PLAIN),
    "GroupQueryAttention": (rows(heads=8), GROUPED.format(8, "", "")),
    "a window": (rows(heads=4), GROUPED.format(4, ", local_window_size = 20", "")),
    "a bound of the scores": (rows(heads=4), GROUPED.format(4, ", softcap = 1.5", "")),
    "a bias of relative positions": (rows(more=BY_HEAD), MULTI.format("", ", , , m")),
    "one that is causal": (
        rows(more=BY_HEAD), MULTI.format(", unidirectional = 1", ", , , m"),
    ),
    "a bias by sample": (rows(more=", T[1, 1, 70, 70] m"), MULTI.format("", ", , , m")),
    "a mask of keys": (rows(more=", int32[1, 70] m"), MULTI.format("", ", , m")),
    "Attention": (rows(), STANDARD.format(2, "", "")),
    "Attention, heads for themselves": (stacked(64), "y = Attention (q, k, v)"),
    "Attention, shared heads": (rows(heads=6), STANDARD.format(6, "", "")),
    "Attention, causal": (rows(), STANDARD.format(2, ", is_causal = 1", "")),
    "Attention, causal, more keys": (
        rows(keys=90), STANDARD.format(2, ", is_causal = 1", ""),
    ),
    "Attention, a bound": (rows(), STANDARD.format(2, ", softcap = 1.5", "")),
    "Attention, scaled": (rows(), STANDARD.format(2, ", scale = 0.3", "")),
    "Attention, a mask": (rows(more=KEPT), EXPAND + STANDARD.format(2, "", ", e")),
    "Attention, a mask, causal": (
        rows(more=KEPT), EXPAND + STANDARD.format(2, ", is_causal = 1", ", e"),
    ),
    "Attention, a bias by head": (rows(more=BY_HEAD), STANDARD.format(2, "", ", m")),
}  # fmt: skip
PAST = ", T[1, 2, 30, 64] pk, T[1, 2, 30, 64] pv"
REFUSED = {
    "heads of 20": (rows(20), PLAIN, "heads of 20, no multiple of 8"),
    "heads of 264": (rows(264), PLAIN, "heads of 264"),
    "lengths": (rows(more=", int32[1] m"), MULTI.format("", ", , m"), "with lengths"),
    "lengths of samples": (
        rows(heads=4, more=", int32[1] l, int32 t"),
        GROUPED.format(4, "", "").partition("()  ")[2].partition("()  ")[2],
        "lengths are known in a run only",
    ),
    "lengths, opset 24": (
        rows(more=", int64[1] n"), STANDARD.format(2, "", ", , , , n"), "lengths",
    ),
    "a bias of operands": (
        rows(more=", T[384] b"), MULTI.format("", ", b"), "bias of its operands",
    ),
    "a mask and a bound": (
        rows(more=BY_HEAD), STANDARD.format(2, ", softcap = 1.5", ", m"), "bound of its scores",
    ),
    "scores as a result": (
        rows(), STANDARD.format(2, "", "").replace("y =", "x, , , z =") + "  u = ReduceSum (z)  "
        "y = Add (x, u)", "results too",
    ),
    "a sink": (
        rows(heads=4, more=", T[4] h"), GROUPED.format(4, "", ", , , , , h"), "past keys, places",
    ),
    "interleaved rotations": (
        rows(heads=4, more=", T[70, 32] c, T[70, 32] s"),
        GROUPED.format(4, ", do_rotary = 1, rotary_interleaved = 1", ", c, s"), "do_rotary",
    ),
    "a softmax in float32": (
        rows(), STANDARD.format(2, ", softmax_precision = 10", ""), "softmax_precision",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Interpreter]:
    found = Interpreter()
    yield found
    found.close()


def model_of(inputs: str, body: str, dtype: str = "float16") -> onnx.ModelProto:
    opset = 24 if ", n)" in body else 23
    shape = "1, 2, 70, 64" if inputs.startswith("T[1, 2,") else "1, 70, w"
    head = f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
    text = f"{head} g ({inputs}) => (T[{shape}] y) {{ {body} }}"
    return ir.to_proto(from_text(text.replace("T[", f"{dtype}[")))


def find(model: onnx.ModelProto) -> Candidate:
    def judge(signature: RegionSignature) -> Refused | None:
        found = sources_of(signature)
        return found if isinstance(found, Refused) else None

    scope = scope_of(ir.from_proto(model))
    (one,) = found_by(ANCHOR, scope, judge)
    return one


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", TAKEN)
def test_the_kernel_computes_what_the_op_does(name: str, interpreter: Interpreter) -> None:
    model = model_of(*TAKEN[name])
    one = find(model)
    assert one.signature is not None, one.reason
    rng = np.random.default_rng(0)
    feeds = {}
    for value in model.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        data = rng.standard_normal(shape)
        feeds[value.name] = (data if dtype == np.float16 else np.arange(70) < 51).astype(dtype)
        feeds[value.name] = feeds[value.name].reshape(shape)
    wide = {
        key: feed.astype(np.float32) if feed.dtype == np.float16 else feed
        for key, feed in feeds.items()
    }
    theirs = ort.InferenceSession(
        model_of(*TAKEN[name], "float").SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (wanted,) = theirs.run(None, wide)
    sources = sources_of(one.signature)
    assert not isinstance(sources, Refused)
    firsts = {source.steps[0].is_gluon: source for source in reversed(sources)}
    assert False in firsts
    given = [feeds[str(value.name)] for value in one.region.inputs]
    for source in firsts.values():
        (found,) = interpreter.run(one.signature, given, sources=[source])
        np.testing.assert_allclose(found.astype(np.float32), wanted, atol=4e-3)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_why(name: str) -> None:
    inputs, body, reason = REFUSED[name]
    one = find(model_of(inputs, body))
    assert one.signature is None
    assert reason in one.reason, one.reason
