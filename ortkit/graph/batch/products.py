"""Rules for products of matrices, attention and recurrent operators."""

from __future__ import annotations

from ortkit.graph.batch.place import CONSTANT, MIXES, UNALIGNED, UNKNOWN, Mixed, Rows
from ortkit.graph.batch.site import Rule, Site

_TRANSPOSED = ("transA", "transBatchA", "transBatchB")


def matmul(site: Site) -> Rows | Mixed:
    """The batch is among the stacked matrices, the rows of A, or the columns of B."""
    left, right = site.rows(0), site.rows(1)
    ranks, rank = (site.rank(0), site.rank(1)), len(site.out_shape())
    if any(site.rows(index) for index in range(2, len(site.states))) or min(ranks) < 2:
        return UNKNOWN
    if any(site.integer(name, 0) for name in _TRANSPOSED) or (right and site.integer("transB", 0)):
        return UNKNOWN
    if left is not None and right is not None:
        moved = left.at(left.axis + rank - ranks[0])
        if moved != right.at(right.axis + rank - ranks[1]):
            return UNALIGNED
        return moved if left.axis < ranks[0] - 2 else MIXES
    rows, own, other = (left, ranks[0], 1) if left is not None else (right, ranks[1], 0)
    if rows is None:
        return UNKNOWN
    if rows.axis == (own - 1 if left is not None else own - 2):
        return MIXES
    moved = rows.at(rows.axis + rank - own)
    if moved.axis >= rank - 2:
        return moved
    return moved if site.broadcasts(other, moved, rank) else CONSTANT


def matmul_integer(site: Site) -> Rows | Mixed:
    """A may have a zero point for each row, and B for each column."""
    of_rows, of_columns = (
        site.input(index) is not None and any(size != 1 for size in site.shape(index))
        for index in (2, 3)
    )
    if of_rows or (of_columns and (site.rows(1) is not None or site.rank(3) > 1)):
        return UNKNOWN
    return matmul(site)


def matmul_nbits(site: Site) -> Rows | Mixed:
    """Rows of input 0 are multiplied with a constant matrix."""
    rows = site.only_rows()
    if rows is None:
        return UNKNOWN
    return MIXES if rows.axis == site.rank(0) - 1 else rows


def gemm(site: Site) -> Rows | Mixed:
    """The batch is in the rows of A; C has one row or equal ones."""
    rows = site.only_rows()
    if rows is None:
        return UNKNOWN
    if rows.axis != (1 if site.integer("transA", 0) else 0):
        return MIXES
    has_bias = site.input(2) is not None
    return rows.at(0) if not has_bias or site.broadcasts(2, rows.at(0), 2) else CONSTANT


def einsum(site: Site) -> Rows | Mixed:
    """The batch is one letter of all terms that have it, and of the result."""
    equation = site.node.attributes.get_string("equation", "").replace(" ", "")
    given, _, result = equation.partition("->")
    terms = given.split(",")
    batches = {i: rows for i in range(len(terms)) if (rows := site.rows(i)) is not None}
    if "." in equation or not batches:
        return UNKNOWN
    letters = {terms[i][rows.axis] for i, rows in batches.items()}
    letter = letters.pop()
    if letters or result.count(letter) != 1 or any(term.count(letter) > 1 for term in terms):
        return MIXES
    if any(letter in term for i, term in enumerate(terms) if i not in batches):
        return CONSTANT
    found = {rows.at(result.index(letter)) for rows in batches.values()}
    return found.pop() if len(found) == 1 else UNALIGNED


def attention(site: Site) -> Rows | Mixed:
    """Queries, keys and values have the batch first; a mask is aligned with it from the end."""
    for index in range(len(site.node.inputs)):
        if site.input(index) is None:
            continue
        rows = site.rows(index)
        is_aligned = index != _MASK or site.rank(index) == _SCORES_RANK
        if rows is not None and not (rows == Rows(0) and is_aligned):
            return MIXES
        is_mask = index == _MASK and site.broadcasts(index, Rows(0), _SCORES_RANK)
        if rows is None and not is_mask:
            return UNKNOWN
    return Rows(0)


#: The mask of Attention, and the rank of its scores.
_MASK, _SCORES_RANK = 3, 4


def multi_head_attention(site: Site) -> Rows | Mixed:
    """All tensors have the batch first, but for the bias of the projections."""
    for index in range(len(site.node.inputs)):
        if site.input(index) is None or index == _PROJECTION_BIAS:
            continue
        rows = site.rows(index)
        if rows is not None and rows != Rows(0):
            return MIXES
        is_bias = index == _SCORE_BIAS and site.broadcasts(index, Rows(0), _SCORES_RANK)
        if rows is None and not is_bias:
            return UNKNOWN
    return UNKNOWN if site.rows(_PROJECTION_BIAS) else Rows(0)


#: Inputs of com.microsoft's MultiHeadAttention.
_PROJECTION_BIAS, _SCORE_BIAS = 3, 5


def rotary(site: Site) -> Rows | Mixed:
    """Tables for all positions, or those of each row, with the batch first."""
    for index in range(len(site.node.inputs)):
        if site.input(index) is None:
            continue
        is_data = index in (0, 1 if site.node.domain == "com.microsoft" else _POSITIONS)
        rows, is_table = site.rows(index), not is_data and site.rank(index) == _TABLE_RANK
        if rows is not None and (rows != Rows(0) or is_table):
            return MIXES
        is_shared = is_table or (index > 0 and site.shape(index) == (1,))
        if rows is None and not is_shared and not site.takes_rows(index, 0, Rows(0)):
            return UNKNOWN
    return Rows(0)


#: The axes of a table of cosines for all positions; the input of ONNX's operator with positions.
_TABLE_RANK, _POSITIONS = 2, 3


def recurrent(states: int) -> Rule:
    """Return a rule for an operator with this many initial states, from input 5 on."""

    def rule(site: Site) -> tuple[Rows, ...] | Mixed:
        is_first = site.integer("layout", 0) != 0
        axes = {0: 0 if is_first else 1, 4: 0}
        axes |= dict.fromkeys(range(5, 5 + states), 0 if is_first else 1)
        for index in range(len(site.node.inputs)):
            if site.input(index) is None:
                continue
            rows, axis = site.rows(index), axes.get(index)
            if rows is not None and (axis is None or rows != Rows(axis)):
                return MIXES
            if rows is None and axis is not None and not site.takes_rows(index, axis, Rows(axis)):
                return CONSTANT
        last = Rows(0 if is_first else 1)
        return (Rows(0 if is_first else 2), *[last] * states)

    return rule
