"""Tensors that give more sizes than a tensor has axes.

ONNX Runtime (1.31.1) makes a list of as many sizes as a model declares for the shape that Expand
reads, before anything runs. 2^40 of them take all memory of a machine, from 200 bytes of file.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from ortkit.errors import ModelError

#: Sizes that a node may be given: ONNX sets no limit, and numpy has 64 axes at most.
MAX_RANK = 4096
#: By operator, the input that holds one number for each axis of the result.
_SHAPE_INPUT = {
    "AffineGrid": 1, "CenterCropPad": 1, "Col2Im": 1, "ConstantOfShape": 0, "Expand": 1,
    "MaxUnpool": 2, "Pad": 1, "Reshape": 1, "Tile": 1, "Upsample": 1,
}  # fmt: skip


def check_ranks(model: ModelProto, where: str) -> None:
    """Check that no node is given more sizes than `MAX_RANK`.

    Raises:
        ModelError: One is; the message names it.
    """
    nodes: list[tuple[NodeProto, dict[str, int]]] = list(_nodes(model.graph, {}))
    for function in model.functions:
        for node in function.node:
            nodes += _bodies(node, {})
    for node, long in nodes:
        index = _SHAPE_INPUT.get(node.op_type)
        if index is None or index >= len(node.input):
            continue
        count = long.get(node.input[index], 0)
        if count:
            raise ModelError(
                f"input {node.input[index]!r} gives {count:,} sizes, and a tensor has no more than"
                f" {MAX_RANK:,} axes here",
                where=f"{where}: node {node.name or node.op_type!r} ({node.op_type})",
                fix="do not use this file, or export the model again",
            )


def _nodes(graph: GraphProto, outer: dict[str, int]) -> Iterator[tuple[NodeProto, dict[str, int]]]:
    """Yield the nodes of a graph and of those inside it, with the long lists that they see."""
    long = {**outer, **dict(_long(graph))}
    for node in graph.node:
        if long:
            yield node, long
        yield from _bodies(node, long)


def _bodies(node: NodeProto, outer: dict[str, int]) -> Iterator[tuple[NodeProto, dict[str, int]]]:
    for attribute in node.attribute:
        if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
            for graph in (attribute.g, *attribute.graphs):
                yield from _nodes(graph, outer)


def _long(graph: GraphProto) -> Iterator[tuple[str, int]]:
    """Yield the lists of integers that are declared longer than any tensor has axes."""
    for infos in (graph.input, graph.value_info):
        for info in infos:
            tensor = info.type.tensor_type
            if tensor.elem_type not in (TensorProto.INT64, TensorProto.FLOAT, TensorProto.INT32):
                continue
            if len(tensor.shape.dim) == 1 and tensor.shape.dim[0].dim_value > MAX_RANK:
                yield info.name, tensor.shape.dim[0].dim_value
    for weight in graph.initializer:
        if len(weight.dims) == 1 and weight.dims[0] > MAX_RANK:
            yield weight.name, weight.dims[0]
