"""Resizes of images as blocks, with others that are added: linear ones, and repeated pixels."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortkit.fusion.conv.block import Block
from ortkit.fusion.conv.bodies import TO_NHWC, BodyWriter, Described
from ortkit.fusion.conv.finder import PASS, BlockFinder
from ortkit.fusion.regions.access import is_read_once
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site

#: Where a pixel of the result lies in the image, for linear Resizes: an affine function.
LINEAR = frozenset({"align_corners", "asymmetric", "half_pixel", "pytorch_half_pixel"})
#: By where a pixel lies, how it is rounded so that each is repeated, if the growth is whole.
_REPEATING = {
    "asymmetric": ("floor",),
    "half_pixel": ("round_prefer_ceil", "round_prefer_floor"),
    "pytorch_half_pixel": ("round_prefer_ceil", "round_prefer_floor"),
}
#: The first version with the sizes of the result.
_SINCE = 11
#: What a scale may be off the quotient of the sizes, as a part of it.
_EXACT = 1e-6
#: Resize may have no scales and no region since.
_ABSENT_SINCE = 13


class Resizes(BodyWriter):
    """A Resize with others that are added."""

    @staticmethod
    def find(finder: BlockFinder, node: ir.Node) -> Block | None:
        """Return the block of a Resize with other Resizes and values that are added to it."""

        def has_kernel(one: ir.Node) -> bool:
            return finder.is_free(one) and is_resize(finder.scope, one)

        if not has_kernel(node):
            return None
        epilogue, extras, output = finder.epilogue(node)
        others = [
            other
            for extra in extras
            if (other := extra.producer()) is not None
            and other is not node
            and is_read_once(extra)
            and has_kernel(other)
        ]
        enlarged = [other.outputs[0] for other in others]
        plain = [extra for extra in extras if extra not in enlarged]
        images = [value for other in (node, *others) if (value := other.inputs[0]) is not None]
        if len({*images, *plain}) < len(images) + len(plain):
            others, plain = [], list(extras)  # an image that is read in two ways
            images = images[:1]
        nodes = (node, *others, *epilogue)
        return Block(
            "resize", (node, *others), (), nodes, images[0], output, extras=(*images[1:], *plain)
        )

    def describe(self) -> Described:
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


def is_resize(scope: Scope, node: ir.Node) -> bool:
    """Say whether a kernel may compute a node: a Resize of the pixels of float32 images."""
    if (node.domain, node.op_type) != ("", "Resize") or scope.opset() < _SINCE:
        return False
    site = Site(scope, node, PASS)
    x = site.input(0)
    before, after = site.shape(x), site.shape(site.output)
    if before is None or after is None or len(before) != 4 or site.dtype(x) != ir.DataType.FLOAT:
        return False
    image = [size for size in (*before[1:], *after[2:]) if isinstance(size, int) and size > 0]
    if len(image) != 5 or before[:2] != after[:2]:
        return False
    is_whole = image[3] % image[1] == 0 and image[4] % image[2] == 0
    if not is_whole and not isinstance(before[0], int):
        return False  # the sizes are stated with the batch's
    return _has_known_growth(site, image) and _has_known_pixels(site, is_whole=is_whole)


def _has_known_growth(site: Site, image: list[int]) -> bool:
    """Say whether the scales are the quotients of the sizes."""
    _, height, width, rows, columns = image
    if site.input(3) is not None:
        return site.string("keep_aspect_ratio_policy", "stretch") == "stretch"
    scales = site.array(site.input(2))
    if scales is None or scales.size not in (2, 4):
        return False
    down, across = (float(scale) for scale in scales.reshape(-1)[-2:])
    if scales.size == 2 and site.ints("axes") not in ((2, 3), (-2, -1)):
        return False
    pairs = (down * height / rows, across * width / columns)
    return all(abs(quotient - 1) <= _EXACT for quotient in pairs)


def _has_known_pixels(site: Site, *, is_whole: bool) -> bool:
    """Say whether it is known which pixels of the image a pixel of the result is made of."""
    if site.int("antialias", 0):
        return False
    where = site.string("coordinate_transformation_mode", "half_pixel")
    mode = site.string("mode", "nearest")
    if mode == "linear":
        return where in LINEAR
    rounding = site.string("nearest_mode", "round_prefer_floor")
    return mode == "nearest" and is_whole and rounding in _REPEATING.get(where, ())
