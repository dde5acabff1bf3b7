"""What differs between two models: nodes, weights and interface, by name and by operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeVar

import numpy as np
import onnx_ir as ir

from ortkit.graph.io.open import ModelSource, open_model
from ortkit.graph.walk import nodes_below

SCHEMA = "ortkit.diff/1"

Kind = Literal["removed", "added", "changed"]
Side = Literal["input", "output"]
SIDES: tuple[Side, Side] = ("input", "output")
_T = TypeVar("_T")
#: Elements compared at a time.
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Change:
    """One thing that is in one model only, or differs."""

    kind: Kind
    name: str
    before: str
    """Empty for what was added. Of a node: its operator."""
    after: str
    """Empty for what was removed."""
    details: tuple[str, ...] = ()
    """What differs in it: `inputs a, b -> a, c`."""


@dataclass(frozen=True)
class OpCount:
    """How many nodes of one operator each model has."""

    op: str
    before: int
    after: int


@dataclass(frozen=True)
class ModelDiff:
    """Everything that differs; empty parts do not differ."""

    before: str
    after: str
    ops: tuple[OpCount, ...]
    """Operators whose count differs, the largest decrease first."""
    nodes: tuple[Change, ...]
    weights: tuple[Change, ...]
    interface: tuple[Change, ...]
    """Inputs and outputs: names, order, types, shapes."""
    functions: tuple[Change, ...]
    header: tuple[Change, ...]
    """IR version, opsets and metadata."""

    @property
    def is_same(self) -> bool:
        """Whether nothing differs."""
        parts = (self.nodes, self.weights, self.interface, self.functions, self.header)
        return not any(parts)

    def to_json(self) -> dict[str, object]:
        """Return the document of `ortkit diff --json`."""
        return {"schema": SCHEMA, "same": self.is_same, **asdict(self)}


def diff_models(before: ModelSource, after: ModelSource) -> ModelDiff:
    """Compare two models.

    Nodes are the same if they make the same value, else if they have the same name: values
    keep their names through most rewrites, where nodes often have none.

    Raises:
        ModelError: One of them is not a valid model.
    """
    old, new = open_model(before), open_model(after)
    return ModelDiff(
        before=_origin(before),
        after=_origin(after),
        ops=_op_counts(old.graph, new.graph),
        nodes=_node_changes(old.graph, new.graph),
        weights=tuple(_changes(_weights(old), _weights(new), _tensor_text, _tensor_details)),
        interface=tuple(change for side in SIDES for change in _interface_changes(old, new, side)),
        functions=tuple(_changes(_functions(old), _functions(new), _body_text, _body_details)),
        header=tuple(_changes(_header(old), _header(new), str, _text_details)),
    )


def _origin(source: ModelSource) -> str:
    return "(memory)" if isinstance(source, bytes | ir.Model) else str(source)


# ---- anything by name ------------------------------------------------------------------


def _changes(
    old: Mapping[str, _T],
    new: Mapping[str, _T],
    text: Callable[[_T], str],
    details: Callable[[_T, _T], tuple[str, ...] | None],
) -> Iterator[Change]:
    """Compare by key; `details` says None for what is equal."""
    for name, one in old.items():
        if name not in new:
            yield Change("removed", name, text(one), "")
    for name, other in new.items():
        if name not in old:
            yield Change("added", name, "", text(other))
        elif (found := details(old[name], other)) is not None:
            yield Change("changed", name, text(old[name]), text(other), found)


# ---- nodes -----------------------------------------------------------------------------


def _op_counts(old: ir.Graph, new: ir.Graph) -> tuple[OpCount, ...]:
    before, after = (
        Counter(operator(node) for node in nodes_below(graph)) for graph in (old, new)
    )
    counts = [OpCount(op, before[op], after[op]) for op in {*before, *after}]
    changed = [count for count in counts if count.before != count.after]
    return tuple(
        sorted(changed, key=lambda op_count: (op_count.after - op_count.before, op_count.op))
    )


def operator(node: ir.Node) -> str:
    """Return the operator with its domain: `Add`, `com.microsoft::Gelu`."""
    is_default = node.domain in ("", "ai.onnx")
    return node.op_type if is_default else f"{node.domain}::{node.op_type}"


def _node_changes(old: ir.Graph | ir.Function, new: ir.Graph | ir.Function) -> tuple[Change, ...]:
    before, after = list(nodes_below(old)), list(nodes_below(new))
    pairs = _paired(before, after)
    paired = {id(other) for other in pairs.values()}
    changes = [
        Change("removed", _label(node), operator(node), "")
        for node in before
        if id(node) not in pairs
    ]
    changes += [
        Change("added", _label(node), "", operator(node))
        for node in after
        if id(node) not in paired
    ]
    for node in before:
        if (other := pairs.get(id(node))) is not None and (found := _node_details(node, other)):
            changes.append(Change("changed", _label(node), operator(node), operator(other), found))
    return tuple(changes)


def _paired(before: Sequence[ir.Node], after: Sequence[ir.Node]) -> dict[int, ir.Node]:
    """Return for the id of each node of the first model its counterpart, where it has one."""
    pairs: dict[int, ir.Node] = {}
    for key in (_first_output, _name):
        paired = {id(node) for node in pairs.values()}
        left = _unique(before, key, lambda node: id(node) in pairs)
        right = _unique(after, key, lambda node, paired=paired: id(node) in paired)  # type: ignore[misc]
        pairs.update((id(node), right[name]) for name, node in left.items() if name in right)
    return pairs


def _unique(
    nodes: Sequence[ir.Node], key: Callable[[ir.Node], str], skip: Callable[[ir.Node], bool]
) -> dict[str, ir.Node]:
    """Return the nodes whose key is not empty and no other node's."""
    open_nodes = [node for node in nodes if not skip(node)]
    counts = Counter(map(key, open_nodes))
    return {key(node): node for node in open_nodes if key(node) and counts[key(node)] == 1}


