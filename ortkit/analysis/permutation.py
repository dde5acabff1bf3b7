"""What an op must be to work on values whose axes are in another order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ortkit.graph.symbolic.dims import Size
from ortkit.operators import where
from ortkit.operators.contrib import MICROSOFT
from ortkit.rewrite.site import Site

Perm = tuple[int, ...]

#: The output has the shape of input 0; further inputs are numbers, or a type.
UNARY = where(access="elementwise", broadcasts=False, data_inputs=(0,))
#: Those of ONNX Runtime's domain.
_CONTRIB_UNARY = where(
    domain=MICROSOFT, access="elementwise", broadcasts=False, data_inputs=(0,), inputs=(1, 1)
)
#: All inputs broadcast together.
BROADCASTING = where(broadcasts=True)
REDUCTIONS = where(access="reduction", dtype="input")
#: Before these opsets broadcasting went by attribute, and Softmax joined axes.
FIRST_OPSET = 7
SOFTMAX_PER_AXIS = 13
LIMIT = 1 << 16


@dataclass(frozen=True)
class Permuted:
    """A node's counterpart on values x' where every x is Transpose<perm>(x')."""

    perm: Perm
    constants: Mapping[int, np.ndarray] = field(default_factory=dict)
    """New constants by input."""
    attributes: Mapping[str, int | Sequence[int]] = field(default_factory=dict)
    """Attributes that change."""
    is_plain: bool = False
    """Whether its results are the node's own, in their order."""


def permuted(site: Site, perms: Sequence[Perm | None]) -> Permuted | None:
    """Return the counterpart of the site's node, None if it has none.

    Args:
        site: Any node.
        perms: For each input, how it is permuted; None: it is not.
    """
    node = site.node
    perm = next((perm for perm in perms if perm is not None), None)
    if perm is None or site.opset < FIRST_OPSET or any(item not in (None, perm) for item in perms):
        return None
    if node.domain != "":
        return Permuted(perm) if is_contrib_unary(node) else None
    if node.op_type in BROADCASTING:
        return _broadcasting(site, perms, perm)
    if node.op_type == "Concat":
        return _concat(site, perms, perm)
    if perms[0] is None or any(perm is not None for perm in perms[1:]):
        return None
    if node.op_type in UNARY:
        return Permuted(perm)
    if node.op_type in REDUCTIONS:
        return _reduction(site, perm)
    if node.op_type in ("Softmax", "LogSoftmax") and site.opset >= SOFTMAX_PER_AXIS:
        return _along(perm, site.int("axis", -1))
    if node.op_type == "Pad":
        return _pad(site, perm)
    return None


def is_contrib_unary(node: ir.Node) -> bool:
    """Say whether a node is an elementwise operator of one input of ONNX Runtime's domain."""
    return node.domain == MICROSOFT and node.op_type in _CONTRIB_UNARY


def _broadcasting(site: Site, perms: Sequence[Perm | None], perm: Perm) -> Permuted | None:
    constants = {}
    for index, (value, one) in enumerate(zip(site.node.inputs, perms, strict=True)):
        if one is not None or value is None:
            continue
        array = site.array(value, LIMIT)
        if array is None or array.ndim > len(perm):
            return None
        if array.size > 1:
            constants[index] = unpermuted(array, perm)
    return Permuted(perm, constants)


def unpermuted(array: np.ndarray, perm: Perm) -> np.ndarray:
    """Return c' where `array`, broadcast to as many axes as `perm` has, is Transpose<perm>(c')."""
    wide = array.reshape((1,) * (len(perm) - array.ndim) + array.shape)
    return np.ascontiguousarray(np.transpose(wide, np.argsort(perm)))


def _concat(site: Site, perms: Sequence[Perm | None], perm: Perm) -> Permuted | None:
    if any(perm is None for perm in perms):
        return None
    return _along(perm, site.int("axis", 0))


def _along(perm: Perm, axis: int) -> Permuted | None:
    """Return the counterpart of an op along one axis, None where there is no such axis."""
    if not -len(perm) <= axis < len(perm):
        return None
    return Permuted(perm, attributes={"axis": perm[axis]})


def _reduction(site: Site, perm: Perm) -> Permuted | None:
    axes = site.axes()
    if axes is None or not axes or site.int("noop_with_empty_axes", 0):
        return None
    if any(not -len(perm) <= axis < len(perm) for axis in axes):
        return None
    moved = sorted(perm[axis] for axis in axes)
    keeps = bool(site.int("keepdims", 1))
    gone = {axis % len(perm) for axis in axes}
    left = [perm[axis] for axis in range(len(perm)) if axis not in gone]
    if not keeps and left != sorted(left):
        return None
    if site.input(1) is None:
        return Permuted(perm, attributes={"axes": moved}, is_plain=not keeps)
    return Permuted(perm, {1: np.array(moved, np.int64)}, is_plain=not keeps)


def _pad(site: Site, perm: Perm) -> Permuted | None:
    given = site.input(1)
    array = site.array(given, LIMIT) if given is not None else np.array(site.ints("pads") or ())
    if array is None or array.size != 2 * len(perm) or site.input(3) is not None:
        return None
    flat = array.reshape(-1).tolist()
    begins, ends = [0] * len(perm), [0] * len(perm)
    for axis, position in enumerate(perm):
        begins[position], ends[position] = flat[axis], flat[axis + len(perm)]
    if given is None:
        return Permuted(perm, attributes={"pads": [*begins, *ends]})
    return Permuted(perm, {1: np.array([*begins, *ends], np.int64)})


def moves_only_ones(perm: Sequence[int], shape: Sequence[Size]) -> bool:
    """Say whether all axes of a value of this shape that may be longer than one stay in order."""
    if len(perm) != len(shape):
        return False
    moved = [axis for axis in perm if shape[axis] != 1]
    return moved == sorted(moved)


def is_inverse(node: ir.Node, perm: Perm) -> bool:
    """Say whether `node` is a Transpose that undoes `perm`."""
    if node.domain != "" or node.op_type != "Transpose" or "perm" not in node.attributes:
        return False
    attribute = node.attributes["perm"]
    if attribute.is_ref():
        return False
    own = tuple(attribute.as_ints())
    return sorted(own) == sorted(perm) and all(perm[axis] == i for i, axis in enumerate(own))
