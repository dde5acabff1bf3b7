"""Inputs for a built model, made from its declared inputs alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from onnx import helper

if TYPE_CHECKING:
    import onnx

    from models.builder import Array

VOCABULARY = 100
"""Token ids stay below this; every model's vocabulary is at least as large."""


def feeds(model: onnx.ModelProto, seed: int = 0, **sizes: int) -> dict[str, Array]:
    """Draw one value for each graph input.

    Args:
        model: Its inputs are read, nothing else.
        seed: Decides the values.
        sizes: What each named dimension is; a sum such as "past + sequence" is worked out
            from its terms. Left out: 1 for "batch", 16 for the others.

    Returns:
        By input name: floats from N(0, 1); ids below `VOCABULARY`; masks of ones, with zeros
        at the end of every second row; positions that count on after the past.
    """
    random = np.random.default_rng(seed)
    return {value.name: _draw(value, {"batch": 1, **sizes}, random) for value in model.graph.input}


def _draw(
    value: onnx.ValueInfoProto, sizes: Mapping[str, int], random: np.random.Generator
) -> Array:
    tensor = value.type.tensor_type
    shape = [_size(dim.dim_param, sizes) or dim.dim_value for dim in tensor.shape.dim]
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if "mask" in value.name:
        mask = np.ones(shape, dtype)
        mask[1::2, shape[1] - shape[1] // 4 :] = 0
        return mask
    if "position" in value.name:
        start = sizes.get("past", 0)
        return np.broadcast_to(np.arange(start, start + shape[-1]), shape).astype(dtype)
    if dtype == np.bool_:
        return np.asarray(random.random(shape) < 0.5)
    if np.issubdtype(dtype, np.integer):
        return np.asarray(random.integers(1, VOCABULARY, shape), dtype)
    return np.asarray(random.standard_normal(shape), dtype)


def _size(text: str, sizes: Mapping[str, int]) -> int:
    return sum(sizes.get(term.strip(), 16) for term in text.split("+")) if text else 0
