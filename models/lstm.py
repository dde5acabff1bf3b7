"""A two-layer bidirectional LSTM tagger.

Input: input_ids, int64 [batch, sequence].
Output: logits, float32 [batch, sequence, tags].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from models import layers
from models.builder import ALL, Size, Tape

SPELLINGS = ("dynamo", "ts")


@dataclass(frozen=True)
class Config:
    """Sizes; the full ones are those of a common sequence tagger."""

    vocabulary: int
    width: int
    hidden: int
    tags: int
    layers: int = 2


CONFIGS = {
    "tiny": Config(vocabulary=128, width=24, hidden=16, tags=9),
    "full": Config(vocabulary=10000, width=512, hidden=512, tags=50),
}


def build(size: Size, spelling: str, seed: int) -> onnx.ModelProto:
    """Build the tagger; see `models.catalog.build`."""
    config = CONFIGS[size]
    b = Tape("main_graph", ALL[spelling], seed)
    ids = b.input("input_ids", np.int64, "batch", "sequence")
    x = layers.embedding(b, ids, "embedding", config.vocabulary, config.width)
    with b.scope("lstm"):
        zeros = _zeros(b, ids, config)
        x = b.transpose(x, 1, 0, 2)
        for i in range(config.layers):
            x = _layer(b, x, zeros, i, config)
        x = b.transpose(x, 1, 0, 2)
    logits = layers.linear(b, x, "output", 2 * config.hidden, config.tags)
    b.output(logits, "logits", np.float32, "batch", "sequence", config.tags)
    return b.model()


def _zeros(b: Tape, ids: str, config: Config) -> str:
    """Write the initial states of all layers and directions, [2 * layers, batch, hidden]."""
    shape = b.shape(2 * config.layers, b.dim(ids, 0), config.hidden)
    if not b.spelling.has_constant_nodes:
        return b.op("Expand", b.scalar(0.0), shape)
    zero = helper.make_tensor("value", TensorProto.FLOAT, [1], [0.0])
    return b.op("ConstantOfShape", shape, value=zero)


def _layer(b: Tape, x: str, zeros: str, layer: int, config: Config) -> str:
    """Run both directions over [sequence, batch, width] and join what they give."""
    hidden = config.hidden
    fan_in = 2 * hidden if layer else config.width
    drawn = {
        "W": b.draw(f"lstm.weight_ih_l{layer}", 2, 4 * hidden, fan_in, scale=fan_in**-0.5),
        "R": b.draw(f"lstm.weight_hh_l{layer}", 2, 4 * hidden, hidden, scale=hidden**-0.5),
        "B": b.draw(f"lstm.bias_l{layer}", 2, 8 * hidden, scale=0.1),
    }
    weights = [b.folded_weight("LSTM", value) for value in drawn.values()]
    span = b.ints(2 * layer), b.ints(2 * layer + 2)
    # TorchScript slices the states twice; torch.export shares the slice.
    states = [b.op("Slice", zeros, *span, b.ints(0)) for _ in range(2)]
    outputs = 3 if b.spelling.has_constant_nodes else 1
    inputs = (x, *weights, "", *states)
    y = b.ops("LSTM", *inputs, outputs=outputs, direction="bidirectional", hidden_size=hidden)[0]
    apart = b.transpose(y, 0, 2, 1, 3)
    if b.spelling.has_constant_nodes:
        return b.op("Reshape", apart, b.ints(0, 0, -1), allowzero=0)
    shape = b.op("Shape", apart, start=0)
    sizes = [b.op("Slice", shape, b.ints(i), b.ints(i + 1)) for i in range(4)]
    joint = b.op("Reshape", b.op("Mul", sizes[2], sizes[3]), b.ints(-1), allowzero=0)
    return b.op("Reshape", apart, b.op("Concat", *sizes[:2], joint, axis=0), allowzero=0)
