"""What a transaction did can be undone: at once whatever it was, later if it stands alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from ortkit.graph.io.text import from_text, to_text
from ortkit.graph.shapes.infer import Shapes
from ortkit.rewrite.log import RewriteLog
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site, describe
from ortkit.rewrite.transaction import Transaction

TEXT = """<ir_version: 10, opset_import: ["" : 18]>
g (float[n, 4] x, bool c) => (float[n, 4] y, float[n, 4] z, float[n, 2] p)
<float[4] w = {1, 2, 3, 4}, float[4] v = {5, 6, 7, 8}> {
  a = Relu (x)  b = Mul (a, w)  d = Clip (b)  e = Add (d, v)
  p, q = Split <axis = 1, num_outputs = 2> (e)
  i = If (c) <then_branch = t () => (float[n, 4] u) { u = Add (e, w) },
              else_branch = f () => (float[n, 4] r) { r = Identity (d) }>
  y = Tanh (i)  h = Concat <axis = 1> (q, p)  k = Softmax <axis = 1> (h)  z = Neg (k)
}"""


def scope_of(text: str = TEXT) -> Scope:
    model = from_text(text)
    return Scope(model, model.graph, Shapes.infer(model), RewriteLog(), RewriteOptions())


def node(scope: Scope, name: str) -> ir.Node:
    return next(item for item in scope.nodes() if name in [value.name for value in item.outputs])


def value(scope: Scope, name: str) -> ir.Value:
    return next(output for output in node(scope, name).outputs if output.name == name)


class RandomEdits:
    """Edits a scope in all the ways there are; the results are nothing that makes sense."""

    def __init__(self, scope: Scope, seed: int) -> None:
        self.scope = scope
        self.random = np.random.default_rng(seed)

    def edit(self, count: int) -> None:
        edits = (
            self.insert, self.insert, self.replace, self.replace, self.set_input, self.attribute,
            self.rename, self.initializer, self.drop, self.claim, self.declare, self.resize,
        )  # fmt: skip
        for _ in range(count):
            edits[self.random.integers(len(edits))]()

    def node(self) -> ir.Node:
        nodes = list(self.scope.root)
        return nodes[self.random.integers(len(nodes))]

    def value(self) -> ir.Value:
        return self.node().outputs[0]

    def insert(self) -> ir.Value:
        at, inputs = self.node(), [self.value(), self.value()]
        is_after = bool(self.random.integers(2))
        return self.scope.insert(at, "Add", inputs, {"t": 3}, name="made", after=is_after)[0]

    def replace(self) -> None:
        old = self.value()
        new = self.insert() if self.random.integers(2) else self.value()
        but = new.producer() if self.random.integers(2) else None
        if old is not new and self.scope.can_replace(old, new) is None:
            self.scope.replace(old, new, but)

    def set_input(self) -> None:
        at = self.node()
        self.scope.set_input(at, int(self.random.integers(len(at.inputs) + 2)), self.value())

    def resize(self) -> None:
        at = self.node()
        self.scope.set_inputs(at, list(at.inputs[:1]))

    def attribute(self) -> None:
        choices = (2, None, "text", [1, 2])
        name = ("axis", "new")[self.random.integers(2)]
        self.scope.set_attribute(self.node(), name, choices[self.random.integers(4)])

    def rename(self) -> None:
        one = self.value()
        if one.is_graph_output():
            return
        if self.random.integers(2):
            self.scope.give_up_name(one)
        else:
            self.scope.leave_out(one)

    def initializer(self) -> None:
        data = self.random.integers(0, 3, 2)
        self.scope.set_input(self.node(), 0, self.scope.constant(data, "data", self.node()))

    def drop(self) -> None:
        held = list(self.scope.model.graph.initializers.values())
        if held:
            self.scope.drop_initializer(held[self.random.integers(len(held))])

    def claim(self) -> None:
        site = Site(self.scope, self.node(), "a-pass")
        site.claim("rule")
        self.scope.forget_misses(describe(site.node))
        self.scope.import_domain("com.example", 1)

    def declare(self) -> None:
        one = self.value()
        if not one.is_graph_output():
            self.scope.declare(one, ir.DataType.FLOAT, ir.Shape([1, 2]))


def state(scope: Scope) -> tuple[object, ...]:
    """Return all that an edit may change; initializers have no order."""
    graph = scope.model.graph
    held = dict(sorted(graph.initializers.items()))
    graph.initializers.clear()
    graph.initializers.update(held)
    known = [
        (each.name, scope.shapes.shape(each), str(each.type), str(each.shape))
        for item in scope.nodes()
        for each in item.outputs
    ]
    imports = dict(scope.root.opset_imports)
    return to_text(scope.model), known, imports, list(scope.log.hits), dict(scope.log.misses)


@pytest.mark.parametrize("seed", range(60))
def test_any_edits_are_undone(seed: int) -> None:
    scope = scope_of()
    scope.log.miss("another", describe(node(scope, "b")), "a reason")
    before = state(scope)
    with scope.transaction() as transaction:
        RandomEdits(scope, seed).edit(1 + seed % 40)
    after = state(scope)
    assert transaction.is_empty == (after == before)
    transaction.undo()
    assert state(scope) == before
    assert transaction.is_empty
    # Names are free again, and constants are not shared with what is gone.
    RandomEdits(scope, seed).edit(1 + seed % 40)
    assert state(scope) == after


def test_an_exception_undoes_what_was_begun() -> None:
    scope = scope_of()
    before = state(scope)
    with pytest.raises(RuntimeError, match="enough"), scope.transaction():
        RandomEdits(scope, 3).edit(20)
        assert state(scope) != before
        raise RuntimeError("enough")
    assert state(scope) == before
    with scope.transaction() as transaction:
        pass
    assert transaction.is_empty


def twice(scope: Scope, name: str = "d") -> Transaction:
    """Let a sum stand for the value of this name."""
    with scope.transaction() as transaction:
        site = Site(scope, node(scope, name), "double")
        assert site.claim("sum")
        half = site.constant(np.array(0.5, np.float32))
        (x,) = site.node.inputs[:1]
        site.replace(site.op("Add", [site.op("Mul", [x, half]), site.op("Mul", [x, half])]))
    return transaction


def test_what_was_done_since_stays() -> None:
    """Readers of the result read the old one; the old one reads what stands for its inputs."""
    scope = scope_of()
    transaction = twice(scope)
    last = node(scope, "e")
    scope.replace(value(scope, "e"), scope.insert(last, "Sub", last.inputs, name="e/other")[0])
    first = node(scope, "b")
    scope.replace(value(scope, "b"), scope.insert(first, "Div", first.inputs, name="b/other")[0])
    assert transaction.can_undo() is None
    transaction.undo()
    text = to_text(scope.model)
    assert "b = Div (a, w)" in text
    assert "d = Clip (b)" in text
    assert "e = Sub (d, v)" in text
    assert "r = Identity (d)" in text
    assert not scope.log.hits
    assert len(scope.model.graph.initializers) == 2


def test_hits_of_others_stay() -> None:
    scope = scope_of()
    transaction = twice(scope)
    assert Site(scope, node(scope, "k"), "double").claim("sum")
    transaction.undo()
    assert [hit.id for hit in scope.log.hits] == ["double:sum:k"]


def take_a_part(scope: Scope) -> None:
    made = node(scope, "d").inputs[0]
    assert made is not None
    maker = made.producer()
    assert maker is not None
    scope.replace(made, scope.insert(maker, "Div", maker.inputs, name="other")[0])


def read_a_part(scope: Scope) -> None:
    scope.set_input(node(scope, "z"), 0, node(scope, "d").inputs[0])


def lose_an_input(scope: Scope) -> None:
    """What the removed node has read is computed no more."""
    for one in list(node(scope, "d").inputs):
        maker = None if one is None else one.producer()
        assert maker is not None
        scope.set_input(maker, 0, value(scope, "a"))


@pytest.mark.parametrize(
    ("since", "reason"),
    [
        (take_a_part, "a node that it inserted is gone"),
        (read_a_part, "others read what only it computes"),
        (lose_an_input, "what a node that it removed has read is gone"),
    ],
)
def test_what_others_built_on_stays(since: Callable[[Scope], None], reason: str) -> None:
    scope = scope_of()
    transaction = twice(scope)
    since(scope)
    refused = transaction.can_undo()
    assert refused is not None
    assert refused.reason == reason


def apart(scope: Scope) -> Transaction:
    """Let a node compute something else, and another one make of it what it did."""
    with scope.transaction() as transaction:
        softmax, old = node(scope, "k"), value(scope, "k")
        (back,) = scope.insert(softmax, "Exp", [old], name="back", after=True)
        scope.replace(old, back, but=back.producer())
        scope.set_attribute(softmax, "axis", 0)
        scope.set_input(softmax, 0, value(scope, "e"))
    return transaction


def set_again(scope: Scope) -> None:
    scope.set_input(node(scope, "back"), 0, value(scope, "d"))


def attribute_again(scope: Scope) -> None:
    scope.set_attribute(node(scope, "back"), "axis", 1)


def read_what_is_left(scope: Scope) -> None:
    scope.set_input(node(scope, "y"), 0, value(scope, "back"))


def remove_it(scope: Scope) -> None:
    scope.replace(value(scope, "back"), value(scope, "e"))


@pytest.mark.parametrize(
    ("since", "reason"),
    [
        (set_again, "a node that it changed is gone, or was changed since"),
        (attribute_again, "a node that it changed is gone, or was changed since"),
        (read_what_is_left, "others read what was left of a value that it replaced"),
        (remove_it, "what it replaced is gone"),
    ],
)
def test_what_was_changed_again_stays(since: Callable[[Scope], None], reason: str) -> None:
    scope = scope_of()
    before = to_text(scope.model)
    transaction = apart(scope)
    assert transaction.can_undo() is None
    since(scope)
    refused = transaction.can_undo()
    assert refused is not None
    assert refused.reason == reason
    scope = scope_of()
    apart(scope).undo()
    assert to_text(scope.model) == before


def test_the_last_transaction_is_undone_first() -> None:
    scope = scope_of()
    before = state(scope)
    first = twice(scope)
    second = twice(scope, "k")
    with scope.transaction() as third:
        part = node(scope, "d").inputs[0]
        assert part is not None
        site = Site(scope, part.producer() or node(scope, "d"), "third")
        site.replace(site.op("Div", list(site.node.inputs)))
    assert first.can_undo() is not None
    for one in (third, second, first):
        assert one.can_undo() is None
        one.undo()
    assert state(scope) == before


def test_a_dropped_initializer_is_there_again() -> None:
    scope = scope_of()
    transaction = twice(scope, "e")
    weight = scope.model.graph.initializers["v"]
    scope.drop_initializer(weight)
    assert "v" not in scope.model.graph.initializers
    transaction.undo()
    assert scope.model.graph.initializers["v"] is weight
