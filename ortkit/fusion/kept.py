"""Fused nodes that a model already has, and whose kernels are made again from their bodies.

A model that was optimized before is taken apart into the bodies of its fused nodes, and regions
are formed again. What today's passes do not form again stays a fused node; see
`ortkit.optimization.fused_source`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import onnx
import onnx_ir as ir
from onnx import helper

from ortkit.errors import InternalError, ModelError
from ortkit.fusion.regions.anchors import is_for
from ortkit.fusion.regions.describe import known_spec
from ortkit.fusion.regions.duplicate import Accepts
from ortkit.fusion.regions.lower import import_body
from ortkit.fusion.regions.region import PASS
from ortkit.fusion.regions.report import RegionReport
from ortkit.fusion.regions.sizes import join_unsolved
from ortkit.graph.io.convert import first_line, to_ir
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.walk import subgraphs
from ortkit.kernels.signature import DOMAIN, RegionSignature, TensorSpec, body_text
from ortkit.rewrite.log import DENIED, RewriteLog
from ortkit.rewrite.scope import PURE_DOMAINS, Scope
from ortkit.rewrite.site import describe
from ortkit.targets.target import Target
from ortkit.text import kind_of_op

#: The rule under which keeping a fused operator is reported, and denied: `fuse-regions:kept:OP`.
KEPT = "kept"
#: More nodes than this are no body of a region: they are not compiled.
_MOST_NODES = 256


@dataclass(frozen=True)
class KeptNode:
    """A fused node of the source.

    Args:
        scope: Its graph's.
        node: The call of the body.
        signature: Of its kernel; None if it cannot have one.
        reason: Why not, empty if it can.
    """

    scope: Scope
    node: ir.Node
    signature: RegionSignature | None
    reason: str


def find_kept(
    scopes: Sequence[Scope],
    bodies: Mapping[str, onnx.FunctionProto],
    accepts: Accepts,
    target: Target,
) -> Iterator[KeptNode]:
    """Yield the calls of `bodies`, each with the signature of its kernel or why it has none.

    Args:
        scopes: The rewritten graphs.
        bodies: By op type, as the source had them.
        accepts: Says why there would be no kernel for a signature.
        target: What the kernels are for.
    """
    for scope in scopes:
        if scope.is_function:
            continue
        for node in scope.nodes():
            if node.domain != DOMAIN or node.op_type not in bodies:
                continue
            if scope.log.is_denied(PASS, KEPT, node.op_type):
                yield KeptNode(scope, node, None, DENIED)
                continue
            found = _signature(scope, node, bodies[node.op_type])
            if isinstance(found, str):
                yield KeptNode(scope, node, None, found)
            elif not is_for(target, found):
                yield KeptNode(scope, node, None, "ONNX Runtime's own is as fast there")
            elif (verdict := accepts(found)) is not None:
                yield KeptNode(scope, node, None, verdict.reason)
            else:
                yield KeptNode(scope, node, found, "")


def settle_kept(
    kept: Sequence[KeptNode],
    bodies: Mapping[str, onnx.FunctionProto],
    refused: Mapping[str, str],
) -> Iterator[RegionReport]:
    """Give each node the body of its kernel, and yield what became of it.

    Args:
        kept: As found, before kernels were compiled.
        bodies: By op type, as the source had them: rewrites may have changed the model's.
        refused: Why there is no kernel, by key.
    """
    claimed: dict[str, bool] = {}
    for kept_node in kept:
        op_type, signature, reason = kept_node.node.op_type, kept_node.signature, kept_node.reason
        body = bodies[op_type]
        if signature is not None:
            reason = refused.get(signature.key, "")
        if not reason and op_type not in claimed:
            claimed[op_type] = kept_node.scope.log.claim(
                PASS, KEPT, op_type, describe(kept_node.node)
            )
        if not reason and not claimed[op_type]:
            reason = "rolled back or out of fuel"
        emitted = None
        if not reason and signature is not None:
            import_body(kept_node.scope, signature.op_type, body)
            kept_node.node.op_type = emitted = signature.op_type
        values = [value for value in kept_node.node.inputs if value is not None]
        yield RegionReport(
            kind=kind_of_op(op_type),
            at=kept_node.node.outputs[-1].name or "",
            nodes=len(body.node),
            emitted_as=emitted,
            reason=reason,
            inputs=len(values),
            outputs=len(kept_node.node.outputs),
            predicted_before_ns=0,
            predicted_after_ns=0,
            ops=tuple(dict.fromkeys(node.op_type for node in body.node)),
            kept_from=op_type,
        )
    _drop_uncalled(kept, bodies)


def _drop_uncalled(kept: Sequence[KeptNode], bodies: Iterable[str]) -> None:
    """Remove the bodies whose calls are called otherwise now."""
    called = {kept_node.node.op_type for kept_node in kept}
    models = {item.scope.model for item in kept}
    for model, op_type in product(models, set(bodies) - called):
        model.functions.pop((DOMAIN, op_type, ""), None)


def _signature(scope: Scope, node: ir.Node, body: onnx.FunctionProto) -> RegionSignature | str:
    """Return what the node's kernel computes, or why there is none.

    Sizes of results follow from the body: what the model declares of them is not trusted.
    """
    if len(body.node) > _MOST_NODES:
        return f"its body has {len(body.node)} nodes, more than {_MOST_NODES}"
    if body.attribute or body.attribute_proto or node.attributes:
        return "its body has attributes"
    values = [value for value in node.inputs if value is not None]
    if not len(values) == len(node.inputs) == len(body.input):
        return "it is not called with all inputs of its body"
    try:
        inputs = _specs(scope, values)
        inner = _inferred(scope, values, body)
        assert isinstance(inner.root, ir.Graph)
        if any(node.domain not in PURE_DOMAINS or any(subgraphs(node)) for node in inner.root):
            return "its body holds calls or graphs"
        named = join_unsolved(inputs, _specs(inner, inner.root.outputs))
        return RegionSignature(kind_of_op(node.op_type), body_text(body), *named)
    except (InternalError, ModelError, onnx.parser.ParseError) as error:
        return f"no kernel has a body like its own: {first_line(error)}"


def _specs(scope: Scope, values: Sequence[ir.Value]) -> tuple[TensorSpec, ...]:
    """Return what a signature says of values.

    Raises:
        ModelError: A shape or an element type is unknown.
    """
    specs = [known_spec(scope.shapes, value) for value in values]
    for value, spec in zip(values, specs, strict=True):
        if spec is None:
            raise ModelError(f"shape or type of {value.name!r} is unknown")
    return tuple(spec for spec in specs if spec is not None)


def _inferred(scope: Scope, values: Sequence[ir.Value], body: onnx.FunctionProto) -> Scope:
    """Return the graph of a body whose inputs are as large as `values`."""
    inputs = []
    for name, value in zip(body.input, values, strict=True):
        shape, dtype = scope.shapes.shape(value), scope.shapes.dtype(value)
        assert shape is not None and dtype is not None
        sizes = [size if isinstance(size, int) else str(size) for size in shape]
        inputs.append(helper.make_tensor_value_info(name, int(dtype), sizes))
    outputs = [onnx.ValueInfoProto(name=name) for name in body.output]
    graph = helper.make_graph(body.node, "body", inputs, outputs)
    proto = helper.make_model(graph, opset_imports=list(body.opset_import))
    model = to_ir(proto, "the body of a fused node")
    return Scope(model, model.graph, Shapes.infer(model), RewriteLog(), scope.options)
