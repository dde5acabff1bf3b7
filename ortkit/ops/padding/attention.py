"""Attention whose keys are masked where tokens are padding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortkit.ops.attention.core import MASKED
from ortkit.ops.padding.flag import Flag, flags_of, where_padding
from ortkit.ops.padding.tokens import Grid
from ortkit.rewrite.scope import Scope

#: By operator: the inputs that hold a mask, and those that must be absent.
_MASKS = {("", "Attention"): (3,), ("com.microsoft", "MultiHeadAttention"): (4, 5)}
_ABSENT = {("", "Attention"): (4, 5, 6), ("com.microsoft", "MultiHeadAttention"): (6, 7, 8, 9)}
#: The input of MultiHeadAttention that holds one number for each key, above 0 where it is seen.
_KEY_PADDING = 4
#: The attribute of MultiHeadAttention that says what is added to the score of a key left out.
_FILL = "mask_filter_value"


@dataclass(frozen=True)
class AttentionSite:
    """An attention over keys [samples, positions, ...].

    Args:
        node: It.
        mask: What is added to scores, or bool, or a number for each key; None: all keys are seen.
        is_causal: Whether query i sees keys up to i only, in addition.
        has_heads: Whether operands are [samples, heads, positions, width].
    """

    node: ir.Node
    mask: ir.Value | None
    is_causal: bool
    has_heads: bool

    @property
    def keys(self) -> ir.Value:
        """The keys."""
        found = self.node.inputs[1]
        assert found is not None
        return found


def attention_site(scope: Scope, node: ir.Node) -> AttentionSite | None:
    """Return a node as attention; None if it is something else, or of an unknown form."""
    kind = (node.domain, node.op_type)
    indices = _MASKS.get(kind)
    if indices is None or len(node.inputs) < 3 or None in node.inputs[:3]:
        return None
    inputs = dict(enumerate(node.inputs))
    if any(inputs.get(index) is not None for index in _ABSENT[kind]):
        return None
    if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        return None
    if kind[0] and not _leaves_out(node.attributes.get_float(_FILL, MASKED)):
        return None
    masks = [value for index in indices if (value := inputs.get(index)) is not None]
    ranks = {scope.shapes.rank(value) for value in node.inputs[:3] if value is not None}
    if len(masks) > 1 or ranks not in ({3}, {4}) or (ranks == {4} and kind[0]):
        return None
    name = "unidirectional" if kind[0] else "is_causal"
    return AttentionSite(
        node, masks[0] if masks else None, node.attributes.get_int(name, 0) != 0, ranks == {4}
    )


def grid_of(scope: Scope, site: AttentionSite) -> Grid | None:
    """Return how many samples and keys an attention has."""
    shape = scope.shapes.shape(site.keys)
    return None if shape is None else Grid(shape[0], shape[2 if site.has_heads else 1])


def flags_for(scope: Scope, site: AttentionSite) -> Iterator[Flag]:
    """Yield what says which keys of an attention are padding."""
    grid = grid_of(scope, site)
    if site.mask is None or grid is None:
        return
    for flag in flags_of(scope, site.mask, grid):
        if leaves_out(scope, site, flag):
            yield flag


def leaves_out(scope: Scope, site: AttentionSite, flag: Flag) -> bool:
    """Say whether an attention leaves out all keys if all are padding, at all sizes tried.

    That a mask leaves out padding beside other keys, too, is seen in each run: `emit`.
    """
    mask = site.mask
    shape = None if mask is None else scope.shapes.shape(mask)
    if mask is None or shape is None or grid_of(scope, site) != flag.grid:
        return False
    if len(shape) != (2 if is_of_keys(site) else 4) or shape[-1] != flag.grid.positions:
        return False
    if site.is_causal and len(shape) == 4 and shape[2] != 1:
        return False
    found = list(where_padding(scope, flag, mask))
    is_number = is_of_keys(site)
    return bool(found) and all(
        array is not None and bool((array <= 0 if is_number else _masks(array)).all())
        for array in found
    )


def may_give_nan(scope: Scope, site: AttentionSite, flag: Flag) -> bool:
    """Say whether a query that sees no key may give NaN: -inf is added to all of its scores."""
    if site.mask is None or is_of_keys(site):
        return False
    found = where_padding(scope, flag, site.mask)
    return not all(
        array is not None and array.dtype.kind == "f" and bool(np.isfinite(array).all())
        for array in found
    )


def is_of_keys(site: AttentionSite) -> bool:
    """Say whether the mask is that of com.microsoft's MultiHeadAttention with a number per key."""
    inputs = dict(enumerate(site.node.inputs))
    return site.node.domain != "" and inputs.get(_KEY_PADDING) is site.mask


def _leaves_out(fill: float) -> bool:
    """Say whether a key to whose score this is added is left out, without NaN for any query."""
    return bool(np.isfinite(fill)) and fill <= MASKED


def _masks(array: np.ndarray) -> np.ndarray:
    """Return where a mask leaves keys out; NaN stands where a query sees none."""
    if array.dtype.kind == "f":
        return np.asarray(~(array > MASKED))
    return np.asarray(array == 0)
