"""A Llama decoder with its key and value cache, as it is exported for generation.

Inputs: input_ids, int64 [batch, sequence]; attention_mask, int64 [batch, past + sequence];
past_key_values.N.key and .value, float32 [batch, key heads, past, head width].
Outputs: logits, float32 [batch, sequence, vocabulary]; present.N.key and .value, float32
[batch, key heads, past + sequence, head width].
"""

from __future__ import annotations

import numpy as np
import onnx

from models import layers, masks, rotary
from models.builder import ALL, Dim, Size, Tape
from models.llama import CONFIGS, Config, Context, decoder_layer

SPELLINGS = ("dynamo", "ts", "dynamo23")
TOTAL = "past + sequence"


def build(size: Size, spelling: str, seed: int) -> onnx.ModelProto:
    """Build the decoder; see `models.catalog.build`."""
    config = CONFIGS[size]
    b = Tape("main_graph", ALL[spelling], seed)
    ids = b.input("input_ids", np.int64, "batch", "sequence")
    mask = b.input("attention_mask", np.int64, "batch", TOTAL)
    cache = [_past(b, i, config) for i in range(config.layers)]
    x = layers.embedding(b, ids, "model.embed_tokens", config.vocabulary, config.width)
    context = _context(b, ids, mask, b.dim(cache[0][0], 2), config)
    present = []
    for i, past in enumerate(cache):
        x, k, v = decoder_layer(b, x, context, f"model.layers.{i}", config, past)
        present.append((k, v))
    x = layers.rms_norm(b, x, "model.norm", config.width, config.epsilon)
    logits = layers.linear(b, x, "lm_head", config.width, config.vocabulary, bias=False)
    b.output(logits, "logits", np.float32, "batch", "sequence", config.vocabulary)
    dims = ("batch", config.key_heads, TOTAL, config.head_width)
    for i, (k, v) in enumerate(present):
        b.output(k, f"present.{i}.key", np.float32, *dims)
        b.output(v, f"present.{i}.value", np.float32, *dims)
    return b.model()


def _past(b: Tape, layer: int, config: Config) -> tuple[str, str]:
    dims = ("batch", config.key_heads, "past", config.head_width)
    key = b.input(f"past_key_values.{layer}.key", np.float32, *dims)
    return key, b.input(f"past_key_values.{layer}.value", np.float32, *dims)


def _context(b: Tape, ids: str, mask: str, past: Dim, config: Config) -> Context:
    batch, length = b.dim(ids, 0), b.dim(ids, 1)
    if b.spelling.has_constant_nodes:
        end = b.op("Add", b.as_scalar(length), b.as_scalar(past))
        places = b.op("Range", b.as_scalar(past), end, b.scalar(1))
        positions = b.reshape(b.unsqueeze(places, 0), -1, length)
        causal = masks.filled_causal(b, batch, length, past)
        allowed = b.op("Add", masks.expanded_padding(b, batch, length, mask), causal)
    else:
        places = b.op("Add", b.range(length), b.as_scalar(past))
        positions = b.unsqueeze(places, 0)
        allowed = masks.padded_causal(b, batch, length, past, mask)
        if b.spelling.opset >= 23:
            # Without position ids RotaryEmbedding wants a row for each batch entry.
            positions = b.op("Expand", positions, b.shape(batch, 1))
    cos, sin = rotary.cos_and_sin(b, positions, config.head_width)
    return Context(batch, length, cos, sin, allowed)
