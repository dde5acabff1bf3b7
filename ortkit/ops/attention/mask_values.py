"""What a mask is at given sizes: it is computed there, where it depends on sizes alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ortkit.analysis.float64_eval import FLOATS
from ortkit.graph.constants import constant_array
from ortkit.graph.shapes.evaluate import Unsupported, evaluate
from ortkit.graph.shapes.reshape import static
from ortkit.graph.symbolic.dims import Size, names, substitute
from ortkit.ops.attention.core import MASKED
from ortkit.ops.attention.value_ranges import Held, held_by
from ortkit.rewrite.scope import Scope

Array = np.ndarray

#: Nodes of a mask; those that exporters build have about fifty.
LARGEST = 120
#: Positions to look at; a number or table in the mask that asks for more proves nothing.
SHORTEST, LONGEST = 3, 1300
#: Sizes at which masks leave out what they keep at others; a cache may be empty.
FEW = (0, 1, 2)
#: Sizes are less.
SIZES = 1 << 31
#: What ONNX Runtime's kernels take for "masked out", in addition to -inf, by element type.
LOWEST = {
    ir.DataType.FLOAT: float(np.finfo(np.float32).min),
    ir.DataType.FLOAT16: float(np.finfo(np.float16).min),
}


@dataclass
class Facts:
    """Remembers what is known of the masks of one graph; values must not change meanwhile."""

    scope: Scope
    given: Mapping[ir.Value, Array] = field(default_factory=dict)
    """Values that are taken for known, whatever computes them."""
    _cones: dict[int, tuple[ir.Node, ...] | None] = field(default_factory=dict)
    _results: dict[tuple[int, tuple[tuple[str, int], ...]], Array | None] = field(
        default_factory=dict
    )
    _kept: list[ir.Value] = field(default_factory=list)
    _indices: dict[ir.Node, int] = field(default_factory=dict)
    _held: dict[ir.Value, Held | None] = field(default_factory=dict)
    _axes: dict[ir.Graph | ir.Function, dict[Size, tuple[ir.Value, int]]] = field(
        default_factory=dict
    )

    def source_of(self, size: Size, reader: ir.Node) -> tuple[ir.Value, int] | None:
        """Return the first value of the reader's graph with an axis of this size, and the axis.

        The first one, so that all readers take the same, and that none depends on them. None
        if there is none before the reader.
        """
        graph = reader.graph
        if graph is None:
            return None
        if graph not in self._axes:
            self._axes[graph] = {}
            for index, node in enumerate(graph):
                self._indices[node] = index
            for value in self._values(graph):
                for axis, each in enumerate(self.scope.shapes.shape(value) or ()):
                    self._axes[graph].setdefault(each, (value, axis))
        found = self._axes[graph].get(size)
        if found is None or found[0].is_graph_input():
            return found
        producer = found[0].producer()
        if producer is None or producer.graph is not graph or reader not in self._indices:
            del self._axes[graph]  # The value is gone: look again.
            return self.source_of(size, reader)
        return found if self._indices[producer] < self._indices[reader] else None

    def _values(self, graph: ir.Graph | ir.Function) -> Iterator[ir.Value]:
        yield from graph.inputs
        for node in graph:
            yield from node.outputs

    def held(self, value: ir.Value) -> Held | None:
        """Return the numbers that `value` may hold, None if they may be any.

        Integers that are given are taken for flags, 0 or 1, and what is counted for positions.
        """
        if value not in self._held:
            cone = self._cone(value)
            self._held[value] = None
            if cone is not None:
                leaf = self._leaf(value)
                self._held[value] = leaf or held_by(cone, self._leaf, self.scope.shapes.dtype)
        return self._held[value]

    def _leaf(self, value: ir.Value) -> Held | None:
        array = self._constant(value)
        if array is not None:
            return Held.of(array)
        dtype = self.scope.shapes.dtype(value)
        if self.scope.shapes.contents(value) is not None:
            return Held((-float(SIZES), float(SIZES)), has_between=True)
        if value.producer() is not None or dtype in (*FLOATS, None):
            return None
        return Held((0.0, 1.0))

    def trials(self, values: Sequence[ir.Value], sizes: Sequence[Size]) -> list[Mapping[str, int]]:
        """Return values for the names of sizes under which `values` show what they are.

        Empty where they may show that only at sizes that are too large to try.
        """
        lengths, used = {SHORTEST, 8}, list(sizes)
        for value in values:
            cone = self._cone(value)
            if cone is None:
                return []
            used += self._sizes(cone)
            for source in self._sources(cone):
                lengths.update(self._lengths(source))
        for size in sizes:
            # Of queries and keys one may be static and the other shorter or longer.
            if isinstance(size, int) and not all(isinstance(each, int) for each in sizes):
                lengths.update(range(1, size + 3) if size <= 32 else (size - 1, size, size + 1))
        if max(lengths) > LONGEST:
            return []
        free = sorted({name for size in used for name in names(size)})
        if not free:
            return [{}]
        found: list[Mapping[str, int]] = []
        for length in sorted(lengths):
            # A position may stand for several samples of the input.
            for times in (1, 4, 16, 64, 256, 1024):
                named = {name: length * times + shift for shift, name in enumerate(free)}
                reached = [self.size(size, named) for size in sizes]
                pairs = zip(sizes, reached, strict=True)
                # What is static has its length, whatever the others have.
                if all(
                    size is not None and (isinstance(written, int) or length <= size)
                    for written, size in pairs
                ):
                    found.append(named)
                    break
            else:
                return []
        return found

    def short_trials(
        self, values: Sequence[ir.Value], sizes: Sequence[Size]
    ) -> Iterator[Mapping[str, int]]:
        """Yield the smallest values for names: there a query may see no key at all."""
        used = [
            *sizes,
            *(size for value in values for size in self._sizes(self._cone(value) or ())),
        ]
        free = sorted({name for size in used for name in names(size)})
        grid = itertools.product(FEW, repeat=len(free)) if 0 < len(free) <= 3 else ()
        named = [dict(zip(free, each, strict=True)) for each in grid]
        named += [
            {name: few if name == item else 3 for name in free} for item in free for few in FEW
        ]
        for each in named:
            if all((self.size(size, each) or 0) > 0 for size in sizes):
                yield each

    def _sources(self, cone: Sequence[ir.Node]) -> Iterator[ir.Value]:
        """Yield what the nodes of a cone read, and what sizes among that are computed from."""
        seen: set[ir.Node] = set()
        stack = list(cone)
        while stack and len(seen) < LARGEST:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            for source in node.inputs:
                if source is None:
                    continue
                yield source
                producer = source.producer()
                if producer is not None and self.scope.shapes.contents(source) is not None:
                    stack.append(producer)

    def _lengths(self, source: ir.Value) -> list[int]:
        """Return lengths at which a constant of a mask shows its effect."""
        array = self._constant(source)
        if array is None or not array.size:
            return []
        if array.ndim >= 2 and max(array.shape) > 8:
            return [max(array.shape)]
        if array.size > 16 or array.dtype.kind not in "iuf":
            return []
        # A window of w keys looks like none up to w positions; large negative floats mask.
        found = array[np.isfinite(array)].astype(np.float64).reshape(-1)
        if array.dtype.kind == "f":
            found = found[found > MASKED]
        return [2 * int(number) + 3 for number in np.abs(found) if 2 < number < 1e8]

    def size(self, size: Size, sizes: Mapping[str, int]) -> int | None:
        """Return `size` where named sizes have these values, None if others matter."""
        try:
            found = substitute(size, sizes)
        except (ValueError, ZeroDivisionError):
            return None
        return found if isinstance(found, int) else None

    def at(self, value: ir.Value, sizes: Mapping[str, int]) -> Array | None:
        """Return `value` where named sizes have these values; None if it depends on data too."""
        key = (id(value), tuple(sorted(sizes.items())))
        if key not in self._results:
            self._kept.append(value)
            self._results[key] = self._computed(value, sizes)
        return self._results[key]

    def _computed(self, value: ir.Value, sizes: Mapping[str, int]) -> Array | None:
        cone = self._cone(value)
        if cone is None:
            return None
        known: dict[int, Array] = {}
        for node in cone:
            inputs = [self._known(source, known, sizes) for source in node.inputs]
            result = self._contents(node.outputs[0], sizes)
            if result is None:
                pairs = zip(inputs, node.inputs, strict=True)
                if any(array is None and source is not None for array, source in pairs):
                    return None
                try:
                    result = evaluate(node, inputs, self.scope.model.opset_imports)[0]
                except (Unsupported, ValueError, MemoryError):
                    return None
            if result is None:
                return None
            known[id(node.outputs[0])] = result
        return self._known(value, known, sizes)

    def _known(
        self, value: ir.Value | None, known: Mapping[int, Array], sizes: Mapping[str, int]
    ) -> Array | None:
        if value is None:
            return None
        if id(value) in known:
            return known[id(value)]
        if value in self.given:
            return self.given[value]
        constant = self._constant(value)
        return self._contents(value, sizes) if constant is None else constant

    def _constant(self, value: ir.Value) -> Array | None:
        if not self.scope.is_constant(value):
            return None
        return constant_array(value, 1 << 22)

    def _contents(self, value: ir.Value, sizes: Mapping[str, int]) -> Array | None:
        """Return the elements that shape inference knows as sizes."""
        elements, shape = self.scope.shapes.contents(value), self.scope.shapes.shape(value)
        dtype = self.scope.shapes.dtype(value)
        if elements is None or shape is None or dtype is None:
            return None
        try:
            found = [substitute(each, sizes) for each in elements]
        except (ValueError, ZeroDivisionError):
            return None
        sizes_of_axes = static(shape)
        if sizes_of_axes is None or not all(isinstance(each, int) for each in found):
            return None
        return np.array(found, dtype.numpy()).reshape(sizes_of_axes)

    def _cone(self, value: ir.Value) -> tuple[ir.Node, ...] | None:
        """Return the nodes that `value` is computed by, in order; None if too many."""
        if id(value) not in self._cones:
            self._kept.append(value)
            self._cones[id(value)] = self._collected(value)
        return self._cones[id(value)]

    def _collected(self, value: ir.Value) -> tuple[ir.Node, ...] | None:
        order: list[ir.Node] = []
        state: dict[int, bool] = {}
        stack = [(value, False)]
        while stack:
            current, is_done = stack.pop()
            node = current.producer()
            if node is None or current in self.given or self.scope.is_constant(current):
                continue
            if is_done:
                order.append(node)
                continue
            if id(node) in state:
                continue
            state[id(node)] = True
            if len(state) > LARGEST or len(node.outputs) != 1:
                return None
            stack.append((current, True))
            if self.scope.shapes.contents(current) is not None or node.op_type == "Shape":
                continue
            stack.extend((source, False) for source in node.inputs if source is not None)
        return tuple(order)

    def _sizes(self, cone: Sequence[ir.Node]) -> list[Size]:
        """Return the sizes that a mask is made from."""
        found: list[Size] = []
        for node in cone:
            found += self.scope.shapes.contents(node.outputs[0]) or ()
            found += self.scope.shapes.shape(node.outputs[0]) or ()
        return found
