"""A pass that needs a newer opset gets it for the whole model, or leaves a reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortkit.graph.check.model import check_model
from ortkit.graph.io.text import from_text, to_text
from ortkit.graph.walk import nodes_below, roots
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.pipeline import Pipeline, PipelineResult
from ortkit.rewrite.site import Site

TEXT = """<ir_version: 10, opset_import: ["" : 12, "f" : 1]>
g (float[2, 1, 3] x) => (float[2, 3] y, float[2, 3] z)
{ a = Squeeze <axes = [1]> (x)  b = Relu (a)  y = Mul (b, b)  z = f.own (x) }
<opset_import: ["" : 12], domain: "f">
own (x) => (w) { c = Squeeze <axes = [1]> (x)  d = Relu (c)  w = Mul (d, d) }
"""


@dataclass(frozen=True)
class AskForOpset(NodePass):
    """Replace Relu by Mish, which is not the same: only what surrounds it counts here."""

    name = "ask-for-opset"
    ops: ClassVar[Sequence[str]] = ("Relu",)
    version: int = 18

    def rewrite(self, site: Site) -> None:
        x = site.input(0)
        if x is None or not site.scope.require_opset(self.version) or not site.claim("mish"):
            return
        assert site.opset >= self.version
        # The name that the conversion takes too.
        site.replace(site.op("Mish", [x], name=f"{x.name}/axes"))


def run(
    model: ir.Model,
    version: int = 18,
    *,
    max_opset: int = 23,
    denied: frozenset[str] = frozenset(),
    fuel: int | None = None,
) -> PipelineResult:
    target = RewriteOptions(max_opset=max_opset)
    result = Pipeline((AskForOpset(version),)).run(model, target, denied=denied, fuel=fuel)
    check_model(model)
    assert result.settled
    return result


def ids(result: PipelineResult) -> list[str]:
    return [hit.id for hit in result.log.hits]


def reasons(result: PipelineResult) -> list[tuple[str, str]]:
    return [(miss.pass_name, miss.reason) for miss in result.log.misses]


def test_all_graphs_are_raised_at_once_and_names_stay_apart() -> None:
    model = from_text(TEXT)
    result = run(model)
    assert ids(result) == [
        "raise-opset:to-18:model",
        "ask-for-opset:mish:b",
        "ask-for-opset:mish:d",
    ]
    assert [root.opset_imports[""] for root in roots(model)] == [18, 18]
    for root, letter, result_name in zip(roots(model), "ac", "bd", strict=True):
        nodes = {node.op_type: node for node in nodes_below(root)}
        axes = nodes["Squeeze"].inputs[1]
        assert axes is not None
        assert axes.name == f"{letter}/axes"
        assert nodes["Mish"].name == f"{letter}/axes/Mish"
        assert nodes["Mish"].outputs[0].name == result_name
        assert all(scope.shapes.shape(axes) == (1,) for scope in result.scopes)


def test_no_version_over_the_newest_allowed() -> None:
    model = from_text(TEXT)
    before = to_text(model)
    result = run(model, max_opset=17)
    assert ids(result) == []
    assert reasons(result) == [("raise-opset", "opset 18 is over the newest allowed, 17")]
    assert to_text(model) == before


def test_a_refusal_is_said_once_and_changes_nothing() -> None:
    text = TEXT.replace("y = Mul (b, b)", "y = Mul (b, b)  n = RandomNormalLike (b)")
    model = from_text(text.replace("[2, 3] z)", "[2, 3] z, float[2, 3] n)", 1))
    before = to_text(model)
    result = run(model, 22)
    assert ids(result) == []
    ((by, reason),) = reasons(result)
    assert by == "raise-opset"
    assert "RandomNormalLike of opset 22" in reason
    assert to_text(model) == before


def test_it_can_be_rolled_back() -> None:
    model = from_text(TEXT)
    before = to_text(model)
    result = run(model, denied=frozenset({"raise-opset:to-18:model"}))
    assert ids(result) == []
    assert to_text(model) == before


def test_any_fuel_leaves_a_valid_model() -> None:
    for fuel in range(4):
        model = from_text(TEXT)
        result = run(model, fuel=fuel)
        assert len(result.log.hits) == fuel
        assert model.graph.opset_imports[""] == (18 if fuel else 12)


def test_what_is_new_enough_stays() -> None:
    model = from_text(TEXT)
    run(model)
    again = run(from_text(to_text(model).replace("Mish", "Relu")), 17)
    assert [identifier.partition(":")[0] for identifier in ids(again)] == [
        "ask-for-opset",
        "ask-for-opset",
    ]