def _first_output(node: ir.Node) -> str:
    return next((value.name for value in node.outputs if value.name), "")


def _name(node: ir.Node) -> str:
    return node.name or ""


def _label(node: ir.Node) -> str:
    return node.name or _first_output(node)


def _node_details(old: ir.Node, new: ir.Node) -> tuple[str, ...]:
    found = []
    if operator(old) != operator(new):
        found.append(f"operator {operator(old)} -> {operator(new)}")
    for what, left, right in (
        ("inputs", _value_names(old.inputs), _value_names(new.inputs)),
        ("outputs", _value_names(old.outputs), _value_names(new.outputs)),
    ):
        if left != right:
            found.append(f"{what} {left} -> {right}")
    before, after = (
        {name: _attribute_text(attribute) for name, attribute in node.attributes.items()}
        for node in (old, new)
    )
    for name in dict.fromkeys((*before, *after)):
        left, right = before.get(name, "absent"), after.get(name, "absent")
        if left != right:
            found.append(f"{name} {left} -> {right}")
    return tuple(found)


def _value_names(values: Sequence[ir.Value | None]) -> str:
    names = [value.name or "" if value is not None else "" for value in values]
    while names and not names[-1]:
        names.pop()
    return ", ".join(name or "(absent)" for name in names) or "none"


def _attribute_text(attribute: ir.Attr) -> str:
    """Return a text that differs where the attribute does; subgraphs are compared by nodes."""
    if attribute.is_ref():
        return f"@{attribute.ref_attr_name}"
    if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return attribute.type.name.lower()
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        values = np.array2string(tensor.numpy().reshape(-1)[:8], separator=", ")
        return f"{_tensor_text(tensor)} {values}"
    return str(attribute.value)


# ---- weights ---------------------------------------------------------------------------


