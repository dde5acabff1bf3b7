"""Operators that work element by element, broadcast where they take several inputs."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ortkit.graph.shapes.rules import elements as el
from ortkit.graph.shapes.rules.call import (
    INTEGERS,
    WIDE_FLOATS,
    Call,
    Element,
    Rule,
    Shape,
    UnknownError,
)
from ortkit.graph.symbolic.dims import broadcast
from ortkit.operators import OpInfo, operator, where

BOOL = ir.DataType.BOOL


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the shape that all broadcast to, ONNX's multidirectional rule.

    Raises:
        ValueError: Two integer sizes do not fit.
    """
    first = shapes[0]
    if all(shape == first for shape in shapes):
        return first
    rank = max(map(len, shapes))
    result = list((1,) * (rank - len(first)) + first)
    for shape in shapes[1:]:
        offset = rank - len(shape)
        for axis, size in enumerate(shape):
            if result[offset + axis] != size:
                result[offset + axis] = broadcast(result[offset + axis], size)
    return tuple(result)


# ---- one input ---------------------------------------------------------------------------


def same(call: Call) -> None:
    """Output 0 has the type and shape of input 0."""
    fact = call.fact(0)
    call.out(dtype=fact.dtype, shape=fact.shape)


def identity(call: Call) -> None:
    """Output 0 is input 0."""
    call.put(0, call.fact(0))


def _unary(function: Callable[[Element], Element]) -> Rule:
    def rule(call: Call) -> None:
        fact = call.fact(0)
        call.out(dtype=fact.dtype, shape=fact.shape)
        if fact.elements is not None and fact.shape is not None and el.can_compute(fact.dtype):
            found = el.apply(call, function, [fact], fact.shape, fact.dtype)
            call.out(elements=found)

    return rule


def _negation(call: Call) -> None:
    fact = call.fact(0)
    call.out(dtype=BOOL, shape=fact.shape)
    if fact.elements is not None and fact.shape is not None:
        call.out(elements=el.apply(call, el.negation, [fact], fact.shape, BOOL))


# ---- casts -------------------------------------------------------------------------------


def _cast(call: Call) -> None:
    _convert(call, call.type_attribute("to"))


def _cast_like(call: Call) -> None:
    _convert(call, call.dtype(1))


def _convert(call: Call, dtype: ir.DataType | None) -> None:
    fact = call.fact(0)
    call.out(dtype=dtype, shape=fact.shape)
    if fact.elements is None or fact.shape is None or dtype is None:
        return
    function = _conversion(dtype)
    if function is not None:
        call.out(elements=el.apply(call, function, [fact], fact.shape, dtype))


def _conversion(dtype: ir.DataType) -> Callable[[Element], Element] | None:
    if dtype == BOOL:
        return el.as_truth
    if dtype in (ir.DataType.INT64, ir.DataType.INT32):
        return el.as_integer
    if dtype in WIDE_FLOATS:
        return el.as_float
    return _narrow if dtype in INTEGERS else None


def _narrow(element: Element) -> Element:
    """Convert to a small integer type; 0 to 7 fit all of them."""
    integer = el.as_integer(element)
    if not el.fits(integer, 0, 7):
        raise UnknownError
    return integer


# ---- several inputs ----------------------------------------------------------------------


def _legacy(call: Call) -> bool:
    """Before version 7 the second operand was broadcast to the first one's shape."""
    return call.version < 7


def _shape_of_all(call: Call) -> Shape:
    if _legacy(call):
        return call.shape(0)
    return broadcast_shapes(*(call.shape(index) for index in range(call.inputs)))


def _first_dtype(call: Call) -> ir.DataType | None:
    return next(
        (dtype for index in range(call.inputs) if (dtype := call.dtype(index)) is not None), None
    )


def _arithmetic(call: Call, function: Callable[..., Element] | None = None) -> None:
    dtype = _first_dtype(call)
    call.out(dtype=dtype)
    shape = _shape_of_all(call)
    call.out(shape=shape)
    if function is None or not el.can_compute(dtype) or _legacy(call):
        return
    facts = [call.fact(index) for index in range(call.inputs)]
    if any(fact.elements is None for fact in facts):
        return
    total = facts[0]
    for fact in facts[1:]:
        part = broadcast_shapes(total.shape or (), fact.shape or ())
        found = el.apply(call, function, [total, fact], part, dtype)
        total = total._replace(shape=part, elements=found)
    call.out(elements=total.elements)


