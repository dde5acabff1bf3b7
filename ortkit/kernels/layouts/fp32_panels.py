"""Matrices of products in float32 as their kernels read them: panels of columns.

A matrix is packed once: when a model is optimized, which then has it in no other form, or when a
session with `OrtkitExecutionProvider` is made. Within a panel a row's columns lie next to each
other, and the rows follow one another, so that a kernel reads a panel from one end to the other,
whatever vectors its processor has.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
#: Columns of a panel, vectors of 16: tiles of each are as fast.
_WIDTHS = (48, 64, 32)


def panels_shape(depth: int, columns: int) -> tuple[int, int, int]:
    """Return panels, depth and the columns of a panel that leave the fewest over."""
    width = min(_WIDTHS, key=lambda one: -columns % one)
    return -(-columns // width), depth, width


def panels(matrix: Array) -> Array:
    """Return [depth, columns] packed, a view where that can be.

    Columns that the last panel has too many are 0.
    """
    depth, columns = matrix.shape
    count, _, width = panels_shape(depth, columns)
    if left := count * width - columns:
        matrix = np.pad(matrix, ((0, 0), (0, left)))
    return matrix.reshape(depth, count, width).transpose(1, 0, 2)


def matrix_nodes(packed: str, result: str, depth: int, columns: int) -> list[onnx.NodeProto]:
    """Return nodes that make the [depth, columns] `result` of its packed form.

    What lies between is called `<result>_...`.
    """
    count, _, width = panels_shape(depth, columns)
    whole = count * width
    shaped = result if whole == columns else f"{result}_whole"
    nodes = [
        helper.make_node("Transpose", [packed], [f"{result}_rows"], perm=[1, 0, 2]),
        constant_node(f"{result}_sizes", np.array([depth, whole])),
        helper.make_node("Reshape", [f"{result}_rows", f"{result}_sizes"], [shaped]),
    ]
    if shaped != result:
        bounds = {f"{result}_first": 0, f"{result}_last": columns, f"{result}_axis": 1}
        nodes += [constant_node(name, np.array([bound])) for name, bound in bounds.items()]
        nodes.append(helper.make_node("Slice", [shaped, *bounds], [result]))
    return nodes


def constant_node(name: str, array: Array) -> onnx.NodeProto:
    """Return a Constant."""
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))
