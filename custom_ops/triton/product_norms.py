"""Norms of the rows that a product reads, as a region's body has them."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from ortkit.kernels.backend import Refused

from ..tvm.body import Body, integer


@dataclass(frozen=True)
class Norm:
    """A norm of rows; numbers are the region's inputs.

    Args:
        x: The rows.
        is_centred: Whether the mean is taken off first: LayerNormalization.
        scale: A factor for each element of a row.
        shift: What is added to each, None if nothing is.
        epsilon: What is added to the mean square.
    """

    x: int
    is_centred: bool
    scale: int
    shift: int | None
    epsilon: float


def read_norm(body: Body, name: str) -> Norm | Refused | None:
    """Return the norm that makes `name`; None if it is an input, or no norm makes it."""
    if name in body.inputs:
        return None
    for op_type in ("LayerNormalization", "RMSNormalization"):
        node = body.producer(name, op_type)
        if node is not None:
            return _norm(body, node)
    return _written_out(body, name)


def _norm(body: Body, node: onnx.NodeProto) -> Norm | Refused:
    """Read an operator of the standard."""
    is_centred = node.op_type == "LayerNormalization"
    epsilon = next((each.f for each in node.attribute if each.name == "epsilon"), 1e-5)
    numbers = [body.inputs.get(each) for each in node.input]
    if numbers[0] is None:
        return Refused("a norm of something that is computed in the region")
    rank = len(body.signature.inputs[numbers[0]].shape)
    if integer(node, "axis", -1) not in (-1, rank - 1):
        return Refused("a norm over more than rows")
    scale, shift = (*numbers[1:], None, None)[:2]
    if scale is None or (len(numbers) > 2 and shift is None):
        return Refused("a norm with a scale that is computed")
    return _checked(body, Norm(numbers[0], is_centred, scale, shift, epsilon))


def _written_out(body: Body, name: str) -> Norm | Refused | None:
    """Read x / Sqrt(ReduceMean(x ** 2) + epsilon) * scale, as bodies of older opsets have it."""
    product = body.producer(name, "Mul")
    ratio = None if product is None else body.producer(product.input[0], "Div")
    if product is None or ratio is None:
        return None
    root = body.producer(ratio.input[1], "Sqrt")
    total = None if root is None else body.producer(root.input[0], "Add")
    mean = None if total is None else body.producer(total.input[0], "ReduceMean")
    square = None if mean is None else body.producer(mean.input[0], "Pow")
    if total is None or mean is None or square is None or square.input[0] != ratio.input[0]:
        return None
    x, scale = body.inputs.get(ratio.input[0]), body.inputs.get(product.input[1])
    epsilon, power = body.constant(total.input[1]), body.constant(square.input[1])
    if x is None or scale is None or epsilon is None or power is None or float(power) != 2.0:
        return None
    rank = len(body.signature.inputs[x].shape)
    if body.axes(mean) not in ((-1,), (rank - 1,)) or not integer(mean, "keepdims", 1):
        return Refused("a norm over more than rows")
    return _checked(body, Norm(x, False, scale, None, float(epsilon)))


def _checked(body: Body, norm: Norm) -> Norm | Refused:
    """Return the norm if its factors are one for each element of a row."""
    inputs = body.signature.inputs
    columns = inputs[norm.x].shape[-1:]
    for number in (norm.scale, norm.shift):
        if number is not None and inputs[number].shape != columns:
            return Refused("a norm with factors of another shape than a row")
    return norm
