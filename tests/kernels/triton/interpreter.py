"""Kernels of regions by Triton's interpreter, launched as their variants say."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ortkit.kernels.cuda import Variant
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.launches import fitting, launches_of, shape_of, sizes_of
from ortkit.kernels.triton.source import VariantSource
from ortkit.refusal import Refused

#: Bytes around each tensor that kernels may not touch.
_AROUND = 256
_UNTOUCHED = 0xA5


def numpy_dtype(name: str) -> np.dtype[Any]:
    """numpy's dtype by ONNX's spelling; bfloat16 as ml_dtypes has it."""
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


class Interpreter:
    """A process in which kernels are interpreted."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("interpreter_child.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "TRITON_INTERPRET": "1"},
        )

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)

    def run(
        self,
        signature: RegionSignature,
        feeds: Sequence[np.ndarray],
        variant: int | None = None,
        shift: int = 0,
        sources: Sequence[VariantSource] | None = None,
        shared: Mapping[int, int] | None = None,
    ) -> list[np.ndarray]:
        """Run a region's kernel.

        Args:
            signature: The region.
            feeds: Its inputs.
            variant: Which of them; None for the first whose conditions hold.
            shift: Bytes that every tensor's data starts behind a multiple of 16.
            sources: What to run instead of the region's own.
            shared: Outputs that lie where inputs lie, by their numbers.
        """
        values = {number: int(feed.item()) for number, feed in enumerate(feeds)
                  if feed.size == 1 and feed.dtype.kind in "iu"}  # fmt: skip
        sizes = sizes_of(signature, [feed.shape for feed in feeds], values)
        if sources is None:
            made = sources_of(signature)
            assert not isinstance(made, Refused), made.reason
            sources = made
        variants = [source.variant([0] * len(source.steps)) for source in sources]
        if variant is None:
            variant = chosen(variants, sizes, is_aligned=shift % 16 == 0)
        outputs = [np.zeros(shape_of(spec, signature, sizes), numpy_dtype(spec.dtype))
                   for spec in signature.outputs]  # fmt: skip
        tensors = [*map(np.ascontiguousarray, feeds), *outputs]
        blocks, starts = zip(*(_block(tensor, shift) for tensor in tensors), strict=True)
        places = {len(feeds) + out: place for out, place in (shared or {}).items()}
        blocks = [blocks[places.get(number, number)] for number in range(len(blocks))]
        found = self._ask(blocks, starts, sources[variant], variants[variant], sizes)
        results = []
        for block, start, tensor in zip(found, starts, tensors, strict=False):
            end = start + tensor.nbytes
            assert (block[:start] == _UNTOUCHED).all(), "written in front of a tensor"
            assert (block[end:] == _UNTOUCHED).all(), "written behind a tensor"
            results.append(block[start:end].copy().view(tensor.dtype).reshape(tensor.shape))
        for number, (before, after) in enumerate(zip(feeds, results, strict=False)):
            if number in places.values():
                continue
            assert np.ascontiguousarray(before).tobytes() == after.tobytes(), "an input changed"
        return results[len(feeds) :]

    def _ask(
        self,
        blocks: Sequence[np.ndarray],
        starts: Sequence[int],
        source: VariantSource,
        variant: Variant,
        sizes: Sequence[int],
    ) -> list[np.ndarray]:
        found = launches_of(source, variant, len(starts), sizes)
        blocks = [*blocks, *(np.full(size, _UNTOUCHED, np.uint8) for size in found.scratch)]
        job = {"blocks": blocks, "starts": starts, "launches": found.launches}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump(job, self._process.stdin)
        self._process.stdin.flush()
        answer = pickle.load(self._process.stdout)
        assert isinstance(answer, list), f"{answer}\n{source.steps[0].text}"
        return answer


def chosen(variants: Sequence[Variant], sizes: Sequence[int], *, is_aligned: bool) -> int:
    """The first variant that may be launched."""
    for number in fitting(variants, sizes):
        if is_aligned or not variants[number].aligned:
            return number
    raise AssertionError("no variant fits")


def _block(tensor: np.ndarray, shift: int) -> tuple[np.ndarray, int]:
    """The tensor's bytes among others, and where they start."""
    block = np.full(_AROUND + 16 + tensor.nbytes + _AROUND, _UNTOUCHED, np.uint8)
    start = _AROUND - block.ctypes.data % 16 + shift
    block[start : start + tensor.nbytes] = np.frombuffer(tensor.tobytes(), np.uint8)
    return block, start
