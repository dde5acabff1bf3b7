"""ONNX Runtime's own ops in standard ops: the same numbers, at old and new opsets."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from region_models import feeds_of, fuse, run

from ortkit import OptimizeOptions, optimize
from ortkit.fusion.body_check import invalid_body
from ortkit.kernels.signature import RegionSignature, TensorSpec

ROW = ", ".join(f"{1 + i / 8}" for i in range(8))
CASES = {
    "bias-gelu": "z = com.microsoft.BiasGelu (x, r)",
    "gelu": "z = com.microsoft.Gelu (x)",
    "fast-gelu": "z = com.microsoft.FastGelu (x)",
    "fast-gelu-bias": "z = com.microsoft.FastGelu (x, r)",
    "quick-gelu": "z = com.microsoft.QuickGelu (x)",
    "silu": "z = com.microsoft.QuickGelu <alpha = 1.0> (x)",
    "skip-norm": "z = com.microsoft.SkipLayerNormalization <epsilon = 0.01> (x, y, r, r, r)",
    "skip-norm-sum": "z, , , a = com.microsoft.SkipLayerNormalization (x, y, r)",
    "skip-rms": "z = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.01> (x, y, r)",
    "skip-rms-sum": "z, , , a = com.microsoft.SkipSimplifiedLayerNormalization (x, y, r, r)",
    "norm": "z = LayerNormalization <epsilon = 0.01> (x, r, r)",
    "norm-of-two-axes": "z = LayerNormalization <axis = 1> (x, s)",
    "rms": "z = SimplifiedLayerNormalization <axis = -1, epsilon = 0.01, stash_type = 1> (x, r)",
}


@pytest.mark.parametrize("opset", [13, 16, 17, 18, 20, 23])
@pytest.mark.parametrize("case", CASES)
def test_an_op_of_the_runtime(case: str, opset: int) -> None:
    body = CASES[case]
    outputs = "float[n, 3, 8] z, float[n, 3, 8] a" if ", a =" in body else "float[n, 3, 8] z"
    before = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>
        g (float[n, 3, 8] x, float[n, 3, 8] y) => ({outputs})
        <float[8] r = {{{ROW}}}, float[3, 8] s = {{{", ".join([ROW] * 3)}}}>
        {{ {body} }}"""
    )
    after = fuse(before)
    assert [node.domain for node in after.graph.node] == ["ortkit.fused"]
    inner = [node for function in after.functions for node in function.node]
    assert {node.domain for node in inner} == {""}
    feeds = feeds_of(before, {"n": 2})
    for optimized in (False, True):
        for got, want in zip(
            run(after, feeds, optimized=optimized), run(before, feeds), strict=True
        ):
            # 16 epsilons of the largest value; its skip norms are less accurate than their parts.
            np.testing.assert_allclose(got, want, rtol=0, atol=2**-19 * np.abs(want).max())


@pytest.mark.parametrize("opset", [13, 16])
def test_a_norm_of_half_precision_before_onnx_had_it(opset: int) -> None:
    before = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : {opset}]>
        g (float16[n, 3, 8] x, float16[8] r) => (float16[n, 3, 8] z)
        {{ z = LayerNormalization <epsilon = 1e-6> (x, r, r) }}"""
    )
    feeds = {name: each / 1024 for name, each in feeds_of(before, {"n": 2}).items()}
    for got, want in zip(run(fuse(before), feeds), run(before, feeds), strict=True):
        assert got.dtype == np.float16
        np.testing.assert_allclose(got, want, rtol=0, atol=2**-9 * np.abs(want).max())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("level", [2, 3])
def test_a_norm_of_an_old_opset_in_a_kernel(level: int) -> None:
    """Without the library ONNX Runtime runs the body, and crashed where it held the norm."""
    pytest.importorskip("tvm")
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 13]>
        g (float[b, s, 64] x, float[b, s, 64] r) => (float[b, s, 64] z)
        <float[64] w = {{{", ".join([ROW] * 8)}}}> {{
          a = Add (x, r)
          n = LayerNormalization <axis = -1> (a, w, w)
          t = Tanh (n)
          z = Mul (t, x)
        }}"""
    )
    report = optimize(model, OptimizeOptions(level=level)).report
    assert report.rolled_back == ()
    assert report.verification is not None
    assert report.verification.verdict == "yes"
    assert any("layer_norm" in (each.emitted_as or "") for each in report.regions)


INVALID = {
    "not yet in the opset": ("z = LayerNormalization (x, y)", "LayerNormalization"),
    "no such operator": ("z = Rellu (x)", "Rellu"),
    "too many inputs": ("z = Relu (x, y)", "input"),
    "no such attribute": ("z = Relu <alpha = 1.0> (x)", "alpha"),
    "a type that it does not take": ("i = Cast <to = 7> (x)  z = Relu (i)", "tensor(int64)"),
    "another type of its result": ("z = Cast <to = 7> (x)", "elem type"),
}


@pytest.mark.parametrize(("body", "reason"), INVALID.values(), ids=INVALID)
def test_an_invalid_body_is_refused(body: str, reason: str) -> None:
    spec = TensorSpec("", "float32", ("n", 8))
    text = f'<opset_import: ["" : 13]> bad (x, y) => (z) {{ {body} }}'
    refused = invalid_body(RegionSignature("bad", text, (spec, spec), (spec,)), {"": 13})
    assert refused is not None
    assert "its body is not valid: " in refused.reason
    assert reason in refused.reason
    assert "\n" not in refused.reason


def test_a_body_is_judged_at_the_opset_that_the_model_imports() -> None:
    spec = TensorSpec("", "float32", ("n", 8))
    text = '<opset_import: ["" : 13]> norm (x, y) => (z) { z = LayerNormalization (x, y) }'
    signature = RegionSignature("norm", text, (spec, spec), (spec,))
    assert invalid_body(signature, {"": 16}) is not None
    assert invalid_body(signature, {"": 17}) is None


def test_functions_import_what_the_model_does() -> None:
    before = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        g (float[n, 8] x) => (float[n, 8] z) { a = Tanh (x)  z = Neg (a) }"""
    )
    after = fuse(before)
    (function,) = after.functions
    assert {(item.domain, item.version) for item in function.opset_import} == {("", 18)}
    assert {(one.domain, one.version) for one in after.opset_import} == {
        ("", 18), ("ortkit.fused", 1),
    }  # fmt: skip


@pytest.mark.parametrize("opset", [17, 18, 23])
@pytest.mark.parametrize("optimized", [False, True], ids=["as it is", "optimized"])
def test_a_norm_of_small_numbers_in_half_precision(opset: int, optimized: bool) -> None:
    """ONNX Runtime takes an epsilon in half precision for 1e-5, ten times what this model has."""
    before = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>
        g (float16[n, 3, 8] x, float16[n, 3, 8] y, float16[8] r) => (float16[n, 3, 8] z)
        {{ z = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 1e-6> (x, y, r) }}"""
    )
    after = fuse(before)
    feeds = {
        name: (x / 2**11).astype(np.float16) for name, x in feeds_of(before, {"n": 2}).items()
    }
    total = np.float16(feeds["x"] + feeds["y"]).astype(np.float64)
    square = np.mean(total**2, axis=-1, keepdims=True)
    want = total / np.sqrt(square + 1e-6) * feeds["r"].astype(np.float64)
    (got,) = run(after, feeds, optimized=optimized)
    np.testing.assert_allclose(got, want, rtol=0, atol=2**-8 * np.abs(want).max())
