"""A block's signature for CUDA: NHWC tensors outside, the original nodes inside.

The body turns its inputs to NCHW, computes what the graph did, and turns the result back. Without
the kernel library the Transposes of neighbouring bodies meet and ONNX Runtime removes them, and
the changes of the weights are constants to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from ortkit.errors import InternalError
from ortkit.fusion.cuda_conv_blocks import Block
from ortkit.kernels.signature import DOMAIN, RegionSignature, TensorSpec, body_text
from ortkit.rewrite.scope import Scope

TO_NCHW, TO_NHWC = [0, 3, 1, 2], [0, 2, 3, 1]
#: ReduceMean has its axes as an input since.
_AXES_INPUT_SINCE = 18
NAMES = {ir.DataType.FLOAT16: "float16", ir.DataType.BFLOAT16: "bfloat16"}


@dataclass(frozen=True)
class Described:
    """A block as kernels see it.

    Args:
        signature: Its inputs are the block's operands in NHWC, but a source that stays planar,
            then `weights`.
        weights: The constants behind the operands, in the layout that the kernel wants.
    """

    signature: RegionSignature
    weights: tuple[np.ndarray, ...]


def describe_block(scope: Scope, block: Block) -> Described:
    """Return the block's signature and weights."""
    writer = _Writer(scope, block)
    if block.kind == "squeeze_excite":
        writer.squeeze_excite()
    elif block.kind == "global_mean":
        writer.global_mean()
    elif block.kind == "max_pool":
        writer.max_pool()
    else:
        writer.convolution()
    return writer.described()


