"""A recurrent cell in a Loop over the sequence, with an If inside, then a Loop that may stop
early and an If outside. All subgraphs read values of the graphs around them.

Inputs: x, float32 [batch, sequence, width]; steps, int64 [] (the most refinements).
Outputs: states, float32 [sequence, batch, width]; refined, float32 [batch, width]; count,
int64 [] (the refinements made).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto

from models import layers
from models.builder import ALL, Size, Tape

if TYPE_CHECKING:
    from collections.abc import Callable

SPELLINGS = ("dynamo", "ts")


@dataclass(frozen=True)
class Config:
    """Sizes."""

    width: int
    tolerance: float = 0.3
    """The refinement stops when the mean change falls below this."""


CONFIGS = {"tiny": Config(width=24), "full": Config(width=768)}


def build(size: Size, spelling: str, seed: int) -> onnx.ModelProto:
    """Build the model; see `models.catalog.build`."""
    config = CONFIGS[size]
    b = Tape("main_graph", ALL[spelling], seed)
    x = b.input("x", np.float32, "batch", "sequence", config.width)
    steps = b.input("steps", np.int64)
    projected = layers.linear(b, x, "input", config.width, config.width)
    scale = b.op("Sigmoid", b.reduce_mean(x, 1, keepdims=False))
    last, states = _recur(b, projected, scale, config)
    refined, count = _refine(b, last, scale, steps, config)
    mean = b.op("Squeeze", b.reduce_mean(b.op("Abs", refined), 0, 1))
    is_large = b.op("Greater", mean, b.scalar(0.5))
    chosen = _if(
        b,
        is_large,
        lambda branch: branch.op("Mul", refined, scale),
        lambda branch: layers.linear(branch, refined, "otherwise", config.width, config.width),
        config,
    )
    b.output(states, "states", np.float32, "sequence", "batch", config.width)
    b.output(chosen, "refined", np.float32, "batch", config.width)
    b.output(count, "count", np.int64)
    return b.model()


def _recur(b: Tape, projected: str, scale: str, config: Config) -> tuple[str, str]:
    """Run the cell over the sequence; return the last state and all, [S, batch, width]."""
    length = b.as_scalar(b.dim(projected, 1))
    start = b.op("Mul", scale, b.scalar(0.0))
    body = b.subgraph("recur_body")
    i = body.input("recur_i", np.int64)
    going = body.input("recur_going", np.bool_)
    h = body.input("recur_h", np.float32, "batch", config.width)
    new = _cell(body, body.op("Gather", projected, i, axis=1), h, scale, config)
    body.output(body.op("Identity", going), "recur_still", np.bool_)
    body.output(new, "recur_next", np.float32, "batch", config.width)
    body.output(body.op("Identity", new), "recur_state", np.float32, "batch", config.width)
    last, states = b.ops("Loop", length, b.scalar(True), start, outputs=2, body=body.graph())
    return last, states


def _cell(b: Tape, now: str, h: str, scale: str, config: Config) -> str:
    """Update the state, then damp or boost it; [batch, width] each."""
    mixed = b.op("Tanh", b.op("Add", now, layers.linear(b, h, "cell", config.width, config.width)))
    mean = b.op("Squeeze", b.reduce_mean(mixed, 0, 1))
    return _if(
        b,
        b.op("Greater", mean, b.scalar(0.0)),
        lambda branch: branch.op("Mul", mixed, scale),
        lambda branch: branch.op("Add", branch.op("Mul", mixed, branch.scalar(1.25)), scale),
        config,
    )


def _refine(b: Tape, y: str, scale: str, steps: str, config: Config) -> tuple[str, str]:
    """Repeat y <- tanh(y W + b) + scale until it hardly changes; return it and the count."""
    body = b.subgraph("refine_body")
    i = body.input("refine_i", np.int64)
    body.input("refine_going", np.bool_)
    old = body.input("refine_y", np.float32, "batch", config.width)
    body.input("refine_count", np.int64)
    step = layers.linear(body, old, "refine", config.width, config.width, gain=0.5)
    new = body.op("Add", body.op("Tanh", step), scale)
    change = body.reduce_mean(body.op("Abs", body.op("Sub", new, old)), 0, 1)
    still = body.op("Greater", body.op("Squeeze", change), body.scalar(config.tolerance))
    if b.spelling.has_constant_nodes:
        still = body.op("Cast", still, to=TensorProto.BOOL)
    made = body.op("Add", i, body.scalar(1))
    body.output(still, "refine_still", np.bool_)
    body.output(new, "refine_new", np.float32, "batch", config.width)
    body.output(made, "refine_made", np.int64)
    inputs = (steps, b.scalar(True), y, b.scalar(0))
    refined, count = b.ops("Loop", *inputs, outputs=2, body=body.graph())
    return refined, count


def _if(
    b: Tape,
    condition: str,
    then: Callable[[Tape], str],
    otherwise: Callable[[Tape], str],
    config: Config,
) -> str:
    """Choose between two values [batch, width], each computed in its own subgraph."""
    branches = []
    for kind, write in (("then", then), ("else", otherwise)):
        branch = b.subgraph(f"{kind}_{condition}")
        name = f"{condition}_{kind}_value"
        branch.output(write(branch), name, np.float32, "batch", config.width)
        branches.append(branch.graph())
    return b.op("If", condition, then_branch=branches[0], else_branch=branches[1])