def _weights(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    graphs = (model.graph, *model.graph.subgraphs())
    return {
        name: value.const_value
        for graph in graphs
        for name, value in graph.initializers.items()
        if value.const_value is not None
    }


def _tensor_text(tensor: ir.TensorProtocol) -> str:
    return f"{tensor.dtype.name.lower()}[{', '.join(map(str, tensor.shape))}]"


def _tensor_details(old: ir.TensorProtocol, new: ir.TensorProtocol) -> tuple[str, ...] | None:
    if _tensor_text(old) != _tensor_text(new):
        return ("type or shape",)
    left, right = old.numpy(), new.numpy()
    if left is right or np.array_equal(left.view(_bits(left)), right.view(_bits(right))):
        return None
    if left.dtype.kind != "f":
        return (f"{np.count_nonzero(left != right)} of {left.size} values",)
    return (f"values, by {_largest_difference(left, right):.3g} at most",)


def _largest_difference(left: np.ndarray, right: np.ndarray) -> float:
    largest = 0.0
    flat = zip(_blocks(left), _blocks(right), strict=True)
    with np.errstate(invalid="ignore"):  # infinity against infinity
        for one, other in flat:
            found = np.abs(one.astype(np.float64) - other)
            largest = max(largest, float(np.nanmax(found, initial=0.0)))
    return largest


def _blocks(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yield parts, so that no copy in float64 is large."""
    flat = array.reshape(-1)
    return (flat[start : start + _BLOCK] for start in range(0, flat.size, _BLOCK))


def _bits(array: np.ndarray) -> np.dtype[np.generic]:
    """Return a type to compare by bits in: NaN equals NaN, and 0 is not -0."""
    if array.dtype.kind in "fV" and array.dtype.itemsize in (1, 2, 4, 8):
        return np.dtype(f"u{array.dtype.itemsize}")
    return array.dtype


# ---- interface, functions, header ------------------------------------------------------


def _interface_changes(old: ir.Model, new: ir.Model, side: Side) -> Iterator[Change]:
    before = {f"{side} {value.name}": value for value in _side(old, side)}
    after = {f"{side} {value.name}": value for value in _side(new, side)}
    yield from _changes(before, after, _value_text, _value_details)
    if list(before) != list(after) and set(before) == set(after):
        left, right = (_value_names(_side(model, side)) for model in (old, new))
        yield Change("changed", f"{side} order", left, right)


def _side(model: ir.Model, side: Side) -> Sequence[ir.Value]:
    return model.graph.inputs if side == "input" else model.graph.outputs


def _value_text(value: ir.Value) -> str:
    shape = "[...]" if value.shape is None else str(value.shape)
    kind = value.type
    return f"{kind.dtype.name.lower() if isinstance(kind, ir.TensorType) else kind}{shape}"


def _value_details(old: ir.Value, new: ir.Value) -> tuple[str, ...] | None:
    return None if _value_text(old) == _value_text(new) else ("type or shape",)


def _functions(model: ir.Model) -> dict[str, ir.Function]:
    return {"::".join(filter(None, key)): function for key, function in model.functions.items()}


def _body_text(function: ir.Function) -> str:
    return f"{sum(1 for _ in nodes_below(function))} nodes"


def _body_details(old: ir.Function, new: ir.Function) -> tuple[str, ...] | None:
    changes = Counter(change.kind for change in _node_changes(old, new))
    return tuple(f"{count} nodes {kind}" for kind, count in changes.items()) or None


def _header(model: ir.Model) -> dict[str, str]:
    return {
        "IR version": str(model.ir_version),
        **{f"opset {name or 'ai.onnx'}": str(v) for name, v in model.opset_imports.items()},
        **{f"metadata {name}": text for name, text in model.metadata_props.items()},
    }


def _text_details(old: str, new: str) -> tuple[str, ...] | None:
    return None if old == new else ()
