"""bfloat16 on CPUs: products become kernels of packed weights, or stay with the reason."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

import ortkit
from ortkit.errors import UserError
from ortkit.kernels.cpu import has_bf16, native_level
from ortkit.precision import cpu, paying
from ortkit.precision.building import Builder, drop_unread, stand_in
from ortkit.precision.packed import emit_packed, rounded_once
from tests.precision.helpers import floats, model_of, off_by, products_of, run

needs_bf16 = pytest.mark.skipif(
    not has_bf16(native_level()), reason="the processor has no products of bfloat16"
)
MLP = """g (float[n, 70] x) => (float[n, 70] y) {
  h = MatMul(x, w)  a = Add(h, b)  t = Gelu(a)
  q = MatMul(t, u)  k = MatMul(t, v)  s = Mul(q, k)  z = MatMul(s, u)  y = Add(z, x)
}"""


@pytest.fixture(autouse=True)
def always_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """No outcome of a test hangs on the time of the machine."""
    monkeypatch.setattr(cpu, "time_whole", lambda *_: paying.WholeTime(2.0, 1.0, False))


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
    products = [one for one in report.regions if one.kind == "bf16_product"]
    assert len(products) == 4
    assert all(one.emitted_as for one in products)
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


def test_processors_without_the_instruction_keep_float32() -> None:
    options = ortkit.OptimizeOptions(precision="bf16", cpu="x86-64-v3")
    found = ortkit.optimize(mlp(), options)
    assert found.report.precision is not None
    assert found.report.precision.lowered == 0
    assert "no bfloat16 products" in found.report.precision.notes[0]
    assert found.report.after.ops["MatMul"] == 4


@pytest.mark.parametrize("more", [{"kernels": "off"}, {"level": 1}])
def test_bf16_needs_kernels(more: dict[str, object]) -> None:
    with pytest.raises(UserError, match="computed by kernels of ours"):
        ortkit.OptimizeOptions(precision="bf16", **more)  # type: ignore[arg-type]
