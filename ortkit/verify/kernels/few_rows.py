"""Kernels of fixed sizes whose body computes each row on its own: the body for fewer rows.

Rows are samples of a batch, or where that leaves less the tokens of all samples: a product and a
norm compute each of both on its own, attention only the samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Self

import onnx
import onnx_ir as ir
from onnx import helper

from ortkit.graph.batch.cut import Cut, cut_batch, fixed_batch, row_axes
from ortkit.graph.symbolic.dims import Size
from ortkit.verify.kernels.models import KernelNode

#: Elements of the tensors of a body for fewer rows, as far as its rows are not larger.
_ELEMENTS = 1 << 19
#: A body with fewer elements is run with all rows.
_LARGE = 1 << 21
#: Rows of as many kinds of values fit into a batch, where it has that many.
_KINDS = 8
#: The axes that rows may be along: of samples, and of tokens.
_AXES = (0, 1)
#: Fewer rows than these would be taken for ones that are broadcast.
_FEWEST = 2


@dataclass(frozen=True)
class FewRows:
    """A kernel with its body for fewer rows.

    Args:
        kernel: As its node would stand in a model of fewer rows.
        batch: The rows of the kernel.
        rows: The rows of this body.
        inputs: By input the axis that rows are along, None where there is none.
        outputs: The same of outputs.
    """

    kernel: KernelNode
    batch: int
    rows: int
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]


def few_rows(kernel: KernelNode) -> FewRows | None:
    """Return a large kernel with its body for fewer rows.

    None where sizes are not fixed, where it is small, or where it is not proved that each row is
    computed on its own.
    """
    outputs = [shape for shape in kernel.outputs if shape is not None]
    given = [each.shape for each in kernel.inputs if each.constant is None]
    sizes = [size for shape in (*given, *outputs) for size in shape]
    is_fixed = len(outputs) == len(kernel.outputs) and all(isinstance(x, int) for x in sizes)
    elements = sum(_elements(shape) for shape in (*given, *outputs)) if is_fixed else 0
    if elements < _LARGE:
        return None
    found = [few for axis in _AXES if (few := _few_along(kernel, axis, elements)) is not None]
    return min(found, key=lambda few: few.rows / few.batch, default=None)


def _few_along(kernel: KernelNode, axis: int, elements: int) -> FewRows | None:
    """Return a kernel with its body for fewer rows along an axis, if there is one."""
    layout = _Transposed.of(kernel, axis)
    if layout is None:
        return None
    model = ir.from_proto(layout.model(kernel))
    for name, each in zip(kernel.function.input, kernel.inputs, strict=True):
        if each.constant is not None:
            # What lies in a file knows its folder, which a model in memory has not.
            model.graph.initializers[name].const_value = each.constant
    batch = fixed_batch(model)
    if batch <= _FEWEST:
        return None
    rows = max(_FEWEST, min(_ELEMENTS * batch // elements, batch // _KINDS))
    cut = cut_batch(model, rows)
    return _reduced(kernel, layout, model, cut) if isinstance(cut, Cut) else None


def _elements(shape: Sequence[Size]) -> int:
    return prod(size for size in shape if isinstance(size, int))


@dataclass(frozen=True)
class _Transposed:
    """A body some of whose tensors are transposed, so that an axis of theirs is the first one.

    Args:
        axis: That axis, 0 where none is.
        names: By input and output that is transposed, its number of axes.
    """

    axis: int
    names: Mapping[str, int]

    @classmethod
    def of(cls, kernel: KernelNode, axis: int) -> Self | None:
        """Return it for an axis; None where the outputs have not all of them that axis alike."""
        if axis == 0:
            return cls(0, {})
        leading = {tuple(shape or ())[: axis + 1] for shape in kernel.outputs}
        if len(leading) != 1 or len(first := leading.pop()) <= axis:
            return None
        function = kernel.function
        shapes = dict(zip(function.output, kernel.outputs, strict=True))
        shapes |= {
            name: each.shape
            for name, each in zip(function.input, kernel.inputs, strict=True)
            if each.constant is None
        }
        names = {
            name: len(shape) for name, shape in shapes.items()
            if shape is not None and tuple(shape)[: axis + 1] == first
        }  # fmt: skip
        return cls(axis, names)

    def name(self, name: str) -> str:
        """Return what a tensor is called where the axis is the first one."""
        return f"{name}/transposed" if name in self.names else name

    def shape(self, name: str, shape: Sequence[Size]) -> tuple[Size, ...]:
        """Return a tensor's shape with the axis in front."""
        return tuple(shape[at] for at in self._order(name)) if name in self.names else tuple(shape)

    def own_axis(self, name: str, axis: int | None) -> int | None:
        """Return the axis of a tensor as the kernel has it."""
        return axis if axis is None or name not in self.names else self._order(name)[axis]

    def to_own(self, name: str) -> onnx.NodeProto:
        """Return the node that makes the tensor as the kernel has it."""
        return self._transpose(name, self.name(name), name)

    def from_own(self, name: str) -> onnx.NodeProto:
        """Return the node that puts the axis in front."""
        return self._transpose(name, name, self.name(name))

    def _transpose(self, name: str, read: str, made: str) -> onnx.NodeProto:
        # To exchange two axes is its own inverse.
        return helper.make_node("Transpose", [read], [made], perm=self._order(name))

    def _order(self, name: str) -> list[int]:
        order = list(range(self.names[name]))
        order[0], order[self.axis] = self.axis, 0
        return order

    def model(self, kernel: KernelNode) -> onnx.ModelProto:
        """Return the body as a model, whose constants are initializers."""
        function = kernel.function
        inputs, initializers = [], []
        for name, each in zip(function.input, kernel.inputs, strict=True):
            if each.constant is None:
                shape = self.shape(name, each.shape)
                inputs.append(_described(self.name(name), each.dtype, shape))
            else:
                tensor = ir.serde.serialize_tensor(each.constant)
                tensor.name = name
                initializers.append(tensor)
        outputs = [
            _described(self.name(name), dtype, None if shape is None else self.shape(name, shape))
            for name, shape, dtype in zip(
                function.output, kernel.outputs, kernel.output_types, strict=True
            )
        ]
        before = [self.to_own(name) for name in function.input if name in self.names]
        after = [self.from_own(name) for name in function.output if name in self.names]
        nodes = [*before, *function.node, *after]
        graph = helper.make_graph(nodes, "body", inputs, outputs, initializers)
        opsets = [helper.make_opsetid(*opset) for opset in kernel.opsets]
        return helper.make_model(graph, opset_imports=opsets, ir_version=kernel.ir_version)


