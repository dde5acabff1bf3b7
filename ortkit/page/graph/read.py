"""From a model to the nodes, values and edges of its picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import onnx
import onnx_ir as ir

from ortkit.graph.analysis.inspection import dtype_text
from ortkit.graph.analysis.value_names import labels
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.symbolic.dims import has_unknown
from ortkit.graph.walk import subgraphs
from ortkit.page.graph.document import Edge, Graph, Node, Value
from ortkit.page.graph.families import family_of
from ortkit.page.graph.scopes import scope_of

#: The domain of the nodes that `optimize` forms: `KIND_KEY`.
FUSED_DOMAIN = "ortkit.fused"
_KEY_LENGTH = 12
#: Longer texts of an attribute lose their end.
_LONGEST = 120
_LINES = 120


def read_graph(model: ir.Model, title: str) -> Graph:
    """Return the nodes of a model, those of its subgraphs included, without groups.

    Nodes of a subgraph are in a group called after its holder, which comes below it.
    """
    reader = _Reader(labels(model), Shapes.infer(model), model)
    reader.interface(model.graph.inputs, "input")
    reader.walk(model.graph, ())
    reader.interface(model.graph.outputs, "output")
    return Graph(title, tuple(reader.nodes), tuple(reader.values), tuple(reader.edges()))


def body_texts(model: ir.Model) -> dict[str, str]:
    """Return the functions of a model as ONNX text, long ones cut."""
    return {
        _key(function.domain, function.name): _body(function)
        for function in model.functions.values()
    }


def kind_of(node: ir.Node) -> str:
    """Return the kind of a fused node's region: its operator without the key."""
    kind, _, key = node.op_type.rpartition("_")
    return kind if kind and len(key) == _KEY_LENGTH else node.op_type


@dataclass
class _Reader:
    labels: dict[ir.Node, str]
    shapes: Shapes
    model: ir.Model
    nodes: list[Node] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    _value_at: dict[ir.Value, int] = field(default_factory=dict)
    _maker: dict[int, int] = field(default_factory=dict)
    _spans: list[tuple[int, int]] = field(default_factory=list)
    """Results of bodies, and the nodes that hold those."""

    def interface(self, values: Sequence[ir.Value], role: Literal["input", "output"]) -> None:
        """Add the inputs or the outputs of the main graph."""
        for value in values:
            at = self._value(value)
            name = value.name or ""
            if role == "input":
                self._maker[at] = len(self.nodes)
            made = Node(
                f"{role} {name}", "", name, self._shape(value) or role, "interface", (),
                inputs=() if role == "input" else (at,),
                outputs=(at,) if role == "input" else (),
                role=role,
            )  # fmt: skip
            self.nodes.append(made)

    def walk(self, graph: ir.Graph, path: tuple[str, ...]) -> None:
        """Add the nodes of a graph, after those of the bodies that they hold."""
        for node in graph:
            results: list[int] = []
            for number, body in enumerate(subgraphs(node)):
                called = f"{self.labels[node]} {body.name or number}"
                self.walk(body, (*path, *(scope_of(node) if not path else ()), called))
                results += [self._value(value) for value in body.outputs]
            self._spans += [(value, len(self.nodes)) for value in results]
            self._add(node, path)

    def edges(self) -> Iterator[Edge]:
        """Yield each value on its way, and the results of bodies on theirs to the holder."""
        for target, node in enumerate(self.nodes):
            for value in dict.fromkeys(node.inputs):
                if value in self._maker:
                    yield Edge(self._maker[value], target, value)
        for value, holder in self._spans:
            if value in self._maker and self._maker[value] != holder:
                yield Edge(self._maker[value], holder, value)

    def _add(self, node: ir.Node, path: tuple[str, ...]) -> None:
        is_fused = node.domain == FUSED_DOMAIN
        domain = "" if node.domain in ("", "ai.onnx") else node.domain
        title = kind_of(node) if is_fused else node.op_type
        outputs = [value for value in node.outputs if value.name]
        for value in outputs:
            self._maker[self._value(value)] = len(self.nodes)
        has_body = node.op_identifier() in self.model.functions
        made = Node(
            name=self.labels[node],
            op=f"{domain}::{node.op_type}" if domain else node.op_type,
            title=title,
            detail="" if not outputs or title == "Constant" else self._shape(outputs[0]),
            family=family_of(title),
            path=path or scope_of(node),
            inputs=tuple(self._value(value) for value in node.inputs if value is not None),
            outputs=tuple(self._value(value) for value in outputs),
            attributes=tuple(
                (name, _text(attribute)) for name, attribute in node.attributes.items()
            ),
            is_fused=is_fused,
            body=_key(node.domain, node.op_type) if has_body else "",
        )
        self.nodes.append(made)

    def _value(self, value: ir.Value) -> int:
        if value not in self._value_at:
            self._value_at[value] = len(self.values)
            is_weight = value.is_initializer() and not value.is_graph_input()
            self.values.append(Value(value.name or "", self._type(value), is_weight))
        return self._value_at[value]

    def _type(self, value: ir.Value) -> str:
        dtype = self.shapes.dtype(value)
        if dtype is None:
            return ""
        return f"{dtype_text(dtype)}{self._shape(value)}"

    def _shape(self, value: ir.Value) -> str:
        shape = self.shapes.shape(value)
        if shape is None:
            return ""
        texts = ("?" if has_unknown(size) else str(size) for size in shape)
        return f"[{', '.join(texts)}]"


def _key(domain: str, name: str) -> str:
    return f"{domain}::{name}"


def _body(function: ir.Function) -> str:
    lines = onnx.printer.to_text(ir.to_proto(function)).splitlines()
    first = next((at for at, line in enumerate(lines) if "=>" in line), 0)
    kept = lines[first : first + _LINES]
    more = len(lines) - first - len(kept)
    return "\n".join([*kept, *([f"... {more} lines more"] if more else [])])


def _text(attribute: ir.Attr) -> str:
    """Return an attribute for people: tensors by type and shape, graphs by their name."""
    if attribute.is_ref():
        return f"@{attribute.ref_attr_name}"
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        if tensor.size <= 4 and tensor.dtype != ir.DataType.STRING:
            return f"{dtype_text(tensor.dtype)} {tensor.numpy().tolist()}"
        return f"{dtype_text(tensor.dtype)}{[*tensor.shape]}"
    if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return "graph"
    value = attribute.value
    if isinstance(value, float):
        return f"{value:.7g}"
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
