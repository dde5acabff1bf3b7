"""GPT-2's attention as transformers before version 4 wrote it, exported by TorchScript.

A table of all positions, 0 where the key is later than the query, is cut by the sizes of the
scores: `bias[:, :, ns - nd : ns, :ns]`, with ns keys, past ones included, and nd queries.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from ortkit import OptimizeOptions, optimize

POSITIONS, HEADS, WIDTH = 1024, 2, 8
#: Past and new positions.
SIZES = (
    (0, 1), (0, 5), (3, 4), (3, 1), (7, 1), (9, 4), (POSITIONS - 4, 4), (3, POSITIONS - 3),
    (0, POSITIONS), (1, POSITIONS - 1),
)  # fmt: skip
#: How masked scores are made of scores `w` and the cut table `b`.
MASKS = {
    "where, of uint8": ("uint8", "m = Cast<to = 9>(b)  w1 = Where(m, w, low)"),
    "where, of bool": ("bool", "m = Cast<to = 9>(b)  w1 = Where(m, w, low)"),
    "by arithmetic": (
        "float", "kept = Mul(w, b)  no = Sub(one, b)  far = Mul(big, no)  w1 = Sub(kept, far)",
    ),
}  # fmt: skip
TEXT = """<ir_version: 7, opset_import: ["" : {opset}]>
layer (float[batch, {seq}, 8] x, float[2, batch, 2, {past}, 4] layer_past)
  => (float[batch, {seq}, 8] y, float[2, batch, 2, total, 4] present)
<int64 i0 = {{0}}, int64 i1 = {{1}}, int64 i2 = {{2}}, int64 i3 = {{3}}, int64[1] n0 = {{0}},
 int64[1] n1 = {{1}}, int64[1] n2 = {{2}}, int64[1] n3 = {{3}}, int64[4] heads = {{0, 0, 2, 4}},
 int64[3] joined = {{0, 0, 8}}, float one = {{1}}, float big = {{10000}}, float low = {{-10000}},
 float root = {{2}}> {{
  c = MatMul(x, w_attn)
  c1 = Add(c, b_attn)
  q, k, v = Split<axis = 2>(c1{parts})
  q4 = Reshape(q, heads)   qt = Transpose<perm = [0, 2, 1, 3]>(q4)
  k4 = Reshape(k, heads)   kt = Transpose<perm = [0, 2, 3, 1]>(k4)
  v4 = Reshape(v, heads)   vt = Transpose<perm = [0, 2, 1, 3]>(v4)
  pk = Gather<axis = 0>(layer_past, i0)
  pkt = Transpose<perm = [0, 1, 3, 2]>(pk)
  pv = Gather<axis = 0>(layer_past, i1)
  key = Concat<axis = -1>(pkt, kt)
  value = Concat<axis = -2>(pv, vt)
  back = Transpose<perm = [0, 1, 3, 2]>(key)
  {pair}
  present = Concat<axis = 0>(key5, value5)
  w0 = MatMul(qt, key)
  w = Div(w0, root)
  s2 = Shape(w)   nd = Gather<axis = 0>(s2, i2)
  s3 = Shape(w)   ns = Gather<axis = 0>(s3, i3)
  begin = Sub(ns, nd)
  {ends}
  rows = Slice(bias, begin1, end1, n2, n1)
  b = Slice(rows, n0, end2, n3, n1)
  {mask}
  p = Softmax<axis = 3>(w1)
  a = MatMul(p, value)
  at = Transpose<perm = [0, 2, 1, 3]>(a)
  y = Reshape(at, joined)
}}"""
BY_INPUT = """begin1 = Unsqueeze(begin, n0)  end1 = Unsqueeze(ns, n0)  end2 = Unsqueeze(ns, n0)"""
BY_ATTRIBUTE = """begin1 = Unsqueeze<axes = [0]>(begin)  end1 = Unsqueeze<axes = [0]>(ns)
  end2 = Unsqueeze<axes = [0]>(ns)"""


def layer(
    spelling: str,
    opset: int = 13,
    *,
    seq: int | str = "seq",
    past: int | str = "past",
    table: np.ndarray | None = None,
) -> onnx.ModelProto:
    """Build one layer's attention with a cache; a size is a number or a name."""
    dtype, mask = MASKS[spelling]
    new = opset >= 13
    model = onnx.parser.parse_model(
        TEXT.format(
            opset=opset,
            seq=seq,
            past=past,
            parts=", sizes" if new else "",
            pair="key5 = Unsqueeze(back, n0)  value5 = Unsqueeze(value, n0)" if new
            else "key5 = Unsqueeze<axes = [0]>(back)  value5 = Unsqueeze<axes = [0]>(value)",
            ends=BY_INPUT if new else BY_ATTRIBUTE,
            mask=mask,
        )
    )  # fmt: skip
    random = np.random.default_rng(0)
    square = np.tril(np.ones((POSITIONS, POSITIONS))) if table is None else table
    weights = {
        "w_attn": random.normal(0, 0.6, (WIDTH, 3 * WIDTH)).astype(np.float32),
        "b_attn": random.normal(0, 0.6, 3 * WIDTH).astype(np.float32),
        "bias": square.reshape(1, 1, *square.shape).astype(dtype.replace("float", "float32")),
    }
    if new:
        weights["sizes"] = np.full(3, WIDTH, np.int64)
    made = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    model.graph.initializer.extend(made)
    return model


