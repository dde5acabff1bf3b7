"""What is known of one operator, whatever the node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Access: TypeAlias = Literal[
    "elementwise", "view", "reduction", "normalization", "rotary", "matmul", "conv", "attention",
    "recurrent", "quantize", "control", "other",
]  # fmt: skip
"""How the elements of the output come from those of the inputs.
elementwise: each from the same element of the inputs, which broadcast.
view: elements moved, repeated, left out or filled in, none computed.
reduction: along axes, which stay with size 1 or go.
normalization: along axes, the input's shape kept (LayerNormalization, Softmax).
rotary: pairs of elements along the last axis, the input's shape kept.
control: its nodes hold graphs."""

Dtype: TypeAlias = Literal["input", "bool", "int64", "attribute", "other"]


@dataclass(frozen=True)
class OpInfo:
    """One operator as the newest version of the standard has it.

    Attributes:
        domain: Empty for ONNX's own.
        op_type: Its name.
        access: How it reads its inputs.
        inputs: The least and the most inputs; None: any number.
        dtype: The element type of the first output: that of the first data input, a fixed one,
            or what the attribute `to` says.
        broadcasts: All inputs broadcast to one shape, that of the output.
        commutative: The inputs may change places; the result is equal bit by bit.
        affine: Scales and shifts each data input where all others are constants, but for rounding.
        random: Two runs may differ.
        training_input: The input that says whether it is in training; without it, it is neither
            that nor random.
        exact: Rounds nothing: moves elements, chooses among them, changes a sign, or gives an
            integer.
        activation: A function of one tensor that networks have between their layers.
        moves_only: Each element of the output is one of the data input's, unchanged.
        indexed: Moves the elements that a parameter input names, by index or by condition.
        keeps_all: Moves only, and no element of the data input is left out.
        reshapes: All elements stay, in their order; only the shape changes.
        row_norm: Divides each row by its deviation or root mean square, then scales it.
        integer: Multiplies 8-bit integers, or what is quantized to them.
        parameter_inputs: Inputs that say how (axes, sizes, indices) and are no data.
        data_inputs: Inputs whose elements the result is made of; of a variadic one, the first
            stands for all.
    """

    domain: str
    op_type: str
    access: Access
    inputs: tuple[int, int | None]
    dtype: Dtype = "input"
    broadcasts: bool = False
    commutative: bool = False
    affine: bool = False
    random: bool = False
    training_input: int | None = None
    exact: bool = False
    activation: bool = False
    moves_only: bool = False
    indexed: bool = False
    keeps_all: bool = False
    reshapes: bool = False
    row_norm: bool = False
    integer: bool = False
    parameter_inputs: tuple[int, ...] = ()
    data_inputs: tuple[int, ...] = (0,)
