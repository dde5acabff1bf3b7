"""The graph being rewritten: its shapes, constants, names, and the edits that keep them true."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import OVERRIDABLE_SINCE_IR, constant_array, is_constant
from ortkit.graph.opsets.raising import carry_out, plan_raise
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.walk import (
    control_nodes_below,
    names_in,
    nodes_below,
    subgraphs,
    take_name,
)
from ortkit.rewrite.log import RewriteLog
from ortkit.rewrite.options import Target

#: Domains whose ops are known to have no effect but their outputs.
PURE_DOMAINS = frozenset({"", "ai.onnx.ml", "com.microsoft"})

#: The pass that a raised opset is reported under.
RAISE_OPSET = "raise-opset"

Attributes = Mapping[str, int | float | str | Sequence[int] | Sequence[float] | ir.TensorProtocol]


@dataclass
class Whole:
    """What the scopes of one model have in common, in addition to its shapes and log."""

    names: set[str]
    """Every name that the model uses."""
    refused_opsets: set[int] = field(default_factory=set)
    """Versions that the model cannot or may not be raised to."""

    @staticmethod
    def of(model: ir.Model) -> Whole:
        """Return what is to be shared by the scopes of `model`."""
        return Whole(names_in(model))


class Scope:
    """One graph with everything nested in it: a model's main graph or a function's body."""

    def __init__(
        self,
        model: ir.Model,
        root: ir.Graph | ir.Function,
        shapes: Shapes,
        log: RewriteLog,
        target: Target,
        whole: Whole | None = None,
    ) -> None:
        """Look at `root` of `model`; all scopes of one model share `whole`."""
        self.model = model
        self.root = root
        self.shapes = shapes
        self.log = log
        self.target = target
        self.touched: list[ir.Node] = []
        """Nodes made, or standing next to an edit, since a sweep last took them."""
        self._whole = whole or Whole.of(model)
        self._names = self._whole.names
        self._shared: dict[tuple[ir.DataType, tuple[int, ...], bytes], ir.Value] = {}
        self._unnamed: set[ir.Value] = set()
        """Values made here that stand for none that was there: their names are made up."""

    @property
    def is_function(self) -> bool:
        """Whether this is a function's body, which may hold no initializer."""
        return isinstance(self.root, ir.Function)

    def nodes(self) -> Iterator[ir.Node]:
        """Yield every node, each before those in its subgraphs; only control flow's are entered.

        What other ops make of their bodies is not known: these stay as they are.
        """
        return control_nodes_below(self.root)

    def opset(self, domain: str = "") -> int:
        """Return the imported version of `domain`, 0 if it is not imported."""
        return self.root.opset_imports.get(domain) or self.model.opset_imports.get(domain, 0)

    def import_domain(self, domain: str, version: int) -> None:
        """Import `domain` where it is not imported yet."""
        self.root.opset_imports.setdefault(domain, version)

    def require_opset(self, version: int) -> bool:
        """Let the model's default domain have this version at least; False if that cannot be.

        The whole model is converted in place, as a rewrite of its own (`raise-opset`); ask right
        before a rewrite that is claimed. Nodes and values keep being the same objects.
        """
        if self.opset() >= version:
            return True
        if version not in self._whole.refused_opsets and not self._raise_opset(version):
            self._whole.refused_opsets.add(version)
        return self.opset() >= version

    def _raise_opset(self, version: int) -> bool:
        about = f"opset {self.opset()}"
        if version > self.target.max_opset:
            reason = f"opset {version} is over the newest allowed, {self.target.max_opset}"
            self.log.miss(RAISE_OPSET, about, reason)
            return False
        plan = plan_raise(self.model, version, self.shapes, self.target.kind)
        if isinstance(plan, str):
            self.log.miss(RAISE_OPSET, about, plan)
            return False
        if all(root is not self.root for root, _ in plan.forms):
            return False  # a function that the model has no more
        if not self.log.claim(RAISE_OPSET, f"to-{version}", "model", about):
            return False
        written = carry_out(plan, self.shapes, self._whole.names)
        # Other scopes look at all of their nodes anyway when it is their turn.
        self.touched.extend(written[id(self.root)])
        return True

    def raise_ir_version(self, version: int) -> None:
        """Let the model have this IR version at least, its initializers staying constants."""
        if self.model.ir_version < OVERRIDABLE_SINCE_IR <= version:
            inputs = self.model.graph.inputs
            for value in [value for value in inputs if value.is_initializer()]:
                inputs.remove(value)
        self.model.ir_version = max(self.model.ir_version, version)

    # ---- reading -----------------------------------------------------------------------

    def is_constant(self, value: ir.Value | None) -> bool:
        """Say whether `value` is the same in every run, and its data is in the model."""
        return value is not None and is_constant(value, self.model)

    def array(self, value: ir.Value | None, limit: int | None = None) -> np.ndarray | None:
        """Return the data of a constant, None if it is none or has over `limit` elements."""
        if value is None or not self.is_constant(value):
            return None
        return constant_array(value, limit)

    # ---- editing -----------------------------------------------------------------------

    def fresh(self, name: str) -> str:
        """Return `name`, or the first of `name_1`, `name_2` ... that the model does not use."""
        return take_name(self._names, name)

    def rename(self, value: ir.Value, name: str) -> None:
        """Give `value`, whose name no nested graph hides, another one; the old one is free."""
        self._names.discard(value.name or "")
        value.name = self.fresh(name)

    def give_up_name(self, value: ir.Value) -> None:
        """Call `value` otherwise: its node now computes something else than the name stood for.

        What it is to replace gives it a name again.
        """
        self.rename(value, f"{value.name}/changed")
        self._unnamed.add(value)

    def swap_names(self, one: ir.Value, other: ir.Value) -> None:
        """Let each have the other's name: what one stood for is now computed by the other."""
        one.name, other.name = other.name, one.name
        if (one in self._unnamed) != (other in self._unnamed):
            self._unnamed ^= {one, other}

    def insert(
        self,
        before: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Attributes | None = None,
        *,
        domain: str = "",
        outputs: int = 1,
        name: str,
    ) -> tuple[ir.Value, ...]:
        """Insert a node before `before` and return its outputs, shapes inferred."""
        node = ir.node(
            op_type, list(inputs), dict(attributes or {}), domain=domain, num_outputs=outputs
        )
        node.name = self.fresh(f"{name}/{op_type}")
        for value in node.outputs:
            value.name = self.fresh(name)
        self._unnamed.update(node.outputs)
        _graph_of(before).insert_before(before, node)
        self.shapes.infer_node(node)
        for value in node.outputs:
            self.note_type(value)
        self.touched.append(node)
        return tuple(node.outputs)

    def note_type(self, value: ir.Value) -> None:
        """Give `value` the element type that shape inference found, where it has none."""
        if value.type is None and (dtype := self.shapes.dtype(value)) is not None:
            value.type = ir.TensorType(dtype)

    def constant(self, array: np.ndarray, name: str, before: ir.Node) -> ir.Value:
        """Return a constant with this data: an initializer, or in a function a Constant node.

        Small equal ones are shared.
        """
        array = np.asarray(array, order="C")
        tensor = ir.tensor(array)
        if self.is_function:
            return self.insert(before, "Constant", [], {"value": tensor}, name=name)[0]
        key = (tensor.dtype, tuple(array.shape), array.tobytes() if array.nbytes <= 256 else b"")
        if (shared := self._shared.get(key)) is not None and shared.is_initializer():
            return shared
        value = self.initializer(tensor, name)
        if array.nbytes <= 256:
            self._shared[key] = value
        return value

    def initializer(self, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        """Add `tensor` to the root graph under a name made from `name`."""
        assert isinstance(self.root, ir.Graph)
        fresh = self.fresh(name)
        value = ir.Value(
            name=fresh,
            shape=ir.Shape(tensor.shape.numpy()),
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )
        tensor.name = fresh
        self.root.register_initializer(value)
        if self.model.ir_version < OVERRIDABLE_SINCE_IR:
            self.root.inputs.append(value)
        return value

    def can_replace(self, old: ir.Value, new: ir.Value) -> str | None:
        """Return None if `new` may stand for `old` everywhere, else the reason why not."""
        if not old.is_graph_output():
            return None
        producer = new.producer()
        if producer is None:
            return f"output {old.name!r} must keep its name, and {new.name!r} is not computed"
        if new.is_graph_output():
            return f"output {old.name!r} must keep its name, and so must {new.name!r}"
        if producer.graph is not _graph_of(_producer(old)):
            return f"output {old.name!r} would be a value of an enclosing graph"
        return None

    def replace(self, old: ir.Value, new: ir.Value) -> None:
        """Let `new` stand for `old` everywhere; a graph output keeps its name and type.

        The caller has asked `can_replace`. What nothing reads any more is removed. A value
        keeps its name when another node computes it: names tell where nodes come from.
        """
        self.shapes.merge(new, old)
        self.touched.extend(old.consumers())
        if old.is_graph_output() or self._takes_name(old, new):
            new.name, old.name = old.name, new.name
            self._unnamed.discard(new)
        if old.is_graph_output():
            new.type, new.shape = old.type, old.shape
            new.doc_string = old.doc_string or new.doc_string
            if old.metadata_props:
                new.metadata_props.update(old.metadata_props)
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        if (producer := new.producer()) is not None:
            self.touched.append(producer)
        if (producer := old.producer()) is not None:
            self.drop_if_unused(producer)

    def _takes_name(self, old: ir.Value, new: ir.Value) -> bool:
        """Say whether `new` may have the name of `old`, which nothing will read any more."""
        if new not in self._unnamed or old in self._unnamed:
            return False
        ends = old.producer(), new.producer()
        # Elsewhere the name may be that of another value.
        return all(node is not None for node in ends) and _graph_of(ends[0]) is _graph_of(ends[1])

    def set_input(self, node: ir.Node, index: int, value: ir.Value | None) -> None:
        """Let input `index` of `node` read `value`; what nothing reads any more is removed."""
        old = node.inputs[index]
        node.replace_input_with(index, value)
        self.touched.append(node)
        if old is not None and (producer := old.producer()) is not None:
            self.drop_if_unused(producer)

    def drop_if_unused(self, node: ir.Node) -> int:
        """Remove `node` if nothing reads it, then what only it read. Returns how many went."""
        pending, removed = [node], 0
        while pending:
            current = pending.pop()
            if current.graph is None or not is_unused(current):
                continue
            sources = [value.producer() for value in captured_values(current)]
            for body in subgraphs(current):
                for inner in nodes_below(body):
                    for i in range(len(inner.inputs)):
                        inner.replace_input_with(i, None)
            current.graph.remove(current, safe=True)
            removed += 1
            for source in sources:
                if source is not None:
                    pending.append(source)
                    self.touched.append(source)
        return removed


def is_unused(node: ir.Node) -> bool:
    """Say whether nothing reads any output of `node`, and it has no effect but its outputs."""
    if node.domain not in PURE_DOMAINS or not node.outputs:
        return False
    return not any(value.uses() or value.is_graph_output() for value in node.outputs)


def captured_values(node: ir.Node) -> Iterable[ir.Value]:
    """Return what `node` and the nodes in its subgraphs read, own inputs first."""
    found = {id(value): value for value in node.inputs if value is not None}
    for body in subgraphs(node):
        for inner in nodes_below(body):
            found.update((id(value), value) for value in inner.inputs if value is not None)
        found.update((id(value), value) for value in body.outputs)
    return found.values()


def _graph_of(node: ir.Node | None) -> ir.Graph:
    assert node is not None and node.graph is not None, "the node is in no graph"
    return node.graph


def _producer(value: ir.Value) -> ir.Node | None:
    return value.producer()
