"""Rotary position embedding: split-half and interleaved, whole and partial."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.spelling.case import ROTARY, Formula
from tests.spelling.manner import ROWS
from tests.spelling.writer import Writer

HEADS = 2
WIDTH = 16
LAST = np.iinfo(np.int64).max
Write = Callable[[Writer], str]


def frequencies(width: int = WIDTH) -> np.ndarray:
    """Return the inverse frequencies [width / 2]."""
    found: np.ndarray = np.power(100.0, -np.arange(0, width, 2) / width).astype(np.float32)
    return found


def table(width: int = WIDTH) -> np.ndarray:
    """Return the angles of all positions, [ROWS, width / 2]."""
    return np.outer(np.arange(ROWS, dtype=np.float32), frequencies(width))


# ---- the value ----


def heads(w: Writer, x: str, count: int = HEADS, width: int = WIDTH) -> str:
    """[B, S, H * D] to [B, S, H, D]."""
    return w.reshape(x, 0, 0, count, width)


def heads_first(w: Writer) -> str:
    """An input [B, S, H * D] as [B, H, S, D]."""
    return w.transpose(heads(w, w.input("x", "B", "S", HEADS * WIDTH)), 0, 2, 1, 3)


# ---- angles ----


def angles_given(w: Writer, width: int = WIDTH) -> str:
    """Llama in transformers: inv_freq [B, D / 2, 1] @ position_ids [B, 1, S], transposed."""
    positions = w.input("position_ids", "B", "S", kind="positions", dtype=np.int64)
    times = w.cast(w.unsqueeze(positions, 1), np.float32)
    inverse = w.array(frequencies(width).reshape(1, -1, 1))
    shape = w.sizes(w.dim(positions, 0), width // 2, 1)
    return w.transpose(w.op("MatMul", w.op("Expand", inverse, shape), times), 0, 2, 1)


def angles_counted(w: Writer, x: str, axis: int, width: int = WIDTH) -> str:
    """torch.export: Range, Unsqueeze, Cast, Mul: [1, S, D / 2]."""
    start, step = w.array(np.array(0, np.int64)), w.array(np.array(1, np.int64))
    count = w.op("Range", start, w.dim_scalar(x, axis), step)
    times = w.cast(w.unsqueeze(w.unsqueeze(count, 0), 2), np.float32)
    return w.mul(times, w.array(frequencies(width).reshape(1, 1, -1)))


def cos_sin(w: Writer, angles: str, *, double: bool = True) -> tuple[str, str]:
    """Cosine and sine, of two equal halves if asked for."""
    whole = w.op("Concat", angles, angles, axis=-1) if double else angles
    return w.op("Cos", whole), w.op("Sin", whole)


# ---- rotations ----


def rotate_half(w: Writer, x: str, width: int = WIDTH) -> str:
    """Concat(-x[D / 2:], x[:D / 2])."""
    low, high = w.slice(x, -1, 0, width // 2), w.slice(x, -1, width // 2, LAST)
    return w.op("Concat", w.op("Neg", high), low, axis=-1)


def rotate_half_split(w: Writer, x: str, width: int = WIDTH) -> str:
    """The same with a Split."""
    low, high = w.split(x, -1, width // 2, width // 2)
    return w.op("Concat", w.op("Neg", high), low, axis=-1)


def turned(w: Writer, x: str, cos: str, sin: str, rotated: str) -> str:
    """x * cos + rotated * sin."""
    return w.add(w.mul(x, cos), w.mul(rotated, sin))


def half_given(w: Writer) -> str:
    """Llama, position_ids given."""
    x = heads_first(w)
    cos, sin = (w.unsqueeze(v, 1) for v in cos_sin(w, angles_given(w)))
    return turned(w, x, cos, sin, rotate_half(w, x))


def half_counted(w: Writer) -> str:
    """Llama by torch.export."""
    x = heads_first(w)
    cos, sin = (w.unsqueeze(v, 1) for v in cos_sin(w, angles_counted(w, x, 2)))
    return turned(w, x, cos, sin, rotate_half(w, x))


def half_split(w: Writer) -> str:
    """With Split, attention scaling and casts to the type that is there already."""
    x = heads_first(w)
    cos, sin = cos_sin(w, angles_given(w))
    cos, sin = (w.unsqueeze(w.cast(w.mul(v, w.number(1.0)), np.float32), 1) for v in (cos, sin))
    return turned(w, x, cos, sin, rotate_half_split(w, x))


def half_scaled(w: Writer) -> str:
    """YaRN: cosine and sine times a factor."""
    x = heads_first(w)
    cos, sin = cos_sin(w, angles_given(w))
    cos, sin = (w.unsqueeze(w.mul(v, w.number(1.25)), 1) for v in (cos, sin))
    return turned(w, x, cos, sin, rotate_half(w, x))


def half_cached(w: Writer) -> str:
    """Old Llama: tables [rows, D], gathered by position_ids."""
    x = heads_first(w)
    positions = w.input("position_ids", "B", "S", kind="positions", dtype=np.int64)
    full = np.concatenate([table(), table()], -1)
    cos, sin = (
        w.unsqueeze(w.op("Gather", w.array(t.astype(np.float32)), positions, axis=0), 1)
        for t in (np.cos(full), np.sin(full))
    )
    return turned(w, x, cos, sin, rotate_half(w, x))


def half_sliced_table(w: Writer) -> str:
    """GPT-NeoX's old cache [1, 1, rows, D], cut to the length."""
    x = heads_first(w)
    full = np.concatenate([table(), table()], -1)[None, None]
    length, zero, axis = w.dim(x, 2), w.ints(0), w.ints(2)
    cos, sin = (
        w.op("Slice", w.array(t.astype(np.float32)), zero, length, axis)
        for t in (np.cos(full), np.sin(full))
    )
    return turned(w, x, cos, sin, rotate_half(w, x))


