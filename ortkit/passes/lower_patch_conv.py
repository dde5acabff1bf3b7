"""lower-patch-conv: a convolution of windows side by side as one product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.analysis.transposed_resize import REASON, breaks_resize
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site


@dataclass(frozen=True)
class LowerPatchConv(NodePass):
    """Write a convolution as a product, if its strides are its kernel: the patches of an image.

    Before:
        y = Conv<kernel_shape = [p, q], strides = [p, q]>(x, W, b)
    After:
        s = Transpose(Reshape(x, [-1, C, h, p, w, q]), [0, 2, 4, 1, 3, 5])
        r = Add(MatMul(Reshape(s, [-1, h * w, C * p * q]), Wt), b)
        y = Reshape(Transpose(r, [0, 2, 1]), [-1, F, h, w])
    Before:
        y = Conv<kernel_shape = [p, q], strides = [p, q]>(Transpose(t, [0, 3, 1, 2]), W, b)
    After:
        s = Transpose(Reshape(t, [0, h, p, w, q, C]), [0, 1, 3, 2, 4, 5])
        r = Add(MatMul(Reshape(s, [0, h, w, p * q * C]), Wt), b)
        y = Transpose(r, [0, 3, 1, 2])

    Each element is read once, so that space-to-depth costs one copy. Vision transformers flatten
    the result and transpose it, which cancels what is done here. On an H200 the convolution of 32
    images in 16 x 16 patches takes cuDNN 0.38 ms, ten times as long as the product.

    Skips:
        * NCHW images on CPUs, where ONNX Runtime copies windows for such a convolution anyway.
        * Padding, dilations, groups, sizes that the kernel does not divide or that are not known.
        * Windows of one element, and weights that are computed.
        * An NHWC image before a Resize that ONNX Runtime breaks as it moves a Transpose over it.
        * A result of an NCHW image that is not flattened to one row for each filter: what reads
          images reads them from convolutions with kernels of their own.

    Source:
        ONNX Conv-1 ... 22.
    """

    name: ClassVar[str] = "lower-patch-conv"
    ops: ClassVar[Sequence[str]] = ("Conv",)

    def rewrite(self, site: Site) -> None:
        windows = site.shape(site.input(1))
        kernel = tuple(size for size in (windows or ())[2:] if isinstance(size, int))
        strides = site.ints("strides") or (1,) * len(kernel)
        if not kernel or prod(kernel) == 1 or strides != kernel:
            return
        pixels = _nhwc(site)
        if pixels is None and site.traits.has_fast_patch_conv:
            return
        reason = _why_not(site, kernel) or ("" if pixels else _why_images(site))
        if pixels is not None and breaks_resize([site.output]):
            reason = REASON
        weight = site.array(site.input(1))
        shape = site.shape(site.input(0))
        if reason or weight is None or shape is None:
            site.miss(reason or "its weight is not constant")
            return
        if not site.claim("patches"):
            return
        filters, channels = weight.shape[:2]
        axes = [
            size // step
            for size, step in zip(shape[2:], kernel, strict=True)
            if isinstance(size, int)
        ]
        if pixels is not None:
            site.replace(_product_of_pixels(site, pixels, weight, axes))
            return
        rank = len(kernel)
        split = [part for pair in zip(axes, kernel, strict=True) for part in pair]
        order = [0, *range(2, 2 + 2 * rank, 2), 1, *range(3, 3 + 2 * rank, 2)]
        x = site.op("Reshape", [site.input(0), site.constant([-1, channels, *split])])
        x = site.op("Transpose", [x], {"perm": order})
        depth = channels * prod(kernel)
        x = site.op("Reshape", [x, site.constant([-1, prod(axes), depth])])
        matrix = np.ascontiguousarray(weight.reshape(filters, depth).T)
        x = site.op("MatMul", [x, site.constant(matrix, f"{site.output.name}/patches")])
        if site.input(2) is not None:
            x = site.op("Add", [x, site.input(2)])
        x = site.op("Transpose", [x], {"perm": [0, 2, 1]})
        site.replace(site.op("Reshape", [x, site.constant([-1, filters, *axes])]))


def _nhwc(site: Site) -> ir.Value | None:
    """Return the NHWC image that the convolution's source is the Transpose of, if it is one."""
    node = site.producer(site.input(0), "Transpose")
    if node is None or Site(site.scope, node, site.pass_name).perm() != (0, 3, 1, 2):
        return None
    return node.inputs[0] if site.traits.has_fast_patch_conv else None


def _product_of_pixels(
    site: Site, pixels: ir.Value, weight: np.ndarray, axes: Sequence[int]
) -> ir.Value:
    """Multiply the windows of an NHWC image by the filters, and return the result in NCHW."""
    filters, channels, *kernel = weight.shape
    depth = channels * prod(kernel)
    split = [0, axes[0], kernel[0], axes[1], kernel[1], channels]
    x = site.op("Reshape", [pixels, site.constant(split)])
    x = site.op("Transpose", [x], {"perm": [0, 1, 3, 2, 4, 5]})
    x = site.op("Reshape", [x, site.constant([0, *axes, depth])])
    matrix = np.ascontiguousarray(weight.transpose(2, 3, 1, 0).reshape(depth, filters))
    x = site.op("MatMul", [x, site.constant(matrix, f"{site.output.name}/patches")])
    if site.input(2) is not None:
        x = site.op("Add", [x, site.input(2)])
    return site.op("Transpose", [x], {"perm": [0, 3, 1, 2]})


def _why_not(site: Site, kernel: Sequence[int]) -> str:
    """Say why windows do not cut the image into whole patches; empty if they do."""
    if any(site.ints("pads") or ()) or site.string("auto_pad", "NOTSET") not in (
        "NOTSET",
        "VALID",
    ):
        return "it pads"
    if any(step != 1 for step in site.ints("dilations") or ()) or site.int("group", 1) != 1:
        return "it has dilations or groups"
    shape = site.shape(site.input(0))
    sizes = () if shape is None else shape[2:]
    if len(sizes) != len(kernel) or any(
        not isinstance(size, int) or size % step or not size
        for size, step in zip(sizes, kernel, strict=True)
    ):
        return "its kernel does not divide the image, or its size is not known"
    return ""


def _why_images(site: Site) -> str:
    """Say why the result is no list of patches; empty if it is one."""
    readers = [node for node, _ in site.output.uses()]
    shape = site.shape(site.output)
    if len(readers) != 1 or shape is None:
        return "its result is read as images"
    if readers[0].op_type == "Transpose" and len(shape) == 3:
        return ""  # of one dimension
    flat = site.shape(readers[0].outputs[0])
    if flat is None or readers[0].op_type not in ("Reshape", "Flatten"):
        return "its result is read as images"
    return "" if len(flat) == 3 and flat[1] == shape[1] else "its result is not flattened"
