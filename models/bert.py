"""BERT (base): a post-norm encoder with a padding mask.

Inputs: input_ids and attention_mask, int64 [batch, sequence].
Output: last_hidden_state, float32 [batch, sequence, width].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from models import attention, layers, masks
from models.builder import ALL, LEGACY, TS, Dim, Size, Tape

SPELLINGS = ("dynamo", "ts", "legacy", "dynamo23")


@dataclass(frozen=True)
class Config:
    """Sizes; the full ones are those of Devlin et al. (2018)."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    inner: int
    positions: int = 512
    epsilon: float = 1e-12


CONFIGS = {
    "tiny": Config(vocabulary=128, width=64, layers=2, heads=4, inner=256, positions=128),
    "full": Config(vocabulary=30522, width=768, layers=12, heads=12, inner=3072),
}


def build(size: Size, spelling: str, seed: int) -> onnx.ModelProto:
    """Build the encoder; see `models.catalog.build`."""
    config = CONFIGS[size]
    b = Tape("main_graph", ALL[spelling], seed)
    ids = b.input("input_ids", np.int64, "batch", "sequence")
    mask = b.input("attention_mask", np.int64, "batch", "sequence")
    with b.scope("embeddings"):
        x = _embed(b, ids, config)
    x = layers.layer_norm(b, x, "embeddings.LayerNorm", config.width, config.epsilon)
    # torch.export reads sizes off the inputs, TorchScript off whatever the module read.
    source = x if b.spelling.has_constant_nodes else ids
    sizes = (b.dim(source, 0), b.dim(source, 1))
    allowed = _MASKS[spelling](b, *sizes, mask)
    for i in range(config.layers):
        x = _layer(b, x, allowed, sizes, f"encoder.layer.{i}", config)
    b.output(x, "last_hidden_state", np.float32, "batch", "sequence", config.width)
    return b.model()


def _embed(b: Tape, ids: str, config: Config) -> str:
    """Add the embeddings of words, of the one token type and of positions."""
    batch, length = b.dim(ids, 0), b.dim(ids, 1)
    every_position = b.const(np.arange(config.positions, dtype=np.int64)[None])
    positions = b.slice(every_position, b.ints(0), b.as_vector(length), 1)
    types = _token_types(b, positions, batch, length, config)
    words = layers.embedding(b, ids, "word_embeddings", config.vocabulary, config.width)
    kinds = layers.embedding(b, types, "token_type_embeddings", 2, config.width)
    places = layers.embedding(b, positions, "position_embeddings", config.positions, config.width)
    return b.op("Add", b.op("Add", words, kinds), places)


def _token_types(b: Tape, positions: str, batch: Dim, length: Dim, config: Config) -> str:
    """Write zeros [B, S]: gathered from a buffer of zeros, or made on the spot."""
    if b.spelling == LEGACY:
        zero = onnx.helper.make_tensor("value", TensorProto.INT64, [1], [0])
        return b.op("ConstantOfShape", b.shape(batch, length), value=zero)
    zeros = b.const(np.zeros((1, config.positions), np.int64))
    if b.spelling == TS:
        zeros = layers.expand(b, zeros, b.shape(b.dim(positions, 0), -1))
    gathered = b.op("GatherElements", zeros, positions, axis=1)
    return layers.expand(b, gathered, b.shape(batch, length))


def _layer(b: Tape, x: str, mask: str, sizes: tuple[Dim, Dim], name: str, config: Config) -> str:
    context = _self_attention(b, x, mask, sizes, f"{name}.attention.self", config)
    out = layers.linear(b, context, f"{name}.attention.output.dense", config.width, config.width)
    norm = f"{name}.attention.output.LayerNorm"
    x = layers.layer_norm(b, b.op("Add", out, x), norm, config.width, config.epsilon)
    inner = layers.linear(b, x, f"{name}.intermediate.dense", config.width, config.inner)
    with b.scope(f"{name}.intermediate.intermediate_act_fn"):
        inner = layers.gelu(b, inner)
    out = layers.linear(b, inner, f"{name}.output.dense", config.inner, config.width)
    norm = f"{name}.output.LayerNorm"
    return layers.layer_norm(b, b.op("Add", out, x), norm, config.width, config.epsilon)


