"""Norms of the rows that a product reads, as a region's body has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from ortkit.refusal import Refused

from .body import Body, integer


@dataclass(frozen=True)
class Norm:
    """A norm of rows; numbers are the region's inputs.

    Args:
        source: The rows, by their name in the body.
        is_centred: Whether the mean is taken off first: LayerNormalization.
        scale: A factor for each element of a row.
        shift: What is added to each, None if nothing is.
        epsilon: What is added to the mean square.
    """

    source: str
    is_centred: bool
    scale: int
    shift: int | None
    epsilon: float


def read_norm(body: Body, name: str, shape: Sequence[int | str]) -> Norm | Refused | None:
    """Return the norm that makes `name`; None if it is an input, or no norm makes it.

    Args:
        body: The region's.
        name: A value of it.
        shape: Of the value, and of the rows.
    """
    if name in body.inputs:
        return None
    for op_type in ("LayerNormalization", "RMSNormalization"):
        node = body.producer(name, op_type)
        if node is not None:
            return _norm(body, node, shape)
    return _written_out(body, name, shape)


def _norm(body: Body, node: onnx.NodeProto, shape: Sequence[int | str]) -> Norm | Refused:
    """Read an operator of the standard."""
    is_centred = node.op_type == "LayerNormalization"
    epsilon = next((each.f for each in node.attribute if each.name == "epsilon"), 1e-5)
    if integer(node, "axis", -1) not in (-1, len(shape) - 1):
        return Refused("a norm over more than rows")
    factors = [body.inputs.get(each) for each in node.input[1:]]
    if not factors or None in factors:
        return Refused("a norm with a scale that is computed")
    scale, shift = (*factors, None)[:2]
    assert scale is not None
    return _checked(body, Norm(node.input[0], is_centred, scale, shift, epsilon), shape)


def _written_out(body: Body, name: str, shape: Sequence[int | str]) -> Norm | Refused | None:
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
    scale = body.inputs.get(product.input[1])
    epsilon, power = body.constant(total.input[1]), body.constant(square.input[1])
    if scale is None or epsilon is None or power is None or float(power) != 2.0:
        return None
    if body.axes(mean) not in ((-1,), (len(shape) - 1,)) or not integer(mean, "keepdims", 1):
        return Refused("a norm over more than rows")
    return _checked(body, Norm(ratio.input[0], False, scale, None, float(epsilon)), shape)


def _checked(body: Body, norm: Norm, shape: Sequence[int | str]) -> Norm | Refused:
    """Return the norm if its factors are one for each element of a row."""
    inputs = body.signature.inputs
    for number in (norm.scale, norm.shift):
        if number is not None and inputs[number].shape != tuple(shape[-1:]):
            return Refused("a norm with factors of another shape than a row")
    return norm
