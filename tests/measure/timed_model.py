"""A model with fused nodes of two kinds, as a file and in memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ortkit.optimization.call import Optimized

WIDTH = 512
TEXT = f"""<ir_version: 10, opset_import: ["" : 20]>
g (float[n, {WIDTH}] x, float[{WIDTH}, {WIDTH}] w) => (float[n, {WIDTH}] y, float[n, {WIDTH}] z)
<float[{WIDTH}] b = {{{", ".join(["0.5"] * WIDTH)}}}>
{{ m = MatMul(x, w)  a = Add(m, b)  g = Gelu(a)  t = Tanh(x)  s = Sub(t, x)  z = Mul(s, t)
   k = MatMul(g, w)  c = Add(k, b)  y = Gelu(c) }}
"""


@dataclass(frozen=True)
class Fused:
    """An optimized model with a kernel library."""

    original: Path
    saved: Path
    library: Path
    feeds: Path
    optimized: Optimized
