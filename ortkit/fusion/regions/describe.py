"""From a region to the signature that kernel backends see."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from ortkit.errors import InternalError
from ortkit.fusion.regions.bodies import Call, needs_standard_form, standard_form
from ortkit.fusion.regions.input_names import input_names
from ortkit.fusion.regions.parameters import reshape_parameter
from ortkit.fusion.regions.region import FusedRegion, is_written
from ortkit.fusion.regions.sizes import equal_sizes, join_unsolved
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.symbolic.dims import Size
from ortkit.kernels.signature import DOMAIN, RegionSignature, TensorSpec, body_text
from ortkit.rewrite.scope import Scope


def describe_region(scope: Scope, region: FusedRegion) -> RegionSignature:
    """Return the region's signature: its body as a function of its inputs, sizes by name."""
    equal = equal_sizes(scope, region.nodes)
    inputs, outputs = (
        tuple(tensor_spec(scope, value, equal) for value in values)
        for values in (region.inputs, region.outputs)
    )
    return RegionSignature(
        region.kind,
        _text(_Body(scope, region).function().SerializeToString(deterministic=True)),
        *join_unsolved(inputs, outputs),
    )


@lru_cache(maxsize=1024)
def _text(function: bytes) -> str:
    """Return the text of a function; alike layers of a model have one body."""
    return body_text(onnx.FunctionProto.FromString(function))


class _Body:
    """Writes a region's nodes with names of its own."""

    def __init__(self, scope: Scope, region: FusedRegion) -> None:
        self._scope = scope
        self._region = region
        self._function = onnx.FunctionProto(name=region.kind, domain=DOMAIN)
        self._names = dict(zip(region.inputs, input_names(region), strict=True))

    def function(self) -> onnx.FunctionProto:
        function, names = self._function, self._names
        function.input.extend(names.values())
        for node in self._region.nodes:
            self._write(node)
        function.output.extend(names[value] for value in self._region.outputs)
        domains = {node.domain for node in function.node} | {""}
        for domain in sorted(domains):
            function.opset_import.add(domain=domain, version=self._scope.opset(domain) or 1)
        return function

    def _write(self, node: ir.Node) -> None:
        inputs = [self._input(node, index) for index in range(len(node.inputs))]
        outputs = []
        for value in node.outputs:
            is_read = bool(value.uses()) or value.is_graph_output()
            # An op with several required outputs, such as Split, has them all.
            name = f"t{len(self._names)}" if is_read or node.op_type == "Split" else ""
            self._names[value] = name
            outputs.append(name)
        while outputs and not outputs[-1]:
            outputs.pop()
        if needs_standard_form(node, self._scope.opset()):
            call = self._call(node, inputs, outputs)
            self._function.node.extend(standard_form(node, call))
            return
        proto = ir.to_proto(node)
        assert isinstance(proto, onnx.NodeProto)
        for field in ("name", "doc_string", "metadata_props", "input", "output"):
            proto.ClearField(field)
        proto.input.extend(inputs)
        proto.output.extend(outputs)
        if node.op_type == "Reshape":
            # The body's own shape copies with 0.
            kept = [item for item in proto.attribute if item.name != "allowzero"]
            del proto.attribute[:]
            proto.attribute.extend(kept)
        self._function.node.append(proto)

    def _call(self, node: ir.Node, inputs: list[str], outputs: list[str]) -> Call:
        source = node.inputs[0]
        dtype = None if source is None else self._scope.shapes.dtype(source)
        if dtype is None:
            raise InternalError(f"a member of unknown type: {node.op_type}")
        numbers = {
            name: attribute.as_float()
            for name, attribute in node.attributes.items()
            if attribute.type == ir.AttributeType.FLOAT
        }
        opset, axis = self._scope.opset(), self._norm_axis(node)
        return Call(tuple(inputs), tuple(outputs), numbers, dtype.numpy(), opset, axis)

    def _norm_axis(self, node: ir.Node) -> int:
        """Return the axis attribute of a node, -1 where it has none, counted from the last."""
        axis = node.attributes.get_int("axis", -1)
        if axis < 0:
            return axis
        source = node.inputs[0]
        shape = None if source is None else self._scope.shapes.shape(source)
        if shape is None:
            raise InternalError(f"a norm of unknown rank: {node.name!r}")
        return axis - len(shape)

    def _input(self, node: ir.Node, index: int) -> str:
        """Return the name of an input, after writing it down if the body holds it."""
        value = node.inputs[index]
        if value is None:
            return ""
        if not is_written(self._scope, node, index):
            return self._names[value]
        if node.op_type == "Reshape" and index == 1:
            target = reshape_parameter(self._scope, node)
            if target is None:
                raise InternalError("a Reshape whose shape cannot be written")
            return self._constant(numpy_helper.from_array(target))
        if value not in self._names:
            tensor = value.const_value
            if tensor is None:
                raise InternalError(f"a parameter without data: {value.name!r}")
            self._names[value] = self._constant(ir.to_proto(tensor))
        return self._names[value]

    def _constant(self, tensor: onnx.TensorProto) -> str:
        exact = numpy_helper.from_array(np.asarray(numpy_helper.to_array(tensor)))
        name = f"c{len(self._function.node)}"
        self._function.node.append(helper.make_node("Constant", [], [name], value=exact))
        return name


_SAME: Mapping[Size, Size] = {}


def tensor_spec(scope: Scope, value: ir.Value, equal: Mapping[Size, Size] = _SAME) -> TensorSpec:
    """Return what a signature says of a value; `equal` are sizes and what else they are called."""
    spec = known_spec(scope.shapes, value, equal)
    if spec is None:
        raise InternalError(f"a region with a value of unknown shape: {value.name!r}")
    return spec


def known_spec(
    shapes: Shapes, value: ir.Value, equal: Mapping[Size, Size] = _SAME
) -> TensorSpec | None:
    """Return the type and sizes of a value, None if they are not known; see `tensor_spec`."""
    shape, dtype = shapes.shape(value), shapes.dtype(value)
    if shape is None or dtype is None:
        return None
    named = (equal.get(size, size) for size in shape)
    sizes = tuple(size if isinstance(size, int) else str(size) for size in named)
    return TensorSpec(value.name or "", dtype.numpy().name, sizes)
