"""How exporters name nodes and values, and what they say about the values' types."""

from __future__ import annotations

import re
from collections.abc import Mapping

import onnx
from onnx import helper, shape_inference


def _next(counts: dict[str, int], key: str) -> int:
    number = counts.get(key, 0)
    counts[key] = number + 1
    return number


def dynamo(counts: dict[str, int], op_type: str, outputs: int) -> tuple[str, tuple[str, ...]]:
    """Name a node `node_Add_7` and its output `val_7`."""
    number = _next(counts, "val")
    if outputs == 1:
        return f"node_{op_type}_{number}", (f"val_{number}",)
    return (
        f"node_{op_type}_{number}",
        tuple(f"{op_type.lower()}_{number}_split_{i}" for i in range(outputs)),
    )


def submodules(name: str) -> list[str]:
    """Split "encoder.layer.0.output" into "encoder", "layer.0" and "output"."""
    return re.sub(r"\.(?!\d)", "/", name).split("/")


def torchscript(
    counts: dict[str, int], scope: tuple[str, ...], op_type: str, outputs: int
) -> tuple[str, tuple[str, ...]]:
    """Name a node `/encoder/layer.0/Add_1` and its output `/encoder/layer.0/Add_1_output_0`."""
    base = "/" + "/".join((*scope, op_type))
    number = _next(counts, base)
    name = f"{base}_{number}" if number else base
    return name, tuple(f"{name}_output_{i}" for i in range(outputs))


def keras(
    counts: dict[str, int], scope: tuple[str, ...], op_type: str, outputs: int
) -> tuple[str, tuple[str, ...]]:
    """Name a node `model/block_1/Add__7` and its output `model/block_1/Add__7:0`."""
    name = "/".join(("model", *scope, f"{op_type}__{_next(counts, 'keras')}"))
    return name, tuple(f"{name}:{i}" for i in range(outputs))


def folded(counts: dict[str, int], is_torchscript: bool, op_type: str) -> str:
    """Name an initializer that the exporter computed."""
    if is_torchscript:
        return f"onnx::{op_type}_{400 + _next(counts, 'folded')}"
    return f"val_{_next(counts, 'val')}"


def rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Rename values where `node` and its subgraphs write or read them."""
    if not names:
        return
    for field in (node.input, node.output):
        for i, value in enumerate(field):
            if value in names:
                field[i] = names[value]
    for attribute in node.attribute:
        for inner in attribute.g.node:
            rename(inner, names)
        for value_info in attribute.g.output:
            value_info.name = names.get(value_info.name, value_info.name)


def add_value_info(model: onnx.ModelProto) -> None:
    """Write the inferred types and shapes of the intermediate values into the model.

    Large initializers take part as graph inputs: inference copies the model, and has no use
    for their values.
    """
    graph = model.graph
    skeleton = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    skeleton.graph.MergeFrom(helper.make_graph(graph.node, "g", graph.input, graph.output))
    for tensor in graph.initializer:
        if len(tensor.raw_data) <= 1024:
            skeleton.graph.initializer.append(tensor)
            continue
        skeleton.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
    inferred = shape_inference.infer_shapes(skeleton, data_prop=True)
    graph.value_info.extend(inferred.graph.value_info)
