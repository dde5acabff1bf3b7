"""A graph for fewer rows than its batch, if it computes each row on its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ortkit.graph.batch.place import Mixed, Rows, Sizes, State
from ortkit.graph.batch.site import Site, UnknownShapeError
from ortkit.graph.batch.table import rule_of
from ortkit.graph.inline import inline_functions
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.symbolic.dims import Size
from ortkit.graph.walk import names_in, nodes_below, subgraphs, take_name

#: Operators that get a shape as an input, and which.
_SHAPED = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0, "Resize": 3}


@dataclass(frozen=True)
class Cut:
    """A copy of a model for fewer rows."""

    model: ir.Model
    batch: int
    """The size of the batch of the model."""
    rows: int
    """The size of the batch of the copy."""


Axes: TypeAlias = Mapping[str, int | None]
"""By input and output, the axis that the rows are along; None where there is none."""


def row_axes(model: ir.Model, cut: Cut) -> Axes | None:
    """Return where the rows of a model's inputs and outputs are; None if that is not known.

    Args:
        model: The original.
        cut: The same for fewer rows.
    """
    axes: dict[str, int | None] = {}
    whole = (*model.graph.inputs, *model.graph.outputs)
    parts = (*cut.model.graph.inputs, *cut.model.graph.outputs)
    for value, part in zip(whole, parts, strict=True):
        if value.shape is None or part.shape is None or len(value.shape) != len(part.shape):
            return None
        pairs = list(zip(value.shape, part.shape, strict=True))
        found = [axis for axis, (size, few) in enumerate(pairs) if size != few]
        if len(found) > 1 or any(pairs[axis] != (cut.batch, cut.rows) for axis in found):
            return None
        axes[value.name or ""] = found[0] if found else None
    return axes


def fixed_batch(model: ir.Model) -> int:
    """Return the size of the first axis that most inputs have; 0 if it is not fixed."""
    sizes = [
        value.shape[0]
        for value in model.graph.inputs
        if not value.is_initializer() and value.shape is not None and len(value.shape)
    ]
    counts = Counter(size for size in sizes if isinstance(size, int))
    if not counts or not isinstance(sizes[0], int):
        return 0
    return max(counts, key=lambda size: (counts[size], size))


def cut_batch(model: ir.Model, rows: int) -> Cut | Mixed:
    """Return a copy of a model that computes fewer rows, if it computes each row on its own.

    That is proved node by node: each operator that reads the batch keeps its rows apart, and no
    number is computed from the size of the batch.

    Args:
        model: With a fixed batch of more rows; not changed.
        rows: Two or more.
    """
    copy = model.clone()
    if copy.functions:
        own = names_in(copy)
        inline_functions(copy)
        # A name in a body means nothing outside of it.
        used = names_in(copy) | own
        for value in _results(copy):
            if value.name not in own:
                value.name = take_name(used, f"inlined/{value.name}")
    return _Cutter(copy, fixed_batch(copy), rows).cut()


class _Cutter:
    """One call of `cut_batch`."""

    def __init__(self, model: ir.Model, batch: int, rows: int) -> None:
        self.model = model
        self.batch = batch
        self.rows = rows
        self.shapes = Shapes.infer(model)
        self.names = names_in(model)
        self.states: dict[ir.Value, State] = {
            value: Rows(0)
            for value in model.graph.inputs
            if not value.is_initializer() and value.shape is not None and len(value.shape)
            and value.shape[0] == batch
        }  # fmt: skip
        self.sites: list[Site] = []

    def cut(self) -> Cut | Mixed:
        for node in self.model.graph:
            if (mixed := self._step(node)) is not None:
                return Mixed(f"{node.op_type} {node.outputs[0].name!r}: {mixed.reason}")
        for value in self.model.graph.outputs:
            if isinstance(self.states.get(value), Sizes):
                return Mixed(f"output {value.name!r} holds the size of the batch")
        expected = self._expected_shapes()
        for site in self.sites:
            self._edit(site)
        for value, shape in expected.items():
            is_outside = value.is_graph_input() or value.is_graph_output()
            value.shape = shape if is_outside else None
        return self._checked(expected)

    def _step(self, node: ir.Node) -> Mixed | None:
        """Find the states of a node's outputs; return why that cannot be done."""
        states = [None if value is None else self.states.get(value) for value in node.inputs]
        inside = {self.states.get(value) for value in _captured(node)}
        if not any(states) and inside <= {None}:
            return None
        if inside > {None} or any(True for _ in subgraphs(node)):
            return Mixed("its body reads the batch")
        if node.op_type in ("Shape", "Size") and not node.domain:
            return self._shape_of(node, states[0])
        if any(isinstance(state, Sizes) for state in states):
            return self._sizes(node, states)
        return self._apply(node, states)

    def _apply(self, node: ir.Node, states: list[State]) -> Mixed | None:
        rule = rule_of(node.domain, node.op_type)
        if rule is None:
            return Mixed("its use of the batch is not known")
        opset = self.model.graph.opset_imports.get(node.domain, 1)
        site = Site(node, self.shapes, states, opset, self.batch, self.rows)
        try:
            found = rule(site)
        except UnknownShapeError:
            return Mixed("a shape is not known")
        if isinstance(found, Mixed):
            return found
        each = found if isinstance(found, tuple) else (found,) * len(node.outputs)
        for value, rows in zip(node.outputs, each, strict=False):
            shape = self.shapes.shape(value)
            if shape is not None and not self._has(shape, rows):
                return Mixed("its use of the batch is not known")
            self.states[value] = rows
        self.sites.append(site)
        return None

    def _has(self, shape: Sequence[Size], rows: Rows) -> bool:
        return 0 <= rows.axis < len(shape) and shape[rows.axis] == rows.size(self.batch)

    def _shape_of(self, node: ir.Node, state: State) -> Mixed | None:
        if not isinstance(state, Rows) or node.op_type == "Size":
            self.states[node.outputs[0]] = Sizes()
            return None
        value = node.inputs[0]
        rank = None if value is None else self.shapes.rank(value)
        if rank is None:
            return Mixed("a shape is not known")
        bounds = (node.attributes.get_int("start", 0), node.attributes.get_int("end", rank))
        start, end = (max(each + rank, 0) if each < 0 else each for each in bounds)
        if start <= state.axis < end:
            self.states[node.outputs[0]] = Sizes(state.axis - start)
        return None

    def _sizes(self, node: ir.Node, states: list[State]) -> Mixed | None:
        """Follow what is computed from the size of the batch: it may only become a shape."""
        at = None if node.domain else _SHAPED.get(node.op_type)
        is_shape = [isinstance(state, Sizes) for state in states]
        if at is not None and is_shape == [index == at for index in range(len(states))]:
            if any(isinstance(state, Rows) for state in states):
                return self._apply(node, states)
            return self._keep_target(node, at)
        if any(isinstance(state, Rows) for state in states):
            return Mixed("it computes with the size of the batch")
        data = states[0]
        left = data.index if isinstance(data, Sizes) else None
        is_picked = not any(isinstance(state, Sizes) for state in states[1:])
        if left is not None and is_picked and node.op_type in ("Gather", "Slice"):
            left = self._picked(node, states, left)
            if left is None:
                return None
        self.states |= dict.fromkeys(node.outputs, Sizes())
        return None

    def _picked(self, node: ir.Node, states: list[State], index: int) -> int | None:
        """Return the element of a shape that a node takes, if that may be `index`, else None."""
        site = Site(node, self.shapes, states, 1, self.batch, self.rows)
        (count, *_), picked = site.shape(0), site.numbers(1)
        if not isinstance(count, int) or picked is None:
            return index
        if node.op_type == "Slice":
            ends = site.numbers(2)
            if ends is None or (site.input(4) is not None and site.numbers(4) != (1,)):
                return index
            picked = tuple(range(count)[picked[0] : ends[0]])
        return index if index in {each % count for each in picked} else None

    def _keep_target(self, node: ir.Node, at: int) -> Mixed | None:
        """Let a value without the batch keep the shape that it has: its readers cut it."""
        shape = self.shapes.shape(node.outputs[0])
        numbers = [size for size in shape or () if isinstance(size, int) and size > 0]
        if shape is None or len(numbers) != len(shape):
            return Mixed("a shape is not known")
        site = Site(node, self.shapes, (), 1, self.batch, self.rows)
        site.targets.append((at, numbers))
        self.sites.append(site)
        return None

    def _expected_shapes(self) -> dict[ir.Value, ir.Shape | None]:
        """Return the shapes that all values have in the copy, as far as they are numbers."""
        found: dict[ir.Value, ir.Shape | None] = {}
        for value in (*self.model.graph.inputs, *_results(self.model)):
            shape, state = self.shapes.shape(value), self.states.get(value)
            if isinstance(state, Rows) and shape is not None:
                sizes = [*shape]
                sizes[state.axis] = state.size(self.rows)
                # What a model declares may contradict what is inferred.
                fits = value.shape is not None and len(value.shape) == len(sizes)
                declared = tuple(value.shape) if fits and value.shape else (None,) * len(sizes)
                found[value] = ir.Shape([
                    size if isinstance(size, int) else name
                    for size, name in zip(sizes, declared, strict=True)
                ])  # fmt: skip
            elif not value.is_initializer():
                found[value] = value.shape
        return found

    def _edit(self, site: Site) -> None:
        for index, numbers in site.targets:
            site.node.replace_input_with(index, self._constant(numbers))
        for index, axis in site.cuts:
            value = site.node.inputs[index]
            assert value is not None
            bounds = [self._constant([number]) for number in (0, self.rows, axis)]
            part = ir.node("Slice", [value, *bounds])
            part.outputs[0].name = take_name(self.names, f"{value.name}/rows")
            self.model.graph.insert_before(site.node, part)
            site.node.replace_input_with(index, part.outputs[0])

    def _constant(self, numbers: list[int]) -> ir.Value:
        name = take_name(self.names, "batch/target")
        tensor = ir.tensor(np.array(numbers, np.int64), name=name)
        value = ir.Value(name=name, type=ir.TensorType(ir.DataType.INT64), const_value=tensor)
        value.shape = ir.Shape([len(numbers)])
        self.model.graph.register_initializer(value)
        return value

    def _checked(self, expected: dict[ir.Value, ir.Shape | None]) -> Cut | Mixed:
        """Compare the shapes that the copy has with those that the proof says."""
        shapes = Shapes.infer(self.model)
        for value, shape in expected.items():
            own = shapes.shape(value)
            if shape is None or own is None:
                continue
            pairs = zip(shape, own, strict=False)
            differs = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)
            if len(shape) != len(own) or differs:
                return Mixed(f"{value.name!r} gets another shape")
        return Cut(self.model, self.batch, self.rows)


def _results(model: ir.Model) -> list[ir.Value]:
    return [value for node in model.graph for value in node.outputs]


def _captured(node: ir.Node) -> set[ir.Value]:
    """Return all values that the bodies of a node read, their own ones among them."""
    found: set[ir.Value] = set()
    for body in subgraphs(node):
        found |= set(body.outputs)
        for inner in nodes_below(body):
            found |= {value for value in inner.inputs if value is not None}
    return found
