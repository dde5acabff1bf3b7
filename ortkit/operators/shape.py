"""Operators of ONNX that move, repeat, leave out or fill in elements, and compute none."""

from __future__ import annotations

from functools import partial

from ortkit.operators.info import OpInfo

_view = partial(OpInfo, "", access="view", exact=True)
_move = partial(_view, moves_only=True)
_pick = partial(_move, inputs=(2, 2), parameter_inputs=(1,), indexed=True)
_permute = partial(_move, keeps_all=True)
_reshape = partial(_permute, reshapes=True)

SHAPE = (
    _pick("Compress"),
    _permute("Concat", inputs=(1, None)),
    _permute("DepthToSpace", inputs=(1, 1)),
    _permute("Expand", inputs=(2, 2), parameter_inputs=(1,)),
    _reshape("Flatten", inputs=(1, 1)),
    _pick("Gather"),
    _pick("GatherElements"),
    _pick("GatherND"),
    _view("Pad", inputs=(2, 4), parameter_inputs=(1, 3)),
    _reshape("Reshape", inputs=(2, 2), parameter_inputs=(1,)),
    _permute("ReverseSequence", inputs=(2, 2), parameter_inputs=(1,)),
    _move("Slice", inputs=(3, 5), parameter_inputs=(1, 2, 3, 4)),
    _permute("SpaceToDepth", inputs=(1, 1)),
    _move("Split", inputs=(1, 2), parameter_inputs=(1,)),
    _reshape("Squeeze", inputs=(1, 2), parameter_inputs=(1,)),
    _permute("Tile", inputs=(2, 2), parameter_inputs=(1,)),
    _permute("Transpose", inputs=(1, 1)),
    _view("Trilu", inputs=(1, 2), parameter_inputs=(1,)),
    _reshape("Unsqueeze", inputs=(2, 2), parameter_inputs=(1,)),
)
