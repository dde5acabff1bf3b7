"""What values are called after rewrites: names tell where a node comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortkit.graph.check.model import check_model
from ortkit.graph.io.text import from_text
from ortkit.graph.walk import nodes_below
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.pipeline import Pipeline
from ortkit.rewrite.site import Site

HEAD = '<ir_version: 10, opset_import: ["" : 18]>'


@dataclass(frozen=True)
class AtRelu(NodePass):
    """Do at every Relu what the test wants."""

    do: Callable[[Site], None] = lambda site: None
    name: ClassVar[str] = "at-relu"
    ops: ClassVar[Sequence[str]] = ("Relu",)

    def rewrite(self, site: Site) -> None:
        if site.claim("rule"):
            self.do(site)


def names(body: str, do: Callable[[Site], None], inputs: str = "float[2, 3] x") -> list[str]:
    """Return `Op name` for each node, after the pass."""
    model = from_text(f"{HEAD} g ({inputs}) => (float[2, 3] y) {{ {body} }}")
    Pipeline((AtRelu(do),)).run(model, RewriteOptions())
    check_model(model)
    nodes = nodes_below(model.graph)
    return [f"{node.op_type} {node.outputs[0].name}" for node in nodes]


def with_exp(site: Site) -> None:
    site.replace(site.op("Exp", [site.input(0)]))


def test_what_is_made_takes_the_name() -> None:
    assert names("a = Abs(x) r = Relu(a) y = Neg(r)", with_exp) == ["Abs a", "Exp r", "Neg y"]


def test_what_was_there_keeps_its_own() -> None:
    def drop(site: Site) -> None:
        value = site.input(0)
        assert value is not None
        site.replace(value)

    assert names("a = Abs(x) r = Relu(a) y = Neg(r)", drop) == ["Abs a", "Neg y"]


def test_a_name_is_handed_on() -> None:
    def again(site: Site) -> None:
        made = site.op("Exp", [site.input(0)])
        site.replace(made)
        node = made.producer()
        assert node is not None
        other = Site(site.scope, node, "again")
        other.replace(other.op("Cos", [other.input(0)]))

    body = "a = Abs(x) r = Relu(a) y = Neg(r)"
    assert names(body, again) == ["Abs a", "Cos r", "Neg y"]


def test_steps_on_the_way_have_names_of_their_own() -> None:
    def several(site: Site) -> None:
        step = site.op("Exp", [site.input(0)])
        site.replace(site.op("Cos", [step]))

    assert names("r = Relu(x) y = Neg(r)", several) == ["Exp r/rule", "Cos r", "Neg y"]


def test_one_value_in_the_place_of_two_has_the_name_of_the_first() -> None:
    made: list[ir.Value] = []

    def shared(site: Site) -> None:
        if not made:
            made.append(site.op("Exp", [site.input(0)]))
        site.replace(made[0])

    assert names("a = Relu(x) b = Relu(x) y = Add(a, b)", shared) == ["Exp a", "Add y"]


def test_a_name_does_not_leave_its_branch() -> None:
    """The other branch has it too: outside it would be seen in both."""
    body = (
        "y = If (c) <then_branch = t () => (q) { r = Relu(x) q = Neg(r) }, "
        "else_branch = e () => (p) { r = Abs(x) p = Neg(r) }>"
    )

    def outside(site: Site) -> None:
        holder = next(iter(site.scope.root))
        site.replace(site.scope.insert(holder, "Exp", [site.input(0)], name="out")[0])

    found = names(body, outside, "float[2, 3] x, bool c")
    assert found == ["Exp out", "If y", "Neg q", "Abs r", "Neg p"]


def test_a_value_that_comes_to_mean_something_else_takes_the_name_of_that() -> None:
    def into_input(site: Site) -> None:
        value = site.input(0)
        assert value is not None
        site.scope.give_up_name(value)
        site.replace(value)

    body = "a = Abs(x) r = Relu(a) y = Neg(r)"
    assert names(body, into_input) == ["Abs r", "Neg y"]


def test_a_value_that_comes_to_mean_something_else_loses_its_name() -> None:
    def give_up(site: Site) -> None:
        value = site.input(0)
        assert value is not None
        site.scope.give_up_name(value)
        with_exp(site)

    body = "a = Abs(x) r = Relu(a) y = Neg(r)"
    assert names(body, give_up) == ["Abs a/changed", "Exp r", "Neg y"]
