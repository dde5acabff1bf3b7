"""`scripts/bench cuda`: the products of a model, and what the table says of rows and limits."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx.parser
import onnx_ir as ir
import pytest

from scripts.benches import cuda_modes
from scripts.benches.cuda import _export, _print_models, wrong
from scripts.benches.cuda_limits import Product, products_of
from scripts.benches.cuda_lowered import lines as lowered_lines
from scripts.benches.cuda_models import names
from scripts.benches.cuda_nbits import lines as nbits_lines
from scripts.benches.cuda_nbits import products

_MODEL = """<ir_version: 10, opset_import: ["" : 20]>
g (float16[batch, 12, 2] x) => (float16[m, 3] z)
<float16[2, 1] a = {1, 2}, float16[2, 3] b = {1, 2, 3, 4, 5, 6}, float16[3, 1] c = {1, 2, 3},
 int64[2] flat = {-1, 1}> {
  p = MatMul(x, a) q = MatMul(x, b) s = Add(p, q) t = Transpose<perm = [0, 2, 1]>(q)
  r = MatMul(s, t) f = Reshape(p, flat) z = Gemm<transB = 1>(f, c)
}"""


def test_products_that_read_one_tensor_are_one() -> None:
    model = ir.from_proto(onnx.parser.parse_model(_MODEL))
    found = products_of(model, {"batch": 5})
    assert found == {Product(60, 2, 4): 1, Product(60, 1, 3): 1}
    assert Product(60, 2, 4).operations == 960
    assert products_of(model, {}) == {}


def test_rows_have_the_limit_of_their_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    ways = ("plain", "plain graph", "ortkit", "ortkit graph")
    row = {
        "model": "m", "batch": 8, "operations": 494_500_000_000,
        "optimize": {"seconds": 3.0}, "errors": {"ortkit graph": 1e-3, "plain": 2e-3},
        "milliseconds": {name: [2.0, 1.0, 3.0] for name in ways},
        "plain graph: device": {"microseconds": 4000.0},
        "ortkit graph: device": {"microseconds": 1000.0},
        "products: device": {"microseconds": 812.0},
    }  # fmt: skip
    _print_models([row, {**row, "model": "m, dynamic"}], "NVIDIA H200")
    lines = capsys.readouterr().out.splitlines()
    (header,) = (line for line in lines if "cuBLASLt's products" in line)
    assert header.count("% of peak") == 3
    rows = [line.split() for line in lines if line.strip().startswith("m") and "0.81" in line]
    assert len(rows) == 2  # named sizes have the limit of the same sizes, fixed
    assert round(float(rows[0][-2])) == 50  # of 989 TFLOP/s


def test_a_way_that_computes_something_else_is_not_measured() -> None:
    assert wrong({"plain": 1.4e-3, "ortkit": 2e-3, "ortkit graph": 2e-3}) == ""
    assert wrong({"plain": 0.04, "ortkit": 0.035}) == ""
    assert wrong({"plain": 1e-3, "ortkit": 1.0}) == "ortkit is off by 1.0e+00 of the norm"
    assert "nan" in wrong({"plain": 1e-3, "ortkit": float("nan")})


def test_an_export_is_whole_when_it_is_there(tmp_path: Path) -> None:
    class Exported:
        def export(self, path: Path) -> None:
            assert not (tmp_path / "m.onnx").exists()
            path.write_text("model")
            path.with_name("m.onnx.data").write_text("weights")

    one: Any = Exported()
    _export(one, tmp_path / "m.onnx")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]


def test_models_are_chosen_by_an_expression() -> None:
    assert names("bert|resnet") == ["bert-base, 512 tokens", "resnet50"]
    assert len(names("")) > len(names("net"))


def test_products_in_four_bits() -> None:
    """Each of them has a matrix of its own, and bytes are those of weights and scales."""
    proto = products(64, 16)
    onnx.checker.check_model(proto)
    assert len({node.input[1] for node in proto.graph.node}) == len(proto.graph.output) == 6
    row = {"depth": 64, "columns": 16, "rows": 1, "plain": 3.0, "ortkit": 2.0, "off": 1e-3}
    _, ((_, _, _, _, gain, rate, _),) = nbits_lines([row])
    assert gain == pytest.approx(1.5)
    assert rate == pytest.approx((64 * 16 // 2 + 2 * 32) / 2000)


class _Ended:
    """What a mode's process has written, or how it failed."""

    def __init__(self, microseconds: float | None) -> None:
        self.microseconds = microseconds
        self.returncode, self.stderr = int(microseconds is None), "a\nb: no such kernel\n"


def test_each_mode_of_torch_is_timed_and_the_fastest_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known: dict[str, float | None] = {"freezing": 7.0, "max-autotune": 5.0, "channels last": None}

    def run(command: list[str], *, timeout: float, **_: object) -> _Ended:
        *_, mode, path = command
        if mode not in known:
            raise subprocess.TimeoutExpired(command, timeout)
        ended = _Ended(known[mode])
        if ended.microseconds is not None:
            Path(path).write_text(json.dumps({"microseconds": ended.microseconds}), "utf-8")
        return ended

    monkeypatch.setattr("scripts.benches.cuda_modes.subprocess.run", run)
    simple_namespace = SimpleNamespace(name="net", example=[0])
    found = cuda_modes.time_modes(simple_namespace, [*known, "reduce-overhead"], 3)  # type: ignore[arg-type]
    assert cuda_modes.best_of(found) == "max-autotune"
    assert found["channels last"] == {"failed": "b: no such kernel"}
    assert found["reduce-overhead"] == {"failed": "not ready in 3 s"}
    row = {"model": "net", "batch": 1, "torch modes": found}
    said = {line[2]: (line[3], line[5]) for line in cuda_modes.lines([row])[1]}
    assert said["max-autotune"] == (0.005, "fastest")
    assert said["freezing"] == (0.007, "")
    assert said["channels last"] == (None, "b: no such kernel")
    assert cuda_modes.best_of({"freezing": {"failed": "x"}}) is None


def test_lowered_models_stand_beside_float16() -> None:
    row = {
        "model": "m", "batch": 32, "errors": {"ortkit graph": 1e-3, "fp8 graph": 5e-2},
        "milliseconds": {"ortkit graph": [3.0, 2.0, 9.0], "fp8 graph": [1.5, 1.0, 2.0]},
        "ortkit graph: device": {"microseconds": 2400.0},
        "fp8 graph: device": {"microseconds": 1200.0},
        "fp8: optimize": {"seconds": 20.0, "said": "", "library_bytes": 0},
    }  # fmt: skip
    header, found = lowered_lines([row, {**row, "milliseconds": {"ortkit graph": [1.0]}}], ["fp8"])
    assert len(found) == 1  # a row that was measured without it has none
    assert dict(zip(header, found[0], strict=True))["verification"] == "not run"
    assert found[0][3:9] == [3.0, 1.5, 2.0, 2.4, 1.2, 2.0]
