"""Whether a node means in a newer version of its operator what it meant in the older one.

Decided from the two schemas: a newer one that only takes more types, more inputs, outputs and
attributes that may be left out changes nothing for a node that has none of them. What changed
its meaning under the same signature is listed in `adapters.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import onnx
from onnx.defs import OpSchema

from ortkit.graph.opsets.form import Form, Known

_Parameters = Sequence[OpSchema.FormalParameter]
_OPTION = OpSchema.FormalParameterOption


def refusal(form: Form, since: int, then: int, known: Known) -> str | None:
    """Return None if `form` means the same in both versions of its schema, else what differs.

    Args:
        form: A node as it is written in the older version.
        since: The version that introduced the older schema.
        then: The version that introduced the newer one.
        known: What is known of the node's inputs.
    """
    old, new = _schema(form.op_type, since), _schema(form.op_type, then)
    if new.deprecated:
        return f"{form.op_type} was removed in opset {then}"
    reasons = (
        reason
        for part in (_attributes(form, old, new), _values(form, old, new, known))
        for reason in part
    )
    found = next(reasons, None)
    return None if found is None else f"{form.op_type} of opset {then}: {found}"


@cache
def only_widens(op_type: str, since: int, then: int) -> bool:
    """Say whether every node of the older schema means the same in the newer one."""
    old, new = _schema(op_type, since), _schema(op_type, then)
    if new.deprecated or set(old.attributes) - set(new.attributes):
        return False
    if any(_attribute_change(name, old, new) for name in new.attributes):
        return False
    for before, after in ((old.inputs, new.inputs), (old.outputs, new.outputs)):
        if len(before) > len(after) or any(
            formal_parameter.option == _OPTION.Single for formal_parameter in after[len(before) :]
        ):
            return False
        for one, other in zip(before, after, strict=False):
            if not _takes(other.option, one.option):
                return False
            if not _types(old, one) <= _types(new, other):
                return False
    return not any(_new_ties(old, new))


@cache
def history(op_type: str) -> tuple[int, ...]:
    """Return the versions of the default domain in which the operator's schema was written."""
    # Not by get_all_schemas_with_history, which takes 0.1 to 0.4 s.
    found: list[int] = []
    version = onnx.defs.onnx_opset_version()
    while version > 0 and onnx.defs.has(op_type, version):
        found.insert(0, onnx.defs.get_schema(op_type, version, "").since_version)
        version = found[0] - 1
    return tuple(found)


@cache
def _schema(op_type: str, version: int) -> OpSchema:
    return onnx.defs.get_schema(op_type, version, "")


def _attributes(form: Form, old: OpSchema, new: OpSchema) -> Iterator[str]:
    for name in form.attributes:
        if name not in new.attributes:
            yield f"attribute {name!r} is gone"
        elif name in old.attributes and old.attributes[name].type != new.attributes[name].type:
            yield f"attribute {name!r} is of another type"
    for name in new.attributes:
        if name not in form.attributes and (reason := _attribute_change(name, old, new)):
            yield reason


def _attribute_change(name: str, old: OpSchema, new: OpSchema) -> str:
    """Return what is different for a node that leaves the attribute out."""
    after, before = new.attributes[name], old.attributes.get(name)
    if before is None:
        return f"attribute {name!r} is required" if after.required else ""
    if before.type != after.type:
        return f"attribute {name!r} is of another type"
    if after.required and not before.required:
        return f"attribute {name!r} is required"
    same = before.default_value.SerializeToString() == after.default_value.SerializeToString()
    return "" if same else f"the default of {name!r} is another"


def _values(form: Form, old: OpSchema, new: OpSchema, known: Known) -> Iterator[str]:
    for index, formal in enumerate(new.inputs):
        if formal.option == _OPTION.Single and form.input(index) is None:
            yield f"input {formal.name!r} is required"
    outputs = form.node.outputs[: form.outputs]
    for what, values, before, after in (
        ("input", form.inputs, old.inputs, new.inputs),
        ("output", outputs, old.outputs, new.outputs),
    ):
        for index, value in enumerate(values):
            if value is None:
                continue
            former, latter = _formal(before, index), _formal(after, index)
            if latter is None:
                yield f"{what} {index} is gone"
                continue
            if former is not None and _types(old, former) <= _types(new, latter):
                continue
            dtype = known.dtype(value)
            if dtype is None or f"tensor({_text(int(dtype))})" not in _types(new, latter):
                yield f"{what} {latter.name!r} takes fewer types"
    for first, second in _new_ties(old, new):
        if known.dtype(form.input(first)) != known.dtype(form.input(second)):
            yield f"inputs {first} and {second} must be of one type"


def _formal(parameters: _Parameters, index: int) -> OpSchema.FormalParameter | None:
    if index < len(parameters):
        return parameters[index]
    last = parameters[-1] if parameters else None
    return last if last is not None and last.option == _OPTION.Variadic else None


def _takes(after: object, before: object) -> bool:
    """Say whether what was given to a parameter of option `before` may be given to `after`."""
    return after == before or (after == _OPTION.Optional and before == _OPTION.Single)


@cache
def _type_table(op_type: str, version: int) -> dict[str, frozenset[str]]:
    return {
        constraint.type_param_str: frozenset(constraint.allowed_type_strs)
        for constraint in _schema(op_type, version).type_constraints
    }


def _types(schema: OpSchema, formal: OpSchema.FormalParameter) -> frozenset[str]:
    table = _type_table(schema.name, schema.since_version)
    return table.get(formal.type_str, frozenset((formal.type_str,)))


def _new_ties(old: OpSchema, new: OpSchema) -> Iterator[tuple[int, int]]:
    """Yield pairs of inputs whose types were free of each other and no longer are."""
    count = min(len(old.inputs), len(new.inputs))
    for first in range(count):
        for second in range(first + 1, count):
            was = old.inputs[first].type_str == old.inputs[second].type_str
            if not was and new.inputs[first].type_str == new.inputs[second].type_str:
                yield first, second


def _text(dtype: int) -> str:
    """Return a type as schemas spell it: `float`, `int64`."""
    return str(onnx.TensorProto.DataType.Name(dtype)).lower()
