"""Operators of ONNX that move, repeat, leave out or fill in elements, and compute none."""

from __future__ import annotations

from functools import partial

from ortkit.operators.info import OpInfo

_move = partial(OpInfo, "", access="view", moves_only=True)
_reshape = partial(_move, reshapes=True)

SHAPE = (
    _move("Compress", inputs=(2, 2), parameter_inputs=(1,)),
    _move("Concat", inputs=(1, None)),
    _move("DepthToSpace", inputs=(1, 1)),
    _move("Expand", inputs=(2, 2), parameter_inputs=(1,)),
    _reshape("Flatten", inputs=(1, 1)),
    _move("Gather", inputs=(2, 2), parameter_inputs=(1,)),
    _move("GatherElements", inputs=(2, 2), parameter_inputs=(1,)),
    _move("GatherND", inputs=(2, 2), parameter_inputs=(1,)),
    OpInfo("", "Pad", "view", (2, 4), parameter_inputs=(1, 3)),
    _reshape("Reshape", inputs=(2, 2), parameter_inputs=(1,)),
    _move("ReverseSequence", inputs=(2, 2), parameter_inputs=(1,)),
    _move("Slice", inputs=(3, 5), parameter_inputs=(1, 2, 3, 4)),
    _move("SpaceToDepth", inputs=(1, 1)),
    _move("Split", inputs=(1, 2), parameter_inputs=(1,)),
    _reshape("Squeeze", inputs=(1, 2), parameter_inputs=(1,)),
    _move("Tile", inputs=(2, 2), parameter_inputs=(1,)),
    _move("Transpose", inputs=(1, 1)),
    OpInfo("", "Trilu", "view", (1, 2), parameter_inputs=(1,)),
    _reshape("Unsqueeze", inputs=(2, 2), parameter_inputs=(1,)),
)
