"""A declared op in PyTorch: a `torch.library` custom op with a fake rule and gradients."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx.defs
import onnx.helper

from ortkit.errors import MissingDependencyError, UserError
from ortkit.extend.op_schema import OpSchema
from ortkit.extend.sizes import Sizes

if TYPE_CHECKING:
    from ortkit.extend.custom_ops import CustomOp

#: Attribute types as torch's schemas have them.
_TORCH_TYPES: dict[object, str] = {
    bool: "bool", int: "int", float: "float", str: "str",
    tuple[int, ...]: "int[]", tuple[float, ...]: "float[]",
}  # fmt: skip


def register_torch(op: CustomOp) -> Any:
    """Register an op as `torch.ops.<domain>.<Name>` and return what calls it.

    It runs the reference, on the CPU wherever its tensors are; shapes under `torch.compile` and
    `torch.export` follow from the declaration; gradients come from `@op.backward`, if there is
    one. A model that calls it is exported with
    `torch.onnx.export(..., custom_translation_table=translation(op))`.

    Raises:
        MissingDependencyError: torch is not installed.
        UserError: The op has a form that torch has none for.
    """
    if find_spec("torch") is None:
        raise MissingDependencyError(
            f"torch is not installed, which {op.id} is asked for in", fix="pip install torch"
        )
    import torch

    schema = _schema(op.schema, op.id)
    name = f"{op.domain.replace('.', '_').replace('-', '_')}::{op.name}"
    count = len(op.schema.outputs)

    def compute(*arguments: Any, **attributes: Any) -> Any:
        arrays = [None if one is None else one.detach().cpu().numpy() for one in arguments]
        results = op.compute(arrays, attributes)
        device = next(one.device for one in arguments if one is not None)
        made = tuple(torch.from_numpy(np.array(one)).to(device) for one in results)
        return made[0] if count == 1 else made

    def fake(*arguments: Any, **_attributes: Any) -> Any:
        made = _fakes(op, arguments)
        return made[0] if count == 1 else tuple(made)

    made = torch.library.custom_op(name, compute, mutates_args=(), schema=schema)
    made.register_fake(fake)
    if op.gradient is not None:
        made.register_autograd(_register_backward(op, name), setup_context=_remember)
    return made


def translation(op: CustomOp) -> dict[Any, Callable[..., Any]]:
    """Return what `torch.onnx.export(custom_translation_table=...)` needs to export the op."""
    import onnxscript
    import torch

    domain = op.domain.replace(".", "_").replace("-", "_")
    target = getattr(getattr(torch.ops, domain), op.name).default
    call = onnxscript.values.Op(
        onnxscript.values.Opset(op.domain, op.version), op.name, _onnx_schema(op)
    )
    return {target: call}


def _onnx_schema(op: CustomOp) -> Any:
    """Return the declaration as ONNX's own."""
    types = onnx.defs.OpSchema.AttrType
    kinds: dict[object, Any] = {
        bool: types.INT, int: types.INT, float: types.FLOAT, str: types.STRING,
        tuple[int, ...]: types.INTS, tuple[float, ...]: types.FLOATS,
    }  # fmt: skip
    formal = onnx.defs.OpSchema.FormalParameter
    options = onnx.defs.OpSchema.FormalParameterOption
    words = {"float32": "float", "float64": "double"}
    return onnx.defs.OpSchema(
        op.name, op.domain, op.version, op.__doc__ or "",
        inputs=[
            formal(one.name, one.type.kind,
                param_option=options.Optional if one.type.is_optional else options.Single)
            for one in op.schema.inputs
        ],
        outputs=[formal(name, kind.kind) for name, kind in op.schema.outputs.items()],
        type_constraints=[
            (kind, [f"tensor({words.get(one, one)})" for one in dtypes], "")
            for kind, dtypes in op.schema.kinds.items()
        ],
        attributes=[
            onnx.defs.OpSchema.Attribute(one.name, kinds[one.kind], "")
            if one.default is None or one.default == ()
            else onnx.defs.OpSchema.Attribute(
                one.name,
                onnx.helper.make_attribute(
                    one.name, int(one.default) if isinstance(one.default, bool) else one.default
                ),
            )
            for one in op.schema.attributes.values()
        ],
    )  # fmt: skip


