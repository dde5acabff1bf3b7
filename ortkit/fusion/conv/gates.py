"""Gates: 1x1 layers behind means over an image, whose result multiplies that image."""

from __future__ import annotations

import onnx_ir as ir

from ortkit.fusion.conv.block import Block
from ortkit.fusion.conv.bodies import TO_NHWC, BodyWriter, Described
from ortkit.fusion.conv.finder import PASS, BlockFinder
from ortkit.fusion.conv.nodes import is_global_mean
from ortkit.fusion.regions.access import only_reader
from ortkit.kernels.image_anchor import ImageAnchor
from ortkit.kernels.layouts.conv_filters import channels_last
from ortkit.operators.window import Window
from ortkit.rewrite.site import Site


class Gate(BodyWriter):
    """As many layers after means over rows as the anchor says: two of squeeze-and-excite."""

    @staticmethod
    def find(finder: BlockFinder, pool: ir.Node, anchor: ImageAnchor) -> Block | None:
        """Return the layers after a global mean whose result multiplies what was pooled."""
        site = Site(finder.scope, pool, PASS)
        source = site.input(0)
        if source is None or not is_global_mean(site):
            return None
        nodes, convs, windows, value = [pool], list[ir.Node](), list[Window](), site.output
        for _ in range(anchor.layers):
            conv = only_reader(value)
            window = None if conv is None else finder.window(conv)
            if conv is None or window is None or not window.is_point or not finder.is_layer(conv):
                return None
            epilogue, extras, value = finder.epilogue(conv)
            if extras:
                return None
            convs.append(conv)
            windows.append(window)
            nodes += [conv, *epilogue]
        product = only_reader(value)
        if product is None or product.op_type != "Mul" or product.domain:
            return None
        if source not in product.inputs:
            return None
        return Block(anchor.kind, tuple(convs), tuple(windows), tuple(nodes), source, value)

    def describe(self) -> Described:
        """Describe the layers after means over rows; the last one's filters lie by channel."""
        *inner, last = self.block.convs
        batch, channels, height, _ = self._sizes(self.block.source)
        rows = self._input("means", (batch, height, channels))
        planar = self.writer.op("Transpose", rows, perm=[0, 2, 1])
        shaped = self.writer.op("Reshape", planar, self.writer.integers(0, 0, -1, 1))
        value = self.writer.op("GlobalAveragePool", shaped)
        for conv in inner:
            self._conv(conv, [value, self._plain(conv.inputs[1]), *self._biases(conv)])
            value = self._epilogue(conv)
        weight = self._array(last.inputs[1])
        filters = self._packed(weight, channels_last(weight.shape), "excite")
        self._conv(last, [value, filters, *self._biases(last)])
        result = self.writer.op("Transpose", self._epilogue(last), perm=TO_NHWC)
        self._result(result, self._nhwc(self.block.output))
        return self._described()
