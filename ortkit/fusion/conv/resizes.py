"""Resizes of images that a kernel for NHWC computes: linear ones, and pixels that are repeated."""

from __future__ import annotations

import onnx_ir as ir

from ortkit.fusion.conv.finder import PASS
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
