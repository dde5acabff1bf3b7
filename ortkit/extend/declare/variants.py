"""The kernels that an op is to have: for which element types and inputs, and made from what."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from ortkit.errors import UserError
from ortkit.extend.body.function import control_flow, specialized
from ortkit.extend.declare.declared_op import DeclaredOp
from ortkit.extend.declare.kernel_options import DeclaredKernel, expanded
from ortkit.extend.declare.kernels import presences, rules_of
from ortkit.extend.declare.op_schema import OpInput, OpSchema, Types
from ortkit.extend.declare.size_rules import SizeRule
from ortkit.extend.declare.tensor_types import Dim, TensorType
from ortkit.kernels.signature import RegionSignature, TensorSpec, body_text
from ortkit.operators import where
from ortkit.targets.catalog import traits_of

#: With any number of axes in front: what follows must not count axes from there.
_ROW_OPS = (
    where(access="reduction", dtype="input") | where(row_norm=True) | {"LogSoftmax", "Softmax"}
)
_POINTWISE = (
    where(access="elementwise")
    | where(domain="com.microsoft", access="elementwise")
    | {"Constant"}
)


@dataclass(frozen=True)
class DeclaredSignature(RegionSignature):
    """The tensors of a kernel that a user wrote; what it computes only its code says."""

    declared_key: str = ""

    @property
    def key(self) -> str:
        """Twelve hex digits, different for all kernels of all ops."""
        return self.declared_key


@dataclass(frozen=True)
class Form:
    """One kernel that an op is to have: for which types and inputs, and what it computes."""

    op: DeclaredOp
    types: Types
    is_present: tuple[bool, ...]
    signature: RegionSignature
    attributes: tuple[str, ...]
    """Those that are inputs, after the others."""
    built_in: tuple[str, ...]
    """Those that the kernel has a value of inside."""
    declared: DeclaredKernel | None = None
    """None: it is generated from the body."""
    rules: tuple[SizeRule, ...] = ()
    """What must hold of the sizes."""

    @property
    def inputs(self) -> list[OpInput]:
        """What the declaration calls each of the node's inputs, absent ones included."""
        return expanded(self.op.schema.inputs, self.is_present)

    @property
    def text(self) -> str:
        """Such as `float32` or `float32 without bias`."""
        words = _text(self.op, self.types, self.is_present)
        if self.declared is None:
            return words
        when = f" where {self.declared.options.when}" if self.declared.options.when else ""
        return f"{words} by {self.declared.name} ({self.declared.backend}){when}"


def _text(op: DeclaredOp, types: Types, is_present: Sequence[bool]) -> str:
    kinds = [dtype for kind, dtype in types.items() if len(op.schema.kinds[kind]) > 1]
    inputs = expanded(op.schema.inputs, is_present)
    absent = [op_input.name for op_input, flag in zip(inputs, is_present, strict=True) if not flag]
    words = " ".join(kinds or [next(iter(types.values()))])
    if op.schema.inputs[-1].is_variadic:
        words += f" of {len(inputs)}"
    return f"{words} without {', '.join(absent)}" if absent else words


def forms_of(
    op: DeclaredOp, dtypes: Sequence[str] | None = None, target: str = "cpu"
) -> Iterator[Form | tuple[str, str]]:
    """Yield what an op can be compiled for, or the form and why it cannot be.

    Of one set of types and inputs the kernels that the user wrote come first, in their order.
    Then comes what is generated from the body, unless one before takes all sizes.

    Args:
        op: The op.
        dtypes: Where a word such as Float stands for several element types, those to build for.
        target: Its kind.

    Raises:
        UserError: It has neither a kernel for the target nor a body.
    """
    kernels = [kernel for kernel in op.kernels if kernel.target == target]
    if not op.bodies and not kernels:
        name = op.reference.__name__
        if op.kernels:
            raise UserError(
                f"it has no body, and no kernel for {target}, so there is nothing to compile",
                where=op.id, fix="build it for what its kernels are for: --target "
                f"{op.kernels[0].target}",
            )  # fmt: skip
        raise UserError(
            "it has no body, so there is nothing to compile", where=op.id,
            fix=f"give it one with @{name}.body, or a kernel with @{name}.kernel",
        )  # fmt: skip
    for types in op.schema.choices(dtypes):
        for is_present in _presences(op, kernels):
            fitting = [kernel for kernel in kernels if kernel.fits(op.schema, types, is_present)]
            for declared_kernel in fitting:
                try:
                    yield _declared(op, declared_kernel, types, is_present)
                except UserError as error:
                    yield (
                        f"{_text(op, types, is_present)} by {declared_kernel.name}",
                        error.problem,
                    )
            if all(item.options.when for item in fitting):
                yield _generated(op, types, is_present, target, has_others=bool(fitting))


