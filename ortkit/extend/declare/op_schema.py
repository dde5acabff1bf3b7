"""What a Python function's signature says of an op: inputs, outputs, attributes, types."""

from __future__ import annotations

import inspect
import itertools
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ortkit.errors import UserError
from ortkit.extend.declare.sizes import check_outputs
from ortkit.extend.declare.tensor_types import TensorType

Attribute = bool | int | float | str | tuple[int, ...] | tuple[float, ...]
#: A choice of element types, by the words of the declaration: {"Float": "float32"}.
Types = Mapping[str, str]

#: Outputs that are not named are called so.
_STEMS = ("y", "out", "result")
_SCALARS: Mapping[object, type] = {bool: bool, int: int, float: float, str: str}
_LISTS: Mapping[object, type] = {tuple[int, ...]: int, tuple[float, ...]: float}


@dataclass(frozen=True)
class OpInput:
    """One formal input."""

    name: str
    type: TensorType
    is_variadic: bool = False
    """Whether it stands for any number of tensors from 1 on, of one type and shape."""


@dataclass(frozen=True)
class OpAttribute:
    """One attribute."""

    name: str
    kind: object
    """`bool`, `int`, `float`, `str`, `tuple[int, ...]` or `tuple[float, ...]`."""
    default: Attribute | None
    """None: a node must have it."""


@dataclass(frozen=True)
class OpSchema:
    """All that a signature says."""

    inputs: tuple[OpInput, ...]
    outputs: Mapping[str, TensorType]
    attributes: Mapping[str, OpAttribute]

    @property
    def kinds(self) -> Mapping[str, tuple[str, ...]]:
        """The element types that each word of the declaration may stand for."""
        found = (op_input.type for op_input in self.inputs)
        return {kind.kind: kind.dtypes for kind in (*found, *self.outputs.values())}

    def choices(self, among: Sequence[str] | None = None) -> Iterator[Types]:
        """Yield all choices of element types, for words with several of those in `among`."""
        kinds = self.kinds
        allowed = [
            [dtype for dtype in dtypes if among is None or len(dtypes) == 1 or dtype in among]
            for dtypes in kinds.values()
        ]
        for chosen in itertools.product(*allowed):
            yield dict(zip(kinds, chosen, strict=True))

    def presences(self) -> Iterator[tuple[bool, ...]]:
        """Yield which inputs may be there: all of them first."""
        choices = [
            (True, False) if op_input.type.is_optional else (True,) for op_input in self.inputs
        ]
        yield from itertools.product(*choices)

    def bind_types(self, dtypes: Sequence[tuple[OpInput, str]], where: str) -> Types:
        """Return the choice that the inputs' element types make.

        Raises:
            UserError: One is not allowed, or two that must be equal are not.
        """
        found: dict[str, str] = {}
        for op_input, dtype in dtypes:
            kind = op_input.type
            if dtype not in kind.dtypes:
                raise UserError(
                    f"{op_input.name} is {dtype}, and {kind.kind} is {' or '.join(kind.dtypes)}",
                    where=where,
                )
            if found.setdefault(kind.kind, dtype) != dtype:
                raise UserError(
                    f"{op_input.name} is {dtype}, and {kind.kind} is {found[kind.kind]} elsewhere",
                    where=where,
                )
        for kind in self.outputs.values():
            found.setdefault(kind.kind, kind.dtypes[0])
        return found


def read_schema(function: Callable[..., object], names: Sequence[str], where: str) -> OpSchema:
    """Read a function's signature.

    Args:
        function: Annotated as docs/guides/custom-ops.md says.
        names: Of the outputs; empty: y, or y0, y1 and so on; out where y is taken.
        where: The op, for messages.

    Raises:
        UserError: The signature does not declare an op.
    """
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError as error:
        raise UserError(
            f"its annotations name {error.name!r}, which its module does not have", where=where
        ) from error
    except Exception as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"its annotations cannot be read: {error}", where=where) from error
    inputs: list[OpInput] = []
    attributes: dict[str, OpAttribute] = {}
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            attributes[parameter.name] = _attribute(parameter, where)
        else:
            inputs.append(_input(parameter, where))
    outputs = _outputs(signature.return_annotation, names, list(signature.parameters), where)
    _check_inputs(inputs, where)
    always = [op_input.type for op_input in inputs if not op_input.type.is_optional]
    check_outputs(outputs, always, where)
    _check_stars([*(one.type for one in inputs), *outputs.values()], where)
    known = {item.type.kind for item in inputs if not item.type.is_optional}
    for name, kind in outputs.items():
        if len(kind.dtypes) > 1 and kind.kind not in known:
            raise UserError(
                f"no input that is always there tells the type of {name}", where=where,
                fix=f"give it one element type, such as {kind.dtypes[0].capitalize()}",
            )  # fmt: skip
    return OpSchema(tuple(inputs), outputs, attributes)


