"""Blocks of queries and keys, warps and stages, by what was measured."""

from __future__ import annotations

from dataclasses import dataclass

from ortkit.kernels.cuda import Condition

from .attention_form import AttentionForm


@dataclass(frozen=True)
class Tile:
    """One way to cut an attention.

    Args:
        queries: Of a block.
        keys: Of a block.
        warps: Of 32 threads.
        stages: How many blocks of keys are loaded ahead, as Triton counts them.
        conditions: When it is the fastest.
        architectures: Those that it is for; None for all.
        is_optional: Whether a later one does where it is missing.
    """

    queries: int
    keys: int
    warps: int
    stages: int
    conditions: tuple[Condition, ...] = ()
    architectures: tuple[int, ...] | None = None
    is_optional: bool = False


def tiles_of(form: AttentionForm) -> tuple[Tile, ...]:
    """Return the cuts worth having, the last one for everything."""
    width = max(form.q.width, form.v.width)
    if width <= 64:
        return (Tile(64, 64, 4, 3),)
    if width <= 128:
        return (Tile(64, 64, 4, 2),)
    return (Tile(64, 32, 4, 2),)
