"""Tokens through a decoder and its caches, in a process of its own: what the logits are."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortkit.genai.layout import Cache, DecoderLayout
from ortkit.runtime.opening import SessionPlan, open_session
from ortkit.runtime.ort import preload_onnxruntime

before_jobs = preload_onnxruntime
_BFLOAT16 = 16
#: Types of caches: ONNX Runtime's names to ONNX's element types.
_CACHE_TYPES = {"tensor(float)": 1, "tensor(float16)": 10, "tensor(bfloat16)": _BFLOAT16}
_INTEGERS = {"tensor(int32)": np.int32, "tensor(int64)": np.int64}


@dataclass(frozen=True)
class DecodeJob:
    """Prefill with a prompt, then one token at a time.

    Args:
        plan: The decoder.
        layout: How it is called.
        tokens: A sequence; the first `prompt` are run at once, others one at a time.
        prompt: At least 1.
        greedy: Tokens that the decoder itself adds to them, each its most likely one.
        results: The npy file that gets the logits in float32, [tokens run, vocabulary], one row
            for each token. Where prefill gives its last row only, the others are NaN.
    """

    plan: SessionPlan
    layout: DecoderLayout
    tokens: tuple[int, ...]
    prompt: int
    greedy: int
    results: Path


def decode(job: DecodeJob) -> tuple[int, ...]:
    """Return all tokens that were run, and write the logits behind each.

    Raises:
        Exception: ONNX Runtime's own.
    """
    import onnxruntime as ort

    decoder = _Decoder(ort, open_session(ort, job.plan), job.layout)
    tokens = list(job.tokens)
    rows = [decoder.step(tokens[: job.prompt])]
    for at in range(job.prompt, len(job.tokens) + job.greedy):
        if at == len(tokens):
            tokens.append(int(np.argmax(rows[-1][-1])))
        rows.append(decoder.step(tokens[at : at + 1]))
    np.save(job.results, np.concatenate(rows))
    return tuple(tokens)


class _Decoder:
    """A session with its caches: the outputs of a step are the inputs of the next."""

    def __init__(self, ort: Any, session: Any, layout: DecoderLayout) -> None:
        self._ort, self._session, self._layout = ort, session, layout
        self._types = {each.name: each.type for each in session.get_inputs()}
        self._past = 0
        self._caches = {cache.past: self._empty(cache) for cache in layout.caches}

    def step(self, tokens: list[int]) -> NDArray[np.float32]:
        """Run new tokens; return the logits behind each, [new, vocabulary]."""
        layout, new = self._layout, len(tokens)
        total = self._past + new
        feeds = {**self._caches, layout.ids: self._integers(layout.ids, np.array([tokens]))}
        if layout.mask:
            feeds[layout.mask] = self._integers(layout.mask, np.ones((1, total)))
        if layout.positions:
            positions = np.arange(self._past, total)[None]
            feeds[layout.positions] = self._integers(layout.positions, positions)
        wanted = [layout.logits, *(cache.present for cache in layout.caches)]
        logits, *present = self._session.run_with_ort_values(wanted, feeds)
        self._caches = {c.past: value for c, value in zip(layout.caches, present, strict=True)}
        self._past = total
        rows = _as_float32(logits).reshape(-1, logits.shape()[-1])
        missing = np.full((new - len(rows), rows.shape[1]), np.nan, np.float32)
        return np.concatenate([missing, rows])

    def _integers(self, name: str, array: NDArray[Any]) -> Any:
        if self._types[name] not in _INTEGERS:
            raise TypeError(f"input {name!r} is {self._types[name]}, not integers")
        return self._ort.OrtValue.ortvalue_from_numpy(array.astype(_INTEGERS[self._types[name]]))

    def _empty(self, cache: Cache) -> Any:
        """Return a cache without a token, or a state of zeros."""
        kind = self._types[cache.past]
        if kind not in _CACHE_TYPES:
            raise TypeError(f"cache {cache.past!r} is {kind}, which is not supported")
        value = self._ort.OrtValue.ortvalue_from_shape_and_type(
            list(cache.empty), _CACHE_TYPES[kind]
        )
        ctypes.memset(value.data_ptr(), 0, value.tensor_size_in_bytes())
        return value


def _as_float32(value: Any) -> NDArray[np.float32]:
    """Return a tensor of any float type as float32."""
    if value.element_type() != _BFLOAT16:
        found: NDArray[np.float32] = value.numpy().astype(np.float32)
        return found
    data = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    bits = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
    return bits.view(np.float32).reshape(value.shape())
