"""Attention over a cache, for `kernels/ops.py`."""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun

#: Attributes that are computed; of others the default.
_COMPUTED = frozenset(
    {
        "do_rotary",
        "kv_num_heads",
        "local_window_size",
        "num_heads",
        "rotary_interleaved",
        "scale",
        "softcap",
    }
)


class GroupQueryAttention(OpRun):
    """New rows over a cache that gets them: as ONNX Runtime, without what few models have."""

    op_domain = "com.microsoft"

    def _run(
        self,
        q: np.ndarray,
        k: np.ndarray | None,
        v: np.ndarray | None,
        past_k: np.ndarray,
        past_v: np.ndarray,
        lengths: np.ndarray,
        total: np.ndarray,
        cos: np.ndarray | None = None,
        sin: np.ndarray | None = None,
        *others: np.ndarray | None,
        **attributes: float,
    ) -> tuple[np.ndarray, ...]:
        unknown = {name for name, value in attributes.items() if value} - _COMPUTED
        if any(each is not None for each in others) or unknown - {"causal", "qk_norm_epsilon"}:
            raise NotImplementedError("GroupQueryAttention with more than rotated rows")
        heads, groups = int(attributes["num_heads"]), int(attributes["kv_num_heads"])
        if k is None or v is None:
            width = q.shape[2] // (heads + 2 * groups)
            ends = [heads * width, (heads + groups) * width]
            q, k, v = np.split(q, ends, axis=2)
        q, k, v = (
            each.reshape(*each.shape[:2], count, -1).swapaxes(1, 2)
            for each, count in zip((q, k, v), (heads, groups, groups), strict=True)
        )
        batch, _, rows, width = q.shape
        most = int(total.reshape(()))
        shape = batch, groups, max(past_k.shape[2], most), width
        present_k, present_v = np.zeros(shape, k.dtype), np.zeros(shape, v.dtype)
        result = np.zeros((batch, rows, heads * width), q.dtype)
        window = int(attributes.get("local_window_size") or -1)
        scale = attributes.get("scale") or width**-0.5
        for sample in range(batch):
            past = 0 if most == rows else int(lengths[sample]) + 1 - rows
            positions = past + np.arange(rows)
            new_q, new_k = q[sample], k[sample]
            if cos is not None and sin is not None and attributes.get("do_rotary"):
                is_interleaved = bool(attributes.get("rotary_interleaved"))
                new_q, new_k = (
                    _rotated(x, cos[positions], sin[positions], is_interleaved=is_interleaved)
                    for x in (new_q, new_k)
                )
            present_k[sample, :, :past] = past_k[sample, :, :past]
            present_v[sample, :, :past] = past_v[sample, :, :past]
            present_k[sample][:, positions], present_v[sample][:, positions] = new_k, v[sample]
            keys, values = (
                np.repeat(each[sample, :, : past + rows], heads // groups, axis=0)
                for each in (present_k, present_v)
            )
            softcap = attributes.get("softcap") or 0.0
            found = _attention(new_q * scale, keys, values, positions, window, softcap)
            result[sample] = found.swapaxes(0, 1).reshape(rows, -1)
        return result, present_k, present_v


def _rotated(
    x: np.ndarray, cos: np.ndarray, sin: np.ndarray, *, is_interleaved: bool
) -> np.ndarray:
    """Return rows [heads, rows, width] with their first columns rotated, halves or neighbours."""
    half = cos.shape[-1]
    if is_interleaved:
        found = x.copy()
        low, high = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
        found[..., 0 : 2 * half : 2] = low * cos - high * sin
        found[..., 1 : 2 * half : 2] = high * cos + low * sin
        return found
    low, high, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin, rest], axis=-1)


def _attention(
    q: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    positions: np.ndarray,
    window: int,
    softcap: float,
) -> np.ndarray:
    """Return the attention of rows at some places of a cache, which do not see later ones."""
    numbers = np.arange(keys.shape[1])
    seen = numbers <= positions[:, None]
    if window > 0:
        seen &= numbers > positions[:, None] - window
    scores = q @ keys.swapaxes(1, 2)
    if softcap:
        scores = np.tanh(scores / softcap) * softcap
    scores = np.where(seen, scores, -np.inf)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    # What is not seen leaves no trace, whatever it is.
    powers = np.where(seen, powers, 0.0) / powers.sum(axis=-1, keepdims=True)
    return np.asarray(powers @ values)
