"""Putting a region back as one node with its body as the model-local function."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir

from ortkit.errors import InternalError
from ortkit.fusion.body_check import invalid_body
from ortkit.fusion.regions.region import PASS, FusedRegion
from ortkit.graph.walk import control_bodies
from ortkit.kernels.signature import DOMAIN, RegionSignature
from ortkit.rewrite.scope import Scope, captured_values
from ortkit.rewrite.site import describe

#: Model-local functions exist from this IR version on.
FUNCTIONS_SINCE_IR = 8


def lower_region(
    scope: Scope,
    region: FusedRegion,
    signature: RegionSignature,
    replaced: dict[ir.Value, ir.Value],
) -> bool:
    """Replace the region's nodes by one fused node. Returns False if that was denied.

    Args:
        scope: The region's.
        region: As it was found, before any region was replaced.
        signature: The region's.
        replaced: What stands for the outputs of the regions before it; gets its own.
    """
    if not scope.log.claim(PASS, region.kind, region.at, describe(region.anchor)):
        return False
    model, graph = scope.model, region.anchor.graph
    written = read_by(region.nodes)
    identifier = (DOMAIN, signature.op_type, "")
    if identifier not in model.functions:
        model.functions[identifier] = _function(scope, signature)
    scope.import_domain(DOMAIN, 1)
    model.graph.opset_imports.setdefault(DOMAIN, 1)
    if graph is not None:
        graph.opset_imports.setdefault(DOMAIN, 1)
    scope.raise_ir_version(FUNCTIONS_SINCE_IR)
    made = scope.insert(
        region.anchor,
        signature.op_type,
        [_operand(scope, value, replaced) for value in region.inputs],
        domain=DOMAIN,
        outputs=len(region.outputs),
        name=f"{region.at}/fused",
        called=fused_name(region.at, signature),
    )
    for old, new in zip(region.outputs, made, strict=True):
        scope.replace(old, new)
        replaced[old] = new
    for value in written:
        scope.drop_initializer(value)
    return True


def read_by(nodes: Iterable[ir.Node]) -> dict[ir.Value, None]:
    """Return what nodes read, and what is only read to make that of constants."""
    found: dict[ir.Value, None] = {}
    pending = [value for node in nodes for value in node.inputs if value is not None]
    while pending:
        value = pending.pop()
        producer = value.producer()
        if value in found:
            continue
        found[value] = None
        if producer is not None and producer.op_type in ("DequantizeLinear", "Transpose"):
            pending += [item for item in producer.inputs if item is not None]
    return found


def fused_name(at: str, signature: RegionSignature) -> str:
    """Return the name of a fused node: its kind, in the scope of the value that it computes.

    Its operator's name ends in the key of what it computes, which says nothing to people.
    """
    scope = at.rpartition("/")[0]
    return f"{scope or f'{at}/fused'}/{signature.name}"


def detached_constant(tensor: ir.TensorProtocol, name: str) -> ir.Value:
    """Return a constant that is in no graph before a region that reads it is put back."""
    return ir.Value(
        name=name,
        shape=ir.Shape(tensor.shape.numpy()),
        type=ir.TensorType(tensor.dtype),
        const_value=tensor,
    )


def _operand(scope: Scope, value: ir.Value, replaced: dict[ir.Value, ir.Value]) -> ir.Value:
    """Return what stands for an input of a region; a loose constant becomes an initializer."""
    is_loose = value.const_value is not None and value.graph is None and value.producer() is None
    if is_loose and value not in replaced:
        assert value.const_value is not None
        replaced[value] = scope.initializer(value.const_value, value.name or "")
    return replaced.get(value, value)


def import_fused(scope: Scope, signature: RegionSignature) -> tuple[str, str]:
    """Let the model have a region's body, and return its domain and op type."""
    identifier = (DOMAIN, signature.op_type, "")
    if identifier not in scope.model.functions:
        scope.model.functions[identifier] = _function(scope, signature)
    scope.import_domain(DOMAIN, 1)
    scope.raise_ir_version(FUNCTIONS_SINCE_IR)
    return DOMAIN, signature.op_type


def import_body(scope: Scope, op_type: str, body: onnx.FunctionProto) -> None:
    """Let the model have `body`, in the versions that it imports, as the fused op `op_type`."""
    proto = onnx.FunctionProto()
    proto.CopyFrom(body)
    proto.domain, proto.name = DOMAIN, op_type
    scope.model.functions[DOMAIN, op_type, ""] = ir.serde.deserialize_function(proto)


def restore_order(scope: Scope) -> None:
    """Sort the graphs of `scope` where a fused node stands after what reads its outputs."""
    if isinstance(scope.root, ir.Graph) and not _is_ordered(scope.root):
        scope.root.sort()


def drop_unread(scope: Scope) -> None:
    """Remove the initializers that nothing reads: matrices that regions hold in another form."""
    if isinstance(scope.root, ir.Graph):
        for value in list(scope.root.initializers.values()):
            scope.drop_initializer(value)


def _is_ordered(graph: ir.Graph) -> bool:
    """Say whether every node of `graph`, and of the graphs in it, stands before its readers."""
    passed: set[ir.Node] = set()
    for node in graph:
        for value in captured_values(node):
            producer = value.producer()
            if producer is not None and producer.graph is graph and producer not in passed:
                return False
        passed.add(node)
    return all(_is_ordered(body) for node in graph for body in control_bodies(node))


def _function(scope: Scope, signature: RegionSignature) -> ir.Function:
    """Return the body under the fused node's name, importing the model's versions.

    Raises:
        InternalError: The body is not valid at these.
    """
    if (invalid := invalid_body(signature, {"": scope.opset()})) is not None:
        raise InternalError(invalid.reason, where=signature.op_type)
    proto = signature.function()
    proto.domain, proto.name = DOMAIN, signature.op_type
    function = ir.serde.deserialize_function(proto)
    for domain in function.opset_imports:
        function.opset_imports[domain] = scope.opset(domain) or 1
    return function
