"""A block's signature: NHWC tensors and packed weights outside, the original nodes inside.

The body transposes its inputs to NCHW, computes the original nodes, and transposes the result
back. Without the kernel library the Transposes of neighbouring bodies meet and ONNX Runtime
removes them, and the changes of the weights are constants to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir

from ortkit.errors import InternalError
from ortkit.fusion.conv.block import Block
from ortkit.fusion.regions.bodies import write_step
from ortkit.fusion.regions.node_writer import NodeWriter
from ortkit.kernels.layouts.conv_filters import channels_last
from ortkit.kernels.prepack import Prepack
from ortkit.kernels.signature import DOMAIN, RegionSignature, TensorSpec, body_text
from ortkit.rewrite.scope import Scope

TO_NCHW, TO_NHWC = [0, 3, 1, 2], [0, 2, 3, 1]
#: Resize may have no scales and no region since.
_ABSENT_SINCE = 13
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
    """Writes the body of one block: in float32, weights packed for CPUs."""

    scope: Scope
    block: Block
    writer: NodeWriter = field(init=False)
    inputs: list[tuple[str, TensorSpec]] = field(default_factory=list)
    outputs: list[tuple[str, TensorSpec]] = field(default_factory=list)
    weights: list[np.ndarray | ir.Value] = field(default_factory=list)
    names: dict[ir.Value, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin."""
        self.writer = NodeWriter(dtype=np.dtype(self.own))

    @property
    def own(self) -> str:
        """The type that is computed in, as numpy names it."""
        return "float32"

    def describe(self) -> Described:
        """Return the block's signature and weights."""
        if self.block.kind == "max_pool":
            return self.pool()
        if self.block.kind == "squeeze_excite":
            return self.squeeze_excite()
        if self.block.kind == "resize":
            return self.resizes()
        if self.block.kind == "concat":
            return self.concat()
        return self.convolutions()

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

    def pool(self) -> Described:
        """Describe a pooling between two values of the same type."""
        block = self.block
        pool, dtype = block.convs[0], self._dtype(block.source)
        wide = self._input("x", self._nhwc(block.source), dtype)
        is_narrow = dtype == "bfloat16"
        if is_narrow:
            wide = self.writer.op("Cast", wide, to=int(ir.DataType.FLOAT))
        kept = {"ceil_mode": 1} if pool.attributes.get_int("ceil_mode", 0) == 1 else {}
        planar = self.writer.op("Transpose", wide, perm=TO_NCHW)
        attributes = {**block.windows[0].attributes, **kept}
        value = self.writer.op("MaxPool", planar, **attributes)
        result = self.writer.op("Transpose", value, perm=TO_NHWC)
        if is_narrow:
            result = self.writer.op("Cast", result, to=int(ir.DataType.BFLOAT16))
        self._result(result, self._nhwc(block.output), dtype)
        return self._described()

    def resizes(self) -> Described:
        """Describe Resizes with what is done to their sum."""
        block, count = self.block, len(self.block.convs)
        for node in block.convs:
            source = node.inputs[0]
            assert source is not None, "a Resize has an image"
            self.names[node.outputs[0]] = self._resized(node, self._operand(source))
        for extra in block.extras[count - 1 :]:
            self.names[extra] = self._operand(extra)
        result = self._steps(block.nodes[count:], block.convs[0].outputs[0])
        nhwc = self.writer.op("Transpose", result, perm=TO_NHWC)
        self._result(nhwc, self._nhwc(block.output))
        return self._described()

    def concat(self) -> Described:
        """Describe a Concat along channels."""
        images = [self._operand(value) for value in self.block.operands]
        result = self.writer.op("Concat", *images, axis=1)
        nhwc = self.writer.op("Transpose", result, perm=TO_NHWC)
        self._result(nhwc, self._nhwc(self.block.output))
        return self._described()

    def squeeze_excite(self) -> Described:
        """Describe the two layers after means over rows."""
        first, second = self.block.convs
        batch, channels, height, _ = self._sizes(self.block.source)
        rows = self._input("means", (batch, height, channels))
        planar = self.writer.op("Transpose", rows, perm=[0, 2, 1])
        shaped = self.writer.op("Reshape", planar, self.writer.integers(0, 0, -1, 1))
        mean = self.writer.op("GlobalAveragePool", shaped)
        self._conv(first, [mean, self._plain(first.inputs[1]), *self._biases(first)])
        inner = self._epilogue(first)
        weight = self._array(second.inputs[1])
        excite = self._packed(weight, channels_last(weight.shape), "excite")
        self._conv(second, [inner, excite, *self._biases(second)])
        result = self.writer.op("Transpose", self._epilogue(second), perm=TO_NHWC)
        self._result(result, self._nhwc(self.block.output))
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
        anchor = next(one.anchor for one in blocks if one.anchor and conv in one.convs)
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

    def _resized(self, node: ir.Node, image: str) -> str:
        """Write a Resize of an image in NCHW, its scales or sizes stated."""
        kept = {
            name: node.attributes[name].value
            for name in ("mode", "coordinate_transformation_mode", "nearest_mode")
            if name in node.attributes
        }
        before, after = self._sizes(node.inputs[0]), self._sizes(node.outputs[0])
        old = [size for size in before[2:] if isinstance(size, int)]
        new = [size for size in after if isinstance(size, int)]
        pairs = list(zip(old, new[-2:], strict=True))
        if all(size % given == 0 for given, size in pairs):
            factors = np.array([1, 1, *(size // given for given, size in pairs)], np.float32)
            factor = self.writer.constant(factors)
            return self.writer.op("Resize", image, self._absent(), factor, **kept)
        # Not along axes: ONNX Runtime 1.31.1 fails as it moves a Transpose over such a Resize.
        given = self.writer.integers(*new)
        return self.writer.op("Resize", image, self._absent(), self._absent(), given, **kept)

    def _absent(self) -> str:
        """Return an operand of a Resize that is not there; older ones are empty."""
        if self.scope.opset() >= _ABSENT_SINCE:
            return ""
        return self.writer.constant(np.zeros(0, np.float32))

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
        self.inputs.append((name, _spec(name, shape, dtype or self.own)))
        return name

    def _constant_input(self, name: str, array: np.ndarray) -> str:
        self.weights.append(np.ascontiguousarray(array))
        return self._input(name, array.shape)

    def _result(self, name: str, shape: Sequence[object], dtype: str = "") -> None:
        self.outputs.append((name, _spec(name, shape, dtype or self.own)))

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
        function = onnx.FunctionProto(name=self.block.kind, domain=DOMAIN)
        function.input.extend(name for name, _ in self.inputs)
        function.output.extend(name for name, _ in self.outputs)
        function.node.extend(self.writer.nodes)
        function.opset_import.add(domain="", version=self.scope.opset())
        signature = RegionSignature(
            self.block.kind,
            body_text(function),
            tuple(spec for _, spec in self.inputs),
            tuple(spec for _, spec in self.outputs),
        )
        return Described(signature, tuple(self.weights))


def _spec(name: str, shape: Sequence[object], dtype: str) -> TensorSpec:
    sizes = tuple(size if isinstance(size, int) else str(size) for size in shape)
    return TensorSpec(name, dtype, sizes)
