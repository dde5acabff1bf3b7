"""A user's own passes: onnxscript rules, objects, and entry points of installed packages."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnxscript.rewriter.pattern import RewriteRule

from ortkit import OptimizeOptions, UserError, optimize
from ortkit.extend.body.rewrite_rules import RewriteRules
from ortkit.passes.select import catalog, select_passes
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.pipeline import Pipeline
from ortkit.rewrite.site import Site

TEXT = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 4] x) => (float[n, 4] y) { t = Neg(x)  u = Neg(t)  v = Abs(u)  y = Relu(v) }"""


def model() -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(TEXT))


def ops(graph: ir.Model) -> list[str]:
    return [node.op_type for node in graph.graph]


def abs_then_relu() -> RewriteRule:
    return RewriteRule(lambda op, x: op.Relu(op.Abs(x)), lambda op, x: op.Abs(x), name="abs-relu")


@dataclass(frozen=True)
class DropAbsOfNeg(NodePass):
    """Abs(Neg(x)) = Abs(x)."""

    name: ClassVar[str] = "drop-abs-of-neg"
    ops: ClassVar[Sequence[str]] = ("Abs",)

    def rewrite(self, site: Site) -> None:
        inner = site.producer(site.input(0), "Neg")
        if inner is not None and site.claim("even"):
            site.set_input(0, inner.inputs[0])


def test_an_onnxscript_rule_is_a_pass() -> None:
    graph = model()
    result = Pipeline((RewriteRules.of(abs_then_relu()),)).run(graph, RewriteOptions())
    assert ops(graph) == ["Neg", "Neg", "Abs"]
    assert [hit.id for hit in result.log.hits] == ["rewrite-rules:abs-relu:rule0"]
    assert result.settled


def test_a_rule_without_fuel_changes_nothing() -> None:
    graph = model()
    result = Pipeline((RewriteRules.of(abs_then_relu()),)).run(graph, RewriteOptions(), fuel=0)
    assert ops(graph) == ["Neg", "Neg", "Abs", "Relu"]
    assert not result.modified


def test_only_rules_are_taken() -> None:
    with pytest.raises(UserError, match="str is no onnxscript RewriteRule"):
        RewriteRules.of("Relu")  # type: ignore[arg-type]


def test_optimize_takes_pass_objects() -> None:
    passes = (DropAbsOfNeg(), RewriteRules.of(abs_then_relu()))
    options = OptimizeOptions(passes="drop-dead-nodes", extra_passes=passes, kernels="off")
    optimized = optimize(model(), options)
    assert ops(optimized.model) == ["Abs"]
    assert optimized.report.verification is not None
    assert optimized.report.verification.verdict == "yes"


def test_a_package_adds_a_pass_by_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "mypasses-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mypasses\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[ortkit.passes]\ndrop-abs-of-neg = mypasses:DropAbsOfNeg\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "mypasses", sys.modules[__name__])
    assert catalog()["drop-abs-of-neg"] == "mypasses:DropAbsOfNeg"
    assert select_passes("drop-abs-of-neg", 1) == (DropAbsOfNeg(),)
    assert select_passes("+drop-abs-of-neg", 1)[-1] == DropAbsOfNeg()


def test_an_unknown_pass_is_named_with_its_neighbour() -> None:
    with pytest.raises(UserError, match="did you mean 'drop-identity'"):
        select_passes("drop-identiti", 1)
