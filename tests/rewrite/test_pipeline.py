"""A pipeline is at its end only when a second one finds nothing."""

from __future__ import annotations

from types import SimpleNamespace

import onnx_ir as ir
import pytest

from ortkit.graph.io.text import from_text
from ortkit.passes.select import select_passes
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.pipeline import Pipeline, PipelineResult

# How many numbers are not zero is told by the product, after a slice was derived from it.
TEXT = """<ir_version: 10, opset_import: ["" : 20]>
g (float[12] x, float[20] v, float[2, 10] w) => (float[3] z, float[2, 1] m)
<int64[1] seven = {7}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] three = {3}>
{
  i = NonZero (x)  c = Cast <to = 1> (i)  f = Transpose <perm = [1, 0]> (c)
  n = Shape <start = 0, end = 1> (f)  e = Sub (n, seven)
  s = Slice (v, zero, e)  t = Relu (s)  r = Reshape (t, three)  z = Neg (r)
  m = MatMul (w, f)
}
"""


def run(model: ir.Model) -> PipelineResult:
    return Pipeline(select_passes("fold-sizes,drop-noop-reshape", 2)).run(model, RewriteOptions())


def test_sizes_that_were_told_late_are_derived_anew() -> None:
    model = from_text(TEXT)
    first = run(model)
    assert first.settled and first.modified
    assert "Reshape" not in [node.op_type for node in model.graph]
    assert not run(model).modified


@pytest.mark.parametrize(("frozen", "expected"), [(0, ["freeze", "unfreeze"]), (1, [])])
def test_what_was_there_before_is_frozen_meanwhile(
    frozen: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the caller has frozen it, which stays so."""
    calls: list[str] = []
    collector = SimpleNamespace(
        get_freeze_count=lambda: frozen,
        freeze=lambda: calls.append("freeze"),
        unfreeze=lambda: calls.append("unfreeze"),
    )
    monkeypatch.setattr("ortkit.rewrite.pipeline.gc", collector)
    run(from_text(TEXT))
    assert calls[:2] == expected
