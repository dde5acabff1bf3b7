"""A one-stage object detector: HardSwish backbone, feature pyramid, decoded boxes, NMS.

Input: x, float32 [batch, 3, height, width], both multiples of 16.
Outputs, for each detection: boxes, float32 [detections, 4] (center and size in pixels); scores,
float32 [detections]; labels and image, int64 [detections].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from models import layers
from models.builder import ALL, Dim, Size, Tape
from models.conv import Conv, bare_conv, conv_block
from models.resnet50 import image_input

SPELLINGS = ("dynamo", "ts", "unfused", "unfused-bias")


@dataclass(frozen=True)
class Config:
    """Sizes; the full ones are those of a small YOLO with two heads."""

    widths: tuple[int, int, int, int]
    """Channels at 1/2, 1/4, 1/8 and 1/16 of the image's size."""
    depth: int
    classes: int
    most: int
    """Detections kept for each class of each image."""


CONFIGS = {
    "tiny": Config(widths=(8, 16, 24, 32), depth=1, classes=3, most=5),
    "full": Config(widths=(32, 64, 128, 256), depth=2, classes=80, most=100),
}
STRIDES = (8, 16)
ANCHORS = (12.0, 30.0)
"""Edge of a box, in pixels, for which a head predicts zero."""


def build(size: Size, spelling: str, seed: int) -> onnx.ModelProto:
    """Build the detector; see `models.catalog.build`."""
    config = CONFIGS[size]
    b = Tape("main_graph", ALL[spelling], seed)
    x = image_input(b, "height", "width")
    fine, coarse = _pyramid(b, x, config)
    heads = [
        _head(b, feature, f"head.{i}", width, config)
        for i, (feature, width) in enumerate(
            ((fine, config.widths[2]), (coarse, config.widths[3]))
        )
    ]
    decoded = [_decode(b, head, i, config) for i, head in enumerate(heads)]
    with b.scope("head"):
        boxes = b.op("Concat", *(box for box, _ in decoded), axis=1)
        scores = b.op("Concat", *(score for _, score in decoded), axis=2)
    _select(b, boxes, scores, config)
    return b.model()


def _block(b: Tape, x: str, name: str, width: int) -> str:
    """Narrow, widen, add."""
    y = conv_block(b, x, Conv(f"{name}.cv1", width, width // 2, activation="hardswish"))
    widen = Conv(f"{name}.cv2", width // 2, width, 3, activation="hardswish", gain=0.7)
    y = conv_block(b, y, widen)
    with b.scope(name):
        return b.op("Add", x, y)


def _pyramid(b: Tape, x: str, config: Config) -> tuple[str, str]:
    """Return the features at 1/8, joined with the upsampled ones at 1/16, and those at 1/16."""
    channels, features = 3, []
    for level, width in enumerate(config.widths):
        name = f"backbone.{level}"
        down = Conv(f"{name}.down", channels, width, 3, 2, activation="hardswish", gain=0.9)
        x = conv_block(b, x, down)
        for i in range(config.depth):
            x = _block(b, x, f"{name}.blocks.{i}", width)
        channels = width
        features.append(x)
    middle, coarse = config.widths[2:]
    lateral = Conv("neck.lateral", coarse, middle, activation="hardswish")
    up = conv_block(b, features[3], lateral)
    with b.scope("neck"):
        joined = b.op("Concat", layers.upsample(b, up), features[2], axis=1)
    merge = Conv("neck.merge", 2 * middle, middle, 3, activation="hardswish")
    return conv_block(b, joined, merge), features[3]


def _head(b: Tape, x: str, name: str, width: int, config: Config) -> str:
    """Predict [batch, 4 + classes, height, width]."""
    x = conv_block(b, x, Conv(f"{name}.cv", width, width, 3, activation="hardswish"))
    return bare_conv(b, x, Conv(f"{name}.predict", width, 4 + config.classes))


def _decode(b: Tape, x: str, level: int, config: Config) -> tuple[str, str]:
    """Return boxes [batch, cells, 4] and scores [batch, classes, cells]."""
    stride, anchor = float(STRIDES[level]), ANCHORS[level]
    batch, height, width = (b.dim(x, axis) for axis in (0, 2, 3))
    with b.scope(f"head.{level}"):
        flat = b.op("Sigmoid", b.reshape(x, batch, 4 + config.classes, -1))
        parts = b.ints(2, 2, config.classes)
        center, size, scores = b.ops("Split", flat, parts, outputs=3, axis=1)
        center, size = b.transpose(center, 0, 2, 1), b.transpose(size, 0, 2, 1)
        offset = b.op("Sub", b.op("Mul", center, b.scalar(2.0)), b.scalar(0.5))
        place = b.op("Mul", b.op("Add", offset, _cells(b, height, width)), b.scalar(stride))
        doubled = b.op("Pow", b.op("Mul", size, b.scalar(2.0)), b.scalar(2.0))
        extent = b.op("Mul", doubled, b.scalar(anchor))
        return b.op("Concat", place, extent, axis=-1), scores


def _cells(b: Tape, height: Dim, width: Dim) -> str:
    """Write the column and row of each cell, float32 [1, height * width, 2]."""
    rows, columns = b.reshape(b.range(height), -1, 1), b.reshape(b.range(width), 1, -1)
    shape = b.shape(height, width)
    pairs = [b.unsqueeze(layers.expand(b, index, shape), -1) for index in (columns, rows)]
    cells = b.reshape(b.op("Concat", *pairs, axis=-1), 1, -1, 2)
    return b.op("Cast", cells, to=TensorProto.FLOAT)


def _select(b: Tape, boxes: str, scores: str, config: Config) -> None:
    """Suppress what overlaps a better box, and look up what is left."""
    limits = (b.ints(config.most), *(b.const(np.array([v], np.float32)) for v in (0.5, 0.3)))
    kept = b.op("NonMaxSuppression", boxes, scores, *limits, center_point_box=1)
    image, label = (b.op("Gather", kept, b.scalar(i), axis=1) for i in range(2))
    which = b.op("Gather", kept, b.ints(0, 2), axis=1)
    b.output(b.op("GatherND", boxes, which), "boxes", np.float32, "detections", 4)
    b.output(b.op("GatherND", scores, kept), "scores", np.float32, "detections")
    b.output(label, "labels", np.int64, "detections")
    b.output(image, "image", np.int64, "detections")
