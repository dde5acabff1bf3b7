"""Constants that a model reads in parts, such as tables of embeddings: compared as they are.

An input set reads some rows of a table of 30,000. Where original and candidate read the same value
from constants of one shape, by the same indices, the constants are compared row by row instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import constant_tensor
from ortkit.verify.compare import OutputComparison
from ortkit.verify.conditioned import Limits, compare_conditioned

#: By domain and operator, the inputs that are read in parts.
_READ_IN_PARTS: dict[tuple[str, str], tuple[int, ...]] = {
    ("", "Gather"): (0,), ("", "GatherElements"): (0,), ("", "GatherND"): (0,),
    ("", "RotaryEmbedding"): (1, 2), ("com.microsoft", "RotaryEmbedding"): (2, 3),
    ("com.microsoft", "GroupQueryAttention"): (7, 8),
}  # fmt: skip
#: Elements that are compared at a time.
_BLOCK = 1 << 20


def different_tables(
    original: Mapping[str, ir.Value],
    candidate: Mapping[str, ir.Value],
    names: Iterable[str],
    limits: Limits,
) -> Iterator[OutputComparison]:
    """Yield the values that are read from other tables than the original's.

    Args:
        original: Values by name.
        candidate: Likewise.
        names: Of the values that are compared.
        limits: How far an element of a table may be off.
    """
    for name in names:
        node, other = original[name].producer(), candidate[name].producer()
        if node is None or other is None or node.op_identifier() != other.op_identifier():
            continue
        for index in _READ_IN_PARTS.get((node.domain, node.op_type), ()):
            table, theirs = (_table(each, index) for each in (node, other))
            if table is not None and theirs is not None and _reads_alike(node, other, index):
                yield from _compared(name, table, theirs, limits)


def _table(node: ir.Node, index: int) -> ir.TensorProtocol | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None else constant_tensor(value)


def _reads_alike(node: ir.Node, other: ir.Node, index: int) -> bool:
    """Say whether two nodes differ in one input at most: rows in another order are no fault."""
    named, theirs = (
        [None if value is None else value.name for value in each.inputs] for each in (node, other)
    )
    del named[index], theirs[index]
    return named == theirs and node.attributes == other.attributes


def _compared(
    name: str, table: ir.TensorProtocol, theirs: ir.TensorProtocol, limits: Limits
) -> Iterator[OutputComparison]:
    is_alike = table.dtype == theirs.dtype and tuple(table.shape) == tuple(theirs.shape)
    if table is theirs or not is_alike or not table.shape or not table.size:
        return
    rows, others = table.numpy(), theirs.numpy()
    step = max(1, _BLOCK * len(rows) // rows.size)
    for start in range(0, len(rows), step):
        want, got = rows[start : start + step], others[start : start + step]
        if np.array_equal(want, got):
            continue
        found = compare_conditioned(name, want, got, limits)
        if not found.equal:
            row, *_ = (*found.worst_row, 0)
            reason = f"near row {start + row} of its table, {found.reason}"
            yield OutputComparison(
                name, found.dtype, found.max_error_eps, found.allowed_eps, found.worst_row,
                False, 0, reason,
            )  # fmt: skip
            return
