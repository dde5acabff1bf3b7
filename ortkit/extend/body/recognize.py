"""Ops found where a model has them written out: a pass that is made from their bodies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.analysis.cones import Cone, Order, cones_at
from ortkit.analysis.float64_eval import Array, sample
from ortkit.extend.body.function import at_opset, specialized
from ortkit.extend.body.match import Body, Matched, Nearest, match_body
from ortkit.extend.declare.declared_op import DeclaredOp
from ortkit.extend.declare.tensor_types import TensorType
from ortkit.graph.symbolic.dims import Size
from ortkit.passes.inline_functions import KEPT_KEY
from ortkit.rewrite.passes import GraphPass
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site, describe
from ortkit.text import plural

#: Model-local functions with attributes and default values exist from this version on.
_FUNCTIONS_SINCE_IR = 9
#: How far values of the function, in float64, may be from the op's, as a part of them.
_SAME = 1e-6
_POINTS = np.concatenate([
    np.linspace(-12.05, 12.1, 301), [-1e4, -1e2, -1e-3, -0.0, 0.0, 1e-3, 1e2, 1e4],
])  # fmt: skip


@dataclass(frozen=True)
class RecogniseOps(GraphPass):
    """Put declared ops in place of the nodes that their bodies are written out as.

    Before:
        r = Relu(x);  y = Mul(r, r)        # the body of mydomain::SquaredReLU
    After:
        y = mydomain::SquaredReLU(x)       # with the body as model-local function

    A body that is a function of each element of one input is found by its values, however it is
    spelled. Any other body is found by its nodes, operands of commutative ones in either order.

    Skips:
        * Inner results that others read.
        * Values whose types or shapes are not known to fit the op's declaration.
        * Attributes: an op is found with their defaults.

    Source:
        The ops' bodies, `DeclaredOp.body`.
    """

    name: ClassVar[str] = "recognise-ops"

    ops: tuple[DeclaredOp, ...] = ()

    def run(self, scope: Scope) -> None:
        if scope.is_function:
            return
        bodies = []
        for op in self.ops:
            body = _body(op, scope.opset())
            if isinstance(body, _Known):
                bodies.append(body)
            else:
                scope.log.miss(self.name, op.id, body, rule=op.id)
        order = Order(scope)
        # From the outputs on: what a larger op contains is not looked at alone.
        for node in reversed(tuple(order.index)):
            if node.graph is not None:
                _recognise(Site(scope, node, self.name), bodies, order)
        for known in bodies:
            _explain(known, scope, self.name)


@dataclass(frozen=True)
class _Known:
    """An op with its body as it is looked for."""

    op: DeclaredOp
    function: ir.Function
    """With attributes, to be put into the model."""
    body: Body
    """Without, defaults built in."""
    values: Array | None
    """At `_POINTS`, if it is a function of each element of its input."""
    nearest: Nearest = field(default_factory=Nearest)
    """Where most of the body was found."""


def _explain(known: _Known, scope: Scope, pass_name: str) -> None:
    """Say why an op was found nowhere; where it was refused that was said already."""
    op, log = known.op, scope.log
    found = [each.rule for each in log.hits if each.pass_name == pass_name]
    if op.name in found or any(each.rule == op.id for each in log.misses):
        return
    if known.values is not None:
        log.miss(pass_name, op.id, "no function of one value has its values", rule=op.id)
        return
    nearest = known.nearest
    if nearest.end is None:
        reason = "no node of the model makes its result"
        log.miss(pass_name, op.id, reason, rule=op.id)
        return
    of = plural(len(known.body.nodes), "node")
    reason = f"{nearest.matched} of {of} match, and it has {nearest.lacks}"
    log.miss(pass_name, describe(nearest.end), f"{op.id}: {reason}", rule=op.id)


def _withdraw(scope: Scope, op: DeclaredOp) -> None:
    """Drop what `_explain` said of an op that is found after all, once others have rewritten."""
    log = scope.log
    for miss in [each for each in log.misses if each.rule == op.id and not each.outputs]:
        del log.misses[miss]


def _body(op: DeclaredOp, opset: int) -> _Known | str:
    """Return an op as it is looked for, or why it cannot be."""
    found = op.bodies.get(frozenset())
    proto = None if found is None else at_opset(found, opset)
    schema = op.schema
    if found is None:
        return "it has no body to look for: declare one with `body`"
    if proto is None:
        return f"its body is not valid at opset {opset}, which the model has"
    if len(schema.outputs) != 1:
        return f"it has {len(schema.outputs)} outputs, and only ops with one are looked for"
    defaults = {
        name: op_attribute.default
        for name, op_attribute in schema.attributes.items()
        if op_attribute.default is not None
    }
    if len(defaults) != len(schema.attributes):
        absent = ", ".join(schema.attributes.keys() - defaults.keys())
        return f"an op is found with its attributes' defaults, and there is none of {absent}"
    dtype = next(iter(schema.choices()))
    kinds = [dtype[op_input.type.kind] for op_input in schema.inputs]
    plain, given, _ = specialized(proto, schema, kinds, defaults)
    numbers = {
        name: float(defaults[attribute])  # type: ignore[arg-type]
        for name, attribute in zip(plain.input[len(kinds) :], given, strict=True)
    }
    body = Body.of(plain, len(kinds), numbers)
    return _Known(op, ir.serde.deserialize_function(proto), body, _sampled(body))


def _sampled(body: Body) -> Array | None:
    """Return what a body of one input computes of each element, None if it is not such."""
    if len(body.inputs) != 1 or not body.is_pointwise():
        return None
    values: dict[str, Array] = {body.inputs[0]: _POINTS, **body.constants}
    for node in body.nodes:
        inputs = [values.get(name) if name else None for name in body.names(node)]
        result = sample(node, inputs)
        if result is None:
            return None
        values[body.output_of(node)] = result
    made = values.get(body.output)
    return None if made is None or made.shape != _POINTS.shape else made


def _recognise(site: Site, bodies: Sequence[_Known], order: Order) -> None:
    if site.node.domain not in ("", "com.microsoft"):
        return
    by_value = [body for body in bodies if body.values is not None]
    if by_value:
        for cone in reversed(cones_at(site.scope, site.node, order)):
            for known in by_value:
                is_found = _is_same(cone, known)
                if is_found and _write(site, known, Matched((cone.root,), cone.nodes), order):
                    return
    for body in bodies:
        if body.values is not None:
            continue
        ways = list(match_body(body.body, site.scope, site.node, body.nearest))
        fitting = [way for way in ways if not _misfit(site, body.op, way.inputs)]
        if ways and _write(site, body, (fitting or ways)[0], order):
            return


def _is_same(cone: Cone, known: _Known) -> bool:
    try:
        values = cone.evaluate(_POINTS)
    except ValueError:
        return False
    assert known.values is not None
    return bool(np.isclose(values, known.values, rtol=_SAME, atol=1e-12, equal_nan=True).all())


def _write(site: Site, known: _Known, matched: Matched, order: Order) -> bool:
    """Put the op in place of the nodes; False, with the reason left, where they stay."""
    op, scope = known.op, site.scope
    inside = set(matched.nodes)
    for node in matched.nodes[1:]:
        for value in node.outputs:
            if value.is_graph_output() or any(user not in inside for user in value.consumers()):
                site.miss(f"{op.id}: others read its inner results", op.id)
                return False
    if reason := _misfit(site, op, matched.inputs):
        site.miss(f"{op.id}: {reason}", op.id)
        return False
    if not site.claim(op.name):
        return True
    _withdraw(scope, op)
    if known.function.identifier() not in scope.model.functions:
        known.function.metadata_props[KEPT_KEY] = op.id
        scope.model.functions[known.function.identifier()] = known.function
    scope.import_domain(op.domain, op.version)
    scope.raise_ir_version(_FUNCTIONS_SINCE_IR)
    made = site.op(op.name, matched.inputs, domain=op.domain)
    producer = made.producer()
    assert producer is not None
    order.place([producer], site.node)
    site.replace(made)
    return True


def _misfit(site: Site, op: DeclaredOp, values: Sequence[ir.Value]) -> str:
    """Say why values do not fit the op's declaration, empty if they do."""
    named: dict[str, object] = {}
    types: dict[str, str] = {}
    for op_input, value in zip(op.schema.inputs, values, strict=True):
        dtype = site.dtype(value)
        if dtype is None or dtype.numpy().name not in op_input.type.dtypes:
            return f"{op_input.name} is {dtype or 'of unknown type'}"
        if types.setdefault(op_input.type.kind, dtype.numpy().name) != dtype.numpy().name:
            return f"{op_input.name} is {dtype}, and {types[op_input.type.kind]} elsewhere"
        # The shape of one input of any number of axes does not matter.
        if len(values) == 1 and len(op_input.type.dims) == 1 and op_input.type.star is not None:
            continue
        shape = site.scope.shapes.shape(value)
        if shape is None:
            return f"the shape of {op_input.name} is not known"
        if reason := _shape_misfit(op_input.name, op_input.type, shape, named):
            return reason
    return ""


def _shape_misfit(
    name: str, kind: TensorType, shape: Sequence[Size], named: dict[str, object]
) -> str:
    rank, star = len(kind.dims), kind.star
    if len(shape) != rank if star is None else len(shape) < rank - 1:
        return f"{name} has {len(shape)} axes"
    sizes: list[object] = list(shape)
    if star is not None:
        end = len(shape) - (rank - 1 - star)
        sizes[star:end] = [tuple(shape[star:end])]
    for word, size in zip(map(str, kind.dims), sizes, strict=True):
        if word.isdecimal():
            if size != int(word):
                return f"a size of {name} is {size}, not {word}"
        elif named.setdefault(word, size) != size:
            return f"a size of {name} is {size}, and {word} is {named[word]} elsewhere"
    return ""
