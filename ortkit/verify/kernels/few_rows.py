"""Kernels of fixed sizes whose body computes each row on its own: the body for fewer rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

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
    model = ir.from_proto(_body_model(kernel))
    batch = fixed_batch(model)
    if batch <= _FEWEST:
        return None
    rows = max(_FEWEST, min(_ELEMENTS * batch // elements, batch // _KINDS))
    cut = cut_batch(model, rows)
    return _few(kernel, model, cut) if isinstance(cut, Cut) else None


def _elements(shape: Sequence[Size]) -> int:
    return prod(size for size in shape if isinstance(size, int))


def _body_model(kernel: KernelNode) -> onnx.ModelProto:
    """Return the body as a model, whose constants are initializers."""
    function = kernel.function
    inputs, initializers = [], []
    for name, each in zip(function.input, kernel.inputs, strict=True):
        if each.constant is None:
            inputs.append(_described(name, each.dtype, each.shape))
        else:
            tensor = ir.serde.serialize_tensor(each.constant)
            tensor.name = name
            initializers.append(tensor)
    outputs = [
        _described(name, dtype, shape)
        for name, shape, dtype in zip(
            function.output, kernel.outputs, kernel.output_types, strict=True
        )
    ]
    graph = helper.make_graph(list(function.node), "body", inputs, outputs, initializers)
    opsets = [helper.make_opsetid(*opset) for opset in kernel.opsets]
    return helper.make_model(graph, opset_imports=opsets, ir_version=kernel.ir_version)


def _described(
    name: str, dtype: ir.DataType | None, shape: Sequence[Size] | None
) -> onnx.ValueInfoProto:
    sizes = None if shape is None else [size for size in shape if isinstance(size, int)]
    return helper.make_tensor_value_info(name, 0 if dtype is None else dtype.value, sizes)


def _few(kernel: KernelNode, model: ir.Model, cut: Cut) -> FewRows | None:
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
    function.node.extend(ir.to_proto(node) for node in cut.model.graph)
    inputs = tuple(axes.get(name) for name in kernel.function.input)
    outputs = tuple(axes[name] for name in kernel.function.output)
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
