"""Attention over a cache becomes a region where its sizes can be told in a run."""

from __future__ import annotations

from dataclasses import replace

import onnx.parser
import pytest
from ortkit.custom_ops.triton.attention import attention_grouped
from ortkit.custom_ops.tvm.attention.grouped import ANCHOR
from region_models import found_by, search_of

from ortkit.fusion.regions.anchors import grown
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.graph.io.open import open_model
from ortkit.graph.shapes.infer import Shapes
from ortkit.kernels.build.library import refusal
from ortkit.kernels.value_sizes import value_sizes
from ortkit.rewrite.log import RewriteLog
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.scope import Scope, Whole
from ortkit.targets import cpu
from ortkit.targets.target import Target

pytestmark = pytest.mark.skipif(cpu.machine() != "x86-64", reason="x86-64 has levels")


def scope(
    outputs: str = "y, k2, v2", more: str = "", rest: str = "", dtype: str = "float",
    total: str = "int32",
) -> Scope:  # fmt: skip
    """A model of one attention as the builder of onnxruntime-genai writes it."""
    proto = onnx.parser.parse_model(f"""
    <ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>
    g ({dtype}[b, s, 128] q, {dtype}[b, 2, p, cache_width] k, {dtype}[b, 2, p, cache_width] v,
       int32[b] lengths, {total} total, {dtype}[512, 8] cos, {dtype}[512, 8] sin)
      => ({dtype}[b, s, 64] y, {dtype}[b, 2, t, 16] k2, {dtype}[b, 2, t, 16] v2) {{
      {outputs} = com.microsoft.GroupQueryAttention
        <num_heads = 4, kv_num_heads = 2, do_rotary = 1{more}>
        (q, "", "", k, v, lengths, total, cos, sin)  {rest}
    }}""")
    model = open_model(proto)
    return Scope(
        model, model.graph, Shapes.infer(model), RewriteLog(), RewriteOptions(), Whole.of(model)
    )


def found(of: Scope) -> list[Candidate]:
    return found_by(ANCHOR, of, lambda one: refusal(one, Target("cpu", "x86-64-v3")))


def test_attention_over_a_cache() -> None:
    (one,) = found(scope())
    assert one.signature is not None
    assert {size.symbol for size in value_sizes(one.signature)} == {
        spec.shape[2] for spec in one.signature.outputs[1:]
    }


def test_what_has_no_kernel() -> None:
    (one,) = found(scope(more=", smooth_softmax = 1"))
    assert one.signature is None
    assert "smooth_softmax" in one.reason


@pytest.mark.parametrize("total", ["int32", "int32[1]"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_on_cuda(dtype: str, total: str) -> None:
    """In half precision of both kinds, also with what CPUs have no kernel for."""
    anchor = attention_grouped.BFLOAT if dtype == "bfloat16" else attention_grouped.ANCHOR
    for more in ("", ", rotary_interleaved = 1", ", local_window_size = 9, softcap = 2.0"):
        of = scope(more=more, dtype=dtype, total=total)
        (one,) = found_by(anchor, of, lambda each: refusal(each, Target("cuda", "sm_90")))
        assert one.signature is not None, one.reason
        assert len(value_sizes(one.signature)) == 2


def test_what_cuda_has_no_kernel_for() -> None:
    def reason(**changed: str) -> str:
        of = scope(dtype="float16", **changed)
        (one,) = found_by(
            attention_grouped.ANCHOR, of, lambda each: refusal(each, Target("cuda", "sm_90"))
        )
        assert one.signature is None
        return one.reason

    assert "scale" in reason(more=", scale = -1.0")
    assert "qk_output" in reason(more=", qk_output = 1")
    assert not list(grown(search_of(scope(dtype="float")), attention_grouped.ANCHOR))


def test_programs_of_the_provider_have_none() -> None:
    of = scope()
    search = replace(search_of(of), in_place=False)
    (one,) = grown(search, ANCHOR)
    assert one.signature is None
    assert "values" in one.reason
