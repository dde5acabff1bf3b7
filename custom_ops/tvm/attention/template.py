"""What templates of attention have in common, and what it costs one thread.

Measured with onnxruntime 1.31.1 on a server processor with AVX-512 (2026-11), float32, from 16 to
1500 queries and keys and heads of 32 to 128. ONNX Runtime multiplies matrices of whole heads, and
writes all scores to memory; it makes a mask of causality, and goes through a mask element by
element. Ours keeps scores in the first cache and skips what causality hides, but computes whole
blocks of queries.
"""

from __future__ import annotations

from dataclasses import dataclass

from ortkit.kernels.anchor import NOMINAL_SIZE
from ortkit.kernels.signature import RegionSignature

from ...forms.attention_cpu import AttentionForm
from ..tile.program import Tuned, UnitKernel


@dataclass(frozen=True)
class _Rates:
    """Time of a multiply-add and additional time of a score, in ns."""

    multiply: float
    score: float


_RUNTIME = _Rates(1 / 85, 0.28)
_OURS = _Rates(1 / 75, 0.3)
# In bfloat16, in tiles.
_OURS_ROUNDED = _Rates(1 / 800, 0.3)
# Of a score: ONNX Runtime's mask of causality, and any mask in either.
_CAUSAL, _MASK, _OUR_MASK = 2.9, 2.0, 0.1
# Of a score, by the bytes of all: beyond the second cache they go through the next, or memory.
_SPILL = ((1 << 22, 0.0), (1 << 24, 0.4), (1 << 62, 1.2))
_SCORE_BYTES = 4
# Queries of our blocks; the last one of a head may be the smaller.
_BLOCK, _SMALL_BLOCK = 32, 16


@dataclass(frozen=True)
class AttentionTemplate(Tuned, UnitKernel):
    """One attention of a region; `panel` are queries of a block, as the kernel counts them.

    Args:
        form: What is computed.
        keys: Of a block, at most; 0: what the rule says.
    """

    parameters = ("panel", "keys")

    form: AttentionForm
    keys: int = 0

    @property
    def signature(self) -> RegionSignature:
        """The region's."""
        return self.form.signature

    def estimate(self, level: str) -> tuple[float, float]:
        """Return nanoseconds of attention, ONNX Runtime's and ours; a batch counts once."""
        del level
        of = self.form
        queries, keys = of.q.length.at(NOMINAL_SIZE), of.k.length.at(NOMINAL_SIZE)
        heads, width = of.q.batch.at(1) * of.q.heads, of.q.width + of.v.width
        scores = heads * queries * keys
        each = _RUNTIME.score + width * _RUNTIME.multiply + _spill_ns(scores)
        each += (_CAUSAL if of.is_causal else 0.0) + (_MASK if of.mask else 0.0)
        rates = _OURS_ROUNDED if of.is_rounded else _OURS
        ours = rates.score + width * rates.multiply + (_OUR_MASK if of.mask else 0.0)
        return scores * each, heads * _computed(queries, keys, is_causal=of.is_causal) * ours


def _spill_ns(scores: int) -> float:
    size = scores * _SCORE_BYTES
    return next((rate for limit, rate in _SPILL if size <= limit), _SPILL[-1][1])


def _computed(queries: int, keys: int, *, is_causal: bool) -> int:
    """Return how many scores of a head are computed."""
    whole, rest = divmod(queries, _BLOCK)
    blocks = [_BLOCK] * whole
    if rest:
        blocks.append(_SMALL_BLOCK if rest <= _SMALL_BLOCK else _BLOCK)
    if not is_causal:
        return sum(blocks) * keys
    ends = [number * _BLOCK + width for number, width in enumerate(blocks)]
    return sum(width * min(keys, end) for width, end in zip(blocks, ends, strict=True))
