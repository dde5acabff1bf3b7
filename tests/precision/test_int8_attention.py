"""Attention in models that are lowered to int8: in bfloat16 where processors have tiles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir
import pytest

import ortkit
from ortkit.precision import lowering, whole_model
from ortkit.precision.gains import Gain
from ortkit.precision.unfused import left_over
from ortkit.targets.cpu import native_level
from tests.precision.helpers import floats, model_of, off_by, run
from tests.precision.test_bf16 import attention_model, needs_tiles

DENIED = "lower-precision:int8:a"


@pytest.fixture(autouse=True)
def always_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """No outcome of a test hangs on the time of the machine."""

    def gains(_switched: Path, chained: Sequence[bool], *_: object) -> list[Gain]:
        return [Gain(10.0, 4.0)] * len(chained)

    monkeypatch.setattr("ortkit.precision.choosing.measure_gains", gains)
    monkeypatch.setattr("ortkit.precision.choosing.slower_in_int8", lambda *_: frozenset())
    monkeypatch.setattr(lowering, "fastest", lambda *_: whole_model.Fastest(0, (1.0, 1.0)))
    monkeypatch.setattr(lowering, "time_whole", lambda *_: whole_model.WholeTime(2.0, 1.0, False))


def optimized(**options: object) -> ortkit.Optimized:
    return ortkit.optimize(
        attention_model(),
        ortkit.OptimizeOptions(precision="int8", **options),  # type: ignore[arg-type]
    )


@needs_tiles
def test_attention_takes_bfloat16_beside_products_in_int8(tmp_path: Path) -> None:
    found = optimized()
    report = found.report
    assert report.verification is not None
    assert report.verification.verdict == "yes"
    assert report.precision is not None
    forms = {node.name: node.form for node in report.precision.nodes if node.lowered}
    assert forms == {"q": "int8", "k": "int8", "v": "int8", "z": "int8", "a": "bf16"}
    (attention,) = (region for region in report.regions if "attention" in region.kind)
    assert attention.emitted_as
    assert "Attention" not in report.after.ops
    path = tmp_path / "m.onnx"
    found.save(path)
    x = floats(2, 40, 64, seed=5)
    (wanted,) = run(attention_model(), x=x)
    (plain,) = run(found.model, x=x)
    assert 0 < off_by(wanted, ortkit.Session(path).run({"x": x})["y"]) < 0.05
    assert off_by(wanted, plain) < 0.05


@needs_tiles
def test_attention_that_is_denied_stays_in_float32() -> None:
    found = optimized(denied=frozenset({DENIED}))
    assert found.report.precision is not None
    (one,) = (node for node in found.report.precision.nodes if node.op == "Attention")
    assert (one.form, one.lowered) == ("bf16", False)
    assert found.report.precision.lowered == 4


@needs_tiles
def test_attention_without_kernels_returns_to_float32() -> None:
    found = optimized(kernels="off")
    assert found.report.precision is not None
    (one,) = (node for node in found.report.precision.nodes if node.op == "Attention")
    assert not one.lowered
    assert "no kernel" in one.reason
    assert found.report.after.ops["Attention"] == 1
    assert "Cast" not in found.report.after.ops


@needs_tiles
def test_attention_returns_to_float32_where_the_budget_asks_for_it() -> None:
    full = optimized().report.precision
    assert full is not None
    assert full.error is not None
    budget = 0.15 * full.error
    found = optimized(max_error=budget).report.precision
    assert found is not None
    assert found.lowered < full.lowered
    assert (found.error or 0) <= budget


@pytest.mark.skipif(native_level().endswith("-amx"), reason="the processor has tiles")
def test_processors_without_tiles_leave_attention_in_float32() -> None:
    found = optimized()
    assert [miss.reason for miss in found.report.misses if miss.node.startswith("Attention")]


@pytest.mark.parametrize(
    ("node", "found"),
    [
        ("a = Attention<q_num_heads = 1, kv_num_heads = 1>(x, x, x)", {"a"}),
        ("MADE = Attention<q_num_heads = 1, kv_num_heads = 1>(x, x, x)  a = Relu(MADE)", {"a"}),
        ("b = Attention<q_num_heads = 1, kv_num_heads = 1>(x, x, x)  a = Relu(b)", set()),
        ("a = Relu(x)", set()),
    ],
)
def test_attention_that_became_no_kernel_is_found(node: str, found: set[str]) -> None:
    model = model_of(
        f"g (float[1, 9, 16] x) => (float[1, 9, 16] a) {{ {node} }}",
        '<ir_version: 11, opset_import: ["" : 23]>',
    )
    _rename(model, "MADE", "a/attention")
    assert left_over(model, {"a"}) == found


def _rename(model: ir.Model, old: str, new: str) -> None:
    for each in model.graph:
        for value in each.outputs:
            if value.name == old:
                value.name = new
