"""Constants that both models read at the same place: compared as they are.

An input set reads some rows of a table of 30,000. One weight of a hundred that is a percent off
moves a result by less than the rounding of all of them to half precision. Where original and
candidate compute a value of one name by the same operator, from the same other inputs, their
constants are compared instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import constant_tensor
from ortkit.verify.compare import OutputComparison, compare_outputs
from ortkit.verify.conditioned import Limits, compare_conditioned
from ortkit.verify.rounded_constants import epsilon_of
from ortkit.verify.widening import rounded_to

#: By domain and operator, the inputs that are read in parts.
_READ_IN_PARTS: dict[tuple[str, str], tuple[int, ...]] = {
    ("", "Gather"): (0,), ("", "GatherElements"): (0,), ("", "GatherND"): (0,),
    ("", "RotaryEmbedding"): (1, 2), ("com.microsoft", "RotaryEmbedding"): (2, 3),
    ("com.microsoft", "GroupQueryAttention"): (7, 8),
}  # fmt: skip
#: Elements that are compared at a time.
_BLOCK = 1 << 20
#: An element of a constant in half precision may be off by an epsilon of its type at its own size,
#: or at this part of its row's.
_SMALL = 2.0**-6
#: Keeps errors of rows of zeros finite.
_TINY = 2.0**-149
#: Operators through which a constant is followed.
_MOVES = frozenset({"Transpose", "Reshape", "Cast", "DequantizeLinear"})


def different_constants(
    original: Mapping[str, ir.Value],
    candidate: Mapping[str, ir.Value],
    names: Iterable[str],
    limits: Limits,
) -> Iterator[OutputComparison]:
    """Yield values that are computed from other constants than the original's.

    Tables that are read in parts, constants in half precision, and integers of at most 8 bits are
    compared. Others move a value by more than is allowed where they are wrong.

    Args:
        original: Values of the wide copy by name.
        candidate: Likewise.
        names: Of the values that are compared.
        limits: How far an element of a table may be off.
    """
    for name in names:
        node, other = original[name].producer(), candidate[name].producer()
        if node is None or other is None:
            continue
        for index, (own, theirs) in enumerate(zip(node.inputs, other.inputs, strict=False)):
            if own is None or theirs is None or not _reads_alike(node, other, index):
                continue
            for pair in _pairs(own, theirs):
                is_table = index in _READ_IN_PARTS.get((node.domain, node.op_type), ())
                if found := _difference(name, pair, limits if is_table else None):
                    yield found


def _reads_alike(node: ir.Node, other: ir.Node, index: int) -> bool:
    """Say whether two nodes differ in one input at most: rows in another order are no fault."""
    if node.op_identifier() != other.op_identifier() or len(node.inputs) != len(other.inputs):
        return False
    named, theirs = (
        [None if value is None else value.name for value in each.inputs] for each in (node, other)
    )
    del named[index], theirs[index]
    return named == theirs and node.attributes == other.attributes


def _pairs(own: ir.Value, theirs: ir.Value) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Yield the constants that two values are, or that they are made of in the same way."""
    if constant_tensor(own) is not None and constant_tensor(theirs) is not None:
        yield own, theirs
        return
    node, other = own.producer(), theirs.producer()
    if node is None or other is None or node.domain or node.op_type not in _MOVES:
        return
    first, second = node.inputs[0], other.inputs[0]
    if first is not None and second is not None and _reads_alike(node, other, 0):
        yield from _pairs(first, second)


def _difference(
    name: str, pair: tuple[ir.Value, ir.Value], limits: Limits | None
) -> OutputComparison | None:
    """Say where two constants differ, if they do.

    Args:
        name: Of the value that is computed from them.
        pair: The original's and the candidate's.
        limits: How far an element of a table may be off; None for what is no table.
    """
    own, theirs = (constant_tensor(value) for value in pair)
    if own is None or theirs is None or own is theirs or not own.shape or not own.size:
        return None
    if own.dtype != theirs.dtype or tuple(own.shape) != tuple(theirs.shape):
        return None
    # A model that ONNX Runtime has no kernels for is written in float32 before it is compared.
    half = rounded_to(pair[0]) or rounded_to(pair[1])
    is_packed = own.dtype.is_integer() and own.dtype.bitwidth <= 8
    if half is None and limits is None and not is_packed:
        return None
    kind = "constant" if limits is None else "table"
    rows, others = own.numpy(), theirs.numpy()
    step = max(1, _BLOCK * len(rows) // rows.size)
    for start in range(0, len(rows), step):
        want, got = rows[start : start + step], others[start : start + step]
        if np.array_equal(want, got):
            continue
        if half is not None:
            found = _compare_rounded(name, want, got, half)
        elif limits is not None:
            found = compare_conditioned(name, want, got, limits)
        else:
            found = compare_outputs(name, want, got)
        if not found.equal:
            row, *_ = (*found.worst_row, 0)
            reason = f"near row {start + row} of its {kind}, {found.reason}"
            return replace(found, near_ties=0, reason=reason)
    return None


def _compare_rounded(
    name: str, want: np.ndarray, got: np.ndarray, half: ir.DataType
) -> OutputComparison:
    """Compare numbers that were in half precision: each may be off by a rounding or two."""
    epsilon = epsilon_of(half)
    with np.errstate(invalid="ignore", over="ignore"):
        size = np.abs(want)
        largest = size.max(axis=-1, keepdims=True)
        allowed = epsilon * (size + _SMALL * np.where(np.isfinite(largest), largest, 0.0))
        error = np.where(want == got, 0.0, np.abs(want - got)) / np.maximum(allowed, _TINY)
    error = np.where(np.isnan(error), np.where(np.isnan(want) & np.isnan(got), 0, np.inf), error)
    at = np.unravel_index(int(error.argmax()), error.shape)
    worst, index = float(error[at]), tuple(int(i) for i in at)
    reason = f"{got[at]:.6g} instead of {want[at]:.6g}" if worst > 1 else ""
    return OutputComparison(name, str(half), worst, 1.0, index[:1], not reason, reason=reason)
