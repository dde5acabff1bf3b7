"""Attention as text, with the scores written in some way, and the comparison of its numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ortkit.graph.io.text import from_text
from ortkit.passes.select import select_passes
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.pipeline import Pipeline

LOWEST = -3.4028234663852886e38
#: Queries, keys and values as [b, s, 8], split into two heads; `{scores}` makes s1 of s0.
SPLIT = """<ir_version: 10, opset_import: ["" : {opset}]>
g (float[b,s,8] q, float[b,{t},8] k, float[b,{t},8] v{inputs}) => (float[b,s,8] y)
<int64[4] heads = {{0, 0, 2, 4}}, int64[3] joined = {{0, 0, 8}}, float zero = {{0}},
 float lowest = {{{lowest}}}, float half = {{0.5}},
 float finite = {{-3.4028234663852886e38}}, float cap = {{20}}, int64[2] middle = {{1, 2}},
 int64 i0 = {{0}}, int64 i1 = {{1}}, int64[1] a0 = {{0}}, int64[1] a1 = {{1}}, int64 w = {{3}}> {{
  q4 = Reshape(q, heads)
  k4 = Reshape(k, heads)
  v4 = Reshape(v, heads)
  qt = Transpose<perm = [0, 2, 1, 3]>(q4)
  kt = Transpose<perm = [0, 2, 3, 1]>(k4)
  vt = Transpose<perm = [0, 2, 1, 3]>(v4)
  s0 = MatMul(qt, kt)
  {scores}
  p = Softmax<axis = -1>(s1)
  {guard}
  o = MatMul(pg, vt)
  ot = Transpose<perm = [0, 2, 1, 3]>(o)
  y = Reshape(ot, joined)
}}"""
PLAIN = "pg = Identity(p)"
GUARD = "n = IsNaN(p)\n  pg = Where(n, zero, p)"
POSITIONS = """n0 = Shape<start = 1, end = 2>(q)
  n1 = Squeeze(n0)
  i = Range(i0, n1, i1)
  row = Unsqueeze(i, a1)
  column = Unsqueeze(i, a0)
  """
DROPPED = "pg = Where(keep4, p, zero)"
PADDED = "keep4 = Unsqueeze(keep, middle)\n  "


@dataclass(frozen=True)
class Case:
    scores: str
    inputs: str = ""
    guard: str = PLAIN
    lowest: float = LOWEST
    level: int = 2
    opset: int = 20
    max_opset: int = 23
    ops: dict[str, int] = field(default_factory=lambda: {"Attention": 1})
    attributes: dict[str, float] = field(default_factory=dict)
    is_self: bool = False

    @property
    def text(self) -> str:
        lowest = "-inf" if np.isinf(self.lowest) else repr(self.lowest)
        return SPLIT.format(
            scores=self.scores,
            inputs=self.inputs,
            guard=self.guard,
            lowest=lowest,
            opset=self.opset,
            t="s" if self.is_self else "t",
        )


def optimized(text: str, level: int, max_opset: int = 23) -> ir.Model:
    model = from_text(text)
    spec = "fold-sizes,fold-constants,drop-identity,fuse-attention,drop-unused"
    result = Pipeline(select_passes(spec, 0)).run(
        model, RewriteOptions(level=level, max_opset=max_opset)
    )
    assert result.settled
    return model


def feeds(model: ir.Model, sizes: dict[str, int], seed: int) -> dict[str, np.ndarray]:
    """Make inputs; one batch sees no key, and biases hold -inf and the lowest number."""
    random = np.random.default_rng(seed)
    made = {}
    for value in model.graph.inputs:
        assert value.shape is not None and value.name is not None and value.dtype is not None
        shape = [
            sizes.get(str(dim), dim) if not isinstance(dim, int) else dim for dim in value.shape
        ]
        if value.dtype == ir.DataType.BOOL:
            keep = random.random(shape) < 0.6
            keep[0] = True
            keep[-1] = False
            made[value.name] = keep
            continue
        array = random.standard_normal(shape).astype(np.float32)
        if value.name == "bias":
            array[random.random(shape) < 0.3] = LOWEST
            array[..., 0, :] = LOWEST
            array[..., 1, :] = -np.inf
        made[value.name] = array
    return made


def run(model: ir.Model, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = ort.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, given))
