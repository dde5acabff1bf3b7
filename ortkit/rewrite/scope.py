"""The graph being rewritten: its shapes, constants, names, and the edits that keep them true."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from ortkit.rewrite.edits import (
    REPLACED_BY,
    AttributeSet,
    Edit,
    Independent,
    InputsSet,
    Inserted,
    Replaced,
)
from ortkit.rewrite.log import RewriteLog
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.transaction import Transaction
from ortkit.targets.catalog import load
from ortkit.targets.target import Target
from ortkit.targets.traits import Traits

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
        options: RewriteOptions,
        whole: Whole | None = None,
    ) -> None:
        """Look at `root` of `model`; all scopes of one model share `whole`."""
        self.model = model
        self.root = root
        self.shapes = shapes
        self.log = log
        self.options = options
        self.touched: list[ir.Node] = []
        """Nodes made, or standing next to an edit, since a sweep last took them."""
        self.replacements = 0
        """How often a value came to stand for another one."""
        self._whole = whole or Whole.of(model)
        self._names = self._whole.names
        self._shared: dict[tuple[ir.DataType, tuple[int, ...], bytes], ir.Value] = {}
        self._unnamed: set[ir.Value] = set()
        """Values made here that stand for none that was there: their names are made up."""
        self._open: Transaction | None = None

    @property
    def target(self) -> Target:
        """What the result should be fast on."""
        return self.options.target

    @property
    def traits(self) -> Traits:
        """What that has."""
        return self.options.target.traits

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
        if domain not in self.root.opset_imports:
            self.root.opset_imports[domain] = version
            self._on_undo(lambda: self.root.opset_imports.pop(domain))

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
        assert self._open is None, "what converts the whole model cannot be undone"
        about = f"opset {self.opset()}"
        if version > self.options.max_opset:
            reason = f"opset {version} is over the newest allowed, {self.options.max_opset}"
            self.log.miss(RAISE_OPSET, about, reason)
            return False
        plan = plan_raise(self.model, version, self.shapes, load(self.traits.without_kernel))
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

    # ---- undoing -----------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Note all edits within the `with`, so that they can be undone; an exception undoes them.

        Transactions do not nest, and the opset and the IR version stay as they are.
        """
        assert self._open is None, "a transaction is open"
        opened = self._open = Transaction(self.log, self.forget)
        try:
            yield opened
        except BaseException:
            self._open = None
            opened.close(self.replacements)
            opened.undo()
            raise
        self._open = None
        opened.close(self.replacements)

    def _note(self, edit: Edit) -> None:
        if self._open is not None:
            self._open.note(edit)

    def _on_undo(self, take_back: Callable[[], object]) -> None:
        self._note(Independent(take_back))

    def forget(self, node: ir.Node) -> None:
        """Free the names of a node that was removed, and forget what is known of its outputs."""
        self._unnamed.difference_update(node.outputs)
        self._names.difference_update(
            (node.name or "", *(value.name or "" for value in node.outputs))
        )
        for value in node.outputs:
            self.shapes.learn(value, None)

    # ---- editing -----------------------------------------------------------------------

    def fresh(self, name: str) -> str:
        """Return `name`, or the first of `name_1`, `name_2` ... that the model does not use."""
        return take_name(self._names, name)

    def rename(self, value: ir.Value, name: str) -> None:
        """Give `value`, whose name no nested graph hides, another one; the old one is free."""
        before, is_unnamed = value.name, value in self._unnamed
        self._on_undo(lambda: self._name(value, before or "", is_unnamed=is_unnamed))
        self._names.discard(before or "")
        value.name = self.fresh(name)

    def _name(self, value: ir.Value, name: str, *, is_unnamed: bool) -> None:
        self._names.discard(value.name or "")
        self._names.add(name)
        value.name = name
        (self._unnamed.add if is_unnamed else self._unnamed.discard)(value)

    def give_up_name(self, value: ir.Value) -> None:
        """Call `value` otherwise: its node now computes something else than the name stood for.

        What it is to replace gives it a name again.
        """
        self.rename(value, f"{value.name}/changed")
        self._unnamed.add(value)

    def leave_out(self, value: ir.Value) -> None:
        """Let a node not compute an output that nothing reads."""
        before = value.name
        self._on_undo(lambda: setattr(value, "name", before))
        value.name = ""

    def swap_names(self, one: ir.Value, other: ir.Value) -> None:
        """Let each have the other's name: what one stood for is now computed by the other."""
        one.name, other.name = other.name, one.name
        if (one in self._unnamed) != (other in self._unnamed):
            self._unnamed ^= {one, other}
        self._on_undo(lambda: self.swap_names(one, other))

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
        called: str = "",
        after: bool = False,
    ) -> tuple[ir.Value, ...]:
        """Insert a node before `before`, or after it, and return its outputs, shapes inferred.

        Its outputs are called `name`, it itself `called`, or by `name` and its operator.
        """
        node = ir.node(
            op_type, list(inputs), dict(attributes or {}), domain=domain, num_outputs=outputs
        )
        node.name = self.fresh(called or f"{name}/{op_type}")
        for value in node.outputs:
            value.name = self.fresh(name)
        self._unnamed.update(node.outputs)
        graph = _graph_of(before)
        (graph.insert_after if after else graph.insert_before)(before, node)
        self._note(Inserted(node))
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
        self._on_undo(lambda: self._give_back(value))
        return value

    def _give_back(self, value: ir.Value) -> None:
        """Drop an initializer, which stays if others came to read it."""
        self.drop_initializer(value)
        if not value.is_initializer():
            self._names.discard(value.name or "")

    def drop_initializer(self, value: ir.Value) -> None:
        """Remove an initializer that nothing reads and no caller can give."""
        graph = value.graph
        is_read = bool(value.uses()) or value.is_graph_output()
        is_given = value.is_graph_input() and self.model.ir_version >= OVERRIDABLE_SINCE_IR
        if graph is None or not value.is_initializer() or is_read or is_given:
            return
        inputs = list(graph.inputs)
        if value.is_graph_input():
            graph.inputs.remove(value)
            self._on_undo(lambda: graph.inputs.insert(inputs.index(value), value))
        graph.initializers.pop(value.name or "")
        self._on_undo(lambda: graph.register_initializer(value))

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

    def replace(self, old: ir.Value, new: ir.Value, but: ir.Node | None = None) -> None:
        """Let `new` stand for `old` everywhere; a graph output keeps its name and type.

        The caller has asked `can_replace`. What nothing reads any more is removed. A value
        keeps its name when another node computes it: names tell where nodes come from.

        Args:
            old: What was computed.
            new: What computes the same.
            but: A node that goes on reading `old`, from which it makes `new`.
        """
        fact = self.shapes.fact(new)
        self._on_undo(lambda: self.shapes.learn(new, fact))
        self.shapes.merge(new, old)
        self.touched.extend(old.consumers())
        is_output = old.is_graph_output()
        if is_output or self._takes_name(old, new):
            self.swap_names(old, new)
        if is_output:
            self._declare(new, old.type, old.shape)
            doc_string, metadata = new.doc_string, dict(new.metadata_props)
            self._on_undo(lambda: _document(new, doc_string, metadata))
            _document(new, old.doc_string or doc_string, metadata | dict(old.metadata_props))
        self._read_instead(old, new, but)
        if (producer := new.producer()) is not None:
            self.touched.append(producer)
        if (producer := old.producer()) is not None:
            self.drop_if_unused(producer)

    def _read_instead(self, old: ir.Value, new: ir.Value, but: ir.Node | None) -> None:
        """Let all that reads or returns `old`, but for one node, read or return `new`."""
        uses = tuple((use.node, use.idx) for use in old.uses() if use.node is not but)
        others = () if self._open is None else new.uses()
        graphs = [old.graph] if old.graph is not None and old.is_graph_output() else []
        outputs = tuple(
            (graph, position)
            for graph in graphs
            for position, value in enumerate(graph.outputs)
            if value is old
        )
        for node, index in uses:
            node.replace_input_with(index, new)
        for graph, position in outputs:
            graph.outputs[position] = new
        self.replacements += 1
        old.meta[REPLACED_BY] = new, self.replacements
        self._note(Replaced(old, new, uses, frozenset(others), outputs))

    def _takes_name(self, old: ir.Value, new: ir.Value) -> bool:
        """Say whether `new` may have the name of `old`, which nothing will read any more."""
        if new not in self._unnamed or old in self._unnamed:
            return False
        ends = old.producer(), new.producer()
        # Elsewhere the name may be that of another value.
        return all(node is not None for node in ends) and _graph_of(ends[0]) is _graph_of(ends[1])

    def set_input(self, node: ir.Node, index: int, value: ir.Value | None) -> None:
        """Let input `index` of `node` read `value`; what nothing reads any more is removed."""
        inputs = [*node.inputs, *[None] * (index + 1 - len(node.inputs))]
        inputs[index] = value
        self.set_inputs(node, inputs)

    def set_inputs(self, node: ir.Node, values: Sequence[ir.Value | None]) -> None:
        """Let `node` read `values`, as many as there are; what nothing reads then is removed."""
        before = node.inputs
        node.resize_inputs(len(values))
        for index, value in enumerate(values):
            if node.inputs[index] is not value:
                node.replace_input_with(index, value)
        self._note(InputsSet(node, tuple(before), tuple(values)))
        self.touched.append(node)
        gone = (value.producer() for value in before if value is not None and value not in values)
        for producer in dict.fromkeys(gone):
            if producer is not None:
                self.drop_if_unused(producer)

    def set_attribute(
        self, node: ir.Node, name: str, value: int | float | str | Sequence[int] | None
    ) -> None:
        """Set an attribute of `node`; None takes it away."""
        before = tuple(node.attributes.values())
        if value is None:
            node.attributes.pop(name, None)
        else:
            node.attributes[name] = ir.convenience.convert_attribute(name, value)
        self._note(AttributeSet(node, name, before, node.attributes.get(name)))
        self.touched.append(node)

    def declare(self, value: ir.Value, dtype: ir.DataType, shape: ir.Shape) -> None:
        """Write down the element type and the shape of `value`."""
        self._declare(value, ir.TensorType(dtype), shape)

    def _declare(
        self, value: ir.Value, type_: ir.TypeProtocol | None, shape: ir.Shape | None
    ) -> None:
        before = value.type, value.shape
        self._on_undo(lambda: self._declare(value, *before))
        value.type, value.shape = type_, shape

    def forget_misses(self, node: str) -> None:
        """Drop the reasons of a node, described so, that is now rewritten."""
        misses = tuple(miss for miss in self.log.misses if miss.node == node)
        for miss in misses:
            del self.log.misses[miss]
        self._on_undo(lambda: self.log.misses.update(dict.fromkeys(misses)))

    def remove(self, node: ir.Node) -> None:
        """Remove a node that nothing reads."""
        inner = (each for body in subgraphs(node) for each in nodes_below(body))
        inputs = tuple((each, tuple(each.inputs)) for each in (node, *inner))
        edit = None if self._open is None else self._open.removal(node, inputs)
        for each, values in inputs[1:]:
            for index in range(len(values)):
                each.replace_input_with(index, None)
        _graph_of(node).remove(node, safe=True)
        if edit is None:
            self._unnamed.difference_update(node.outputs)
        else:
            self._note(edit)

    def drop_if_unused(self, node: ir.Node) -> int:
        """Remove `node` if nothing reads it, then what only it read. Returns how many went."""
        pending, removed = [node], 0
        while pending:
            current = pending.pop()
            if current.graph is None or not is_unused(current):
                continue
            sources = [value.producer() for value in captured_values(current)]
            self.remove(current)
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


def _document(value: ir.Value, doc_string: str | None, metadata: Mapping[str, str]) -> None:
    value.doc_string = doc_string
    if metadata or value.metadata_props:
        value.metadata_props.clear()
        value.metadata_props.update(metadata)


def _graph_of(node: ir.Node | None) -> ir.Graph:
    assert node is not None and node.graph is not None, "the node is in no graph"
    return node.graph


def _producer(value: ir.Value) -> ir.Node | None:
    return value.producer()
