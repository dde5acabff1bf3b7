"""A block's signature: NHWC tensors and packed weights outside, the original nodes inside.

The body transposes its inputs to NCHW, computes the original nodes, and transposes the result
back. Without the kernel library the Transposes of neighbouring bodies meet and ONNX Runtime
removes them, and the changes of the weights are constants to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ortkit.errors import InternalError
from ortkit.fusion.conv.block import Block
from ortkit.fusion.regions.bodies import write_step
from ortkit.kernels.conv_anchor import ConvAnchor
from ortkit.kernels.node_writer import NodeWriter
from ortkit.kernels.prepack import Prepack
from ortkit.kernels.signature import RegionSignature, TensorSpec, signature_of
from ortkit.rewrite.scope import Scope

TO_NCHW, TO_NHWC = [0, 3, 1, 2], [0, 2, 3, 1]
#: ReduceMean has its axes as an input since.
_AXES_INPUT_SINCE = 18


@dataclass(frozen=True)
class Described:
    """A block as kernels see it.

    Args:
        signature: Its inputs are the block's operands in NHWC, but the source of a stem, then
            `weights`.
        weights: The constants after the operands, in the layout that the kernel wants; values of
            the graph that have it already.
    """

    signature: RegionSignature
    weights: tuple[np.ndarray | ir.Value, ...]


@dataclass
class BodyWriter:
    """Writes the body of one block: on CPUs in float32, on CUDA in the type of its result."""

    scope: Scope
    block: Block
    writer: NodeWriter = field(init=False)
    inputs: dict[str, TensorSpec] = field(default_factory=dict)
    outputs: dict[str, TensorSpec] = field(default_factory=dict)
    weights: list[np.ndarray | ir.Value] = field(default_factory=list)
    names: dict[ir.Value, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin."""
        self.writer = NodeWriter(dtype=np.dtype(self.own))

    @property
    def own(self) -> str:
        """The type that is computed in, as numpy names it."""
        is_host = self.scope.traits.is_host
        return "float32" if is_host else self._dtype(self.block.output)

    def convolutions(self) -> Described:
        """Describe one convolution after another, each with its epilogue."""
        block, result = self.block, ""
        source = self._source()
        if block.gate is not None:
            source = self.writer.op("Mul", source, self._operand(block.gate))
        for extra in block.extras:
            self.names[extra] = self._operand(extra)
        for conv in block.convs:
            self._conv(conv, [result or source, self._weight(conv), *self._biases(conv)])
            result = self._epilogue(conv)
        nhwc = self.writer.op("Transpose", result, perm=TO_NHWC)
        self._result(nhwc, self._nhwc(block.output), self._dtype(block.output))
        if block.pooled:
            batch, channels, height, _ = self._sizes(block.output)
            means = self.writer.op("Transpose", self._mean(result, [3], keep=0), perm=[0, 2, 1])
            self._result(means, (batch, height, channels))
        return self._described()

    # ---- parts
    def _source(self) -> str:
        source = self.block.source
        if self.block.is_planar:
            return self._input("x", self._sizes(source))
        return self._operand(source)

    def _operand(self, value: ir.Value) -> str:
        """Add an NHWC input and return it in NCHW and the type that is computed in."""
        dtype = self._dtype(value)
        name = self._input(f"x{len(self.inputs)}", self._nhwc(value), dtype)
        if dtype != self.own:
            name = self.writer.op("Cast", name, to=int(ir.DataType.FLOAT))
        return self.writer.op("Transpose", name, perm=TO_NCHW)

    def _weight(self, conv: ir.Node) -> str:
        weight, blocks = self._array(conv.inputs[1]), (self.block, *self.block.parts)
        anchors = (block.anchor for block in blocks if conv in block.convs)
        anchor = next(
            conv_anchor for conv_anchor in anchors if isinstance(conv_anchor, ConvAnchor)
        )
        return self._packed(weight, anchor.layout(weight.shape))

    def _packed(self, array: np.ndarray, layout: Prepack, name: str = "") -> str:
        """Add a weight as its kernel reads it, and take it apart."""
        packed = self._constant_input(name or f"w{len(self.inputs)}", layout.pack(array))
        return self.writer.unpacked(packed, layout)

    def _biases(self, conv: ir.Node) -> list[str]:
        return [self._plain(value) for value in conv.inputs[2:] if value is not None]

    def _plain(self, value: ir.Value | None) -> str:
        return self._constant_input(f"c{len(self.inputs)}", self._array(value))

    def _conv(self, conv: ir.Node, inputs: Sequence[str]) -> None:
        window = self.block.windows[self.block.convs.index(conv)]
        attributes = {"group": conv.attributes.get_int("group", 1), **window.attributes}
        self.names[conv.outputs[0]] = self.writer.op("Conv", *inputs, **attributes)

    def _epilogue(self, conv: ir.Node) -> str:
        """Write the pointwise nodes between a convolution and the next one, or the end."""
        at = self.block.nodes.index(conv)
        return self._steps(self.block.nodes[at + 1 :], conv.outputs[0])

    def _steps(self, nodes: Sequence[ir.Node], value: ir.Value) -> str:
        """Write pointwise nodes from the one that reads a value up to the next convolution."""
        for node in nodes:
            if node.op_type == "Conv":
                break
            inputs = [self._epilogue_operand(operand) for operand in node.inputs]
            value = node.outputs[0]
            self.names[value] = write_step(self.writer, node, inputs, self.scope.opset())
        return self.names[value]

    def _epilogue_operand(self, value: ir.Value | None) -> str:
        if value is None:
            return ""
        if value not in self.names:
            self.names[value] = self.writer.constant(self._array(value).reshape(()))
        return self.names[value]

    def _mean(self, value: str, axes: list[int], keep: int) -> str:
        if self.scope.opset() < _AXES_INPUT_SINCE:
            return self.writer.op("ReduceMean", value, axes=axes, keepdims=keep)
        return self.writer.op("ReduceMean", value, self.writer.integers(*axes), keepdims=keep)

    # ---- the function
    def _input(self, name: str, shape: Sequence[object], dtype: str = "") -> str:
        self.inputs[name] = _spec(name, shape, dtype or self.own)
        return name

    def _constant_input(self, name: str, array: np.ndarray) -> str:
        self.weights.append(np.ascontiguousarray(array))
        return self._input(name, array.shape)

    def _result(self, name: str, shape: Sequence[object], dtype: str = "") -> None:
        self.outputs[name] = _spec(name, shape, dtype or self.own)

    def _sizes(self, value: ir.Value | None) -> tuple[object, ...]:
        shape = None if value is None else self.scope.shapes.shape(value)
        if value is None or shape is None or len(shape) != 4:
            name = None if value is None else value.name
            raise InternalError(f"a convolution's value of unknown shape: {name!r}")
        return tuple(shape)

    def _nhwc(self, value: ir.Value) -> tuple[object, ...]:
        sizes = self._sizes(value)
        return tuple(sizes[axis] for axis in TO_NHWC)

    def _dtype(self, value: ir.Value) -> str:
        dtype = self.scope.shapes.dtype(value)
        if dtype is None:
            raise InternalError(f"a convolution's value of unknown type: {value.name!r}")
        return dtype.numpy().name

    def _array(self, value: ir.Value | None) -> np.ndarray:
        array = self.scope.array(value)
        if array is None:
            raise InternalError("a convolution's weights are no constants")
        return array

    def _described(self) -> Described:
        signature = signature_of(
            self.block.kind, self.writer.nodes, self.scope.opset(), self.inputs, self.outputs
        )
        return Described(signature, tuple(self.weights))


def _spec(name: str, shape: Sequence[object], dtype: str) -> TensorSpec:
    sizes = tuple(size if isinstance(size, int) else str(size) for size in shape)
    return TensorSpec(name, dtype, sizes)
