"""Inputs that show a fault: many sizes, masks and values, independent of those of verification."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class InputSet:
    """One input set.

    Args:
        arrays: By input.
        is_usual: Whether a model meets such values in use.
    """

    arrays: Arrays
    is_usual: bool = True


#: Batch, length, mask, ids, what float inputs are multiplied by.
_PLANS: tuple[tuple[int, int, str, str, float], ...] = (
    (2, 7, "right", "any", 1.0), (1, 16, "ones", "any", 1.0), (3, 5, "holes", "any", 1.0),
    (1, 1, "ones", "any", 1.0), (2, 33, "left", "any", 1.0), (4, 17, "right", "ends", 1.0),
    (5, 12, "row", "any", 1.0), (2, 135, "right", "any", 1.0), (3, 9, "holes", "any", 100.0),
    (2, 8, "ones", "any", 0.0), (3, 21, "left", "same", 1e-3), (7, 3, "right", "any", 8.0),
)  # fmt: skip


_LARGE = (64, 65, "right", "any", 1.0)
#: Images are no larger: observation would take too long.
_MOST_PIXELS = 33
#: Models with a table of positions take no more.
_USUAL_LENGTH = 100


def input_sets(
    model: onnx.ModelProto, seed: int = 0, *, large: bool = False
) -> Iterator[InputSet]:
    """Yield input sets; some may be larger than a model takes.

    Args:
        model: Its inputs are read.
        seed: Decides the values.
        large: Add one that is large enough for work to be cut into parts for threads.
    """
    rows = _rows(model)
    for number, (batch, length, mask, ids, factor) in enumerate(
        (*_PLANS, *([_LARGE] if large else []))
    ):
        rng = np.random.default_rng((seed, number))
        arrays: Arrays = {}
        for value in model.graph.input:
            tensor = value.type.tensor_type
            side = min(length, _MOST_PIXELS)
            sizes = {"batch": batch, "height": side + 4, "width": side + 3}
            shape = [sizes.get(dim.dim_param, length) if dim.dim_param else dim.dim_value
                     for dim in tensor.shape.dim]  # fmt: skip
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            if "mask" in value.name:
                arrays[value.name] = _mask(mask, shape, rng).astype(dtype)
            elif np.issubdtype(dtype, np.integer):
                arrays[value.name] = _ids(ids, shape, rows.get(value.name, 100), rng).astype(dtype)
            else:
                drawn = rng.standard_normal(shape)
                drawn[..., :1] *= factor != 0.0
                arrays[value.name] = (drawn * factor).astype(dtype)
        is_usual = factor in (1.0, 8.0) and mask in ("ones", "right") and length < _USUAL_LENGTH
        yield InputSet(arrays, is_usual)


def _rows(model: onnx.ModelProto) -> dict[str, int]:
    """Return how many rows the tables have that inputs pick from."""
    sizes = {tensor.name: tensor.dims[0] for tensor in model.graph.initializer if tensor.dims}
    return {
        node.input[1]: sizes[node.input[0]]
        for node in model.graph.node
        if node.op_type == "Gather" and node.input[0] in sizes
    }


def _mask(kind: str, shape: list[int], rng: np.random.Generator) -> np.ndarray:
    mask = np.ones(shape, np.int64)
    length = shape[-1]
    if kind == "right":
        mask[1::2, length - length // 3 :] = 0
    elif kind == "left":
        mask[1::2, : length // 3] = 0
    elif kind == "holes":
        mask[:, 1:-1] = rng.random(mask[:, 1:-1].shape) < 0.6
    elif kind == "row":
        mask[1::2] = 0
    return mask


def _ids(kind: str, shape: list[int], rows: int, rng: np.random.Generator) -> np.ndarray:
    if kind == "ends":
        return rng.choice([0, rows - 1, rows // 2], shape)
    if kind == "same":
        return np.full(shape, 3)
    return rng.integers(1, rows - 1, shape)
