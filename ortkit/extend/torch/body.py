"""The body of an op computed with PyTorch's own operators: for gradients, and on its devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import onnx
import onnx.helper
import onnx.numpy_helper

from ortkit.errors import UserError
from ortkit.extend.declare.op_schema import Attribute

# torch is optional, and has no types here.
Tensor: TypeAlias = Any
Inputs: TypeAlias = Sequence[Tensor]
Given: TypeAlias = Mapping[str, Any]
Rule: TypeAlias = Callable[[Any, Inputs, Given], Any]


def unknown_operator(body: onnx.FunctionProto) -> str:
    """Return an operator of a body that is not known here, empty if all are."""
    return next(
        (item.op_type for item in body.node if item.op_type not in RULES or item.domain), ""
    )


def compute_body(
    body: onnx.FunctionProto, inputs: Inputs, attributes: Mapping[str, Attribute], where: str
) -> tuple[Tensor, ...]:
    """Compute a body.

    Args:
        body: A function.
        inputs: Of the function, in order.
        attributes: All of the op's.
        where: The op, for messages.

    Raises:
        UserError: It has an operator that is not known here.
    """
    import torch

    if name := unknown_operator(body):
        raise UserError(
            f"its body has {name}, which has no counterpart in torch here", where=where,
            fix="give the op @op.backward, and kernels",
        )  # fmt: skip
    values: dict[str, Tensor] = dict(zip(body.input, inputs, strict=True))
    values[""] = None
    device = next(item.device for item in inputs if item is not None)
    for node in body.node:
        given = {attribute.name: _value(attribute, attributes) for attribute in node.attribute}
        if node.op_type == "Constant":
            values[node.output[0]] = _constant(torch, given, device)
            continue
        found = RULES[node.op_type](torch, [values[name] for name in node.input], given)
        results = found if isinstance(found, tuple | list) else (found,)
        values.update(zip(node.output, results, strict=False))
    return tuple(values[name] for name in body.output)


def _value(attribute: onnx.AttributeProto, attributes: Mapping[str, Attribute]) -> Any:
    if attribute.ref_attr_name:
        return attributes[attribute.ref_attr_name]
    value = onnx.helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else value


def _constant(torch: Any, given: Given, device: Any) -> Tensor:
    if "value" in given:
        array = onnx.numpy_helper.to_array(given["value"])
        return torch.from_numpy(array.copy()).to(device)
    name, value = next(iter(given.items()))
    dtype = torch.float32 if "float" in name else torch.int64
    return torch.tensor(value, dtype=dtype, device=device)


def _dtype(torch: Any, code: int) -> Any:
    names = {"float": "float32", "double": "float64"}
    name = onnx.TensorProto.DataType.Name(code).lower()
    return getattr(torch, names.get(name, name))


def _axes(inputs: Inputs, given: Given) -> list[int] | None:
    if len(inputs) > 1 and inputs[1] is not None:
        return [int(item) for item in inputs[1].tolist()]
    return list(given["axes"]) if "axes" in given else None


def _reduction(name: str) -> Rule:
    def rule(torch: Any, inputs: Inputs, given: Given) -> Tensor:
        axes = _axes(inputs, given)
        if not axes and given.get("noop_with_empty_axes", 0):
            return inputs[0]
        axes = axes or list(range(inputs[0].dim()))
        keep = bool(given.get("keepdims", 1))
        x = inputs[0].square() if name == "square" else inputs[0]
        if name == "prod":
            for axis in sorted((axis % x.dim() for axis in axes), reverse=True):
                x = x.prod(axis, keepdim=keep)
            return x
        if name == "norm":
            return torch.linalg.vector_norm(x, dim=axes, keepdim=keep)
        if name == "abs":
            return x.abs().sum(axes, keepdim=keep)
        call = {"mean": torch.mean, "amax": torch.amax, "amin": torch.amin}.get(name, torch.sum)
        return call(x, dim=axes, keepdim=keep)

    return rule


def _softmax(torch: Any, inputs: Inputs, given: Given) -> Tensor:
    return torch.softmax(inputs[0], given.get("axis", -1))


def _normalized(torch: Any, inputs: Inputs, given: Given, *, is_rms: bool) -> Tensor:
    x = inputs[0]
    axis = given.get("axis", -1) % x.dim()
    axes = list(range(axis, x.dim()))
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    if not is_rms:
        wide = wide - wide.mean(axes, keepdim=True)
    scale = torch.rsqrt(wide.square().mean(axes, keepdim=True) + given.get("epsilon", 1e-5))
    y = (wide * scale).to(x.dtype) * inputs[1]
    return y if len(inputs) < 3 or inputs[2] is None else y + inputs[2]


def _clip(torch: Any, inputs: Inputs, given: Given) -> Tensor:
    low = inputs[1] if len(inputs) > 1 else given.get("min")
    high = inputs[2] if len(inputs) > 2 else given.get("max")
    x = inputs[0]
    for bound, pick in ((low, torch.maximum), (high, torch.minimum)):
        if bound is not None:
            x = pick(x, torch.as_tensor(bound, dtype=x.dtype, device=x.device))
    return x


def _gemm(torch: Any, inputs: Inputs, given: Given) -> Tensor:  # noqa: ARG001
    a = inputs[0].T if given.get("transA", 0) else inputs[0]
    b = inputs[1].T if given.get("transB", 0) else inputs[1]
    y = given.get("alpha", 1.0) * (a @ b)
    return y if len(inputs) < 3 else y + given.get("beta", 1.0) * inputs[2]


def _slice(torch: Any, inputs: Inputs, given: Given) -> Tensor:  # noqa: ARG001
    starts, ends = inputs[1].tolist(), inputs[2].tolist()
    axes = inputs[3].tolist() if len(inputs) > 3 else list(range(len(starts)))
    steps = inputs[4].tolist() if len(inputs) > 4 else [1] * len(starts)
    x = inputs[0]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        indices = range(x.shape[axis])[slice(start, end, step)]
        # Past the front in a slice that runs backwards, Python reads an end of -1 as the last.
        if step < 0 and end < -x.shape[axis]:
            indices = range(x.shape[axis])[slice(start, None, step)]
        x = x.index_select(axis, torch.tensor(list(indices), dtype=torch.int64, device=x.device))
    return x


def _reshape(torch: Any, inputs: Inputs, given: Given) -> Tensor:  # noqa: ARG001
    sizes = inputs[1].tolist()
    if not given.get("allowzero", 0):
        sizes = [inputs[0].shape[at] if size == 0 else size for at, size in enumerate(sizes)]
    return inputs[0].reshape(sizes)


def _squeeze(torch: Any, inputs: Inputs, given: Given) -> Tensor:  # noqa: ARG001
    axes = _axes(inputs, given)
    if axes is None:
        return inputs[0].squeeze()
    return inputs[0].squeeze(tuple(axes))


def _unsqueeze(torch: Any, inputs: Inputs, given: Given) -> Tensor:  # noqa: ARG001
    x, axes = inputs[0], _axes(inputs, given) or []
    rank = x.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


def _transpose(torch: Any, inputs: Inputs, given: Given) -> Tensor:  # noqa: ARG001
    x = inputs[0]
    return x.permute(list(given.get("perm", range(x.dim())[::-1])))


def _expand(torch: Any, inputs: Inputs, given: Given) -> Tensor:  # noqa: ARG001
    return inputs[0].expand(torch.broadcast_shapes(inputs[0].shape, tuple(inputs[1].tolist())))


def _concat(torch: Any, inputs: Inputs, given: Given) -> Tensor:
    return torch.cat(list(inputs), given["axis"])


def _gather(torch: Any, inputs: Inputs, given: Given) -> Tensor:
    x, at = inputs[0], inputs[1]
    axis = given.get("axis", 0) % x.dim()
    at = at.to(dtype=torch.int64) % x.shape[axis]
    flat = x.index_select(axis, at.reshape(-1))
    return flat.reshape((*x.shape[:axis], *at.shape, *x.shape[axis + 1 :]))


def _split(torch: Any, inputs: Inputs, given: Given) -> Any:
    axis = given.get("axis", 0)
    if len(inputs) > 1:
        return torch.split(inputs[0], inputs[1].tolist(), axis)
    return torch.tensor_split(inputs[0], given["num_outputs"], axis)


def _divided(torch: Any, inputs: Inputs, given: Given) -> Tensor:  # noqa: ARG001
    is_float = inputs[0].is_floating_point()
    return torch.div(*inputs, rounding_mode=None if is_float else "trunc")


def _gelu(torch: Any, inputs: Inputs, given: Given) -> Tensor:
    return torch.nn.functional.gelu(inputs[0], approximate=given.get("approximate", "none"))


def _attention(torch: Any, inputs: Inputs, given: Given) -> Tensor:
    if len(inputs) > 4 or inputs[0].dim() != 4 or given.get("softcap", 0.0):
        raise UserError("its body has a form of Attention that has no counterpart in torch here")
    q, k, v = inputs[:3]
    if k.shape[1] != q.shape[1]:
        k, v = (item.repeat_interleave(q.shape[1] // k.shape[1], 1) for item in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, inputs[3] if len(inputs) > 3 else None,
        is_causal=bool(given.get("is_causal", 0)), scale=given.get("scale"),
    )  # fmt: skip


def _folded(name: str) -> Rule:
    def rule(torch: Any, inputs: Inputs, given: Given) -> Tensor:  # noqa: ARG001
        result = inputs[0]
        for one in inputs[1:]:
            result = getattr(torch, name)(result, one)
        return result

    return rule


def _plain(name: str) -> Rule:
    return lambda torch, inputs, _: getattr(torch, name)(*inputs)


def _activation(name: str, **defaults: float) -> Rule:
    """Return a function of torch.nn.functional with numbers that ONNX has as attributes."""

    def rule(torch: Any, inputs: Inputs, given: Given) -> Tensor:
        numbers = [given.get(key, value) for key, value in defaults.items()]
        return getattr(torch.nn.functional, name)(inputs[0], *numbers)

    return rule


#: What each operator is, from the module torch, its inputs and its attributes.
RULES: Mapping[str, Rule] = {
    **{onnx_name: _plain(name) for onnx_name, name in {
        "Abs": "abs", "Add": "add", "And": "logical_and", "Ceil": "ceil", "Cos": "cos",
        "Equal": "eq", "Erf": "erf", "Exp": "exp", "Floor": "floor", "Greater": "gt",
        "GreaterOrEqual": "ge", "Less": "lt", "LessOrEqual": "le", "Log": "log",
        "MatMul": "matmul", "Mul": "mul", "Neg": "neg", "Not": "logical_not",
        "Or": "logical_or", "Reciprocal": "reciprocal", "Relu": "relu",
        "Round": "round", "Sigmoid": "sigmoid", "Sign": "sign", "Sin": "sin", "Sqrt": "sqrt",
        "Sub": "sub", "Tan": "tan", "Tanh": "tanh", "Where": "where", "Xor": "logical_xor",
    }.items()},
    **{onnx_name: _reduction(name) for onnx_name, name in {
        "ReduceL1": "abs", "ReduceL2": "norm", "ReduceMax": "amax", "ReduceMean": "mean",
        "ReduceMin": "amin", "ReduceProd": "prod", "ReduceSum": "sum",
        "ReduceSumSquare": "square",
    }.items()},
    "Attention": _attention,
    "Cast": lambda torch, inputs, given: inputs[0].to(_dtype(torch, given["to"])),
    "CastLike": lambda _, inputs, __: inputs[0].to(inputs[1].dtype),
    "Clip": _clip,
    "Concat": _concat,
    "Constant": lambda *_: None,
    "Div": _divided,
    "Elu": _activation("elu", alpha=1.0),
    "Expand": _expand,
    "Gather": _gather,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "HardSwish": _activation("hardswish"),
    "Identity": lambda _, inputs, __: inputs[0],
    "LayerNormalization": lambda *all_: _normalized(*all_, is_rms=False),
    "LeakyRelu": _activation("leaky_relu", alpha=0.01),
    "LogSoftmax": lambda torch, x, given: torch.log_softmax(x[0], given.get("axis", -1)),
    "Max": _folded("maximum"),
    "Min": _folded("minimum"),
    "Mish": _activation("mish"),
    "Pow": lambda torch, inputs, _: torch.pow(inputs[0], inputs[1]).to(inputs[0].dtype),
    "RMSNormalization": lambda *all_: _normalized(*all_, is_rms=True),
    "Reshape": _reshape,
    "Shape": lambda torch, inputs, given: torch.tensor(
        list(inputs[0].shape)[given.get("start", 0) : given.get("end")], dtype=torch.int64
    ),
    "Slice": _slice,
    "Softmax": _softmax,
    "Softplus": _activation("softplus"),
    "Softsign": _activation("softsign"),
    "Split": _split,
    "Squeeze": _squeeze,
    "Sum": _folded("add"),
    "Swish": lambda torch, x, given: x[0] * torch.sigmoid(given.get("alpha", 1.0) * x[0]),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}  # fmt: skip
