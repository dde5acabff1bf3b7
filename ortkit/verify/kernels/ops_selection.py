"""Selections in float32, as ONNX Runtime makes them, for `kernels/ops.py`."""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun


class NonMaxSuppression(OpRun):
    """ONNX NonMaxSuppression-11 of [images, boxes, 4] and [images, classes, boxes] in float32.

    Of equal scores the first box is better. Inputs in float64 are float32 without a loss.
    """

    op_domain = ""

    def _run(
        self,
        boxes: np.ndarray,
        scores: np.ndarray,
        most: np.ndarray | None = None,
        iou_threshold: np.ndarray | None = None,
        score_threshold: np.ndarray | None = None,
        center_point_box: int | None = None,
    ) -> tuple[np.ndarray]:
        count = 0 if most is None else int(most.reshape(()))
        limit = np.float32(0 if iou_threshold is None else iou_threshold.reshape(()))
        if not 0 <= limit <= 1:
            raise ValueError(f"an overlap of {limit}")
        boxes, scores = boxes.astype(np.float32), scores.astype(np.float32)
        is_above = np.ones(scores.shape, np.bool_)
        if score_threshold is not None:
            is_above = scores > np.float32(score_threshold.reshape(()))
        elif np.isnan(scores).any():
            raise NotImplementedError("scores that have no order")
        found: list[tuple[int, int, int]] = []
        for image, (edges, of_image) in enumerate(zip(boxes, scores, strict=True)):
            overlaps = _Overlaps(_edges(edges, is_center=bool(center_point_box)), limit)
            for label, of_class in enumerate(of_image):
                order = np.argsort(-of_class, kind="stable")
                order = order[is_above[image, label][order]]
                found += [(image, label, box) for box in overlaps.chosen(order, count)]
        return (np.array(found, np.int64).reshape(-1, 3),)


class _Overlaps:
    """Which boxes of an image each one suppresses; comparisons with NaN are as in C++."""

    def __init__(self, edges: np.ndarray, limit: np.float32) -> None:
        """Keep the boxes.

        Args:
            edges: [smallest and largest, x and y, boxes].
            limit: Boxes that overlap a better one by more are left out.
        """
        self._low, self._high = edges
        width, height = self._high - self._low
        self._areas, self._limit = width * height, limit
        self._rows: dict[int, np.ndarray] = {}

    def chosen(self, order: np.ndarray, most: int) -> list[int]:
        """Return the boxes of a class that are left.

        Args:
            order: The boxes above the threshold, the best first.
            most: How many are wanted.
        """
        is_out = np.zeros(len(self._areas), np.bool_)
        found: list[int] = []
        for box in map(int, order):
            if len(found) >= most:
                break
            if not is_out[box]:
                found.append(box)
                is_out |= self._suppressed(box)
        return found

    def _suppressed(self, box: int) -> np.ndarray:
        if box not in self._rows:
            low, high, areas = self._low, self._high, self._areas
            lowest, highest = low[:, box, None], high[:, box, None]
            start = np.where(lowest < low, low, lowest)
            end = np.where(high < highest, high, highest)
            width, height = end - start
            common = width * height
            either = areas[box] + areas - common
            is_apart = (end <= start).any(axis=0)
            is_empty = (common <= 0) | (areas <= 0) | (areas[box] <= 0) | (either <= 0)
            self._rows[box] = ~is_apart & ~is_empty & (common / either > self._limit)
        return self._rows[box]


def _edges(boxes: np.ndarray, *, is_center: bool) -> np.ndarray:
    """Return [smallest and largest, x and y, boxes]."""
    if is_center:
        half = boxes[:, 2:] / np.float32(2)
        return np.stack([(boxes[:, :2] - half).T, (boxes[:, :2] + half).T])
    one, other = boxes[:, 1::-1].T, boxes[:, 3:1:-1].T
    is_reversed = one >= other
    return np.stack([np.where(is_reversed, other, one), np.where(is_reversed, one, other)])