def _input(parameter: inspect.Parameter, where: str) -> OpInput:
    kind, name = parameter.annotation, parameter.name
    if not isinstance(kind, TensorType):
        raise UserError(
            f"{name} is not annotated as a tensor", where=where,
            fix='write it as x: ortkit.Float["*shape"]; attributes come after *',
        )  # fmt: skip
    if parameter.kind is parameter.VAR_KEYWORD:
        raise UserError(f"**{name} declares nothing", where=where, fix="name the attributes")
    is_variadic = parameter.kind is parameter.VAR_POSITIONAL
    has_default = parameter.default is not parameter.empty
    if has_default and parameter.default is not None:
        raise UserError(f"{name} has the default {parameter.default!r}", where=where, fix="None")
    if kind.is_optional != has_default and not is_variadic:
        raise UserError(
            f"{name} is half optional", where=where,
            fix=f'write {name}: {kind.kind}["n"] | None = None',
        )  # fmt: skip
    if kind.is_optional and is_variadic:
        raise UserError(f"*{name} cannot be optional too", where=where)
    return OpInput(name, kind, is_variadic)


def _check_inputs(inputs: Sequence[OpInput], where: str) -> None:
    if not inputs:
        raise UserError("an op without inputs is a constant", where=where)
    if inputs[0].type.is_optional:
        raise UserError("the first input is always there", where=where)
    for one in inputs[1:]:
        if one.is_variadic and any(other.type.is_optional for other in inputs):
            raise UserError("optional and variadic inputs cannot stand together", where=where)


def _check_stars(kinds: Sequence[TensorType], where: str) -> None:
    words = {kind.dims[kind.star].names[0] for kind in kinds if kind.star is not None}
    plain = {name for kind in kinds for dim in kind.dims if not dim.is_star for name in dim.names}
    if words & plain:
        raise UserError(f"{min(words & plain)!r} is one axis and any number of them", where=where)


def _attribute(parameter: inspect.Parameter, where: str) -> OpAttribute:
    kind, name, default = parameter.annotation, parameter.name, parameter.default
    if kind not in _SCALARS and kind not in _LISTS:
        raise UserError(
            f"the attribute {name} has no type that ONNX has", where=where,
            fix="use bool, int, float, str, tuple[int, ...] or tuple[float, ...]",
        )  # fmt: skip
    if default is parameter.empty:
        return OpAttribute(name, kind, None)
    if not _fits(default, kind):
        raise UserError(f"the attribute {name} cannot be {default!r}", where=where)
    return OpAttribute(name, kind, _stored(default, kind))


def _stored(value: object, kind: object) -> Attribute:
    """Return a value as a node holds it: ONNX has attributes of float32 only."""
    if kind is float:
        return float(np.float32(value))  # type: ignore[arg-type]
    if kind == tuple[float, ...]:
        return tuple(float(np.float32(item)) for item in value)  # type: ignore[attr-defined]
    return value  # type: ignore[return-value]


def _fits(value: object, kind: object) -> bool:
    if kind in _LISTS:
        return isinstance(value, tuple) and all(_fits(item, _LISTS[kind]) for item in value)
    if kind is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, _SCALARS[kind])


def checked_attributes(
    schema: OpSchema, given: Mapping[str, object], where: str
) -> dict[str, Attribute]:
    """Return all attributes with their values, defaults filled in.

    Raises:
        UserError: One is missing, unknown or of the wrong type.
    """
    for name in given:
        if name not in schema.attributes:
            known = ", ".join(schema.attributes) or "none"
            raise UserError(f"there is no attribute {name!r}", where=where, fix=f"known: {known}")
    found: dict[str, Attribute] = {}
    for name, attribute in schema.attributes.items():
        value = given.get(name, attribute.default)
        if value is None:
            raise UserError(f"the attribute {name} is missing", where=where)
        if isinstance(value, list):
            value = tuple(value)
        if not _fits(value, attribute.kind):
            raise UserError(f"the attribute {name} cannot be {value!r}", where=where)
        found[name] = _stored(value, attribute.kind)
    return found


def _outputs(
    annotation: object, names: Sequence[str], used: Sequence[str], where: str
) -> Mapping[str, TensorType]:
    found: tuple[object, ...] = (annotation,)
    if isinstance(annotation, types.GenericAlias) and typing.get_origin(annotation) is tuple:
        found = typing.get_args(annotation)
    if not all(isinstance(item, TensorType) and not item.is_optional for item in found):
        raise UserError(
            "its result is not annotated as a tensor", where=where,
            fix='write -> ortkit.Float["*shape"], or tuple[...] of several',
        )  # fmt: skip
    for stem in () if names else _STEMS:
        names = (stem,) if len(found) == 1 else tuple(f"{stem}{i}" for i in range(len(found)))
        if not set(names) & set(used):
            break
    if len(set(names)) != len(found):
        raise UserError(f"{len(found)} outputs are called {', '.join(names)}", where=where)
    if both := set(names) & set(used):
        raise UserError(
            f"{min(both)} is an output and an input or attribute", where=where,
            fix='name the outputs: custom_op(..., outputs=("z",))',
        )  # fmt: skip
    return {
        name: kind for name, kind in zip(names, found, strict=True) if isinstance(kind, TensorType)
    }
