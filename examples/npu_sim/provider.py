"""The provider: which nodes the device takes, and how a group of them runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import onnx_ir as ir

import ortkit
from examples.npu_sim.layers import ACTIVATIONS, LAYERS, Clock, ints
from examples.npu_sim.machine import Machine, Timeline
from examples.npu_sim.memory import NpuMemory, Stream
from ortkit.provider import Device, GraphView, KernelCall, PythonFunction

#: What computes on the array; an activation behind it is applied to tiles before they leave.
_ON_THE_ARRAY = ("Conv", "Gemm")


class NpuProvider(ortkit.ExecutionProvider):
    """Runs convolution nets in float32 on the simulated device."""

    name: ClassVar[str] = "NpuSimExecutionProvider"
    vendor_id = 0x51B
    #: The device does one thing after the other.
    concurrent_kernels = False

    def __init__(self, machine: Machine | None = None, memory_bytes: int = 1 << 26) -> None:
        self.timeline = Timeline(machine or Machine())
        self.memory = NpuMemory(self.timeline, memory_bytes)
        self.devices = (Device(metadata={"simulated": "1"}, memory=self.memory),)

    def get_capability(self, graph: GraphView) -> list[list[ir.Node]]:
        taken: set[ir.Node] = set()
        groups: list[list[ir.Node]] = []
        for node in graph:
            if node in taken or not self.takes(node):
                continue
            group = [node, *self._followers(node)]
            taken.update(group)
            groups.append(group)
        return groups

    def takes(self, node: ir.Node) -> bool:
        """Say whether the device can run a node."""
        if node.domain or node.op_type not in LAYERS:
            return False
        values = [value for value in (*node.inputs, *node.outputs) if value is not None]
        if any(value.dtype != ir.DataType.FLOAT for value in values):
            return False
        shape = node.inputs[0].shape if node.inputs[0] is not None else None
        if node.op_type in ("Conv", "MaxPool"):
            return shape is not None and len(shape) == 4 and self._is_plain(node)
        if node.op_type == "GlobalAveragePool":
            return shape is not None and len(shape) == 4
        return True

    def _is_plain(self, node: ir.Node) -> bool:
        """Whether padding is told in numbers, and a pool has one output and no holes."""
        padding = node.attributes.get("auto_pad")
        if padding is not None and padding.as_string() != "NOTSET":
            return False
        if node.op_type == "Conv":
            return True
        rounded = node.attributes.get("ceil_mode")
        return (
            (rounded is None or not rounded.value)
            and ints(node, "dilations", [1, 1]) == [1, 1]
            and len(node.outputs) == 1
        )

    def _followers(self, node: ir.Node) -> Iterator[ir.Node]:
        """Yield the activation that alone reads what the array makes."""
        made = node.outputs[0]
        uses = list(made.uses())
        if node.op_type in _ON_THE_ARRAY and len(uses) == 1 and not made.is_graph_output():
            reader = uses[0].node
            if reader.op_type in ACTIVATIONS and not reader.domain:
                yield reader

    def compile(self, subgraph: GraphView) -> PythonFunction:
        names = [value.name for value in subgraph.inputs]
        nodes, (output,) = list(subgraph), [value.name for value in subgraph.outputs]
        label = "+".join(node.op_type for node in nodes)

        def kernel(call: KernelCall, *arrays: Any) -> Any:
            stream = call.stream
            end = stream.until if isinstance(stream, Stream) else 0
            values: dict[str | None, Any] = dict(zip(names, arrays, strict=True))
            for node in nodes:
                inputs = [None if item is None else values[item.name] for item in node.inputs]
                clock = Clock(self.timeline, end, label)
                if node is not nodes[0]:  # applied to each tile on its way out
                    values[node.outputs[0].name] = ACTIVATIONS[node.op_type](inputs[0])
                    continue
                values[node.outputs[0].name], end = LAYERS[node.op_type](clock, node, *inputs)
            if isinstance(stream, Stream):
                stream.until = end
            return values[output]

        return PythonFunction(kernel)

    def save_trace(self, path: Path) -> None:
        """Write what the device did so far, for ui.perfetto.dev."""
        self.timeline.save(path)
