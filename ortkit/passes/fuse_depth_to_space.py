"""fuse-depth-to-space: DepthToSpace and SpaceToDepth for Reshapes and a Transpose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain as joined
from itertools import permutations
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.analysis.axes import Group, Layout, track
from ortkit.graph.shapes.reshape import RESHAPES
from ortkit.graph.symbolic.dims import Size, product
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

#: ONNX Runtime 1.31.1 has kernels of both ops for these types, on CUDA for 16 bits as well.
#: From here on DepthToSpace has its mode.
MODE_SINCE = 11
#: The orders of deep channels, see `_Block`.
DCR, CRD = "RKC", "CRK"


@dataclass(frozen=True)
class FuseDepthToSpace(NodePass):
    """Move blocks between channels and pixels with the op for it.

    Before:
        t = Reshape(x, [n, 2, 2, c, h, w])                       # x: [n, 4 c, h, w]
        u = Transpose<perm = [0, 3, 4, 1, 5, 2]>(t);  y = Reshape(u, [n, c, 2 h, 2 w])
    After:
        y = DepthToSpace<blocksize = 2, mode = "DCR">(x)

    Blocks that are the inner part of the channels are CRD. The way back is SpaceToDepth, whose
    blocks are the outer part of the channels. For other orders, as pixel_unshuffle of torch makes
    them, a Gather moves the channels. In ONNX Runtime 1.31.1 on a CPU a third (to pixels) and a
    tenth (to channels) of the time of the Transpose.

    Skips:
        * Blocks that are not square, and chains that do anything else.
        * A step in between that others read; types that have no kernel.

    Source:
        ONNX DepthToSpace-11 ... 13, SpaceToDepth-1 ... 13.
    """

    name: ClassVar[str] = "fuse-depth-to-space"
    ops: ClassVar[Sequence[str]] = ("Reshape",)

    def rewrite(self, site: Site) -> None:
        chain = _chain(site)
        layout = None if len(chain) < 3 else track(site.scope.shapes, chain)
        if layout is None or len(layout.source) != 4 or len(layout.result) != 4:
            return
        to_pixels, to_channels = _block(layout), _block(_back(layout))
        block = to_pixels or to_channels
        if block is None:
            return
        if not site.has_kernel("DepthToSpace", site.dtype(site.output)) or site.opset < MODE_SINCE:
            site.miss("ONNX Runtime has no kernel of DepthToSpace for its type, or this opset")
            return
        x = chain[0].inputs[0]
        if to_pixels is not None and site.claim("to-pixels"):
            mode = "CRD" if block.order == CRD else "DCR"
            if block.order not in (CRD, DCR):
                x = site.op("Gather", [x, site.constant(block.channel_order(DCR))], {"axis": 1})
            made = site.op("DepthToSpace", [x], {"blocksize": block.size, "mode": mode})
            site.replace(made)
        elif to_pixels is None and site.claim("to-channels"):
            made = site.op("SpaceToDepth", [x], {"blocksize": block.size})
            if block.order != DCR:
                back = np.argsort(block.channel_order(DCR))
                made = site.op("Gather", [made, site.constant(back)], {"axis": 1})
            site.replace(made)


@dataclass(frozen=True)
class _Block:
    """Blocks of `size` x `size` pixels, which are among the deep channels."""

    size: int
    channels: int
    """How many there are where the pixels are apart."""
    order: str
    """R: the row in a block, K: the column, C: the channel; outermost first."""

    def channel_order(self, order: str) -> np.ndarray:
        """Return where the deep channels in another order are among these."""
        sizes = [self.channels if item == "C" else self.size for item in self.order]
        numbers = np.arange(self.size * self.size * self.channels).reshape(sizes)
        return numbers.transpose([self.order.index(one) for one in order]).reshape(-1)


def _chain(site: Site) -> list[ir.Node]:
    """Return the layout ops that end at this node and nothing else reads, first one first."""
    chain, node = [site.node], site.node
    while len(chain) < 4:
        value = node.inputs[0]
        before = site.producer(value, *RESHAPES, "Transpose")
        if value is None or before is None or before.graph is not node.graph:
            break
        if not site.only_use(value):
            break
        chain.insert(0, before)
        node = before
    return chain


def _back(layout: Layout) -> Layout:
    return Layout(layout.result, layout.source)


def _block(layout: Layout) -> _Block | None:
    """Return the blocks that a layout moves from the channels to the pixels, if it does that."""
    batch, deep, rows, columns = layout.source
    batch_after, channels, *pixels = layout.result
    if batch != batch_after:
        return None
    blocks: list[Group] = []
    for before, after in zip((rows, columns), pixels, strict=True):
        if after[: len(before)] != before or len(after) == len(before):
            return None
        blocks.append(after[len(before) :])
    sizes: list[Size] = [product(factor.size for factor in block) for block in blocks]
    count = product(factor.size for factor in channels)
    size = sizes[0]
    if not isinstance(size, int) or sizes[1] != size or not isinstance(count, int):
        return None
    parts = {"R": blocks[0], "K": blocks[1], "C": channels}
    for order in (DCR, CRD, *map("".join, permutations("CKR"))):
        if deep == tuple(joined.from_iterable(parts[item] for item in order)):
            return _Block(size, count, order)
    return None
