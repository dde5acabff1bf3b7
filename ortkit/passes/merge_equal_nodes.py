"""merge-equal-nodes: compute what is computed twice only once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
import onnx
import onnx_ir as ir

from ortkit.analysis.random_ops import is_random
from ortkit.graph.io.file_tensors import first_bytes
from ortkit.graph.symbolic.dims import Size
from ortkit.graph.walk import control_bodies, subgraphs
from ortkit.rewrite.passes import GraphPass
from ortkit.rewrite.scope import PURE_DOMAINS, Scope
from ortkit.rewrite.site import describe

Key = Hashable
#: Merging these would take from ONNX Runtime the one-reader DequantizeLinear that its int8
#: fusions look for.
NEVER_MERGED = frozenset({"DequantizeLinear", "QuantizeLinear", "Constant"})
SAMPLE_BYTES = 1024
PART_BYTES = 1 << 20
#: Attributes whose values are numbers or strings, or lists of these; of others (types, lists of
#: tensors) each counts as different.
_COMPARABLE = frozenset(
    {ir.AttributeType.INT, ir.AttributeType.INTS, ir.AttributeType.FLOAT,
     ir.AttributeType.FLOATS, ir.AttributeType.STRING, ir.AttributeType.STRINGS}
)  # fmt: skip


@dataclass(frozen=True)
class MergeEqualNodes(GraphPass):
    """Merge equal initializers, equal nodes, and size tensors with equal symbolic elements.

    Before:
        a = Exp(x);  b = Exp(x);  y = Add(a, b)
    After:
        a = Exp(x);  y = Add(a, a)

    Skips:
        * Random ops, ops of unknown domains, ops with subgraphs, DequantizeLinear groups.
        * A value of a subgraph never stands for one outside of it.

    Source:
        Muchnick, "Advanced Compiler Design and Implementation" (1997), 12.4: value numbering.
    """

    name: ClassVar[str] = "merge-equal-nodes"

    def run(self, scope: Scope) -> None:
        if isinstance(scope.root, ir.Graph):
            self._initializers(scope, scope.root)
        self._nodes(scope, scope.root, _Table(None))

    def _initializers(self, scope: Scope, graph: ir.Graph) -> None:
        groups: dict[Key, list[ir.Value]] = {}
        for value in list(graph.initializers.values()):
            if not scope.is_constant(value) or value.is_graph_output() or value.is_graph_input():
                continue
            tensor = value.const_value
            assert tensor is not None
            group = groups.setdefault(_fingerprint(tensor), [])
            same = next((kept for kept in group if _same_data(kept.const_value, tensor)), None)
            if same is None:
                group.append(value)
            elif scope.log.claim(self.name, "initializer", value.name or "", f"{value.name!r}"):
                scope.replace(value, same)
                scope.drop_initializer(value)

    def _nodes(self, scope: Scope, graph: ir.Graph | ir.Function, table: _Table) -> None:
        for node in list(graph):
            if node.graph is None:
                continue
            for body in control_bodies(node):
                self._nodes(scope, body, _Table(table))
            if not _is_mergeable(node):
                continue
            key = _node_key(node, scope.opset(node.domain))
            earlier = table.find(key)
            if earlier is not None and self._merge(scope, node, earlier, "node"):
                continue
            if earlier is None:
                table.add(key, node)
            self._sizes(scope, node, table)

    def _sizes(self, scope: Scope, node: ir.Node, table: _Table) -> None:
        """Merge a value with an earlier one that provably has the same symbolic elements."""
        if len(node.outputs) != 1 or node.op_type == "Identity":
            return
        contents = scope.shapes.contents(node.outputs[0])
        if contents is None or node.outputs[0].is_graph_output():
            return
        key = ("sizes", scope.shapes.dtype(node.outputs[0]), _shape(scope, node), contents)
        earlier = table.find(key)
        if earlier is None:
            table.add(key, node)
        else:
            self._merge(scope, node, earlier, "sizes")

    def _merge(self, scope: Scope, node: ir.Node, earlier: ir.Node, rule: str) -> bool:
        pairs = list(zip(node.outputs, earlier.outputs, strict=True))
        for old, new in pairs:
            if (reason := scope.can_replace(old, new)) is not None:
                scope.log.miss(self.name, describe(node), reason)
                return False
        if not scope.log.claim(self.name, rule, node.outputs[0].name or "", describe(node)):
            return False
        for old, new in pairs:
            scope.replace(old, new)
        return True


class _Table:
    """Values seen so far, one level per nested graph."""

    def __init__(self, outer: _Table | None) -> None:
        self._outer = outer
        self._own: dict[Key, ir.Node] = {}

    def find(self, key: Key) -> ir.Node | None:
        found = self._own.get(key)
        if found is not None and found.graph is not None:
            return found
        return None if self._outer is None else self._outer.find(key)

    def add(self, key: Key, node: ir.Node) -> None:
        self._own[key] = node


def _is_mergeable(node: ir.Node) -> bool:
    if node.domain not in PURE_DOMAINS or node.op_type in NEVER_MERGED or is_random(node):
        return False
    return not any(True for _ in subgraphs(node))


def _node_key(node: ir.Node, opset: int) -> Key:
    """Return what two nodes that compute the same share; default attributes may be written out."""
    written = {
        name: (attribute.type, _attribute_key(attribute))
        for name, attribute in node.attributes.items()
    }
    attributes = tuple(sorted({**_defaults(node.domain, node.op_type, opset), **written}.items()))
    inputs = tuple(None if value is None else id(value) for value in node.inputs)
    used = tuple(bool(value.name) for value in node.outputs)
    return ("node", node.domain, node.op_type, node.overload, inputs, attributes, used)


@cache
def _defaults(domain: str, op_type: str, opset: int) -> dict[str, Key]:
    """Return the attributes that ONNX gives a node that does not write them."""
    if not onnx.defs.has(op_type, opset, domain):
        return {}
    found: dict[str, Key] = {}
    for name, attribute in onnx.defs.get_schema(op_type, opset, domain).attributes.items():
        if attribute.default_value.type:
            default = ir.serde.deserialize_attribute(attribute.default_value)
            found[name] = (default.type, _attribute_key(default))
    return found


def _attribute_key(attribute: ir.Attr) -> Key:
    if attribute.is_ref():
        return ("ref", attribute.ref_attr_name)
    if attribute.type == ir.AttributeType.TENSOR:
        return _tensor_key(attribute.as_tensor())
    value = attribute.value
    key = tuple(value) if isinstance(value, list | tuple) else value
    return key if attribute.type in _COMPARABLE else id(attribute)


def _tensor_key(tensor: ir.TensorProtocol) -> Key:
    is_text = tensor.dtype == ir.DataType.STRING
    data = tuple(tensor.numpy().reshape(-1)) if is_text else tensor.tobytes()
    return (tensor.dtype, tuple(tensor.shape), data)


def _shape(scope: Scope, node: ir.Node) -> tuple[Size, ...] | None:
    return scope.shapes.shape(node.outputs[0])


def _fingerprint(tensor: ir.TensorProtocol) -> Key:
    """Return type, shape and a few bytes: what equal tensors share, read without the whole."""
    if tensor.dtype == ir.DataType.STRING or tensor.nbytes == 0:
        return (tensor.dtype, tuple(tensor.shape))
    return (tensor.dtype, tuple(tensor.shape), first_bytes(tensor, SAMPLE_BYTES))


def _bytes_of(tensor: ir.TensorProtocol) -> np.ndarray | None:
    array = tensor.numpy()
    return array.reshape(-1).view(np.uint8) if array.flags.c_contiguous else None


def _same_data(a: ir.TensorProtocol | None, b: ir.TensorProtocol) -> bool:
    if a is None:
        return False
    if a.dtype == ir.DataType.STRING:
        return list(a.numpy().reshape(-1)) == list(b.numpy().reshape(-1))
    first, second = _bytes_of(a), _bytes_of(b)
    if first is None or second is None:
        return False
    # In parts: a difference mostly shows in the first, and each makes an array of answers.
    return all(
        np.array_equal(first[start : start + PART_BYTES], second[start : start + PART_BYTES])
        for start in range(0, first.size, PART_BYTES)
    )
