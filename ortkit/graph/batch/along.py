"""Rules for operators that work element by element, on samples, or along some axes."""

from __future__ import annotations

from collections.abc import Callable

from ortkit.graph.batch.place import CONSTANT, MIXES, UNALIGNED, UNKNOWN, Mixed, Rows
from ortkit.graph.batch.site import Site
from ortkit.graph.constants import constant_array

#: From this version on Softmax works along one axis, and not along all from one axis on.
_SOFTMAX_ALONG_ONE_AXIS = 13
#: From this version on input 1 of Resize is a region, and input 2 are factors.
_RESIZES_REGIONS = 11


def elementwise(site: Site) -> Rows | Mixed:
    """Inputs are broadcast; those that hold the batch have it on the same axis from the end."""
    if "broadcast" in site.node.attributes or "axis" in site.node.attributes:
        return UNKNOWN
    rank = len(site.out_shape())
    found: Rows | None = None
    for index in range(len(site.node.inputs)):
        if (rows := site.rows(index)) is not None:
            moved = rows.at(rows.axis + rank - site.rank(index))
            if found not in (None, moved):
                return UNALIGNED
            found = moved
    if found is None:
        return UNKNOWN
    for index, value in enumerate(site.node.inputs):
        is_shared = value is not None and site.rows(index) is None
        if is_shared and not site.broadcasts(index, found, rank):
            return CONSTANT
    return found


def dropout(site: Site) -> Rows | Mixed:
    """In training it draws numbers for the whole batch."""
    is_training = site.input(2) is not None and site.numbers(2) != (0,)
    return MIXES if is_training else site.only_rows() or UNKNOWN


def samples(site: Site) -> Rows | Mixed:
    """The first axis of input 0 counts samples, such as images."""
    rows = site.only_rows()
    return UNKNOWN if rows is None else rows if rows.axis == 0 else MIXES


def batch_norm(site: Site) -> Rows | Mixed:
    """In training the statistics are those of the batch."""
    is_training = site.integer("training_mode", 0) != 0 or _used_outputs(site) > 1
    return MIXES if is_training else samples(site)


def max_pool(site: Site) -> Rows | Mixed:
    """The indices of output 1 count through the whole batch."""
    return MIXES if _used_outputs(site) > 1 else samples(site)


def _used_outputs(site: Site) -> int:
    return sum(1 for value in site.node.outputs if value.uses() or value.is_graph_output())


def resize(site: Site) -> Rows | Mixed:
    """Images are resized; the target may say how many there are."""
    rows = samples(site)
    if isinstance(rows, Mixed):
        return rows
    attributes = site.node.attributes
    mode = attributes.get_string("coordinate_transformation_mode", "")
    policy = attributes.get_string("keep_aspect_ratio_policy", "stretch")
    if "axes" in attributes or mode == "tf_crop_and_resize" or policy != "stretch":
        return UNKNOWN
    if site.shape(0)[0] != site.out_shape()[0]:
        return UNKNOWN
    if site.input(3) is not None:
        return rows if site.set_target(3, rows, 0) else UNKNOWN
    # 16 rows that are stretched by 1.05 are 16 rows, some of them twice.
    factors = site.input(1 if site.opset < _RESIZES_REGIONS else 2)
    array = None if factors is None else constant_array(factors)
    return rows if array is not None and array.size and array[0] == 1 else UNKNOWN


def along(default: int) -> Callable[[Site], Rows | Mixed]:
    """Return a rule for an operator that works along the axis of its attribute."""

    def rule(site: Site) -> Rows | Mixed:
        rows = site.only_rows()
        if rows is None:
            return UNKNOWN
        return MIXES if site.axis(default, site.rank(0)) == rows.axis else rows

    return rule


def softmax(site: Site) -> Rows | Mixed:
    """It works along one axis, or along all from one axis on."""
    if site.opset >= _SOFTMAX_ALONG_ONE_AXIS:
        return along(-1)(site)
    rows = site.only_rows()
    if rows is None:
        return UNKNOWN
    return MIXES if site.axis(1, site.rank(0)) <= rows.axis else rows


def norm(site: Site) -> Rows | Mixed:
    """All axes from one on are normalized together."""
    rows = site.only_rows()
    if rows is None:
        return UNKNOWN
    if site.axis(-1, site.rank(0)) <= rows.axis:
        return MIXES
    others = (i for i in range(1, len(site.node.inputs)) if site.input(i) is not None)
    return rows if all(site.broadcasts(i, rows, site.rank(0)) for i in others) else CONSTANT


def skip_norm(site: Site) -> Rows | Mixed:
    """Inputs 0 and 1 are added, and the last axis is normalized."""
    rows, skip = site.rows(0), site.rows(1)
    if rows is None or any(site.rows(index) for index in range(2, len(site.states))):
        return UNKNOWN
    if rows.axis == site.rank(0) - 1:
        return MIXES
    if skip is None:
        return rows if site.broadcasts(1, rows, site.rank(0)) else CONSTANT
    return rows if skip == rows else UNALIGNED


def mean_variance(site: Site) -> Rows | Mixed:
    """By default the first axis is among those that are normalized together."""
    rows, axes = site.only_rows(), site.integers("axes") or [0, 2, 3]
    if rows is None:
        return UNKNOWN
    return MIXES if rows.axis in {axis % site.rank(0) for axis in axes} else rows


def reduce(site: Site) -> Rows | Mixed:
    """Some axes go, or become 1; without axes all do."""
    rows, axes = site.only_rows(), tuple(site.integers("axes"))
    if rows is None:
        return UNKNOWN
    if site.input(1) is not None:
        given = site.numbers(1)
        if given is None:
            return UNKNOWN
        axes = given
    if not axes:
        return rows if site.integer("noop_with_empty_axes", 0) else MIXES
    return _without(site, rows, {axis % site.rank(0) for axis in axes})


def arg_reduce(site: Site) -> Rows | Mixed:
    """One axis goes, or becomes 1."""
    rows = site.only_rows()
    return UNKNOWN if rows is None else _without(site, rows, {site.axis(0, site.rank(0))})


def _without(site: Site, rows: Rows, axes: set[int]) -> Rows | Mixed:
    if rows.axis in axes:
        return MIXES
    if site.integer("keepdims", 1):
        return rows
    return rows.at(rows.axis - sum(axis < rows.axis for axis in axes))


def cumulative(site: Site) -> Rows | Mixed:
    """Input 1 is the axis."""
    rows, axes = site.only_rows(), site.numbers(1)
    if rows is None or axes is None:
        return UNKNOWN
    return MIXES if axes[0] % site.rank(0) == rows.axis else rows


def quantize(site: Site) -> Rows | Mixed:
    """One scale, or one for each position on an axis."""
    rows = site.only_rows()
    if rows is None or site.rank(1) > 1:
        return UNKNOWN
    is_single = all(size == 1 for size in site.shape(1))
    return rows if is_single or site.axis(1, site.rank(0)) != rows.axis else MIXES
