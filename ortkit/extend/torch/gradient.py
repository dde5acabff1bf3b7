"""Gradients of a declared op in PyTorch: by `@op.backward`, or those of its body."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ortkit.errors import UserError
from ortkit.extend.declare.declared_op import DeclaredOp
from ortkit.extend.declare.op_schema import checked_attributes
from ortkit.extend.torch.body import compute_body, unknown_operator
from ortkit.extend.torch.run import from_numpy, to_numpy

# torch is optional, and has no types here.
Tensor: TypeAlias = Any


def has_gradient(op: DeclaredOp) -> bool:
    """Say whether there is one for some nodes."""
    return op.gradient is not None or bool(op.bodies)


def remember(
    ctx: Any, inputs: Sequence[Any], output: Any, keyword_only_inputs: Any = None
) -> None:
    """Keep what the gradients are computed from: the inputs and the attributes."""
    del output
    ctx.attributes = dict(keyword_only_inputs or {})
    ctx.there = [item is not None for item in inputs]
    ctx.save_for_backward(*(one for one in inputs if one is not None))


def register_backward(
    op: DeclaredOp, name: str, arguments: Sequence[str], attributes: Sequence[str]
) -> Callable[..., Any]:
    """Return what computes an op's gradients.

    What `@op.backward` gave is registered as an op too, so that it is traced as one.

    Args:
        op: With a gradient.
        name: Of the op in torch.
        arguments: Its inputs, as torch's schemas name them.
        attributes: Its attributes, as they stand in torch's schemas.

    Returns:
        What `register_autograd` takes.
    """
    import torch

    if op.gradient is None:
        return _derived(op)
    inputs, outputs = len(op.schema.inputs), len(op.schema.outputs)

    def compute(*given: Any, **numbers: Any) -> Any:
        gradients, tensors = given[:outputs], given[outputs:]
        found = _by_numpy(op, gradients, tensors, numbers)
        made = tuple(
            _like(result, tensor, gradients[0])
            for result, tensor in zip(found, tensors, strict=True)
        )
        return made[0] if inputs == 1 else made

    def fake(*given: Any, **_numbers: Any) -> Any:
        made = tuple(
            given[0].new_empty(0) if item is None else torch.empty_like(item)
            for item in given[outputs:]
        )
        return made[0] if inputs == 1 else made

    parts = [f"Tensor grad{index}" for index in range(outputs)]
    parts += [f"Tensor? {argument}" for argument in arguments]
    result = "Tensor" if inputs == 1 else f"({', '.join(['Tensor'] * inputs)})"
    schema = f"({', '.join([*parts, *(['*', *attributes] if attributes else [])])}) -> {result}"
    made = torch.library.custom_op(f"{name}_backward", compute, mutates_args=(), schema=schema)
    made.register_fake(fake)

    def backward(ctx: Any, *gradients: Any) -> Any:
        saved = iter(ctx.saved_tensors)
        tensors = [next(saved) if is_present else None for is_present in ctx.there]
        found = made(*gradients, *tensors, **ctx.attributes)
        results = (found,) if inputs == 1 else found
        return tuple(
            one if is_needed and is_present else None
            for one, is_needed, is_present in zip(
                results, ctx.needs_input_grad, ctx.there, strict=False
            )
        )

    return backward


def _derived(op: DeclaredOp) -> Callable[..., Any]:
    """Return the gradients of the body, as torch's own operators have them.

    Not an op of its own: in one torch records nothing, and what another thread records it cannot
    differentiate while a GPU's thread waits for it.
    """

    def backward(ctx: Any, *gradients: Any) -> Any:
        saved = iter(ctx.saved_tensors)
        tensors = [next(saved) if is_present else None for is_present in ctx.there]
        found = _by_body(op, gradients, tensors, ctx.attributes)
        return tuple(
            item if is_needed else None
            for item, is_needed in zip(found, ctx.needs_input_grad, strict=False)
        )

    return backward


def _by_numpy(
    op: DeclaredOp,
    gradients: Sequence[Tensor],
    tensors: Sequence[Tensor | None],
    attributes: Mapping[str, object],
) -> Sequence[Tensor | None]:
    """Return what the function computes that was given with `@op.backward`."""
    assert op.gradient is not None
    arrays = [None if item is None else to_numpy(item) for item in (*gradients, *tensors)]
    found = op.gradient(*arrays, **checked_attributes(op.schema, attributes, op.id))
    results = found if isinstance(found, tuple) else (found,)
    if len(results) != len(tensors):
        raise UserError(
            f"its backward returned {len(results)} gradients for {len(tensors)} inputs",
            where=op.id,
        )
    device = gradients[0].device
    return [None if result is None else from_numpy(result, device) for result in results]


def _by_body(
    op: DeclaredOp,
    gradients: Sequence[Tensor],
    tensors: Sequence[Tensor | None],
    attributes: Mapping[str, object],
) -> Sequence[Tensor | None]:
    """Return the gradients of the body, computed again with torch's operators."""
    import torch

    pairs = zip(op.schema.inputs, tensors, strict=True)
    absent = frozenset(op_input.name for op_input, tensor in pairs if tensor is None)
    body = op.bodies.get(absent)
    if body is None or (name := unknown_operator(body)):
        what = f"has {name}, which has no derivative here" if body else "is not there"
        raise UserError(
            f"there is no gradient: its body {what}", where=op.id,
            fix="give it one with @op.backward",
        )  # fmt: skip
    given = checked_attributes(op.schema, attributes, op.id)
    with torch.enable_grad():
        leaves = [
            None if tensor is None else tensor.detach().requires_grad_(tensor.is_floating_point())
            for tensor in tensors
        ]
        there = [leaf for leaf in leaves if leaf is not None]
        outputs = compute_body(body, there, given, op.id)
        wanted = [item for item in there if item.requires_grad]
        ends = [
            (output, gradient)
            for output, gradient in zip(outputs, gradients, strict=True)
            if output.requires_grad
        ]
        if not ends:
            return [None] * len(tensors)
        found = torch.autograd.grad(
            [one for one, _ in ends], wanted, [one for _, one in ends], allow_unused=True
        )
    by_leaf = {id(leaf): gradient for leaf, gradient in zip(wanted, found, strict=True)}
    return [None if leaf is None else by_leaf.get(id(leaf)) for leaf in leaves]


def _like(result: Tensor | None, tensor: Tensor | None, gradient: Tensor) -> Tensor:
    """Return a gradient as the op has to; an input without one gets zeros, an absent nothing."""
    import torch

    if tensor is None:
        return gradient.new_empty(0)
    if result is None:
        return torch.zeros_like(tensor)
    # Not an input itself, which an op may not return.
    return result.to(tensor.device).clone(memory_format=torch.contiguous_format)
