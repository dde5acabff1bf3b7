"""Norms of the rows that a product reads, as a region's body has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from ortkit.refusal import Refused, needed, refusals

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


@dataclass(frozen=True)
class Rows:
    """Rows that a product reads: norm(x + skip + added); numbers are the region's inputs.

    Args:
        x: [..., depth].
        norm: What is done to the sum, None if nothing is.
        skip: What is added to x before, of its shape, None if nothing is.
        added: A row [depth] that is added to all, None if nothing is.
        total: The region's output that has the sum, None if nothing else reads it.
    """

    x: int
    norm: Norm | None = None
    skip: int | None = None
    added: int | None = None
    total: int | None = None

    @property
    def numbers(self) -> tuple[int, ...]:
        """All inputs that it is made of."""
        norm = self.norm
        factors = (None, None) if norm is None else (norm.scale, norm.shift)
        found = (self.x, self.skip, self.added, *factors)
        return tuple(number for number in found if number is not None)


@refusals
def read_rows(body: Body, name: str, shape: Sequence[int | str]) -> Rows | Refused:
    """Return what `name` is made of.

    The product's result is the last output of the region, the sum may be the one before it.

    Args:
        body: The region's.
        name: A value of it.
        shape: Of the value, and of the rows.
    """
    norm = needed(read_norm(body, name, shape))
    source = name if norm is None else norm.source
    others = [str(each) for each in body.function.output[:-1]]
    if others not in ([], [source]) or (others and norm is None):
        return Refused("products with a result that is no sum before a norm")
    terms = summed(body, source, 3 if norm is not None else 1)
    inputs = body.signature.inputs
    rows = [number for number in terms if inputs[number].shape == tuple(shape)]
    flat = [number for number in terms if number not in rows]
    if not 0 < len(rows) < 3 or len(flat) > 1:
        return Refused("products of an operand that is computed in the region")
    if any(inputs[number].shape != tuple(shape[-1:]) for number in flat):
        return Refused("rows with a bias of another shape")
    total = 0 if others else None
    return Rows(rows[0], norm, (*rows[1:], None)[0], (*flat, None)[0], total)


def summed(body: Body, name: str, most: int = 3) -> tuple[int, ...]:
    """Return the inputs that `name` is the sum of; none if it is something else, or of more."""
    if name in body.inputs:
        return (body.inputs[name],)
    node = body.producer(name, "Add") if most > 1 else None
    if node is None:
        return ()
    parts = [summed(body, str(each), most - 1) for each in node.input]
    found = tuple(number for part in parts for number in part)
    return found if all(parts) and len(found) <= most else ()


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
    """Read x / Sqrt(ReduceMean(x ** 2) + epsilon) * scale, as bodies of older opsets have it.

    In half precision all but the last product is in float32.
    """
    product = body.producer(name, "Mul")
    normal = "" if product is None else str(product.input[0])
    narrowed = body.producer(normal, "Cast")
    ratio = body.producer(normal if narrowed is None else narrowed.input[0], "Div")
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
    source = str(ratio.input[0])
    widened = body.producer(source, "Cast")
    if (widened is None) != (narrowed is None):
        return Refused("a norm of rows of another type")
    if widened is not None:
        if integer(widened, "to", 0) != onnx.TensorProto.FLOAT:
            return Refused("a norm that is not computed in float32")
        source = str(widened.input[0])
    return _checked(body, Norm(source, False, scale, None, float(epsilon)), shape)


def _checked(body: Body, norm: Norm, shape: Sequence[int | str]) -> Norm | Refused:
    """Return the norm if its factors are one for each element of a row."""
    inputs = body.signature.inputs
    for number in (norm.scale, norm.shift):
        if number is not None and inputs[number].shape != tuple(shape[-1:]):
            return Refused("a norm with factors of another shape than a row")
    return norm