def _binary(function: Callable[[Element, Element], Element]) -> Rule:
    return lambda call: _arithmetic(call, function)


def _divide(call: Call) -> None:
    integers = _first_dtype(call) in INTEGERS
    _arithmetic(call, el.divided_as_integers if integers else el.divided_as_floats)


def _modulo(call: Call) -> None:
    follows = call.integer("fmod", 0) == 0 and _first_dtype(call) in INTEGERS
    _arithmetic(call, el.modulo if follows else None)


def _compare(function: Callable[[Element, Element], Element]) -> Rule:
    def rule(call: Call) -> None:
        call.out(dtype=BOOL)
        shape = _shape_of_all(call)
        call.out(shape=shape)
        facts = [call.fact(0), call.fact(1)]
        if not _legacy(call):
            call.out(elements=el.apply(call, function, facts, shape, BOOL))

    return rule


def _first(call: Call) -> None:
    """Output 0 has the type of input 0 and the broadcast shape: Pow."""
    call.out(dtype=call.dtype(0))
    call.out(shape=_shape_of_all(call))


def _where(call: Call) -> None:
    dtype = call.dtype(1) if call.dtype(1) is not None else call.dtype(2)
    call.out(dtype=dtype)
    shape = _shape_of_all(call)
    call.out(shape=shape)
    facts = [call.fact(0), call.fact(1), call.fact(2)]
    call.out(elements=el.apply(call, el.chosen, facts, shape, dtype))


def _clip(call: Call) -> None:
    fact = call.fact(0)
    call.out(dtype=fact.dtype, shape=fact.shape)
    if fact.elements is None or fact.shape is None or fact.dtype not in INTEGERS:
        return
    for index, function in ((1, el.larger), (2, el.smaller)):
        if call.has(index):
            found = el.apply(call, function, [fact, call.fact(index)], fact.shape, fact.dtype)
            fact = fact._replace(elements=found)
    if el.can_compute(fact.dtype):
        call.out(elements=fact.elements)


def _dropout(call: Call) -> None:
    same(call)
    call.out(1, dtype=call.dtype(0) if call.version < 10 else BOOL, shape=call.fact(0).shape)


def _rule_of(info: OpInfo) -> Rule:
    """Return the rule that follows from what is known of a pointwise operator."""

    def rule(call: Call) -> None:
        if info.dtype == "input":
            call.out(dtype=_first_dtype(call) if info.broadcasts else call.dtype(0))
        else:
            call.out(dtype=BOOL if info.dtype == "bool" else call.type_attribute("to"))
        call.out(shape=_shape_of_all(call) if info.broadcasts else call.fact(0).shape)

    return rule


#: Contents are followed here, or types are others than the row of the operator can say.
_OWN_RULES: dict[str, Rule] = {
    "Identity": identity,
    "Neg": _unary(el.negated),
    "Abs": _unary(el.absolute),
    "Floor": _unary(el.floor),
    "Ceil": _unary(el.ceil),
    "Not": _negation,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Add": _binary(el.added),
    "Sub": _binary(el.subtracted),
    "Mul": _binary(el.multiplied),
    "Div": _divide,
    "Mod": _modulo,
    "Max": _binary(el.larger),
    "Min": _binary(el.smaller),
    "Sum": _binary(el.added),
    "Pow": _first,
    # The standard wants the slope to broadcast to the input; ONNX Runtime takes either way.
    "PRelu": _first,
    "Equal": _compare(el.equal),
    "Greater": _compare(el.greater),
    "Less": _compare(el.less),
    "GreaterOrEqual": _compare(el.greater_or_equal),
    "LessOrEqual": _compare(el.less_or_equal),
    "And": _compare(el.both),
    "Or": _compare(el.either),
    "Xor": _compare(el.not_both),
    "Where": _where,
    "Clip": _clip,
    "Dropout": _dropout,
}
#: ONNX Runtime's own in ONNX's domain, from the first versions of the standard.
_OLD = ("Affine", "ParametricSoftplus", "Scale", "ScaledTanh")
_ROWS = (operator("", op_type) for op_type in sorted(where(access="elementwise")))
RULES: dict[str, Rule] = {
    **{row.op_type: _rule_of(row) for row in _ROWS if row is not None},
    **dict.fromkeys(_OLD, same),
    **_OWN_RULES,
}
