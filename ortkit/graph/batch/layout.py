"""Rules for operators that move elements."""

from __future__ import annotations

from ortkit.graph.batch.place import CONSTANT, MIXES, UNALIGNED, UNKNOWN, Mixed, Rows, relocated
from ortkit.graph.batch.site import Site

#: From this version on axes are an input of Slice.
_SLICES_BY_INPUTS = 10


def transpose(site: Site) -> Rows | Mixed:
    """Axes change places."""
    rows = site.only_rows()
    perm = site.integers("perm") or list(range(site.rank(0)))[::-1]
    return UNKNOWN if rows is None else rows.at(perm.index(rows.axis))


def reshape(site: Site) -> Rows | Mixed:
    """The elements keep their order; a target is written for the new batch."""
    rows = site.only_rows()
    if rows is None:
        return UNKNOWN
    moved = relocated(site.shape(0), rows, site.out_shape(), site.batch)
    if moved is None:
        return Mixed("it takes the batch apart")
    if site.node.op_type == "Reshape" and not site.set_target(1, moved, -1):
        return UNKNOWN
    return moved


def expand(site: Site) -> Rows | Mixed:
    """The batch stays, other axes are repeated; 1 keeps a size that is no number."""
    rows = site.only_rows()
    if rows is None:
        return UNKNOWN
    shape, wanted = site.shape(0), site.out_shape()
    own = (1,) * (len(wanted) - len(shape)) + shape
    moved = rows.at(rows.axis + len(wanted) - len(shape))
    is_kept = all(isinstance(n, int) or n == m for n, m in zip(wanted, own, strict=True))
    if wanted[moved.axis] != own[moved.axis] or not is_kept:
        return UNKNOWN
    return moved if site.set_target(1, moved, 1) else UNKNOWN


def concat(site: Site) -> Rows | Mixed:
    """All parts have as many rows."""
    parts = range(len(site.node.inputs))
    rows = next((found for part in parts if (found := site.rows(part)) is not None), None)
    if rows is None:
        return UNKNOWN
    if site.axis(0, len(site.out_shape())) == rows.axis:
        return MIXES
    if any(site.rows(part) not in (None, rows) for part in parts):
        return UNALIGNED
    shared = (part for part in parts if site.rows(part) is None)
    return rows if all(site.takes_rows(part, rows.axis, rows) for part in shared) else CONSTANT


def cut(site: Site) -> Rows | Mixed:
    """A Slice along other axes."""
    rows, rank = site.only_rows(), site.rank(0)
    if rows is None:
        return UNKNOWN
    axes: tuple[int, ...] | None = tuple(range(rank))
    if site.opset < _SLICES_BY_INPUTS:
        axes = tuple(site.integers("axes")) or axes
    elif site.input(3) is not None:
        axes = site.numbers(3)
    if axes is None:
        return UNKNOWN
    return MIXES if rows.axis in {axis % rank for axis in axes} else rows


def gather(site: Site) -> Rows | Mixed:
    """Rows of the batch are kept, or each row of indices is looked up."""
    data, indices = site.rows(0), site.rows(1)
    axis = site.axis(0, site.rank(0))
    if data is not None and indices is not None:
        return UNKNOWN
    if indices is not None:
        return indices.at(indices.axis + axis)
    if data is None or data.axis == axis:
        return MIXES
    return data.at(data.axis + (site.rank(1) - 1 if data.axis > axis else 0))


def gather_elements(site: Site) -> Rows | Mixed:
    """Indices look up elements of their own row."""
    data, indices = site.rows(0), site.rows(1)
    if data is None or data != indices:
        return UNKNOWN
    return MIXES if site.axis(0, site.rank(0)) == data.axis else data


def tile(site: Site) -> Rows | Mixed:
    """Other axes are repeated."""
    rows, repeats = site.only_rows(), site.numbers(1)
    if rows is None or repeats is None:
        return UNKNOWN
    return rows if repeats[rows.axis] == 1 else MIXES


def pad(site: Site) -> Rows | Mixed:
    """Other axes are padded."""
    rows, rank = site.only_rows(), site.rank(0)
    pads = site.integers("pads") or site.numbers(1)
    if rows is None or not pads or site.input(3) is not None or len(pads) != 2 * rank:
        return UNKNOWN
    return MIXES if pads[rows.axis] or pads[rows.axis + rank] else rows


def one_hot(site: Site) -> Rows | Mixed:
    """A new axis appears."""
    rows = site.only_rows()
    if rows is None:
        return UNKNOWN
    return rows.at(rows.axis + (site.axis(-1, site.rank(0) + 1) <= rows.axis))


def triangle(site: Site) -> Rows | Mixed:
    """Each matrix of the last two axes is cut."""
    rows = site.only_rows()
    if rows is None:
        return UNKNOWN
    return rows if rows.axis < site.rank(0) - 2 else MIXES
