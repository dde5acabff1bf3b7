"""Inputs of a kernel that selects boxes: its sizes and limits have to be ones that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from ortkit.verify.kernels.blocks import Operand

_BOXES, _SCORES, _IOU = 0, 1, 3
#: What boxes may overlap: both ends, and what equal boxes of small numbers have.
_OVERLAPS = (0.5, 0.0, 1.0, 1.0 / 3.0, 0.45)
#: One of this many cases has small integers: equal scores, and overlaps that are at a threshold.
_INTEGERS = 2


@dataclass(frozen=True)
class SelectedBoxes:
    """The numbers of inputs that have to agree.

    Args:
        boxes: [images, boxes, 4].
        scores: [images, classes, boxes].
        iou: What boxes may overlap, if that is an input.
        count: How many inputs there are.
    """

    boxes: int
    scores: int
    iou: int | None
    count: int

    def fits(self, shapes: Sequence[Sequence[int]]) -> bool:
        """Say whether there are values for any sizes."""
        del shapes
        return True

    def sizes(self, shapes: Sequence[tuple[int, ...]], number: int) -> Sequence[tuple[int, ...]]:
        """Return the sizes of a case, of which several may be called differently."""
        del number
        if len(shapes) < self.count:  # some are constants of the model, of sizes that agree
            return shapes
        found = list(shapes)
        images, _, count = found[self.scores]
        found[self.boxes] = (images, count, 4)
        return found

    def agree(self, operands: list[Operand], seed: int) -> list[Operand]:
        """Return operands with an overlap between 0 and 1, and small integers in some cases."""
        found = list(operands)
        if self.iou is not None:
            like = found[self.iou].array
            overlap = _OVERLAPS[seed % len(_OVERLAPS)]
            found[self.iou] = Operand(np.full(like.shape, overlap, like.dtype))
        if seed % _INTEGERS == 0:
            for number in (self.boxes, self.scores):
                if not found[number].is_constant:
                    found[number] = Operand(np.rint(found[number].array * np.float32(2)))
        return found


def selected_boxes(function: onnx.FunctionProto) -> SelectedBoxes | None:
    """Return which inputs of a body have to agree, None if none have to."""
    nodes = [node for node in function.node if node.op_type == "NonMaxSuppression"]
    if len(nodes) != 1:
        return None
    inputs = {name: number for number, name in enumerate(function.input)}
    names = [*nodes[0].input, *[""] * _IOU]
    boxes, scores = inputs.get(names[_BOXES]), inputs.get(names[_SCORES])
    if boxes is None or scores is None:
        return None
    return SelectedBoxes(boxes, scores, inputs.get(names[_IOU]), len(inputs))