def run(model: str | bytes, past: int, seq: int) -> list[np.ndarray]:
    random = np.random.default_rng(past + seq)
    feeds = {
        "x": random.normal(0, 1, (2, seq, WIDTH)).astype(np.float32),
        "layer_past": random.normal(0, 1, (2, 2, HEADS, past, 4)).astype(np.float32),
    }
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def assert_same(before: onnx.ModelProto, after: Path, seq: int | str, past: int | str) -> None:
    """Compare at all sizes that the model may have."""
    sizes = [
        (p, s) for p, s in SIZES if seq in (s, "seq") and past in (p, "past")
    ]  # fmt: skip
    assert sizes
    for size in sizes:
        want, got = run(before.SerializeToString(), *size), run(str(after), *size)
        for first, second in zip(want, got, strict=True):
            np.testing.assert_allclose(second, first, rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("spelling", MASKS)
@pytest.mark.parametrize(
    ("opset", "seq", "past"),
    [(11, "seq", "past"), (13, "seq", "past"), (13, 4, "past"), (13, "seq", 3), (13, 4, 3)],
)
def test_the_table_is_cut_as_it_was(
    spelling: str, opset: int, seq: int | str, past: int | str, tmp_path: Path
) -> None:
    model = layer(spelling, opset, seq=seq, past=past)
    optimized = optimize(model, OptimizeOptions(level=3, kernels="off", verify=False))
    assert_same(model, optimized.save(tmp_path / "after.onnx")[0], seq, past)
    ops = [node.op_type for node in optimized.model.graph]
    # With neither size known the cut table may be shorter than the scores, in no run that is
    # known to succeed: the nodes stay. Those that multiply the scores by the table always do.
    is_known = "arithmetic" not in spelling and (seq, past) != ("seq", "past")
    assert ("Attention" in ops) == is_known, ops


@pytest.mark.parametrize("window", [3, 200])
@pytest.mark.parametrize(("seq", "past"), [(4, "past"), ("seq", 3), ("seq", 0)])
def test_a_table_with_a_window_is_not_taken_for_a_causal_one(
    window: int, seq: int | str, past: int | str, tmp_path: Path
) -> None:
    """What only the far corner of the table shows is seen, too."""
    ones = np.ones((POSITIONS, POSITIONS))
    table = np.tril(ones) - np.tril(ones, -window)
    model = layer("where, of bool", seq=seq, past=past, table=table)
    optimized = optimize(model, OptimizeOptions(level=3, kernels="off", verify=False))
    assert_same(model, optimized.save(tmp_path / "after.onnx")[0], seq, past)