def _presences(op: DeclaredOp, kernels: Sequence[DeclaredKernel]) -> list[tuple[bool, ...]]:
    found = dict.fromkeys(op.schema.presences())
    if op.schema.inputs[-1].is_variadic:
        found = dict.fromkeys(each for kernel in kernels for each in presences(op, kernel))
    return list(found)


def _declared(
    op: DeclaredOp, kernel: DeclaredKernel, types: Types, is_present: tuple[bool, ...]
) -> Form:
    from ortkit.extend.declare.kernel_parameters import attributes_of

    schema = op.schema
    inputs = expanded(schema.inputs, is_present)
    specs = [
        _spec(op_input, types) for op_input, flag in zip(inputs, is_present, strict=True) if flag
    ]
    used = attributes_of(op, kernel)
    specs += [_attribute_spec(name, schema) for name in used]
    built_in = tuple(name for name in schema.attributes if name not in used)
    for name in built_in:
        if schema.attributes[name].default is None:
            raise UserError(
                f"the kernel {kernel.name} does not take the attribute {name}, which has no "
                "default that it could be built for", where=op.id,
            )  # fmt: skip
    outputs = _outputs(schema, types)
    content = f"{op.id} {op.version} {kernel.number} {dict(types)} {is_present}"
    key = hashlib.sha256(content.encode()).hexdigest()[:12]
    signature = DeclaredSignature(_word(op.name), "", tuple(specs), outputs, key)
    rules = rules_of(op, kernel, is_present)
    return Form(op, types, is_present, signature, used, built_in, kernel, rules)


def _generated(
    op: DeclaredOp,
    types: Types,
    is_present: tuple[bool, ...],
    target: str,
    *,
    has_others: bool,
) -> Form | tuple[str, str]:
    """Return the form that is made from the body, or what cannot be made and why."""
    words = _text(op, types, is_present)
    inputs = expanded(op.schema.inputs, is_present)
    absent = [op_input.name for op_input, flag in zip(inputs, is_present, strict=True) if not flag]
    body = op.bodies.get(frozenset(absent))
    if body is None:
        what = "there is no body" + (f" without {', '.join(absent)}" if absent else "")
        return words, what + (" for other sizes" if has_others else "")
    if operator := control_flow(body):
        return words, f"its body has a {operator}, which no kernel can be made of"
    try:
        return _form(op, body, types, is_present, target)
    except UserError as error:
        return words, error.problem


def _form(
    op: DeclaredOp,
    body: onnx.FunctionProto,
    types: Types,
    is_present: tuple[bool, ...],
    target: str,
) -> Form:
    schema = op.schema
    there = [op_input for op_input, flag in zip(schema.inputs, is_present, strict=True) if flag]
    kinds = [types[item.type.kind] for item in there]
    defaults = {
        name: attribute.default
        for name, attribute in schema.attributes.items()
        if attribute.default is not None
    }
    # A generated kernel reads its inputs from memory, elsewhere that of a device.
    function, given, built_in = specialized(
        body, schema, kinds, defaults, are_inputs=traits_of(target).is_host
    )
    _check_built_in(built_in, schema)
    _check_stars(function, [one.type for one in there], list(schema.outputs.values()))
    inputs = [_spec(one, types) for one in there]
    inputs += [_attribute_spec(name, schema) for name in given]
    function.domain, function.name = "ortkit.fused", _word(op.name)
    signature = RegionSignature(
        _word(op.name), body_text(function), tuple(inputs), _outputs(schema, types)
    )
    return Form(op, types, is_present, signature, given, built_in)


def _outputs(schema: OpSchema, types: Types) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(name, types[kind.kind], _shape(kind)) for name, kind in schema.outputs.items()
    )


def _attribute_spec(name: str, schema: OpSchema) -> TensorSpec:
    return TensorSpec(name, "float32" if schema.attributes[name].kind is float else "int64", ())


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
    wildcard_axes = {str(kind.dims[kind.star]) for kind in kinds if kind.star is not None}
    if not wildcard_axes:
        return
    if len(wildcard_axes) > 1:
        raise UserError(
            f"{' and '.join(sorted(wildcard_axes))} stand for different numbers of axes"
        )
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
    return [int(item) for item in found.reshape(-1)] if found.dtype.kind == "i" else []


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


def _spec(op_input: OpInput, types: Types) -> TensorSpec:
    return TensorSpec(op_input.name, types[op_input.type.kind], _shape(op_input.type))


def _shape(kind: TensorType) -> tuple[int | str, ...]:
    return tuple(_size(dim) for dim in kind.dims)


def _size(dim: Dim) -> int | str:
    if dim.is_star:
        return dim.names[0]
    return str(dim) if dim.names else dim.factor


def _word(name: str) -> str:
    """Return `squared_re_lu` for SquaredReLU: a readable identifier, no more."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
