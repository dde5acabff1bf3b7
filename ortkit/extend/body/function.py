"""The body of an op: the same computation as an ONNX function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx
import onnx.checker
import onnx.defs
import onnx.helper
import onnx.numpy_helper
import onnx.parser

from ortkit.errors import UserError
from ortkit.extend.declare.op_schema import Attribute, OpSchema
from ortkit.operators import operator

if TYPE_CHECKING:
    from onnxscript import OnnxFunction

#: An onnxscript function, ONNX text (of a function or a model), or a protobuf of one.
BodySource: TypeAlias = "OnnxFunction | str | onnx.FunctionProto | onnx.ModelProto"

_SCALAR_CONSTANTS = {"value_float": np.float32, "value_int": np.int64}


def read_body(
    source: Any, schema: OpSchema, where: str, absent: Sequence[str] = ()
) -> onnx.FunctionProto:
    """Return a body as a function under the op's own name.

    Args:
        source: See `BodySource`.
        schema: Its inputs, outputs and attributes must be the op's, by position and by name.
        where: The op, `domain::Name`.
        absent: Optional inputs that it is without.

    Raises:
        UserError: It is no function, or not one of this op's.
    """
    found = _function(source, where)
    function = onnx.FunctionProto()
    function.CopyFrom(found)
    function.domain, _, function.name = where.partition("::")
    function.ClearField("overload")
    if any(op_input.is_variadic for op_input in schema.inputs):
        raise UserError("a function has no variadic inputs, so this op has no body", where=where)
    for what, have, want in (
        ("inputs", len(function.input), len(schema.inputs) - len(absent)),
        ("outputs", len(function.output), len(schema.outputs)),
    ):
        if have != want:
            raise UserError(f"its body has {have} {what}, declared are {want}", where=where)
    named = {*function.attribute, *(item.name for item in function.attribute_proto)}
    if unknown := sorted(named - set(schema.attributes)):
        raise UserError(
            f"its body has an attribute {unknown[0]!r}, which is not declared", where=where
        )
    _check_domains(function, where)
    del function.attribute[:]
    del function.attribute_proto[:]
    for name, attribute in schema.attributes.items():
        if attribute.default is None:
            function.attribute.append(name)
        else:
            value = (
                int(attribute.default)
                if isinstance(attribute.default, bool)
                else attribute.default
            )
            function.attribute_proto.append(onnx.helper.make_attribute(name, value))
    return function


def _function(source: Any, where: str) -> onnx.FunctionProto:
    if isinstance(source, onnx.FunctionProto):
        return source
    if isinstance(source, onnx.ModelProto):
        return _from_model(source, where)
    if isinstance(source, str):
        return _parsed(source, where)
    if hasattr(source, "to_function_proto"):
        made = source.to_function_proto()
        assert isinstance(made, onnx.FunctionProto)
        return made
    raise UserError(
        f"{type(source).__name__} is no body", where=where,
        fix="give an @onnxscript.script() function, ONNX text, a FunctionProto or a ModelProto",
    )  # fmt: skip


def _parsed(text: str, where: str) -> onnx.FunctionProto:
    try:
        return onnx.parser.parse_function(text)
    except onnx.parser.ParseError as error:
        line = " ".join(str(error).split())
    try:
        model = onnx.parser.parse_model(text)
    except onnx.parser.ParseError:
        raise UserError(f"its body does not parse: {line}", where=where) from None
    return _from_model(model, where)


def _from_model(model: onnx.ModelProto, where: str) -> onnx.FunctionProto:
    if model.functions:
        raise UserError("its body has functions of its own", where=where, fix="inline them")
    graph = model.graph
    constants = {initializer.name: initializer for initializer in graph.initializer}
    function = onnx.FunctionProto(name=graph.name)
    function.input.extend(item.name for item in graph.input if item.name not in constants)
    function.output.extend(one.name for one in graph.output)
    function.opset_import.extend(model.opset_import)
    for name, tensor in constants.items():
        function.node.append(onnx.helper.make_node("Constant", [], [name], value=tensor))
    function.node.extend(graph.node)
    return function


def _check_domains(function: onnx.FunctionProto, where: str) -> None:
    own = (function.domain, function.name)
    for node in function.node:
        if (node.domain, node.op_type) == own:
            raise UserError("its body calls the op itself", where=where)
        if node.domain not in ("", "ai.onnx", "com.microsoft"):
            raise UserError(f"its body calls {node.domain}::{node.op_type}", where=where)


def opset_of(function: onnx.FunctionProto) -> int:
    """Return the version of the default domain that a body is written for."""
    found = [item.version for item in function.opset_import if item.domain in ("", "ai.onnx")]
    return found[0] if found else 1


def at_opset(function: onnx.FunctionProto, version: int) -> onnx.FunctionProto | None:
    """Return the body for another version of the default domain, None where it means another."""
    written = opset_of(function)
    for node in function.node:
        if node.domain not in ("", "ai.onnx"):
            continue
        try:
            old = onnx.defs.get_schema(node.op_type, written, "")
            new = onnx.defs.get_schema(node.op_type, version, "")
        except onnx.defs.SchemaError:
            return None
        if old.since_version != new.since_version and not _is_only_types(old, new):
            return None
    result = onnx.FunctionProto()
    result.CopyFrom(function)
    for opset in result.opset_import:
        if opset.domain in ("", "ai.onnx"):
            opset.version = version
    return result


def _is_only_types(old: onnx.defs.OpSchema, new: onnx.defs.OpSchema) -> bool:
    """Say whether two versions of an operator differ in nothing but the types that they take.

    Same inputs, outputs and attributes with the same defaults; Relu-13 and Relu-14, for example.
    """

    def interface(schema: onnx.defs.OpSchema) -> object:
        attributes = {
            name: (attribute.type, attribute.required, attribute.default_value.SerializeToString())
            for name, attribute in schema.attributes.items()
        }
        inputs = [
            (formal_parameter.name, formal_parameter.option) for formal_parameter in schema.inputs
        ]
        return inputs, [(output.name, output.option) for output in schema.outputs], attributes

    return old.name in _STABLE and interface(old) == interface(new)


#: Operators whose meaning no version changed that has the same interface.
_STABLE = frozenset({
    "Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Concat", "Constant", "Div", "Equal", "Erf",
    "Exp", "Floor", "Gemm", "Greater", "Identity", "Less", "Log", "MatMul", "Max", "Min", "Mul",
    "Neg", "Pow", "Reciprocal", "Relu", "Reshape", "Shape", "Sigmoid", "Sign", "Slice", "Sqrt",
    "Sub", "Sum", "Tanh", "Transpose", "Where",
})  # fmt: skip


def specialized(
    function: onnx.FunctionProto,
    schema: OpSchema,
    inputs: Sequence[str],
    defaults: Mapping[str, Attribute],
    *,
    are_inputs: bool = True,
) -> tuple[onnx.FunctionProto, tuple[str, ...], tuple[str, ...]]:
    """Return a body without attributes, of one set of element types.

    An attribute whose value is only computed with becomes an input of one number; one that
    decides which computation it is (an axis) becomes its default.

    Args:
        function: The body.
        schema: The op's.
        inputs: The element types of the inputs.
        defaults: The value of each attribute that is built in.
        are_inputs: Whether attributes become inputs where they can; else all are built in.

    Returns:
        The body, the attributes that became inputs (after the others), and those that were
        built in.

    Raises:
        UserError: An attribute without a default decides the computation.
    """
    where = f"{function.domain}::{function.name}"
    result = onnx.FunctionProto()
    result.CopyFrom(function)
    del result.attribute[:]
    del result.attribute_proto[:]
    del result.node[:]
    types = dict(zip(function.input, inputs, strict=True))
    given: dict[str, str] = {}
    built: dict[str, None] = {}
    for node in function.node:
        reference = next(
            (attribute for attribute in node.attribute if attribute.ref_attr_name), None
        )
        is_number = reference is not None and reference.name in _SCALAR_CONSTANTS
        if node.op_type == "Constant" and is_number and reference is not None:
            types[node.output[0]] = np.dtype(_SCALAR_CONSTANTS[reference.name]).name
            if are_inputs:
                given[node.output[0]] = reference.ref_attr_name
                continue
        copy = result.node.add()
        copy.CopyFrom(node)
        for attribute in copy.attribute:
            if attribute.ref_attr_name:
                built[attribute.ref_attr_name] = None
                _build_in(attribute, schema, defaults, where)
        _without_cast_like(copy, types)
    # One attribute may stand in several constants: one input serves them all.
    names: dict[str, str] = {}
    for output, attribute_name in given.items():
        first = names.setdefault(attribute_name, output)
        for node in result.node:
            node.input[:] = [first if name == output else name for name in node.input]
    result.input.extend(names.values())
    return result, tuple(names), tuple(built)


def _build_in(
    attribute: onnx.AttributeProto,
    schema: OpSchema,
    defaults: Mapping[str, Attribute],
    where: str,
) -> None:
    """Replace a reference by the value of the op's attribute."""
    name = attribute.ref_attr_name
    if name not in schema.attributes or name not in defaults:
        raise UserError(
            f"the attribute {name} decides what the kernel computes, and has no default",
            where=where, fix="give it one, or leave the op to its body",
        )  # fmt: skip
    value = defaults[name]
    if schema.attributes[name].kind is float:
        value = float(value)  # type: ignore[arg-type]  # of a number
    made = onnx.helper.make_attribute(
        attribute.name, int(value) if isinstance(value, bool) else value
    )
    attribute.CopyFrom(made)


def _without_cast_like(node: onnx.NodeProto, types: dict[str, str]) -> None:
    """Write CastLike of a type that is known as Cast; onnxscript writes one for each literal."""
    if node.op_type == "CastLike" and node.domain in ("", "ai.onnx"):
        to = types.get(node.input[1])
        if to is None:
            return
        code = onnx.helper.np_dtype_to_tensor_dtype(_dtype(to))
        node.op_type = "Cast"
        del node.input[1:]
        node.attribute.append(onnx.helper.make_attribute("to", code))
        types[node.output[0]] = to
        return
    info = operator(node.domain, node.op_type)
    if info is None or info.dtype != "input" or len(node.input) <= info.data_inputs[0]:
        return
    if (dtype := types.get(node.input[info.data_inputs[0]])) is not None:
        types[node.output[0]] = dtype


def _dtype(name: str) -> np.dtype[Any]:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def control_flow(function: onnx.FunctionProto) -> str:
    """Return the operator of a body's first node with graphs inside, such as Loop, or nothing."""
    found = (
        node.op_type for node in function.node
        if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)
    )  # fmt: skip
    return next(found, "")
