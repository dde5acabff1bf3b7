"""unsign-operators: uint8 for operators on int8 activations, where there are kernels for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.analysis.quantization import is_op
from ortkit.analysis.quantized_operators import is_quantized_product, operands_of
from ortkit.rewrite.passes import GraphPass
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site, describe
from ortkit.targets.cpu import multiplies_bytes

_INT8 = ir.DataType.INT8
#: What 128 more makes of a number or zero point of 0.
_MIDDLE = np.array(128, np.uint8)
#: Operators that move their first input's numbers, whatever these are.
_MOVERS = frozenset(
    {"Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze"}
    | {"Transpose", "Unsqueeze"}
)
#: Operators that only compare numbers. The result of an ArgMax is an index.
_COMPARE = frozenset({"ArgMax", "ArgMin", "MaxPool"})
#: Weights up to here in magnitude are multiplied exactly where there is no VNNI.
_NARROW = 64


@dataclass(frozen=True)
class UnsignOperators(GraphPass):
    """Let int8 activations of operators on quantized numbers be uint8, each 128 larger.

    On x86 ONNX Runtime (1.31.1) multiplies int8 by int8 many times slower than uint8 by int8.
    Kernels of ours read uint8.

    Before:
        q = QuantizeLinear(x, s, z)                       # z: int8
        r = QLinearConv(q, s, z, w, ..., t, u)
        y = DequantizeLinear(r, t, u)
    After:
        q = QuantizeLinear(x, s, z + 128)                 # uint8
        r = QLinearConv(q, s, z + 128, w, ..., t, u + 128)
        y = DequantizeLinear(r, t, u + 128)

    Nodes that read each other's numbers are changed together, with what moves or compares these.
    Results are equal to the bit but for means of windows. QLinearAveragePool adds its zero point
    in float32 before it rounds, so that a tie may fall to the other number.

    Skips:
        * Numbers that are read otherwise, returned, or given to the model.
        * Zero points that are not constant.
        * Groups without a product, which gain nothing.
        * Processors without VNNI, where ONNX Runtime's kernels for uint8 saturate: weights
          beyond -64 .. 64.
        * Processors that have kernels for int8; GPUs.

    Source:
        Products subtract zero points before they multiply. Rounding adds the zero point before
        it cuts off at the ends of the type.
    """

    name: ClassVar[str] = "unsign-operators"

    def run(self, scope: Scope) -> None:
        if not scope.traits.is_host or scope.traits.has_signed_int8(scope.target.level):
            return
        is_exact = multiplies_bytes(scope.target.level)
        for group in _groups(scope):
            first = next(filter(is_quantized_product, group.nodes), None)
            if first is None:
                continue
            site = Site(scope, first, self.name)
            if reason := group.refusal(is_exact=is_exact):
                site.miss(reason)
            elif site.claim("uint8"):
                group.rewrite()


@dataclass
class _Group:
    """Nodes that read each other's int8 activations, in the order of the graph."""

    scope: Scope
    nodes: list[ir.Node] = field(default_factory=list)
    made: dict[ir.Value, ir.Value] = field(default_factory=dict)
    """The new values in place of int8 activations."""

    # ---- whether it can be
    def refusal(self, *, is_exact: bool) -> str:
        """Say why the group stays as it is; empty if it need not.

        Args:
            is_exact: Whether products of uint8 and any int8 do not saturate.
        """
        for node in self.nodes:
            if reason := self._refusal(Site(self.scope, node, UnsignOperators.name)):
                return f"{reason}: {describe(node)}"
            if not is_exact and is_quantized_product(node) and not self._is_narrow(node):
                return (
                    f"without VNNI weights beyond 7 bits saturate beside uint8: {describe(node)}"
                )
        return ""

    def _refusal(self, site: Site) -> str:
        node = site.node
        for value in (*node.inputs, *node.outputs):
            if value is None or not _is_activation(self.scope, value):
                continue
            if value.is_graph_output() or value.is_graph_input():
                return "its numbers are the model's inputs or outputs"
            if any(use.node.graph is not node.graph for use in value.uses()):
                return "its numbers are read in a nested graph"
        if operands_of(node) is not None:
            return self._refusal_of_operands(site)
        if not is_op(node, "DequantizeLinear") and any(
            site.dtype(value) is None for value in node.outputs
        ):
            return "the type of its result is not known"
        if not node.domain and (node.op_type in _MOVERS or node.op_type in _COMPARE):
            is_first = all(
                number == 0 or value is None or not _is_activation(self.scope, value)
                for number, value in enumerate(node.inputs)
            )
            is_plain = node.op_type != "MaxPool" or len(node.outputs) == 1
            return "" if is_first and is_plain else "its numbers are read otherwise"
        return self._refusal_of_fillers(site)

    def _refusal_of_operands(self, site: Site) -> str:
        node, operands = site.node, operands_of(site.node)
        assert operands is not None
        for number, value in enumerate(node.inputs):
            is_read = value is not None and _is_activation(self.scope, value)
            if is_read and number not in operands.numbers:
                return "its numbers are read otherwise"
        for number, zero in operands.numbers.items():
            if number == operands.weight and self.scope.is_constant(site.input(number)):
                continue
            if site.dtype(site.input(number)) != _INT8:
                return "its operands are of several types"
            if not self._is_known(site, zero):
                return "a zero point is not constant"
        if operands.zero is not None and site.dtype(site.output) != _INT8:
            return "its result is of another type, or of none that is known"
        if operands.zero is not None and not self._is_known(site, operands.zero):
            return "the zero point of its result is not constant"
        if is_op(node, "QuantizeLinear") and is_op(_source(node), "DequantizeLinear"):
            return "its numbers are quantized again at once"
        uses = node.outputs[0].uses() if is_op(node, "DequantizeLinear") else ()
        if any(is_op(use.node, "QuantizeLinear") for use in uses):
            return "its numbers are quantized again at once"
        return ""

    def _refusal_of_fillers(self, site: Site) -> str:
        """Say why operators that may write numbers of their own cannot be changed."""
        op_type, others = site.node.op_type, site.node.inputs[1:]
        if not site.node.domain and op_type == "Concat":
            return ""
        if any(value is not None and _is_activation(self.scope, value) for value in others):
            return "its numbers are read otherwise"
        if not site.node.domain and op_type == "Pad":
            return "" if len(site.node.inputs) > 1 else "its pads are attributes"
        if not site.node.domain and op_type == "Resize":
            is_nearest = site.string("mode", "nearest") == "nearest"
            mode = site.string("coordinate_transformation_mode", "half_pixel")
            if is_nearest and mode != "tf_crop_and_resize":
                return ""
        return "its numbers are read otherwise"

    def _is_known(self, site: Site, number: int) -> bool:
        """Say whether a zero point is constant int8, or absent."""
        value = site.input(number)
        array = site.array(value)
        return value is None or (array is not None and array.dtype == np.int8)

    def _is_narrow(self, node: ir.Node) -> bool:
        """Say whether the weights of a product have 7 bits, or become uint8 themselves."""
        operands = operands_of(node)
        assert operands is not None and operands.weight is not None
        weights = self.scope.array(node.inputs[operands.weight])
        return weights is None or bool((np.abs(weights.astype(np.int16)) <= _NARROW).all())

    # ---- how it becomes another
    def rewrite(self) -> None:
        """Write the nodes again, with uint8 in place of int8."""
        for node in self.nodes:
            site = Site(self.scope, node, UnsignOperators.name)
            inputs = self._inputs(site)
            if any(_is_activation(self.scope, value) for value in node.outputs):
                self._write(site, inputs)
            else:
                self.scope.set_inputs(node, inputs)
        for node in reversed(self.nodes):
            if node.graph is not None:
                self.scope.drop_if_unused(node)

    def _write(self, site: Site, inputs: list[ir.Value | None]) -> None:
        node, dropped = site.node, ("output_dtype",) if is_op(site.node, "QuantizeLinear") else ()
        attributes = {a.name: a.value for a in node.attributes.values() if a.name not in dropped}
        new = self.scope.insert(
            node, node.op_type, inputs, attributes, domain=node.domain,
            outputs=len(node.outputs), name=f"{site.output.name}/uint8",
        )  # fmt: skip
        self.made.update(zip(node.outputs, new, strict=True))

    def _inputs(self, site: Site) -> list[ir.Value | None]:
        """Return what the new node reads."""
        node, operands = site.node, operands_of(site.node)
        found = [
            self.made.get(value, value) if value is not None else None for value in node.inputs
        ]
        if operands is None:
            self._fill(site, found)
            return found
        zeros = [operands.zero] if operands.zero is not None else []
        for number, zero in operands.numbers.items():
            is_constant = self.scope.is_constant(site.input(number))
            if is_constant and number == operands.weight:
                continue
            if is_constant:
                found[number] = _raised(site, number)
            zeros.append(zero)
        for zero in zeros:
            found += [None] * (zero + 1 - len(found))
            found[zero] = _raised(site, zero)
        return found

    def _fill(self, site: Site, inputs: list[ir.Value | None]) -> None:
        """Raise the numbers that a Concat or Pad has itself."""
        if site.node.op_type == "Concat":
            for number, value in enumerate(site.node.inputs):
                if self.scope.is_constant(value):
                    inputs[number] = _raised(site, number)
        if site.node.op_type == "Pad" and site.string("mode", "constant") == "constant":
            inputs += [None] * (3 - len(inputs))
            inputs[2] = _raised(site, 2)


