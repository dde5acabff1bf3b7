"""From a region to the signature that kernel backends see."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnx import helper

from ortkit.errors import InternalError
from ortkit.fusion.regions import FusedRegion
from ortkit.kernels.signature import DOMAIN, RegionSignature, TensorSpec, body_text
from ortkit.ops.gelu import erf_form, tanh_form
from ortkit.rewrite.scope import Scope

#: What ONNX Runtime's own ops compute, in ops that run anywhere.
GELU_FORMS = {"BiasGelu": erf_form, "FastGelu": tanh_form, "Gelu": erf_form}


def describe_region(scope: Scope, region: FusedRegion) -> RegionSignature:
    """Return the region's signature: its body as a function of its inputs, sizes by name."""
    function = onnx.FunctionProto(name=region.kind, domain=DOMAIN)
    names = {id(value): f"x{i}" for i, value in enumerate(region.inputs)}
    function.input.extend(names.values())
    for node in region.nodes:
        for value in node.outputs:
            names[id(value)] = f"t{len(names)}"
        function.node.extend(_body_of(node, names))
    function.output.extend(names[id(value)] for value in region.outputs)
    for domain in sorted({node.domain for node in function.node}):
        function.opset_import.add(domain=domain, version=scope.opset(domain) or 1)
    return RegionSignature(
        region.kind,
        body_text(function),
        tuple(_spec(scope, value) for value in region.inputs),
        tuple(_spec(scope, value) for value in region.outputs),
    )


def _body_of(node: ir.Node, names: dict[int, str]) -> list[onnx.NodeProto]:
    """Return `node` as the function's body has it: in standard ops, so that it runs anywhere."""
    form = GELU_FORMS.get(node.op_type) if node.domain == "com.microsoft" else None
    if form is None:
        return [_node_proto(node, names)]
    inputs = [names[id(value)] for value in node.inputs if value is not None]
    x, y = inputs[0], names[id(node.outputs[0])]
    if len(inputs) == 1:
        return form(x, y)
    return [helper.make_node("Add", inputs, [f"{y}_sum"]), *form(f"{y}_sum", y)]


def _node_proto(node: ir.Node, names: dict[int, str]) -> onnx.NodeProto:
    proto = ir.to_proto(node)
    assert isinstance(proto, onnx.NodeProto)
    for field in ("name", "doc_string", "metadata_props", "input", "output"):
        proto.ClearField(field)
    proto.input.extend("" if value is None else names[id(value)] for value in node.inputs)
    proto.output.extend(names[id(value)] for value in node.outputs)
    return proto


def _spec(scope: Scope, value: ir.Value) -> TensorSpec:
    shape, dtype = scope.shapes.shape(value), scope.shapes.dtype(value)
    if shape is None or dtype is None:
        raise InternalError(f"a region with a value of unknown shape: {value.name!r}")
    sizes = tuple(size if isinstance(size, int) else str(size) for size in shape)
    return TensorSpec(value.name or "", dtype.numpy().name, sizes)