def _self_attention(
    b: Tape, x: str, mask: str, sizes: tuple[Dim, Dim], name: str, config: Config
) -> str:
    width = config.width // config.heads
    parts = {
        part: layers.linear(b, x, f"{name}.{part}", config.width, config.width)
        for part in ("query", "key", "value")
    }
    with b.scope(name):
        q, k, v = (
            attention.split_heads(b, part, *_sizes(b, part, sizes), width)
            for part in parts.values()
        )
        query, value = attention.heads_first(b, q), attention.heads_first(b, v)
        key = attention.transpose_keys(b, k)
        if b.spelling == LEGACY:
            context = attention.attend_plainly(b, query, key, value, width, mask)
        else:
            context = attention.attend(b, query, key, value, width, mask=mask)
        sizes = _sizes(b, x, sizes)
        return attention.merge_heads(b, context, value, *sizes, config.width)


def _sizes(b: Tape, x: str, sizes: tuple[Dim, Dim]) -> tuple[Dim, Dim]:
    """Return batch and length; the old modules read them again at every use."""
    return (b.dim(x, 0), b.dim(x, 1)) if b.spelling == LEGACY else sizes


# ---- the mask, [B, 1, S or 1, T] ----


def _mask_dynamo(b: Tape, batch: Dim, length: Dim, mask: str) -> str:
    """Look the padding mask up at an index grid, with what remains of a constant condition."""
    is_token = b.op("Cast", mask, to=TensorProto.BOOL)
    rows, places = b.range(batch), b.range(length)
    row = b.unsqueeze(b.unsqueeze(rows, 1, 2), 3)
    grid = b.unsqueeze(places, 0, 1)
    in_range = b.op("GreaterOrEqual", b.unsqueeze(grid, 3), b.scalar(0))
    always = b.op("And", b.scalar(True), in_range)
    return b.op("And", always, masks.gather_at(b, is_token, row, b.unsqueeze(grid, 2)))


def _mask_ts(b: Tape, batch: Dim, length: Dim, mask: str) -> str:
    """Look the padding mask up in its flat form, then expand it to [B, 1, S, T]."""
    is_token = b.op("Cast", mask, to=TensorProto.BOOL)
    total = b.dim(is_token, 1)
    rows, places, keys = (_count_ts(b, dim) for dim in (batch, length, total))
    row = b.unsqueeze(b.unsqueeze(b.unsqueeze(rows, 1), 2), 3)
    place = b.unsqueeze(b.unsqueeze(b.unsqueeze(places, 0), 1), 3)
    key = b.unsqueeze(b.unsqueeze(b.unsqueeze(keys, 0), 1), 2)
    true = onnx.helper.make_tensor("value", TensorProto.BOOL, [1], [True])
    always = b.op("ConstantOfShape", b.const(np.array([], np.int64)), value=true)
    in_range = b.op("GreaterOrEqual", place, b.scalar(0))
    always = b.op("And", always, b.op("Cast", in_range, to=TensorProto.BOOL))
    stride = b.op("Gather", b.op("Shape", is_token), b.ints(1), axis=0)
    index = b.op("Add", key, b.op("Mul", row, stride))
    found = b.op("Gather", b.op("Flatten", is_token, axis=2), index, axis=0)
    # The exporter flattens the mask to one column, so the lookup has a last axis of size 1.
    flat = b.op("Reshape", found, b.ints(-1), allowzero=0)
    shape = b.op("Concat", b.op("Shape", index), axis=0)
    looked_up = b.op("Reshape", flat, shape, allowzero=0)
    both = b.op("And", always, b.op("Cast", looked_up, to=TensorProto.BOOL))
    return layers.expand(b, both, b.shape(batch, -1, length, total))


def _count_ts(b: Tape, dim: Dim) -> str:
    end = b.op("Cast", b.as_scalar(dim), to=TensorProto.INT64)
    return b.op("Range", b.scalar(0), end, b.scalar(1))


def _mask_legacy(b: Tape, batch: Dim, length: Dim, mask: str) -> str:
    """Subtract from 1 and multiply by -10000, as transformers did before masks were bool."""
    del batch, length  # it broadcasts
    spread = b.op("Cast", b.unsqueeze(b.unsqueeze(mask, 1), 2), to=TensorProto.FLOAT)
    return b.op("Mul", b.op("Sub", b.scalar(1.0), spread), b.scalar(-10000.0))


_MASKS = {"dynamo": _mask_dynamo, "dynamo23": _mask_dynamo, "ts": _mask_ts, "legacy": _mask_legacy}