def _groups(scope: Scope) -> Iterator[_Group]:
    """Yield the nodes that read each other's int8 activations."""
    root = scope.root if isinstance(scope.root, ir.Graph) else ()
    found: dict[ir.Node, ir.Node] = {}

    def first(node: ir.Node) -> ir.Node:
        while found.setdefault(node, node) is not node:
            found[node] = node = found[found[node]]
        return node

    members: list[ir.Node] = []
    for node in root:
        values = [each for each in node.inputs if each is not None and _is_activation(scope, each)]
        if values or any(_is_activation(scope, each) for each in node.outputs):
            members.append(node)
        for value in values:
            if (source := value.producer()) is not None:
                found[first(source)] = first(node)
    groups: dict[ir.Node, _Group] = {}
    for node in members:
        groups.setdefault(first(node), _Group(scope)).nodes.append(node)
    yield from groups.values()


def _is_activation(scope: Scope, value: ir.Value) -> bool:
    return scope.shapes.dtype(value) == _INT8 and not scope.is_constant(value)


def _source(node: ir.Node) -> ir.Node | None:
    return None if node.inputs[0] is None else node.inputs[0].producer()


def _raised(site: Site, number: int) -> ir.Value:
    """Return constant int8 numbers, an input or else 0, as uint8 that are 128 larger."""
    value = site.input(number)
    if value is None:
        return site.constant(_MIDDLE)
    numbers = site.array(value)
    assert numbers is not None
    # 128 more of eight bits is the first bit flipped.
    return site.constant(np.asarray(np.asarray(numbers, np.int8).view(np.uint8) ^ 128))
