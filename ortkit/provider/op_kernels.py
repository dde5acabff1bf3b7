"""Kernels for single operators: which nodes they fit, and what their attributes are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ortkit.errors import UserError

#: ONNX Runtime has no tensors of these, and does not register a kernel that names them.
_NOT_IN_RUNTIMES = {ir.DataType.COMPLEX64, ir.DataType.COMPLEX128}
#: The last type that ONNX Runtime 1.24 knows.
_LAST = ir.DataType.INT4

#: (domain, operator, version that its schema is since) or the first and last of those.
OpKey = tuple[str, str, int] | tuple[str, str, tuple[int, int]]


@dataclass(frozen=True)
class OpKernel:
    """A Python kernel for an operator; a plain function does where nothing else is said.

    The function takes an array for each input, None for one that is absent, and each attribute
    as a keyword argument.
    """

    function: Callable[..., object]
    types: Mapping[str, Sequence[ir.DataType]] = field(default_factory=dict)
    """Which of the schema's types it takes, by the type parameter's name: {"T": [...]}."""
    cpu_inputs: tuple[int, ...] = ()
    """Inputs that stay in the host's memory, where the device has its own."""
    cpu_outputs: tuple[int, ...] = ()


@dataclass(frozen=True)
class OpEntry:
    """An operator's versions and types, and the attributes that nodes of it may have."""

    domain: str
    op_type: str
    first_version: int
    last_version: int
    types: Mapping[str, tuple[ir.DataType, ...]]
    kernel: OpKernel
    attributes: tuple[str, ...]

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type


def entries_of(kernels: Mapping[OpKey, object]) -> tuple[OpEntry, ...]:
    """Check a provider's `kernels`.

    Raises:
        UserError: A key or a function is none, ONNX has no such version of the operator, or the
            function does not take an attribute that its nodes may have.
    """
    return tuple(_entry(key, given) for key, given in kernels.items())


def _entry(key: object, given: object) -> OpEntry:
    domain, op_type, first, last = _key(key)
    domain = "" if domain == "ai.onnx" else domain
    kernel = given if isinstance(given, OpKernel) else None
    if kernel is None:
        if not callable(given):
            raise UserError(f"the kernel for {op_type} is of type {type(given).__name__}")
        kernel = OpKernel(given)
    schemas = _schemas(domain, op_type, first, last)
    attributes = _attributes(kernel.function, op_type, schemas)
    return OpEntry(
        domain, op_type, first, last, _types(op_type, kernel, schemas), kernel, attributes
    )


def _key(key: object) -> tuple[str, str, int, int]:
    match key:
        case (str(domain), str(op_type), int(version)):
            return domain, op_type, version, version
        case (str(domain), str(op_type), (int(first), int(last))) if first <= last:
            return domain, op_type, first, last
    raise UserError(
        f"{key!r} is no operator",
        fix='name kernels as ("", "Relu", 14) or ("", "Relu", (6, 14))',
    )


def _schemas(domain: str, op_type: str, first: int, last: int) -> list[object]:
    """Return the operator's schemas since those versions; empty for domains ONNX has none of."""
    import onnx

    known = [
        schema
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.domain == domain and schema.name == op_type
    ]
    found = [op_schema for op_schema in known if first <= op_schema.since_version <= last]
    if known and not found:
        versions = ", ".join(
            str(number) for number in sorted(item.since_version for item in known)
        )
        raise UserError(f"{op_type} has no version {first}", fix=f"its versions: {versions}")
    if not known and domain in ("", "ai.onnx.ml"):
        raise UserError(f"ONNX has no operator {op_type!r} in the domain {domain!r}")
    return list(found)


def _types(
    op_type: str, kernel: OpKernel, schemas: Sequence[object]
) -> dict[str, tuple[ir.DataType, ...]]:
    """Return what each type parameter may be: what the kernel takes, and of that only tensors."""
    found: dict[str, tuple[ir.DataType, ...]] = {}
    for schema in schemas:
        for constraint in schema.type_constraints:  # type: ignore[attr-defined]
            allowed = [_tensor_type(text) for text in constraint.allowed_type_strs]
            types = tuple(item for item in allowed if item is not None)
            name = constraint.type_param_str
            found[name] = tuple(dict.fromkeys((*found.get(name, ()), *types)))
    for name, chosen in kernel.types.items():
        if schemas and name not in found:
            known = ", ".join(found) or "none"
            raise UserError(f"{op_type} has no type parameter {name!r}", fix=f"it has {known}")
        found[name] = tuple(ir.DataType(data_type) for data_type in chosen)
    return found


def _tensor_type(text: str) -> ir.DataType | None:
    """Return the element type of "tensor(float)"; None for sequences, maps and the like."""
    if not text.startswith("tensor("):
        return None
    name = text[len("tensor(") : -1].upper()
    kind = ir.DataType.__members__.get(name)
    return None if kind is None or kind in _NOT_IN_RUNTIMES or kind > _LAST else kind


def _attributes(
    function: Callable[..., object], op_type: str, schemas: Sequence[object]
) -> tuple[str, ...]:
    """Return the names of the attributes to read for the function."""
    known = {name for schema in schemas for name in schema.attributes}  # type: ignore[attr-defined]
    takes, takes_all = _keywords(function)
    if takes_all:
        return tuple(sorted(known | takes))
    missing = sorted(known - takes)
    if missing and schemas:
        raise UserError(
            f"the kernel for {op_type} does not take the attribute {missing[0]!r}",
            fix=f"add it as a keyword argument: def kernel(..., *, {missing[0]}=None)",
        )
    return tuple(sorted(takes & known if schemas else takes))


def _keywords(function: Callable[..., object]) -> tuple[set[str], bool]:
    """Return a function's keyword arguments, and whether it takes any."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of C functions that do not say
        return set(), False
    names = {
        parameter.name
        for parameter in parameters
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    return names, any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
