"""Which leaves of a row region are its weights, and the values that an op takes for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from ortkit.analysis.row_functions import Frame
from ortkit.analysis.weight_arithmetic import rounded
from ortkit.graph.symbolic.dims import Size
from ortkit.rewrite.site import Site

Array = np.ndarray

#: Relative difference between symbols that are the same one.
SAME = 1e-6
#: Elements of a weight that is made where the graph has a number or fewer ones.
MOST_MADE = 1 << 24


@dataclass(frozen=True)
class Weight:
    """offset + a product of leaves; none of them: the number `offset` itself."""

    leaves: tuple[ir.Value, ...] = ()
    offset: float = 0.0
    sign: float = 1.0

    @property
    def is_number(self) -> bool:
        """Whether no leaf is in it."""
        return not self.leaves

    def array(self, values: Sequence[Array]) -> Array:
        """Return it for these values of its leaves, in float64."""
        total = np.array(self.sign)
        for value in values:
            total = total * value
        return np.asarray(total + self.offset)


ONE = Weight(offset=0.0)
NOUGHT = Weight(offset=-1.0)


def read_weight(found: Array, leaves: Mapping[ir.Value, Array], *, shifts: bool) -> Weight | None:
    """Return the weight that has the values `found` where the leaves have theirs.

    Args:
        found: Float64, of a probe's sizes with 1 along the axis of its rows.
        leaves: Arrays that broadcast to these sizes; those that do not are left out.
        shifts: Whether it is added (0 where there is none) or a factor (1 where there is none).
    """
    number = NOUGHT if shifts else ONE
    if _same(found, number.array([])):
        return number
    wide = {
        leaf: array
        for leaf, array in leaves.items()
        if array.size > 1 and _broadcasts(array.shape, found.shape)
    }
    forms = [Weight((leaf,)) for leaf in wide]
    if shifts:
        forms += [Weight((leaf,), 0.0, -1.0) for leaf in wide]
    else:
        forms += [Weight((leaf,), 1.0) for leaf in wide]
    # In a model's longest region there are about four leaves.
    forms += [Weight((a, b)) for a in wide for b in wide]
    for form in forms[:64]:
        if _same(found, form.array([wide[leaf] for leaf in form.leaves])):
            return form
    return None


def _broadcasts(shape: Sequence[int], wide: Sequence[int]) -> bool:
    ends = wide[len(wide) - len(shape) :]
    return all(size in (1, end) for size, end in zip(shape, ends, strict=True))


def _same(found: Array, want: Array) -> bool:
    return bool((np.abs(found - want) <= SAME * np.maximum(np.abs(want), 1e-3)).all())


def runs_along(site: Site, weight: Weight, frame: Frame, axes: Sequence[int]) -> bool:
    """Say whether all leaves of a weight have a size other than 1 along these axes alone."""
    for leaf in weight.leaves:
        shape = site.shape(leaf)
        if shape is None:
            return False
        first = len(frame.shape) - len(shape)
        if any(size != 1 and first + i not in axes for i, size in enumerate(shape)):
            return False
    return True


@dataclass(frozen=True)
class Operand:
    """A weight as an op takes it: a value that is there, or data for a new constant."""

    value: ir.Value | None = None
    data: Array | None = None
    shape: tuple[Size, ...] = ()

    def emit(self, site: Site, name: str) -> ir.Value:
        """Return the value; only after the rewrite is claimed."""
        if self.data is not None:
            return site.constant(self.data, f"{site.output.name}/{name}")
        assert self.value is not None
        if site.shape(self.value) == self.shape:
            return self.value
        # Axes of length one in front are dropped, or between the weights and the last axis.
        sizes = [size if isinstance(size, int) else -1 for size in self.shape]
        shape = site.constant(sizes, f"{site.output.name}/{name}_shape")
        return site.op("Reshape", [self.value, shape], name=f"{site.output.name}/{name}")


def operand(
    site: Site, weight: Weight, frame: Frame, axes: Sequence[int], dtype: ir.DataType
) -> Operand | str:
    """Return a weight as an op takes it: of `dtype`, and the sizes of the frame along `axes`.

    A text says why it cannot be had.
    """
    shape = tuple(frame.shape[axis] for axis in axes)
    sizes = [size for size in shape if isinstance(size, int)]
    if weight.is_number:
        if len(sizes) != len(shape):
            return "it has no weight, and how long its rows are is not known"
        if prod(sizes) > MOST_MADE:
            return "it has no weight, and its rows are longer than one is made for"
        return Operand(data=np.full(sizes, weight.array([]), dtype.numpy()))
    arrays = [site.array(leaf) for leaf in weight.leaves]
    if len(sizes) == len(shape) and all(array is not None for array in arrays):
        return _computed(site, weight, frame, axes, dtype, sizes)
    if len(weight.leaves) > 1 or weight.offset or weight.sign != 1:
        return "its weight is computed from values that are not constant"
    leaf = weight.leaves[0]
    if site.dtype(leaf) != dtype:
        cast = site.producer(leaf, "Cast")
        source = None if cast is None else cast.inputs[0]
        if source is None or site.dtype(source) != dtype:
            return "its weight has another element type than its data"
        leaf = source
    found = site.shape(leaf) or ()
    if [size for size in found if size != 1] != [size for size in shape if size != 1]:
        return "its weight is repeated along a row"
    if sum(not isinstance(size, int) for size in shape) > 1:
        return "the sizes of its weight are not known"
    return Operand(value=leaf, shape=shape)


def _computed(
    site: Site,
    weight: Weight,
    frame: Frame,
    axes: Sequence[int],
    dtype: ir.DataType,
    sizes: list[int],
) -> Operand | str:
    """Compute a constant weight in float64 and round it once."""
    leaf = weight.leaves[0]
    is_plain = len(weight.leaves) == 1 and not weight.offset and weight.sign == 1
    if is_plain and site.dtype(leaf) == dtype and site.shape(leaf) == tuple(sizes):
        return Operand(value=leaf, shape=tuple(sizes))
    arrays = [np.asarray(site.array(each)) for each in weight.leaves]
    rank = len(frame.shape)
    aligned = [
        array.astype(np.float64).reshape((1,) * (rank - array.ndim) + array.shape)
        for array in arrays
    ]
    if prod(sizes) > max(MOST_MADE, *(array.size for array in arrays)):
        return "its rows are longer than a weight is made for"
    wide = [frame.shape[i] if i in axes else 1 for i in range(rank)]
    exact = np.broadcast_to(weight.array(aligned), [int(str(size)) for size in wide])
    exact = exact.reshape(sizes)
    like = np.zeros(0, dtype.numpy())
    if is_plain:
        # In another type only where nothing is lost: its product was taken in the wider one.
        data = exact.astype(like.dtype)
        if not np.array_equal(data.astype(np.float64), exact):
            return "its weight would lose precision in the type of its data"
        return Operand(data=data)
    if any(site.dtype(each) != dtype for each in weight.leaves):
        return "its weight would lose precision in the type of its data"
    data_or_none = rounded(exact, like)
    return (
        "its weight would not fit its type" if data_or_none is None else Operand(data=data_or_none)
    )
