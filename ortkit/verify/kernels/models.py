"""Models of one kernel each, as its node stands in a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import onnx
import onnx_ir as ir
from onnx import helper

from ortkit.graph.constants import constant_tensor
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.symbolic.dims import Size
from ortkit.graph.walk import nodes_below, roots
from ortkit.verify.kernels.cached_rows import cached_rows
from ortkit.verify.kernels.ops_blocks import rounded_as_allowed

#: The domain of fused operators; see `ortkit.kernels.signature`.
DOMAIN = "ortkit.fused"
#: Types that Concat does not take.
_NOT_COPIED = frozenset({ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E5M2})


@dataclass(frozen=True)
class KernelInput:
    """An input of a kernel, as one of its nodes has it."""

    dtype: ir.DataType
    shape: tuple[Size, ...]
    constant: ir.TensorProtocol | None
    """What the model holds; None for what is computed."""


@dataclass(frozen=True)
class KernelNode:
    """A kernel: one of the nodes that call it, and its function body."""

    op_type: str
    function: onnx.FunctionProto
    inputs: tuple[KernelInput, ...]
    outputs: tuple[tuple[Size, ...] | None, ...]
    output_types: tuple[ir.DataType | None, ...]
    opsets: tuple[tuple[str, int], ...]
    ir_version: int
    problem: str = ""
    """Why it cannot be called alone, empty if it can."""


def kernel_nodes(model: ir.Model) -> Iterator[KernelNode]:
    """Yield each distinct kernel of a model, by the first node that calls it."""
    shapes: Shapes | None = None
    seen: set[str] = set()
    for root in roots(model):
        for node in nodes_below(root):
            function = model.functions.get((node.domain, node.op_type, ""))
            if node.domain != DOMAIN or node.op_type in seen or function is None:
                continue
            seen.add(node.op_type)
            shapes = shapes or Shapes.infer(model)
            yield _described(model, node, function, shapes)


def _described(
    model: ir.Model, node: ir.Node, function: ir.Function, shapes: Shapes
) -> KernelNode:
    proto = ir.to_proto(function)
    inputs: list[KernelInput] = []
    problem = ""
    for value in node.inputs:
        shape = None if value is None else shapes.shape(value)
        dtype = None if value is None else shapes.dtype(value)
        if value is None or shape is None or dtype is None:
            problem = "an input of unknown type or rank"
            break
        inputs.append(KernelInput(dtype, tuple(shape), constant_tensor(value)))
    caches = None if problem else cached_rows(proto)
    if caches is not None:
        known = caches.known([each.shape for each in inputs])
        inputs = [replace(each, shape=shape) for each, shape in zip(inputs, known, strict=True)]
    outputs = tuple(
        None if (shape := shapes.shape(value)) is None else tuple(shape) for value in node.outputs
    )
    types = tuple(shapes.dtype(value) for value in node.outputs)
    opsets = {**function.opset_imports, DOMAIN: 1}
    return KernelNode(
        node.op_type,
        proto,
        tuple(inputs),
        outputs,
        types,
        tuple(sorted(opsets.items())),
        max(model.ir_version, 8),
        problem,
    )


def plain_model(kernel: KernelNode) -> onnx.ModelProto:
    """Return a model of the node alone: all inputs, constants too, are inputs of the model.

    Its function body, which says how far a kernel may be off, rounds where it may.
    """
    names = [f"x{index}" for index in range(len(kernel.inputs))]
    results = [f"y{index}" for index in range(len(kernel.outputs))]
    return _model(kernel, [_call(kernel, names, results)], names, results)


def in_place_model(kernel: KernelNode) -> onnx.ModelProto:
    """Return a model in which the node's tensors are those of other nodes.

    Copies are made of what is no constant, and of the results: ONNX Runtime may then let the
    kernel write over an input.
    """
    nodes, names, results = [], [], []
    for index, each in enumerate(kernel.inputs):
        name = f"x{index}"
        if each.constant is None and each.shape and each.dtype not in _NOT_COPIED:
            nodes.append(helper.make_node("Concat", [name], [f"{name}/copy"], axis=0))
            name = f"{name}/copy"
        names.append(name)
    made = [f"y{index}" for index in range(len(kernel.outputs))]
    for index, (shape, dtype) in enumerate(zip(kernel.outputs, kernel.output_types, strict=True)):
        is_copied = bool(shape) and dtype not in _NOT_COPIED
        results.append(f"y{index}/made" if is_copied else made[index])
    nodes.append(_call(kernel, names, results))
    for name, result in zip(made, results, strict=True):
        if result != name:
            nodes.append(helper.make_node("Concat", [result], [name], axis=0))
    return _model(kernel, nodes, [f"x{index}" for index in range(len(kernel.inputs))], made)


def _call(kernel: KernelNode, names: list[str], results: list[str]) -> onnx.NodeProto:
    return helper.make_node(kernel.op_type, names, results, domain=DOMAIN, name="kernel")


def _model(
    kernel: KernelNode, nodes: list[onnx.NodeProto], names: list[str], results: list[str]
) -> onnx.ModelProto:
    inputs = [
        helper.make_tensor_value_info(
            name, each.dtype.value, [d if isinstance(d, int) else str(d) for d in each.shape]
        )
        for name, each in zip(names, kernel.inputs, strict=True)
    ]
    # Types of results follow from the body.
    outputs = [onnx.ValueInfoProto(name=name) for name in results]
    return helper.make_model(
        helper.make_graph(nodes, "kernel", inputs, outputs),
        opset_imports=[helper.make_opsetid(*opset) for opset in kernel.opsets],
        functions=[rounded_as_allowed(kernel.function)],
        ir_version=kernel.ir_version,
    )
