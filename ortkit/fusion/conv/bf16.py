"""The signature of a convolution in bfloat16: a matmul of pixels, or of their im2col rows.

All of its tensors are NHWC, so that without the kernel library only the Conv itself is transposed.
"""

from __future__ import annotations

import onnx_ir as ir

from ortkit.fusion.conv.bodies import TO_NCHW, TO_NHWC, BodyWriter, Described
from ortkit.fusion.conv.sizes import image_shape
from ortkit.kernels.layouts.bf16_blocks import filter_layout, layout
from ortkit.kernels.prepack import Prepack

_FLOAT, _BF16 = int(ir.DataType.FLOAT), int(ir.DataType.BFLOAT16)


class ProductWriter(BodyWriter):
    """Writes the body of one block."""

    def product(self) -> Described:
        """Describe the convolution with what is done to its result."""
        block = self.block
        (conv,), (window,) = block.convs, block.windows
        value = self._factor()
        for extra in block.extras:
            self.names[extra] = self._operand(extra)
        weight = conv.inputs[1]
        assert weight is not None
        filters = image_shape(self.scope, weight)
        if window.is_point:
            matrix = self._matrix(layout(filters[1], filters[0]))
            value = self.writer.op("MatMul", value, matrix)
        else:
            planar = self._matrix(filter_layout(filters))
            transposed = self.writer.op("Transpose", value, perm=TO_NCHW)
            made = self.writer.op("Conv", transposed, planar, **window.attributes)
            value = self.writer.op("Transpose", made, perm=TO_NHWC)
        for bias in self._biases(conv):
            value = self.writer.op("Add", value, bias)
        self.names[conv.outputs[0]] = value
        self._epilogue(conv)
        for result in block.results:
            self._result(self.names[result], self._nhwc(result), self._dtype(result))
        return self._described()

    def _factor(self) -> str:
        """Return the operand: rounded, and upconverted again."""
        source, gate = self.block.source, self.block.gate
        value, is_wide = self._operand(source), self._dtype(source) == "float32"
        if gate is not None:
            value = value if is_wide else self.writer.op("Cast", value, to=_FLOAT)
            value, is_wide = self.writer.op("Mul", value, self._operand(gate)), True
        if is_wide:
            value = self.writer.op("Cast", value, to=_BF16)
        return self.writer.op("Cast", value, to=_FLOAT)

    def _operand(self, value: ir.Value) -> str:
        """Add an input, which stays NHWC."""
        return self._input(f"x{len(self.inputs)}", self._nhwc(value), self._dtype(value))

    def _matrix(self, packing: Prepack) -> str:
        """Add the packed weight, and take it apart."""
        assert self.block.packed is not None
        self.weights.append(self.block.packed)
        name = self._input(f"w{len(self.inputs)}", packing.shape, packing.dtype)
        return self.writer.unpacked(name, packing)
