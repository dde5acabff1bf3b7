"""A pass that raises is left out and reported; the run goes on with a whole model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from ortkit import OptimizeOptions, optimize
from ortkit.cli.main import run
from ortkit.errors import UserError
from ortkit.graph.check.model import check_model
from ortkit.passes.drop_identity import DropIdentity
from ortkit.rewrite.failures import PassError
from ortkit.rewrite.log import RewriteLog
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.passes import GraphPass, ModelPass, NodePass, Pass
from ortkit.rewrite.pipeline import Pipeline
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site

TEXT = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 4] x) => (float[n, 4] y, float[n, 4] z) {
  a = Relu(x)   i = Identity(a)   b = Neg(i)   y = Relu(b)   z = Softplus(b)
}"""


@dataclass(frozen=True)
class HalfAnEdit(NodePass):
    """Puts a wrong node in front of others, and then raises."""

    name: ClassVar[str] = "half-an-edit"
    ops: ClassVar[Sequence[str]] = ("Neg",)

    def rewrite(self, site: Site) -> None:
        assert site.claim("half")
        site.replace(site.op("Exp", [site.input(0)]), site.input(0))
        raise IndexError("tuple index out of range")


@dataclass(frozen=True)
class RaisingGraphPass(GraphPass):
    name: ClassVar[str] = "raising-graph-pass"

    def run(self, scope: Scope) -> None:
        scope.root[0].replace_input_with(0, None)
        raise KeyError("x")


@dataclass(frozen=True)
class RaisingModelPass(ModelPass):
    name: ClassVar[str] = "raising-model-pass"

    def run(self, model: ir.Model, log: RewriteLog) -> None:
        model.graph.outputs.pop()
        raise AssertionError


@dataclass(frozen=True)
class NeverSettles(NodePass):
    name: ClassVar[str] = "never-settles"
    ops: ClassVar[Sequence[str]] = ("Neg",)

    def rewrite(self, site: Site) -> None:
        if site.claim("again"):
            site.set_attribute("count", len(site.scope.log.hits))


RAISING = (HalfAnEdit(), RaisingGraphPass(), RaisingModelPass(), NeverSettles())


@pytest.fixture(autouse=True)
def as_users_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a pass that raises be left out, as outside of tests."""
    monkeypatch.delenv("ORTKIT_PASS_ERRORS")


@pytest.mark.parametrize("raising", RAISING, ids=lambda one: one.name)
def test_a_pass_that_raises_is_left_out_and_the_others_are_not(raising: Pass) -> None:
    options = OptimizeOptions(extra_passes=(raising,), kernels="off")
    optimized = optimize(onnx.parser.parse_model(TEXT), options)
    report = optimized.report
    check_model(optimized.model)
    assert report.verification is not None
    assert report.verification.verdict == "yes", report.verification.reason
    assert report.rolled_back == ()
    assert [failed.name for failed in report.failed_passes] == [raising.name]
    kept = [node.op_type for node in optimized.model.graph]
    assert sorted(kept) == ["Neg", "Relu", "Relu", "Softplus"]
    assert report.rewrites_by_pass() == {"drop-identity": 1}


def test_all_that_raise_are_left_out_and_the_report_says_where() -> None:
    options = OptimizeOptions(extra_passes=RAISING, kernels="off")
    content = json.loads(
        json.dumps(optimize(onnx.parser.parse_model(TEXT), options).report.to_json())
    )
    failed = {each["name"]: each for each in content["failed_passes"]}
    assert set(failed) == {item.name for item in RAISING}
    first = failed["half-an-edit"]
    assert first["exception"] == "IndexError"
    assert first["message"] == "tuple index out of range"
    assert first["node"] == "Neg 'b'"
    assert first["where"].startswith("tests/e2e/test_failed_passes.py:")


@pytest.mark.parametrize("error", [MemoryError(), OSError("gone"), UserError("not this way")])
def test_what_no_pass_is_to_blame_for_ends_the_run(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: DropIdentity, site: Site) -> None:
        raise error

    monkeypatch.setattr(DropIdentity, "rewrite", fail)
    with pytest.raises(type(error)):
        optimize(onnx.parser.parse_model(TEXT), OptimizeOptions(kernels="off"))


def test_a_pipeline_by_itself_raises() -> None:
    """What the tests of single passes rely on."""
    model = ir.from_proto(onnx.parser.parse_model(TEXT))
    with pytest.raises(PassError, match="half-an-edit") as caught:
        Pipeline((HalfAnEdit(),)).run(model, RewriteOptions())
    assert isinstance(caught.value.__cause__, IndexError)


def test_tests_see_what_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTKIT_PASS_ERRORS", "raise")
    options = OptimizeOptions(extra_passes=(HalfAnEdit(),), kernels="off")
    with pytest.raises(PassError):
        optimize(onnx.parser.parse_model(TEXT), options)


@pytest.mark.parametrize("place", ["find_chains", "lower_region"])
def test_planning_kernels_may_raise(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tvm")

    def fail(*arguments: object, **options: object) -> object:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(f"ortkit.fusion.plan.{place}", fail)
    chain = "<ir_version: 10, opset_import: ['' : 20]> g (float[64, 512] x) => (float[64, 512] y)"
    body = "{ a = Exp(x) b = Neg(a) c = Tanh(b) d = Mul(c, x) y = Softmax(d) }"
    optimized = optimize(onnx.parser.parse_model(chain.replace("'", '"') + body))
    assert optimized.library is None
    assert [failed.name for failed in optimized.report.failed_passes] == ["kernels"]
    assert "ZeroDivisionError" in optimized.report.kernel_note
    assert optimized.report.verification is not None
    assert optimized.report.verification.verdict == "yes"


@pytest.mark.parametrize(("flags", "code"), [((), 0), (("--strict",), 1), (("--quiet",), 0)])
def test_the_command_says_so_in_one_line(
    flags: Sequence[str],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(self: DropIdentity, site: Site) -> None:
        raise IndexError("list index\nout of range")

    monkeypatch.setattr(DropIdentity, "rewrite", fail)
    source, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), source)
    command = ["optimize", str(source), "-o", str(made), "--kernels", "off", *flags]
    assert run(command) == code
    lines = [line for line in capsys.readouterr().err.splitlines() if "drop-identity" in line]
    assert len(lines) == 1
    assert "IndexError: list index out of range" in lines[0]
    assert "report it" in lines[0]
    onnx.checker.check_model(onnx.load(made))
