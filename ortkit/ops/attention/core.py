"""Attention as it is written: its parts, and why something is none."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

#: What a masked score is set to, at most: exp of it is 0 next to any other score.
MASKED = -1e4
#: Nodes followed between a product and its Softmax.
LONGEST = 24
LAYOUT = ("Identity", "Reshape", "Squeeze", "Unsqueeze")


@dataclass(frozen=True)
class Bias:
    """What is added to the scores: `factor` times a value that broadcasts to them."""

    value: ir.Value
    factor: float
    scores: ir.Value
    """The scores that it is added to, in their shape at that place."""


@dataclass(frozen=True)
class Choice:
    """Where scores are kept, and what stands in the place of the others."""

    condition: ir.Value
    keeps: bool
    """Whether a score is kept where the condition is true."""
    fill: float
    """In units of the scores that reach the Softmax."""
    scores: ir.Value


@dataclass(frozen=True)
class Floor:
    """Scores below a number that masks anyway are set to it: no -inf comes out."""

    number: float
    """In units of the scores that reach the Softmax."""


MaskStep = Bias | Choice | Floor


@dataclass(frozen=True)
class Core:
    """softmax(scale * Q K^T, capped, masked) V as it is written."""

    softmax: ir.Node
    query: ir.Value
    """[..., S, D]"""
    key: ir.Value
    """[..., D, T]"""
    value: ir.Value
    """[..., T, Dv]"""
    scores: ir.Value
    """[..., S, T], as the product gives them."""
    result: ir.Value
    """[..., S, Dv]"""
    is_value_lhs: bool
    """Whether the result is written as V^T P^T: `value` is [..., Dv, T], `result` [..., Dv, S]."""
    dtype: ir.DataType
    """Epilogue of the matmul."""
    scale: float = 1.0
    gains: tuple[Bias, ...] = ()
    """Factors that are no numbers, one per head or so."""
    softcap: float = 0.0
    steps: tuple[MaskStep, ...] = ()
    """What masks the scores, in the order in which it is done to them."""
    zeroes_nan: bool = False
    """Whether NaN, which rows without any kept score give, becomes zero."""
    precision: ir.DataType | None = None
    """The type that the Softmax works in where it is not that of the scores."""
    masks_in_precision: bool = False
    """Whether scores are masked in that type."""
    measured: tuple[ir.Node, ...] = ()
    """Shape nodes that read scores or probabilities."""


def measures(value: ir.Value) -> list[ir.Node]:
    """Return the nodes that read the shape of `value` and nothing else of it."""
    return [
        node
        for node in dict.fromkeys(value.consumers())
        if node.domain == "" and node.op_type == "Shape"
    ]


def readers(value: ir.Value) -> list[ir.Node]:
    """Return the nodes that read elements of `value`, once for each input that does."""
    return [use.node for use in value.uses() if use.node.domain or use.node.op_type != "Shape"]
