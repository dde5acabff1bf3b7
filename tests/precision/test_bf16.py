"""bfloat16 on CPUs: products become kernels of packed weights, or stay with the reason."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

import ortkit
from ortkit.errors import UserError
from ortkit.graph.shapes.infer import Shapes
from ortkit.precision import lowering, whole_model
from ortkit.precision.attention import attention_refusal, find_attention
from ortkit.precision.building import Builder, drop_unread, stand_in
from ortkit.precision.packed import emit_packed, rounded_once
from ortkit.targets.cpu import has_bf16, native_level
from tests.precision.helpers import floats, model_of, off_by, products_of, run

needs_bf16 = pytest.mark.skipif(
    not has_bf16(native_level()), reason="the processor has no products of bfloat16"
)
needs_tiles = pytest.mark.skipif(
    not native_level().endswith("-amx"), reason="the processor has no tiles"
)
MLP = """g (float[n, 70] x) => (float[n, 70] y) {
  h = MatMul(x, w)  a = Add(h, b)  t = Gelu(a)
  q = MatMul(t, u)  k = MatMul(t, v)  s = Mul(q, k)  z = MatMul(s, u)  y = Add(z, x)
}"""


@pytest.fixture(autouse=True)
def always_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """No outcome of a test hangs on the time of the machine."""
    monkeypatch.setattr(lowering, "time_whole", lambda *_: whole_model.WholeTime(2.0, 1.0, False))


def mlp() -> ir.Model:
    weights = {name: floats(70, 70, seed=ord(name), scale=70**-0.5) for name in "wuv"}
    return model_of(MLP, b=floats(70), **weights)


@pytest.mark.parametrize(("depth", "columns"), [(64, 32), (70, 33), (5, 3)])
@pytest.mark.parametrize("text", ["y = MatMul(x, w)", "y = Gemm<transB = 1>(x, wt, b)"])
def test_packed_products_round_both_factors(depth: int, columns: int, text: str) -> None:
    w, b, x = floats(depth, columns), floats(1, columns), floats(7, depth, seed=1)
    model = model_of(
        f"g (float[n, {depth}] x) => (float[n, {columns}] y) {{ {text} }}",
        w=w, wt=np.ascontiguousarray(w.T), b=b,
    )  # fmt: skip
    (product,) = products_of(model)
    build = Builder(model)
    made = emit_packed(build, product, rounded_once(build, product.x))
    model.graph.insert_after(product.last, build.take())
    stand_in(product.last.outputs[0], made)
    drop_unread(model.graph, product.last)
    small = [each.astype(ml_dtypes.bfloat16).astype(np.float32) for each in (x, w)]
    wanted = small[0] @ small[1] + (b if "Gemm" in text else 0)
    (found,) = run(model, x=x)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@needs_bf16
def test_products_become_kernels(tmp_path: Path) -> None:
    found = ortkit.optimize(mlp(), ortkit.OptimizeOptions(precision="bf16"))
    report = found.report
    assert report.verification is not None
    assert report.verification.verdict == "yes"
    products = [region for region in report.regions if region.kind == "bf16_product"]
    assert len(products) == 4
    assert all(product.emitted_as for product in products)
    assert "MatMul" not in report.after.ops
    assert report.precision is not None
    assert 0 < (report.precision.error or 0) < 0.02
    # What goes from product to product stays in bfloat16: only the input is rounded alone.
    assert (
        report.after.ops.get("Cast", 0)
        + sum(count for op, count in report.after.ops.items() if "::cast_" in op)
        == 1
    )
    path = tmp_path / "m.onnx"
    found.save(path)
    x = floats(9, 70, seed=5)
    (wanted,) = run(mlp(), x=x)
    session = ortkit.Session(path)
    assert 0 < off_by(wanted, session.run({"x": x})["y"]) < 0.02
    # Without the library its functions compute the same.
    (plain,) = run(found.model, x=x)
    assert off_by(wanted, plain) < 0.02


@needs_bf16
def test_the_budget_holds_for_bf16_too() -> None:
    full = ortkit.optimize(mlp(), ortkit.OptimizeOptions(precision="bf16")).report.precision
    assert full is not None
    budget = 0.8 * (full.error or 0)
    found = ortkit.optimize(mlp(), ortkit.OptimizeOptions(precision="bf16", max_error=budget))
    result = found.report.precision
    assert result is not None
    assert 0 < result.lowered < 4
    assert (result.error or 1) <= budget


ATTENTION = """g (float[n, s, 64] x) => (float[n, s, 64] y) {
  q = MatMul(x, w)  k = MatMul(x, u)  v = MatMul(x, v1)
  a = Attention<q_num_heads = 4, kv_num_heads = 4>(q, k, v)  z = MatMul(a, o)  y = Add(z, x)
}"""
HEADER = '<ir_version: 11, opset_import: ["" : 23]>'


def attention_model() -> ir.Model:
    weights = {
        name: floats(64, 64, seed=ord(name[0]), scale=0.2) for name in ("w", "u", "v1", "o")
    }
    return model_of(ATTENTION, HEADER, **weights)


@needs_tiles
def test_attention_is_computed_in_bfloat16_too(tmp_path: Path) -> None:
    found = ortkit.optimize(attention_model(), ortkit.OptimizeOptions(precision="bf16"))
    report = found.report
    assert report.verification is not None
    assert report.verification.verdict == "yes"
    assert report.precision is not None
    assert report.precision.lowered == 5
    assert [node.op for node in report.precision.nodes if node.name == "a"] == ["Attention"]
    assert "Attention" not in report.after.ops
    # From product to product only bfloat16 is in memory: only the input is rounded alone.
    casts = [op for op in report.after.ops if op == "Cast" or "::cast_" in op]
    assert sum(report.after.ops[op] for op in casts if "attention" not in op) == 1
    path = tmp_path / "m.onnx"
    found.save(path)
    x = floats(2, 40, 64, seed=5)
    (wanted,) = run(attention_model(), x=x)
    (plain,) = run(found.model, x=x)
    assert 0 < off_by(wanted, ortkit.Session(path).run({"x": x})["y"]) < 0.02
    assert off_by(wanted, plain) < 0.02


@needs_tiles
def test_attention_that_is_denied_stays() -> None:
    denied = frozenset({"lower-precision:bf16:a"})
    options = ortkit.OptimizeOptions(precision="bf16", denied=denied)
    found = ortkit.optimize(attention_model(), options)
    assert found.report.precision is not None
    (one,) = (node for node in found.report.precision.nodes if node.op == "Attention")
    assert not one.lowered
    assert found.report.precision.lowered == 4


def refusal_of(text: str, level: str = "x86-64-v4-amx") -> str:
    model = model_of(text, HEADER)
    shapes = Shapes.infer(model)
    (product,) = find_attention(model, shapes)
    return attention_refusal(product, shapes, level)


@pytest.mark.parametrize(
    ("shape", "attributes", "level", "reason"),
    [
        ("n, s, 64", "", "x86-64-v4-amx", ""),
        ("n, 100, 64", ", is_causal = 1", "x86-64-v4-amx", ""),
        ("n, s, 64", "", "x86-64-v4-bf16", "no tiles"),
        ("n, 4, 64", "", "x86-64-v4-amx", "only 4 queries"),
        ("n, s, 40", "", "x86-64-v4-amx", "multiple of 16"),
        ("n, s, 64", ", softcap = 3.0", "x86-64-v4-amx", "soft cap"),
    ],
)
def test_attention_without_a_kernel_says_why(
    shape: str, attributes: str, level: str, reason: str
) -> None:
    text = f"""g (float[{shape}] q, float[{shape}] k, float[{shape}] v) => (float[{shape}] y) {{
      y = Attention<q_num_heads = 4, kv_num_heads = 4{attributes}>(q, k, v)
    }}"""
    found = refusal_of(text, level)
    assert reason in found
    assert bool(reason) == bool(found)


def test_attention_with_more_results_is_left_alone() -> None:
    kind = "float[n, 4, s, 16]"
    text = f"""g ({kind} q, {kind} k, {kind} v, {kind} p, {kind} r) => ({kind} y, {kind} e) {{
      y, e = Attention(q, k, v, , p, r)
    }}"""
    model = model_of(text, HEADER)
    assert not [*find_attention(model, Shapes.infer(model))]


def test_attention_on_other_types_is_left_alone() -> None:
    kind = "float16[n, s, 64]"
    text = f"""g ({kind} q, {kind} k, {kind} v) => ({kind} y) {{
      y = Attention<q_num_heads = 4, kv_num_heads = 4>(q, k, v)
    }}"""
    model = model_of(text, HEADER)
    assert not [*find_attention(model, Shapes.infer(model))]


def test_processors_without_the_instruction_keep_float32() -> None:
    options = ortkit.OptimizeOptions(precision="bf16", cpu="x86-64-v3")
    found = ortkit.optimize(mlp(), options)
    assert found.report.precision is not None
    assert found.report.precision.lowered == 0
    assert "no bfloat16 products" in found.report.precision.notes[0]
    kinds = {value.dtype for value in found.model.graph.initializers.values()}
    assert ir.DataType.FLOAT in kinds
    assert ir.DataType.BFLOAT16 not in kinds


@pytest.mark.parametrize("more", [{"kernels": "off"}, {"level": 1}])
def test_bf16_needs_kernels(more: dict[str, object]) -> None:
    with pytest.raises(UserError, match="computed by kernels of ours"):
        ortkit.OptimizeOptions(precision="bf16", **more)  # type: ignore[arg-type]