@dataclass
class _Writer:
    scope: Scope
    block: Block
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: list[TensorSpec] = field(default_factory=list)
    outputs: list[tuple[str, TensorSpec]] = field(default_factory=list)
    weights: list[np.ndarray] = field(default_factory=list)
    names: dict[ir.Value, str] = field(default_factory=dict)

    def convolution(self) -> None:
        """Describe a convolution with its gate and what follows."""
        block = self.block
        (conv,) = block.convs
        if block.is_planar:
            source = self._input("x", self._sizes(block.source))
        else:
            source = self._operand(block.source)
        if block.gate is not None:
            source = self._op("Mul", source, self._operand(block.gate))
        for extra in block.extras:
            self.names[extra] = self._operand(extra)
        weight = self._array(conv.inputs[1])
        if block.kind == "depthwise_conv":
            given = self._weight("w", weight.transpose(2, 3, 1, 0))
            weight_name = self._op("Transpose", given, perm=[3, 2, 0, 1])
        else:
            given = self._weight("w", weight.transpose(0, 2, 3, 1))
            weight_name = self._op("Transpose", given, perm=TO_NCHW)
        self._conv(conv, source, weight_name)
        result = self._tail(conv)
        self._result("Y", self._op("Transpose", result, perm=TO_NHWC), self._nhwc(block.output))
        if block.is_pooled:
            batch, channels, height, _ = self._sizes(block.output)
            means = self._op("Transpose", self._mean(result, [3], keep=0), perm=[0, 2, 1])
            self._result("Means", means, (batch, height, channels))

    def squeeze_excite(self) -> None:
        """Describe the two layers behind means over rows."""
        first, second = self.block.convs
        batch, channels, height, _ = self._sizes(self.block.source)
        rows = self._input("means", (batch, height, channels))
        planar = self._op("Transpose", rows, perm=[0, 2, 1])
        shaped = self._op("Reshape", planar, self._constant(np.array([0, 0, -1, 1])))
        mean = self._op("GlobalAveragePool", shaped)
        self._conv(first, mean, self._weight("w", self._array(first.inputs[1])))
        inner = self._tail(first)
        # Neighbouring channels are next to each other in both.
        excite = self._weight("v", self._array(second.inputs[1]).transpose(2, 3, 1, 0))
        self._conv(second, inner, self._op("Transpose", excite, perm=[3, 2, 0, 1]))
        result = self._op("Transpose", self._tail(second), perm=TO_NHWC)
        self._result("Y", result, self._nhwc(self.block.output))

    def global_mean(self) -> None:
        """Describe the means over an image, which need no other layout."""
        source = self._input("x", self._nhwc(self.block.source))
        self._result("Y", self._mean(source, [1, 2], keep=1), self._nhwc(self.block.output))

    def max_pool(self) -> None:
        """Describe a MaxPool."""
        source = self._operand(self.block.source)
        pooled = self._op("MaxPool", source, **self.block.windows[0].attributes)
        result = self._op("Transpose", pooled, perm=TO_NHWC)
        self._result("Y", result, self._nhwc(self.block.output))

    def described(self) -> Described:
        """Return what has been written."""
        function = onnx.FunctionProto(name=self.block.kind, domain=DOMAIN)
        function.input.extend(spec.name for spec in self.inputs)
        function.output.extend(name for name, _ in self.outputs)
        function.node.extend(self.nodes)
        function.opset_import.add(domain="", version=self.scope.opset())
        specs = tuple(spec for _, spec in self.outputs)
        signature = RegionSignature(
            self.block.kind, body_text(function), tuple(self.inputs), specs
        )
        return Described(signature, tuple(self.weights))

    # ---- parts
    def _operand(self, value: ir.Value) -> str:
        """Add an NHWC input and return it in NCHW."""
        name = self._input(f"x{len(self.inputs)}", self._nhwc(value))
        return self._op("Transpose", name, perm=TO_NCHW)

    def _conv(self, conv: ir.Node, source: str, weight: str) -> None:
        window = self.block.windows[self.block.convs.index(conv)]
        biases = [
            self._weight(f"c{len(self.inputs)}", self._array(value))
            for value in conv.inputs[2:]
            if value is not None
        ]
        groups = conv.attributes["group"].as_int() if "group" in conv.attributes else 1
        attributes = {"group": groups, **window.attributes}
        self.names[conv.outputs[0]] = self._op("Conv", source, weight, *biases, **attributes)

    def _tail(self, conv: ir.Node) -> str:
        """Write the pointwise nodes between a convolution and the next one, or the end."""
        value = conv.outputs[0]
        for node in self.block.nodes[self.block.nodes.index(conv) + 1 :]:
            if node.op_type == "Conv":
                break
            inputs = [self._tail_operand(operand) for operand in node.inputs]
            value = node.outputs[0]
            self.names[value] = self._pointwise(node, inputs)
        return self.names[value]

    def _tail_operand(self, value: ir.Value | None) -> str:
        if value is None:
            return ""
        if value not in self.names:
            self.names[value] = self._constant(self._array(value).reshape(()))
        return self.names[value]

    def _pointwise(self, node: ir.Node, inputs: Sequence[str]) -> str:
        attributes = {name: attr.value for name, attr in node.attributes.items()}
        if node.op_type != "QuickGelu":
            return self._op(node.op_type, *inputs, **attributes)
        alpha, inner = float(attributes.get("alpha", 1.702)), inputs[0]
        if alpha != 1:
            numpy_type = ir.DataType[self._dtype.upper()].numpy()
            inner = self._op("Mul", inner, self._constant(np.array(alpha, numpy_type)))
        return self._op("Mul", inputs[0], self._op("Sigmoid", inner))

    def _mean(self, value: str, axes: list[int], keep: int) -> str:
        if self.scope.opset() < _AXES_INPUT_SINCE:
            return self._op("ReduceMean", value, axes=axes, keepdims=keep)
        return self._op("ReduceMean", value, self._constant(np.array(axes)), keepdims=keep)

    # ---- the function
    def _op(self, op_type: str, *inputs: str, **attributes: object) -> str:
        output = f"t{len(self.nodes)}"
        node = helper.make_node(op_type, inputs, [output])
        node.attribute.extend(helper.make_attribute(*item) for item in attributes.items())
        self.nodes.append(node)
        return output

    def _constant(self, array: np.ndarray) -> str:
        return self._op("Constant", value=numpy_helper.from_array(array))

    def _input(self, name: str, shape: Sequence[object]) -> str:
        self.inputs.append(self._spec(name, shape))
        return name

    def _weight(self, name: str, array: np.ndarray) -> str:
        self.weights.append(np.ascontiguousarray(array))
        return self._input(name, array.shape)

    def _result(self, name: str, value: str, shape: Sequence[object]) -> None:
        self.outputs.append((value, self._spec(name, shape)))

    def _spec(self, name: str, shape: Sequence[object]) -> TensorSpec:
        sizes = tuple(size if isinstance(size, int) else str(size) for size in shape)
        return TensorSpec(name, self._dtype, sizes)

    @property
    def _dtype(self) -> str:
        dtype = self.scope.shapes.dtype(self.block.output)
        if dtype not in NAMES:
            raise InternalError(f"a block of type {dtype}")
        return NAMES[dtype]

    def _sizes(self, value: ir.Value) -> tuple[object, ...]:
        shape = self.scope.shapes.shape(value)
        if shape is None or len(shape) != 4:
            raise InternalError(f"a convolution's value of unknown shape: {value.name!r}")
        return tuple(shape)

    def _nhwc(self, value: ir.Value) -> tuple[object, ...]:
        sizes = self._sizes(value)
        return tuple(sizes[axis] for axis in TO_NHWC)

    def _array(self, value: ir.Value | None) -> np.ndarray:
        array = self.scope.array(value)
        if array is None:
            raise InternalError("a convolution's weights are no constants")
        return array