def half_two_products(w: Writer) -> str:
    """Concat(x1 * cos - x2 * sin, x2 * cos + x1 * sin), tables of half the width."""
    x = heads_first(w)
    cos, sin = (w.unsqueeze(v, 1) for v in cos_sin(w, angles_given(w), double=False))
    low, high = w.split(x, -1, WIDTH // 2, WIDTH // 2)
    first = w.sub(w.mul(low, cos), w.mul(high, sin))
    second = w.add(w.mul(high, cos), w.mul(low, sin))
    return w.op("Concat", first, second, axis=-1)


def half_sequence_first(w: Writer) -> str:
    """On [B, S, H, D], before the transpose."""
    x = heads(w, w.input("x", "B", "S", HEADS * WIDTH))
    cos, sin = (w.unsqueeze(v, 2) for v in cos_sin(w, angles_given(w)))
    return w.transpose(turned(w, x, cos, sin, rotate_half(w, x)), 0, 2, 1, 3)


def _partial(rotate: int, *, split: bool = False) -> Write:
    def write(w: Writer) -> str:
        x = heads_first(w)
        if split:
            inner, rest = w.split(x, -1, rotate, WIDTH - rotate)
        else:
            inner, rest = w.slice(x, -1, 0, rotate), w.slice(x, -1, rotate, LAST)
        cos, sin = (w.unsqueeze(v, 1) for v in cos_sin(w, angles_given(w, rotate)))
        y = turned(w, inner, cos, sin, rotate_half(w, inner, rotate))
        return w.op("Concat", y, rest, axis=-1)

    return write


# ---- interleaved ----


def _repeated(w: Writer, x: str, width: int = WIDTH) -> str:
    """repeat_interleave(x, 2) over the last axis, of [B, S, D / 2]."""
    pair = w.unsqueeze(x, 3)
    shape = w.sizes(w.dim(x, 0), w.dim(x, 1), width // 2, 2)
    return w.reshape(w.op("Expand", pair, shape), 0, 0, width)


def _rotate_every_two(w: Writer, x: str, width: int = WIDTH) -> str:
    """GPT-J: stack(-x[1::2], x[::2]), flattened; of [B, S, H, D]."""
    even, odd = w.slice(x, -1, 0, LAST, 2), w.slice(x, -1, 1, LAST, 2)
    parts = [w.unsqueeze(part, -1) for part in (w.op("Neg", odd), even)]
    return w.reshape(w.op("Concat", *parts, axis=-1), 0, 0, 0, width)


def interleaved_gptj(w: Writer) -> str:
    """GPT-J, all channels."""
    x = heads(w, w.input("x", "B", "S", HEADS * WIDTH))
    cos, sin = cos_sin(w, angles_given(w), double=False)
    cos, sin = (w.unsqueeze(_repeated(w, v), 2) for v in (cos, sin))
    y = turned(w, x, cos, sin, _rotate_every_two(w, x))
    return w.transpose(y, 0, 2, 1, 3)


def interleaved_partial(w: Writer) -> str:
    """GPT-J, the first half of the channels."""
    x = heads(w, w.input("x", "B", "S", HEADS * WIDTH))
    inner, rest = w.slice(x, -1, 0, 8), w.slice(x, -1, 8, LAST)
    cos, sin = cos_sin(w, angles_given(w, 8), double=False)
    cos, sin = (w.unsqueeze(_repeated(w, v, 8), 2) for v in (cos, sin))
    y = turned(w, inner, cos, sin, _rotate_every_two(w, inner, 8))
    return w.transpose(w.op("Concat", y, rest, axis=-1), 0, 2, 1, 3)


def interleaved_complex(w: Writer) -> str:
    """Meta's Llama and GLM: pairs as complex numbers."""
    x = w.input("x", "B", "S", HEADS * WIDTH)
    pairs = w.reshape(x, 0, 0, HEADS, WIDTH // 2, 2)
    real, imaginary = (
        w.op("Gather", pairs, w.array(np.array(i, np.int64)), axis=4) for i in (0, 1)
    )
    cos, sin = (w.unsqueeze(v, 2) for v in cos_sin(w, angles_given(w), double=False))
    parts = (
        w.sub(w.mul(real, cos), w.mul(imaginary, sin)),
        w.add(w.mul(real, sin), w.mul(imaginary, cos)),
    )
    y = w.op("Concat", *(w.unsqueeze(part, -1) for part in parts), axis=-1)
    return w.reshape(y, 0, 0, HEADS, WIDTH)


def _rotary(op: str, name: str, write: Write, count: int = 2) -> Formula:
    return Formula(op, name, write, ROTARY, frozenset({"Neg", "Sub"}), manners=count)


FORMULAS: tuple[Formula, ...] = (
    _rotary("rotary half", "position ids", half_given, 3),
    _rotary("rotary half", "counted", half_counted),
    _rotary("rotary half", "split", half_split),
    _rotary("rotary half", "scaled", half_scaled, 1),
    _rotary("rotary half", "cached", half_cached),
    _rotary("rotary half", "sliced table", half_sliced_table),
    _rotary("rotary half", "two products", half_two_products),
    _rotary("rotary half", "sequence first", half_sequence_first),
    _rotary("rotary partial", "slices", _partial(8)),
    _rotary("rotary partial", "split", _partial(8, split=True)),
    _rotary("rotary partial", "small", _partial(4), 1),
    _rotary("rotary partial", "interleaved", interleaved_partial, 1),
    _rotary("rotary interleaved", "pairs", interleaved_gptj),
    _rotary("rotary interleaved", "complex", interleaved_complex),
)
