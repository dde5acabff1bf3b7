"""`optimize --precision` on a CPU, from end to end: the budget, the report, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ortkit
from ortkit.errors import CheckError, UserError
from ortkit.graph.io.save import save_model
from ortkit.precision import gains, lowering, whole_model
from ortkit.precision.gains import Gain
from ortkit.precision.processor import weight_bits
from tests.cli.conftest import call  # noqa: F401  a fixture
from tests.precision.helpers import floats, model_of, off_by, run

SIZE = 256
MLP = f"""g (float[n, {SIZE}] x) => (float[n, {SIZE}] y) {{
  a = MatMul(x, w)  b = Add(a, bias)  r = Tanh(b)
  q = MatMul(r, u)  k = MatMul(r, v)  s = Mul(q, k)
  y = MatMul(s, t)
}}"""
CONVOLUTIONS = """g (float[1, 8, 16, 16] x) => (float[1, 8, 16, 16] y) {
  a = Conv(x, w)  r = Relu(a)  y = Conv(r, v)
}"""


@pytest.fixture(autouse=True)
def always_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """No outcome of a test hangs on the time of the machine."""
    monkeypatch.setattr(
        "ortkit.precision.choosing.measure_gains",
        lambda _switched, chained, *_: [Gain(10.0, 4.0)] * len(chained),
    )
    monkeypatch.setattr(lowering, "time_whole", lambda *_: whole_model.WholeTime(2.0, 1.0, False))


def mlp() -> ir.Model:
    weights = {name: floats(SIZE, SIZE, seed=ord(name), scale=SIZE**-0.5) for name in "wuvt"}
    return model_of(MLP, bias=floats(SIZE), **weights)


def convolutions() -> ir.Model:
    return model_of(
        CONVOLUTIONS, w=floats(8, 8, 1, 1, scale=0.3), v=floats(8, 8, 1, 1, seed=1, scale=0.3)
    )


def lowered(model: ir.Model, precision: str, **more: object) -> ortkit.Optimized:
    options = ortkit.OptimizeOptions(
        precision=precision, kernels="off", **more,  # type: ignore[arg-type]
    )  # fmt: skip
    return ortkit.optimize(model, options)


def ops(optimized: ortkit.Optimized) -> dict[str, int]:
    return dict(optimized.report.after.ops)


def test_int8_is_verified_and_reported() -> None:
    found = lowered(mlp(), "int8")
    report = found.report
    assert report.verification is not None
    assert report.verification.verdict == "yes"
    assert ops(found)["com.microsoft::MatMulIntegerToFloat"] == 4
    # What two products read is quantized once.
    assert ops(found)["DynamicQuantizeLinear"] == 3
    assert "MatMul" not in ops(found)
    result = report.precision
    assert result is not None
    assert (result.lowered, len(result.nodes)) == (4, 4)
    assert 0 < (result.error or 0) < 0.05
    assert [point.lowered for point in result.curve] == [0, 1, 2, 3, 4]
    assert [node.reason for node in result.nodes] == [""] * 4
    assert result.is_random
    x = floats(7, SIZE, seed=9)
    assert off_by(run(mlp(), x=x)[0], run(found.model, x=x)[0]) < 0.05


def test_int4_stores_half_a_byte_for_each_weight(tmp_path: Path) -> None:
    found = lowered(mlp(), "int4", max_error=0.5)
    assert ops(found)["com.microsoft::MatMulNBits"] == 4
    found.save(tmp_path / "small.onnx")
    before = save_model(mlp(), tmp_path / "before.onnx").model.stat().st_size
    assert (tmp_path / "small.onnx").stat().st_size < before / 6


def test_small_weights_are_left_in_float32() -> None:
    found = lowered(
        model_of("g (float[n, 8] x) => (float[n, 8] y) { y = MatMul(x, w) }", w=floats(8, 8)),
        "int4",
    )
    assert "com.microsoft::MatMulNBits" not in ops(found)
    assert any("too few for 4 bits" in miss.reason for miss in found.report.misses)


def test_the_budget_returns_the_most_harmful_products() -> None:
    full = lowered(mlp(), "int8").report.precision
    assert full is not None
    budget = 0.7 * (full.error or 0)
    found = lowered(mlp(), "int8", max_error=budget)
    result = found.report.precision
    assert result is not None
    assert 0 < result.lowered < 4
    assert (result.error or 1) <= budget
    returned = [node for node in result.nodes if not node.lowered]
    kept = [node for node in result.nodes if node.lowered]
    assert min(node.harm for node in returned) >= max(node.harm for node in kept)
    assert "returned to float32" in returned[0].reason
    assert ops(found)["MatMul"] == len(returned)
    none = lowered(mlp(), "int8", max_error=1e-6)
    assert none.report.precision is not None
    assert none.report.precision.lowered == 0
    assert none.report.verification is not None
    assert none.report.verification.verdict == "yes"


def test_what_the_trials_did_not_foresee_is_returned_too(monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = lowering.CpuLowering.measure, []

    def worse(self: lowering.CpuLowering, candidate: Path, library: Path | None) -> float:
        asked.append(real(self, candidate, library))
        return 1.0 if len(asked) < 3 else asked[-1]

    monkeypatch.setattr(lowering.CpuLowering, "measure", worse)
    found = lowered(mlp(), "int8")
    assert len(asked) == 3
    assert asked[0] > asked[1] > asked[2]
    assert found.report.precision is not None
    assert 0 < found.report.precision.lowered < 4


def test_a_result_that_is_slower_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "time_whole", lambda *_: whole_model.WholeTime(1.0, 2.0, True))
    found = lowered(mlp(), "int8")
    assert ops(found)["MatMul"] == 4
    result = found.report.precision
    assert result is not None
    slower = "the whole model would be slower"
    assert {node.reason for node in result.nodes} == {slower}, result.notes
    reasons = [miss.reason for miss in found.report.missed("lower-precision")]
    assert reasons == [slower] * 4
    assert result.outputs == ()
    assert result.error is None


def test_products_that_are_no_faster_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ortkit.precision.choosing.measure_gains",
        lambda _switched, chained, *_: [Gain(1.0, 4.0)] * len(chained),
    )
    found = lowered(mlp(), "int8")
    assert ops(found)["MatMul"] == 4
    assert any("no faster, as measured" in miss.reason for miss in found.report.misses)


def test_convolutions_need_ranges(tmp_path: Path) -> None:
    found = lowered(convolutions(), "int8")
    assert any("need --calibrate" in miss.reason for miss in found.report.misses)
    np.savez(tmp_path / "a.npz", x=floats(3, 8, 16, 16))
    found = lowered(convolutions(), "int8", calibrate=tmp_path)
    result = found.report.precision
    assert result is not None
    assert (result.lowered, result.is_random, result.samples) == (2, False, 3)
    assert ops(found)["QuantizeLinear"] == 3
    assert found.report.verification is not None
    assert found.report.verification.verdict == "yes"


def test_old_opsets_are_raised(tmp_path: Path) -> None:
    model = model_of(
        CONVOLUTIONS, '<ir_version: 6, opset_import: ["" : 11]>',
        w=floats(8, 8, 1, 1, scale=0.3), v=floats(8, 8, 1, 1, seed=1, scale=0.3),
    )  # fmt: skip
    np.savez(tmp_path / "a.npz", x=floats(1, 8, 16, 16))
    found = lowered(model, "int8", calibrate=tmp_path)
    assert found.report.precision is not None
    assert found.report.precision.lowered == 2


def test_denied_products_stay() -> None:
    found = lowered(mlp(), "int8", denied=frozenset({"lower-precision:int8:y"}))
    assert ops(found)["MatMul"] == 1
    result = found.report.precision
    assert result is not None
    assert [node.name for node in result.nodes if not node.lowered] == ["y"]


def test_what_cannot_be_measured_is_left() -> None:
    model = model_of(
        "g (float[8, 8] x) => (float[8, 8] y) { n = RandomNormalLike(x)  y = MatMul(n, w) }",
        w=floats(8, 8),
    )
    found = lowered(model, "int8")
    assert found.report.precision is not None
    assert "cannot be measured" in found.report.precision.notes[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"precision": "fp16"}, "computes fp16 in float32 on CPUs"),
        ({"precision": "int8", "target": "cuda"}, "int8 is for CPUs"),
        ({"precision": "int4", "target": "cuda"}, "int4 is for CPUs"),
        ({"max_error": 0.1}, "only a lower precision on a CPU and fp8 have a budget"),
        ({"precision": "bf16", "target": "cuda", "max_error": 0.1}, "have a budget"),
        ({"precision": "int8", "max_error": 0.0}, "against 0; use a number between 0 and 1"),
        ({"precision": "int8", "max_error": 1.5}, "against 1.5"),
        ({"precision": "int4", "calibrate": "x.npz"}, "only int8 is calibrated"),
        ({"precision": "bf16", "calibration": "minmax"}, "only int8 is calibrated"),
        ({"precision": "int8", "max_error": "0.1"}, "max_error: cannot be '0.1'"),
        ({"target": "tpu"}, "target: 'tpu' is not known; use cpu, cuda"),
        ({"precision": "FP16"}, "precision: 'FP16' is not known"),
        ({"verify": "all"}, "verify: 'all' is not known; use True, False, quick, full"),
        ({"verify": "full", "samples": 2}, "take the place of those that verify covers"),
        ({"samples": 1.5}, "samples: cannot be 1.5; use a number, 1 or more"),
        ({"threads": -1}, "threads: cannot be -1; use a number, 0 or more"),
        ({"fuel": "1"}, r"fuel: is of type str, expected int \| None"),
        ({"passes": ["fold-constants"]}, "passes: is of type list, expected str"),
        ({"denied": "abc"}, "denied: is of type str, expected Set"),
        ({"precision": "int8", "precision_io": "convert"}, "half precision only"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        ortkit.OptimizeOptions(**options)  # type: ignore[arg-type]


def test_the_command_shows_the_trade_off(call, tmp_path: Path) -> None:  # noqa: F811
    path = save_model(mlp(), tmp_path / "m.onnx").model
    done = call("optimize", path, "--precision", "int8", "--kernels", "off")
    assert done.code == 0
    assert "4 of 4 products in int8" in done.out
    assert "4 of 4 ← taken" in done.out
    assert "random inputs: give real ones" in done.err
    done = call("optimize", path, "--precision", "int8", "--kernels", "off", "--json")
    found = json.loads(done.out)["precision"]
    assert (found["lowered"], found["is_random"]) == (4, True)
    np.savez(tmp_path / "real.npz", x=floats(3, SIZE))
    done = call(
        "optimize", path, "--precision", "int8", "--kernels", "off", "--inputs",
        tmp_path / "real.npz",
    )  # fmt: skip
    assert "random" not in done.err
    onnx.load(tmp_path / "m.opt.onnx")


def test_bad_calibration_data_are_one_line(call, tmp_path: Path) -> None:  # noqa: F811
    path = save_model(convolutions(), tmp_path / "m.onnx").model
    np.savez(tmp_path / "bad.npz", x=np.full((1, 8, 16, 16), np.nan, np.float32))
    done = call("optimize", path, "--precision", "int8", "--calibrate", tmp_path / "bad.npz")
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert "holds NaN" in done.err
    assert not (tmp_path / "m.opt.onnx").exists()


def test_seven_bits_where_the_processor_sums_in_sixteen() -> None:
    assert weight_bits("x86-64-v3") == 7
    assert weight_bits("x86-64-v4") == 7
    assert weight_bits("x86-64-v4-vnni") == 8
    assert weight_bits("x86-64-v4-bf16") == 8
    assert weight_bits("aarch64") == 8
    assert weight_bits("native") in (7, 8)


def test_gains_are_measured(tmp_path: Path) -> None:
    from ortkit.precision.forms import DynamicInt8
    from ortkit.precision.running import Runner
    from ortkit.precision.trials import switched_model
    from ortkit.verify.exchange import write_feeds
    from tests.precision.helpers import products_of

    model = mlp()
    write_feeds(tmp_path / "0", {"x": floats(64, SIZE)})
    runner = Runner(tmp_path / "trials", [tmp_path / "0"])
    forms = [DynamicInt8(product) for product in products_of(model)]
    path = runner.save(switched_model(model, forms), "switched")
    found = gains.measure_gains(path, [False] * 4, tmp_path / "0", tmp_path / "gains", 1)
    assert not isinstance(found, str)
    assert len(found) == 4
    assert all(item.float_us > 0 and item.lowered_us > 0 for item in found)
    broken = gains.measure_gains(
        tmp_path / "no.onnx", [False], tmp_path / "0", tmp_path / "more", 1
    )
    assert isinstance(broken, str)
    assert broken.startswith("not timed: ")


def test_the_page_shows_the_trade_off(call, tmp_path: Path) -> None:  # noqa: F811
    path = save_model(mlp(), tmp_path / "m.onnx").model
    page = tmp_path / "page.html"
    done = call(
        "optimize", path, "--precision", "int8", "--kernels", "off", "--report", page, "--quiet"
    )
    assert (done.code, done.out) == (0, "")
    text = page.read_text(encoding="utf-8")
    assert "4 of 4 products" in text
    assert "Error that each product makes alone" in text
    assert "<script src=" not in text
    refused = call("optimize", path, "--kernels", "off", "--report", page)
    assert refused.code == 2
    assert "a page shows what --precision costs" in refused.err


def test_trials_that_do_not_run_lower_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> Path:
        raise CheckError("a trial of fewer bits does not run: no memory")

    monkeypatch.setattr("ortkit.precision.running.Runner.run", broken)
    found = lowered(mlp(), "int8")
    result = found.report.precision
    assert result is not None
    assert result.lowered == 0
    assert any("no memory" in note for note in result.notes)
    assert ops(found)["MatMul"] == 4
    assert found.report.verification is not None
    assert found.report.verification.verdict == "yes"
