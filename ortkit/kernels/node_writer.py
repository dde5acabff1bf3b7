"""Nodes of a body, written one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import helper, numpy_helper

from ortkit.kernels.prepack import Prepack


@dataclass
class NodeWriter:
    """Collects nodes; results without a name are called `stem` and a number.

    Args:
        stem: What their names begin with.
        dtype: Of numbers.
    """

    stem: str = "t"
    dtype: np.dtype = field(default_factory=lambda: np.dtype(np.float32))
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def op(self, op_type: str, *inputs: str, **attributes: object) -> str:
        """Add a node, and return its result."""
        return self.named(f"{self.stem}{len(self.nodes)}", op_type, *inputs, **attributes)

    def named(self, output: str, op_type: str, *inputs: str, **attributes: object) -> str:
        """Add a node whose result has a name; empty: one like others."""
        if not output:
            return self.op(op_type, *inputs, **attributes)
        node = helper.make_node(op_type, inputs, [output])
        node.attribute.extend(helper.make_attribute(*item) for item in attributes.items())
        self.nodes.append(node)
        return output

    def split(self, value: str, sizes: str, axis: int) -> tuple[str, str]:
        """Add a Split into two parts, and return them."""
        parts = f"{self.stem}{len(self.nodes)}a", f"{self.stem}{len(self.nodes)}b"
        self.nodes.append(helper.make_node("Split", [value, sizes], parts, axis=axis))
        return parts

    def constant(self, value: ArrayLike, dtype: np.dtype | None = None) -> str:
        """Add a Constant; of integers int64 if no type is named."""
        return self.op("Constant", value=numpy_helper.from_array(np.array(value, dtype)))

    def number(self, value: float, dtype: np.dtype | None = None) -> str:
        """Add a number of the type that is computed in, or of another."""
        return self.constant(np.array(value).astype(dtype or self.dtype))

    def integers(self, *values: int) -> str:
        """Add sizes, or axes."""
        return self.constant(np.array(values, np.int64))

    def unpacked(self, packed: str, layout: Prepack) -> str:
        """Add the nodes that unpack a packed constant."""
        return layout.write(
            packed,
            lambda _, op_type, inputs, attributes: self.op(op_type, *inputs, **attributes),
            lambda _, numbers: self.integers(*numbers),
        )
