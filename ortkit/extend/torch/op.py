"""A declared op in PyTorch: a `torch.library` custom op with a fake rule and gradients."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import onnx.defs
import onnx.helper

from ortkit.errors import MissingDependencyError, UserError
from ortkit.extend.declare.op_schema import OpSchema
from ortkit.extend.declare.sizes import Sizes
from ortkit.extend.torch.gradient import has_gradient, register_backward, remember
from ortkit.extend.torch.run import Kernels, TorchRun, dtype_name, empty_outputs

if TYPE_CHECKING:
    from ortkit.extend.declare.declared_op import DeclaredOp

#: Attribute types as torch's schemas have them.
_TORCH_TYPES: dict[object, str] = {
    bool: "bool", int: "int", float: "float", str: "str",
    tuple[int, ...]: "int[]", tuple[float, ...]: "float[]",
}  # fmt: skip


#: The ops that were registered, for exports.
_registered: dict[str, DeclaredOp] = {}


def register_torch(op: DeclaredOp, kernels: Kernels = "auto") -> Any:
    """Register an op as `torch.ops.<domain>.<Name>` and return what calls it.

    On the CPU it runs the kernel that a library of `ortkit ops build` has, compiled when it is
    first called, on GPUs its kernel in Triton, written or generated. Where there is none, it
    computes the body on the GPU, else the reference. Shapes under `torch.compile` and
    `torch.export` follow from the declaration; gradients come from `@op.backward`, else from the
    body.

    Args:
        op: The op.
        kernels: "always" refuses calls that no kernel is for, "never" computes the reference.

    Raises:
        MissingDependencyError: torch is not installed.
        UserError: The op has a form that torch has none for.
    """
    if kernels not in ("auto", "always", "never"):
        raise UserError(f"kernels is {kernels!r}", where=op.id, fix="use auto, always or never")
    require_torch(f"{op.id} is asked for in")
    import torch

    schema = _schema(op.schema, op.id)
    name = torch_name(op)
    count = len(op.schema.outputs)
    run = TorchRun(op, kernels)

    def compute(*arguments: Any, **attributes: Any) -> Any:
        results = run(arguments, attributes)
        return results[0] if count == 1 else results

    def fake(*arguments: Any, **_attributes: Any) -> Any:
        made = _fakes(op, arguments)
        return made[0] if count == 1 else tuple(made)

    made = torch.library.custom_op(name, compute, mutates_args=(), schema=schema)
    made.register_fake(fake)
    if has_gradient(op):
        inputs = [_safe(op_input.name) for op_input in op.schema.inputs]
        backward = register_backward(op, name, inputs, _attributes(op.schema))
        made.register_autograd(backward, setup_context=remember)
    _registered[name] = op
    return made


def require_torch(what: str) -> None:
    """Raise unless torch is installed.

    Raises:
        MissingDependencyError: It is not.
    """
    if find_spec("torch") is None:
        raise MissingDependencyError(
            f"torch is not installed, which {what}", fix="pip install torch"
        )


def torch_name(op: DeclaredOp) -> str:
    """Return what an op is called in torch: `my_domain::Name`."""
    return f"{op.domain.replace('.', '_').replace('-', '_')}::{op.name}"


def translations() -> dict[Any, Callable[..., Any]]:
    """Return what exports all ops that were registered; see `translation`."""
    found: dict[Any, Callable[..., Any]] = {}
    for op in _registered.values():
        found.update(translation(op))
    return found


def translation(op: DeclaredOp) -> dict[Any, Callable[..., Any]]:
    """Return what `torch.onnx.export(custom_translation_table=...)` needs to export the op."""
    import onnxscript
    import torch

    domain, _, name = torch_name(op).partition("::")
    target = getattr(getattr(torch.ops, domain), name).default
    call = onnxscript.values.Op(
        onnxscript.values.Opset(op.domain, op.version), op.name, _onnx_schema(op)
    )
    return {target: call}


def _onnx_schema(op: DeclaredOp) -> Any:
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
            formal(op_input.name, op_input.type.kind,
                param_option=options.Optional if op_input.type.is_optional else options.Single)
            for op_input in op.schema.inputs
        ],
        outputs=[formal(name, kind.kind) for name, kind in op.schema.outputs.items()],
        type_constraints=[
            (kind, [f"tensor({words.get(dtype, dtype)})" for dtype in dtypes], "")
            for kind, dtypes in op.schema.kinds.items()
        ],
        attributes=[
            onnx.defs.OpSchema.Attribute(attribute.name, kinds[attribute.kind], "")
            if attribute.default is None or attribute.default == ()
            else onnx.defs.OpSchema.Attribute(
                attribute.name,
                onnx.helper.make_attribute(
                    attribute.name,
                    int(attribute.default)
                    if isinstance(attribute.default, bool)
                    else attribute.default,
                ),
            )
            for attribute in op.schema.attributes.values()
        ],
    )  # fmt: skip


def _schema(schema: OpSchema, where: str) -> str:
    """Return the op's schema in torch's words."""
    parts = []
    for op_input in schema.inputs:
        if op_input.is_variadic:
            raise UserError("torch has no ops of any number of inputs", where=where)
        parts.append(f"Tensor{'?' if op_input.type.is_optional else ''} {_safe(op_input.name)}"
                     f"{'=None' if op_input.type.is_optional else ''}")  # fmt: skip
    attributes = _attributes(schema)
    parts += ["*", *attributes] if attributes else []
    outputs = ["Tensor"] * len(schema.outputs)
    result = outputs[0] if len(outputs) == 1 else f"({', '.join(outputs)})"
    return f"({', '.join(parts)}) -> {result}"


def _attributes(schema: OpSchema) -> list[str]:
    parts = []
    for attribute in schema.attributes.values():
        default = attribute.default
        text = f'"{default}"' if isinstance(default, str) else str(default)
        if isinstance(default, tuple):
            text = str(list(default))
        kind = _TORCH_TYPES[attribute.kind]
        parts.append(f"{kind} {attribute.name}" + ("" if default is None else f"={text}"))
    return parts


def _safe(name: str) -> str:
    return f"{name}_" if keyword.iskeyword(name) or name == "self" else name


def _fakes(op: DeclaredOp, arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return empty tensors of the outputs' types and shapes."""
    sizes = Sizes()
    there = [(item, tensor) for item, tensor in op.formal(arguments) if tensor is not None]
    for op_input, tensor in there:
        sizes.learn([(op_input.name, op_input.type, tensor.shape)], op.id)
    types = op.schema.bind_types([(one, dtype_name(t.dtype)) for one, t in there], op.id)
    return empty_outputs(op, types, sizes, there[0][1])
