"""Input sets in which a Resize that shrinks images leaves one pixel of a side.

Ways to place pixels that agree elsewhere differ there: `pytorch_half_pixel` takes the first pixel
of two and `half_pixel` the mean, and `align_corners` divides by the pixels less one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import constant_array
from ortkit.graph.inline import inlined
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.symbolic.dims import Size, names
from ortkit.verify.inputs.feeds import FeedMaker
from ortkit.verify.inputs.plans import Plan
from ortkit.verify.inputs.relations import substituted
from ortkit.verify.inputs.sizes import concrete

#: The largest side of an image that is tried: 2 pixels are left where nets shrink by 256.
_MOST_PIXELS = 1 << 9
_MOST_PLANS = 3


def single_pixel_plans(maker: FeedMaker, model: ir.Model, seed: int) -> tuple[Plan, ...]:
    """Plan sets of small images, no two of the same sizes.

    Args:
        maker: Makes up inputs of the model.
        model: Read, not changed.
        seed: Seeds the random numbers.
    """
    free = {name for shape in maker.shapes for size in shape for name in names(size)}
    free -= maker.batches | maker.fixed.keys()
    if not free or not any(node.op_type == "Resize" for node in model.graph.all_nodes()):
        return ()
    model = inlined(model)
    shapes = Shapes.infer(model)
    found: list[Plan] = []
    for node in model.graph:
        if node.op_type != "Resize" or node.domain:
            continue
        sizes: dict[str, int] = {}
        for before, after, scale in _sides(node, shapes, maker.related):
            sides = names(before)
            if sides and sides <= free and not sides & sizes.keys():
                pixels = _pixels(before, after, scale)
                sizes.update(dict.fromkeys(sides, pixels) if pixels else {})
        numbers = maker.completed(maker.sized(sizes)).sizes if sizes else {}
        if sizes and numbers not in [plan.sizes for plan in found]:
            found.append(Plan(numbers, seed + len(found)))
        if len(found) == _MOST_PLANS:
            break
    return tuple(found)


def _sides(
    node: ir.Node, shapes: Shapes, related: Mapping[str, Size]
) -> Iterator[tuple[Size, Size | None, float]]:
    """Yield the axes of an image: the size before, the one after, the scale or 0."""
    image, *given = node.inputs
    before = shapes.shape(image) if image is not None else None
    if before is None:
        return
    after = shapes.shape(node.outputs[0])
    scales = constant_array(given[1]) if len(given) > 1 and given[1] is not None else None
    axes = list(node.attributes.get_ints("axes", tuple(range(len(before)))))
    for at, size in enumerate(before):
        scale = 0.0
        if scales is not None and len(scales) == len(axes) and at in axes:
            scale = float(scales[axes.index(at)])
        end = None if after is None else substituted(after[at], related)
        yield substituted(size, related), end, scale


def _pixels(before: Size, after: Size | None, scale: float) -> int:
    """Return the smallest number for all names of a size that leaves one pixel of more; else 0."""
    for pixels in range(2, _MOST_PIXELS):
        numbers = dict.fromkeys(names(before), pixels)
        size = concrete(before, numbers)
        if size is None:
            return 0
        end = None if after is None else concrete(after, numbers)
        if end is None and scale:
            end = int(np.floor(np.float32(size) * np.float32(scale)))
        if end is None or end > 1:
            return 0
        if end == 1 and size > 1:
            return pixels
    return 0