def _described(
    name: str, dtype: ir.DataType | None, shape: Sequence[Size] | None
) -> onnx.ValueInfoProto:
    sizes = None if shape is None else [size for size in shape if isinstance(size, int)]
    return helper.make_tensor_value_info(name, 0 if dtype is None else dtype.value, sizes)


def _reduced(kernel: KernelNode, layout: _Transposed, model: ir.Model, cut: Cut) -> FewRows | None:
    """Return what a cut of the body's model says; None where it is not known where rows are."""
    known = {name for name in kernel.function.input if name}
    axes = row_axes(model, cut)
    if axes is None:
        return None
    function = onnx.FunctionProto()
    function.CopyFrom(kernel.function)
    del function.node[:]
    for name, value in cut.model.graph.initializers.items():
        if name not in known and value.const_value is not None:
            tensor = ir.serde.serialize_tensor(value.const_value)
            function.node.append(helper.make_node("Constant", [], [name], value=tensor))
    function.node.extend(layout.from_own(name) for name in function.input if name in layout.names)
    function.node.extend(ir.to_proto(node) for node in cut.model.graph)
    function.node.extend(layout.to_own(name) for name in function.output if name in layout.names)
    inputs, outputs = (
        tuple(layout.own_axis(name, axes.get(layout.name(name))) for name in names)
        for names in (function.input, function.output)
    )
    if None in outputs or all(axis is None for axis in inputs):
        return None
    few = replace(
        kernel,
        function=function,
        inputs=tuple(
            replace(each, shape=_with(each.shape, axis, cut.rows))
            for each, axis in zip(kernel.inputs, inputs, strict=True)
        ),
        outputs=tuple(
            None if shape is None else _with(shape, axis, cut.rows)
            for shape, axis in zip(kernel.outputs, outputs, strict=True)
        ),
    )
    return FewRows(few, cut.batch, cut.rows, inputs, outputs)


def _with(shape: Sequence[Size], axis: int | None, rows: int) -> tuple[Size, ...]:
    return tuple(rows if index == axis else size for index, size in enumerate(shape))