def _schema(schema: OpSchema, where: str) -> str:
    """Return the op's schema in torch's words."""
    parts = []
    for one in schema.inputs:
        if one.is_variadic:
            raise UserError("torch has no ops of any number of inputs", where=where)
        parts.append(f"Tensor{'?' if one.type.is_optional else ''} {_safe(one.name)}"
                     f"{'=None' if one.type.is_optional else ''}")  # fmt: skip
    attributes = _attributes(schema)
    parts += ["*", *attributes] if attributes else []
    outputs = ["Tensor"] * len(schema.outputs)
    result = outputs[0] if len(outputs) == 1 else f"({', '.join(outputs)})"
    return f"({', '.join(parts)}) -> {result}"


def _attributes(schema: OpSchema) -> list[str]:
    parts = []
    for one in schema.attributes.values():
        default = one.default
        text = f'"{default}"' if isinstance(default, str) else str(default)
        if isinstance(default, tuple):
            text = str(list(default))
        kind = _TORCH_TYPES[one.kind]
        parts.append(f"{kind} {one.name}" + ("" if default is None else f"={text}"))
    return parts


def _safe(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) or name == "self" else name


def _fakes(op: CustomOp, arguments: Sequence[Any]) -> list[Any]:
    """Return empty tensors of the outputs' types and shapes."""
    import torch

    sizes = Sizes()
    dtypes: dict[str, Any] = {}
    for one, tensor in op.formal(arguments):
        if tensor is None:
            continue
        sizes.learn([(one.name, one.type, tensor.shape)], op.id)
        dtypes.setdefault(one.type.kind, tensor.dtype)
    like = next(one for one in arguments if one is not None)
    made = []
    for kind in op.schema.outputs.values():
        shape = sizes.shape(kind)
        assert shape is not None
        dtype = dtypes.get(kind.kind) or getattr(torch, kind.dtypes[0])
        made.append(like.new_empty(shape, dtype=dtype))
    return made


def _remember(
    ctx: Any, inputs: Sequence[Any], output: Any, keyword_only_inputs: Any = None
) -> None:
    del output
    ctx.attributes = dict(keyword_only_inputs or {})
    ctx.there = [one is not None for one in inputs]
    ctx.save_for_backward(*(one for one in inputs if one is not None))


def _register_backward(op: CustomOp, name: str) -> Callable[..., Any]:
    """Register what computes the gradients as an op too, so that it is traced as one."""
    import torch

    inputs, outputs = len(op.schema.inputs), len(op.schema.outputs)

    def compute(*arguments: Any, **attributes: Any) -> Any:
        arrays = [None if one is None else one.detach().cpu().numpy() for one in arguments]
        assert op.gradient is not None
        found = op.gradient(*arrays, **attributes)
        results = found if isinstance(found, tuple) else (found,)
        if len(results) != inputs:
            raise UserError(
                f"its backward returned {len(results)} gradients for {inputs} inputs", where=op.id
            )
        given = arguments[outputs:]
        made = tuple(
            _gradient_like(result, like, arguments[0])
            for result, like in zip(results, given, strict=True)
        )
        return made[0] if inputs == 1 else made

    def fake(*arguments: Any, **_attributes: Any) -> Any:
        made = tuple(
            arguments[0].new_empty(0) if one is None else torch.empty_like(one)
            for one in arguments[outputs:]
        )
        return made[0] if inputs == 1 else made

    parts = [f"Tensor grad{index}" for index in range(outputs)]
    parts += [f"Tensor? {_safe(one.name)}" for one in op.schema.inputs]
    result = "Tensor" if inputs == 1 else f"({', '.join(['Tensor'] * inputs)})"
    attributes = _attributes(op.schema)
    schema = f"({', '.join([*parts, *(['*', *attributes] if attributes else [])])}) -> {result}"
    made = torch.library.custom_op(f"{name}_backward", compute, mutates_args=(), schema=schema)
    made.register_fake(fake)

    def backward(ctx: Any, *gradients: Any) -> Any:
        saved = iter(ctx.saved_tensors)
        arrays = [next(saved) if is_there else None for is_there in ctx.there]
        found = made(*gradients, *arrays, **ctx.attributes)
        results = (found,) if inputs == 1 else found
        return tuple(
            one if is_needed and is_there else None
            for one, is_needed, is_there in zip(
                results, ctx.needs_input_grad, ctx.there, strict=False
            )
        )

    return backward


def _gradient_like(result: Any, like: Any, grad: Any) -> Any:
    """Return a gradient as a tensor; an input without one gets zeros, an absent one nothing."""
    import torch

    if like is None:
        return grad.new_empty(0)
    if result is None:
        return torch.zeros_like(like)
    return torch.from_numpy(np.array(result)).to(like.device)
