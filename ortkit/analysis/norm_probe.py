"""Row regions evaluated in float64 on small rows: known by their values, not by their spelling."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortkit.analysis.float64_eval import sample
from ortkit.analysis.row_functions import MOVES, REDUCTIONS, Region
from ortkit.graph.shapes.rules.call import Ratio
from ortkit.graph.symbolic.dims import Dim, product, replace_atoms, sole_atom

Array = np.ndarray

#: A whole row of this size is evaluated where its size is written as a number in the graph.
WIDE_LIMIT = 1 << 16


class Probe:
    """Sizes to evaluate a region with, and its leaves as arrays of these sizes."""

    def __init__(self, region: Region, rows: int, random: np.random.Generator) -> None:
        """Choose sizes: small ones, but those of the model where they are written as numbers."""
        self.region = region
        frame = region.frame
        self.axis = next(i for i in range(len(frame.shape)) if i not in frame.axes)
        """The axis along which rows differ; it has `rows` of them."""
        kinds = {node.op_type for node in region.inside.values()} & REDUCTIONS
        whole = product(frame.row)
        known = kinds != {"ReduceMean"} and isinstance(whole, int) and whole <= WIDE_LIMIT
        small = iter((5, 3, 2, 2, 2, 2, 2, 2))
        sizes: list[int] = []
        for i, size in enumerate(frame.shape):
            if i not in frame.axes:
                sizes.append(rows if i == self.axis else 2)
            else:
                keeps = isinstance(size, int) and (known or size == 1)
                sizes.append(size if keeps and isinstance(size, int) else next(small))
        self.sizes = tuple(sizes)
        self.leaves: dict[ir.Value, Array] = {}
        """Those that have a size here: numbers that are not known have none."""
        for leaf in region.leaves():
            self._fill(leaf, random)

    def _fill(self, leaf: ir.Value, random: np.random.Generator) -> None:
        shape = self.region.scope.shapes.shape(leaf) or ()
        first = len(self.sizes) - len(shape)
        wide = tuple(1 if size == 1 else self.sizes[first + i] for i, size in enumerate(shape))
        if any(size != 1 for size in shape):
            # Symbols: no two of them alike, and none of them near 0 or 1.
            self.leaves[leaf] = random.uniform(1.3, 2.7, wide)
        elif (number := self._number(leaf)) is not None:
            self.leaves[leaf] = np.full(wide, number)

    def _number(self, leaf: ir.Value) -> float | None:
        """Return the one number of a leaf, sizes of the graph as they are here."""
        scope = self.region.scope
        array = scope.array(leaf, 1)
        if array is not None and array.size == 1:
            return float(array.reshape(-1)[0])
        elements = scope.shapes.elements(leaf)
        if elements is None or len(elements) != 1:
            return None
        element = elements[0]
        if isinstance(element, Ratio):
            over = self._size(element.over)
            return None if over is None else over / element.under
        return self._size(element) if isinstance(element, Dim) else float(element)

    def _size(self, size: Dim) -> float | None:
        known = {
            atom.key: mine
            for whole, mine in zip(self.region.frame.shape, self.sizes, strict=True)
            if not isinstance(whole, int) and (atom := sole_atom(whole)) is not None
        }
        found = replace_atoms(size, lambda atom: known.get(atom.key))
        return float(found) if isinstance(found, int) else None

    def run(self, rows: Array) -> dict[ir.Value, Array]:
        """Evaluate the region for a root with these numbers; what cannot be is left out.

        Args:
            rows: Float64, of the probe's sizes.
        """
        shapes, frame = self.region.scope.shapes, self.region.frame
        kept = tuple(1 if i in frame.axes else size for i, size in enumerate(self.sizes))
        flat = tuple(size for i, size in enumerate(self.sizes) if i not in frame.axes)
        wanted = {"full": self.sizes, "kept": kept, "flat": flat}
        values: dict[ir.Value, Array] = {self.region.root: rows, **self.leaves}
        for value, node in self.region.in_order().items():
            shape = wanted[frame.kind(shapes.shape(value))]
            result = self._node(node, values, shape)
            if result is not None and result.shape == shape:
                values[value] = result
        return values

    def _node(
        self, node: ir.Node, values: dict[ir.Value, Array], shape: tuple[int, ...]
    ) -> Array | None:
        first = None if node.inputs[0] is None else values.get(node.inputs[0])
        if first is None:
            return None
        if node.op_type in MOVES:
            if first.size == np.prod(shape):
                return first.reshape(shape)
            # An Expand; what is cut to one element has no numbers of its own here.
            fits = first.ndim == len(shape) and all(
                have in (1, want) for have, want in zip(first.shape, shape, strict=True)
            )
            return np.broadcast_to(first, shape) if fits else None
        if node.op_type in REDUCTIONS:
            axes = self.region.frame.axes
            if node.op_type == "ReduceLogSumExp":
                peak = first.max(axis=axes, keepdims=True)
                total = np.log(np.exp(first - peak).sum(axis=axes, keepdims=True)) + peak
                return np.asarray(total.reshape(shape))
            return sample(node, [first, np.array(axes)])
        inputs = [None if each is None else values.get(each) for each in node.inputs]
        if any(
            each is not None and got is None for each, got in zip(node.inputs, inputs, strict=True)
        ):
            return None
        return sample(node, inputs)
