"""From declared ops to kernels: a signature for each set of types and inputs, then a library."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from ortkit.errors import UserError
from ortkit.extend.bodies import specialized
from ortkit.extend.custom_ops import CustomOp
from ortkit.extend.op_schema import Attribute, OpInput, OpSchema, Types
from ortkit.extend.tensor_types import Dim, TensorType
from ortkit.kernels.backend import Kernel, Target
from ortkit.kernels.build import build_kernels
from ortkit.kernels.cache import KernelCache
from ortkit.kernels.link import KernelLibrary, link_named
from ortkit.kernels.names import (
    OPTIONAL,
    REQUIRED,
    VARIADIC,
    NamedAttribute,
    NamedKernel,
    NamedOp,
)
from ortkit.kernels.signature import RegionSignature, TensorSpec, body_text

#: With any number of axes in front: what follows must not count axes from there.
_ROW_OPS = frozenset({
    "LayerNormalization", "LogSoftmax", "RMSNormalization", "ReduceL1", "ReduceL2", "ReduceMax",
    "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Softmax",
})  # fmt: skip
_POINTWISE = frozenset({
    "Abs", "Add", "And", "Cast", "Ceil", "Celu", "Clip", "Constant", "Cos", "Div", "Elu", "Equal",
    "Erf", "Exp", "FastGelu", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid",
    "HardSwish", "Identity", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min",
    "Mish", "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "QuickGelu", "Reciprocal", "Relu",
    "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Sqrt", "Sub", "Sum",
    "Swish", "Tan", "Tanh", "ThresholdedRelu", "Where", "Xor",
})  # fmt: skip


@dataclass(frozen=True)
class Form:
    """One kernel that an op is to have: for which types and inputs, and what it computes."""

    op: CustomOp
    types: Types
    is_there: tuple[bool, ...]
    signature: RegionSignature
    attributes: tuple[str, ...]
    """Those that are inputs, after the others."""
    built_in: tuple[str, ...]
    """Those that the kernel has a value of inside."""

    @property
    def text(self) -> str:
        """Such as `float32` or `float32 without bias`."""
        kinds = [
            dtype for kind, dtype in self.types.items() if len(self.op.schema.kinds[kind]) > 1
        ]
        absent = [
            one.name
            for one, is_there in zip(self.op.schema.inputs, self.is_there, strict=True)
            if not is_there
        ]
        words = " ".join(kinds or [next(iter(self.types.values()))])
        return f"{words} without {', '.join(absent)}" if absent else words


@dataclass(frozen=True)
class OpsBuild:
    """What became of some ops."""

    library: KernelLibrary | None
    """None where there is no kernel at all."""
    built: tuple[Form, ...]
    refused: tuple[tuple[str, str, str], ...]
    """Op, form and reason."""
    compiled: int


def _uncounted(done: int, total: int) -> None:
    """Ignore progress."""


def build_ops(
    ops: Sequence[CustomOp],
    path: Path,
    target: Target | None = None,
    *,
    dtypes: Sequence[str] | None = None,
    cache: KernelCache | None = None,
    count: Callable[[int, int], None] = _uncounted,
) -> OpsBuild:
    """Compile all forms of some ops, and link them into one library.

    Any ONNX Runtime loads it, without ortkit and Python: `register_custom_ops_library(path)`.

    Args:
        ops: Each with a body.
        path: The library; not touched if nothing can be compiled.
        target: The processor; None for this machine's.
        dtypes: Where a word such as Float stands for several element types, those to build for.
        cache: Where compiled kernels are kept; None means the user's cache.
        count: Called with how many kernels are compiled, and of how many.

    Raises:
        UserError: An op has no body, or the library cannot be written.
        MissingDependencyError: A toolchain is not installed.
        KernelError: The C compiler failed to link.
    """
    target = target or Target()
    forms: list[Form] = []
    refused: list[tuple[str, str, str]] = []
    for op in ops:
        for form in forms_of(op, dtypes):
            if isinstance(form, Form):
                forms.append(form)
            else:
                refused.append((op.id, *form))
    with build_kernels([form.signature for form in forms], target, cache, count) as build:
        made: list[tuple[Form, Kernel]] = []
        for form, found in zip(forms, build.found, strict=True):
            if isinstance(found, Kernel):
                made.append((form, found))
            else:
                reason = getattr(found, "reason", "it is for CUDA")
                refused.append((form.op.id, form.text, reason))
        named = list(_named(made))
        library = link_named(named, path, target) if named else None
    return OpsBuild(library, tuple(form for form, _ in made), tuple(refused), build.compiled)


def forms_of(
    op: CustomOp, dtypes: Sequence[str] | None = None
) -> Iterator[Form | tuple[str, str]]:
    """Yield what an op can be compiled for, or the form and why it cannot be.

    Raises:
        UserError: It has no body.
    """
    if not op.bodies:
        raise UserError(
            "it has no body, so there is nothing to compile", where=op.id,
            fix=f"give it one with @{op.reference.__name__}.body",
        )  # fmt: skip
    for types in op.schema.choices(dtypes):
        for is_there in op.schema.presences():
            absent = [
                one.name for one, flag in zip(op.schema.inputs, is_there, strict=True) if not flag
            ]
            body = op.bodies.get(frozenset(absent))
            words = " ".join(types.values())
            if body is None:
                yield words, f"there is no body without {', '.join(absent)}"
                continue
            try:
                yield _form(op, body, types, is_there)
            except UserError as error:
                yield words, error.problem


def _form(
    op: CustomOp, body: onnx.FunctionProto, types: Types, is_there: tuple[bool, ...]
) -> Form:
    schema = op.schema
    there = [one for one, flag in zip(schema.inputs, is_there, strict=True) if flag]
    kinds = [types[one.type.kind] for one in there]
    defaults = {
        name: one.default for name, one in schema.attributes.items() if one.default is not None
    }
    function, given, built_in = specialized(body, schema, kinds, defaults)
    _check_built_in(built_in, schema)
    _check_stars(function, [one.type for one in there], list(schema.outputs.values()))
    inputs = [_spec(one, types) for one in there]
    for name in given:
        dtype = "float32" if schema.attributes[name].kind is float else "int64"
        inputs.append(TensorSpec(name, dtype, ()))
    outputs = [
        TensorSpec(name, types[kind.kind], _shape(kind)) for name, kind in schema.outputs.items()
    ]
    function.domain, function.name = "ortkit.fused", _word(op.name)
    signature = RegionSignature(_word(op.name), body_text(function), tuple(inputs), tuple(outputs))
    return Form(op, types, is_there, signature, given, built_in)


def _check_built_in(names: Sequence[str], schema: OpSchema) -> None:
    for name in names:
        if schema.attributes[name].kind not in (int, float, bool):
            raise UserError(
                f"the attribute {name} decides what the kernel computes, and is a list"
            )


def _check_stars(
    function: onnx.FunctionProto, inputs: Sequence[TensorType], outputs: Sequence[TensorType]
) -> None:
    """Raise unless the body computes the same with its axes of any number made one."""
    kinds = [*inputs, *outputs]
    stars = {str(kind.dims[kind.star]) for kind in kinds if kind.star is not None}
    if not stars:
        return
    if len(stars) > 1:
        raise UserError(f"{' and '.join(sorted(stars))} stand for different numbers of axes")
    after = min(len(kind.dims) - 1 - (kind.star or 0) for kind in kinds if kind.star is not None)
    constants = {
        node.output[0]: _integers(node.attribute[0])
        for node in function.node
        if node.op_type == "Constant" and node.attribute
    }
    for node in function.node:
        if node.op_type in _POINTWISE:
            continue
        if node.op_type not in _ROW_OPS:
            raise UserError(
                f"a shape has any number of axes, and {node.op_type} may depend on how many"
            )
        if not all(-after <= axis < 0 for axis in _axes(node, constants)):
            raise UserError(
                f"a shape has any number of axes, and {node.op_type} counts its own from there"
            )


def _integers(attribute: onnx.AttributeProto) -> list[int]:
    """Return what a constant of integers holds, nothing for any other one."""
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        value = onnx.numpy_helper.to_array(value)
    found = np.asarray(value)
    return [int(one) for one in found.reshape(-1)] if found.dtype.kind == "i" else []


def _axes(node: onnx.NodeProto, constants: Mapping[str, list[int]]) -> list[int]:
    """Return the axes that a node names; 0 stands for what is not known."""
    for attribute in node.attribute:
        if attribute.name == "axes":
            return list(attribute.ints)
        if attribute.name == "axis":
            return [attribute.i]
    if node.op_type.startswith("Reduce"):
        known = constants.get(node.input[1]) if len(node.input) > 1 else None
        return known or [0]
    return [-1]


def _spec(one: OpInput, types: Types) -> TensorSpec:
    return TensorSpec(one.name, types[one.type.kind], _shape(one.type))


def _shape(kind: TensorType) -> tuple[int | str, ...]:
    return tuple(_size(dim) for dim in kind.dims)


def _size(dim: Dim) -> int | str:
    if dim.is_star:
        return dim.names[0]
    return str(dim) if dim.names else dim.factor


def _word(name: str) -> str:
    """Return `squared_re_lu` for SquaredReLU: a readable identifier, no more."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _named(made: Sequence[tuple[Form, Kernel]]) -> Iterator[NamedOp]:
    """Yield an op for each set of element types that has kernels for all that it needs."""
    groups: dict[tuple[str, int, tuple[tuple[str, str], ...]], list[tuple[Form, Kernel]]] = {}
    for form, kernel in made:
        key = form.op.id, form.op.version, tuple(form.types.items())
        groups.setdefault(key, []).append((form, kernel))
    for found in groups.values():
        op, types = found[0][0].op, found[0][0].types
        # The one with the fewest inputs tells shapes, and stands last.
        found.sort(key=lambda one: -sum(one[0].is_there))
        names = list(op.schema.attributes)
        used = {name for form, _ in found for name in (*form.attributes, *form.built_in)}
        attributes = [name for name in names if name in used]
        yield NamedOp(
            op.domain, op.name, op.version,
            tuple((types[one.type.kind], _kind(one)) for one in op.schema.inputs),
            tuple(types[kind.kind] for kind in op.schema.outputs.values()),
            tuple(_attribute(op, name) for name in attributes),
            tuple(_kernel(form, kernel, attributes) for form, kernel in found),
        )  # fmt: skip


def _kind(one: OpInput) -> int:
    if one.is_variadic:
        return VARIADIC
    return OPTIONAL if one.type.is_optional else REQUIRED


def _attribute(op: CustomOp, name: str) -> NamedAttribute:
    one = op.schema.attributes[name]
    return NamedAttribute(name, one.kind is float, _value(one.default))


def _value(value: Attribute | None) -> float | int | None:
    if value is None or isinstance(value, float):
        return value
    assert isinstance(value, int)
    return int(value)


def _kernel(form: Form, kernel: Kernel, attributes: Sequence[str]) -> NamedKernel:
    schema = form.op.schema
    there = [place for place, flag in enumerate(form.is_there) if flag]
    kinds = [schema.inputs[place].type for place in there]
    stars = [*(kind.star for kind in kinds), *(None for _ in form.attributes)]
    stars += [kind.star for kind in schema.outputs.values()]
    fixed = {}
    for name in form.built_in:
        value = _value(schema.attributes[name].default)
        assert value is not None
        fixed[attributes.index(name)] = value
    return NamedKernel(
        form.signature, kernel,
        (*there, *(-1 - attributes.index(name) for name in form.attributes)),
        tuple(stars), form.is_there, fixed,
    )  # fmt: skip
