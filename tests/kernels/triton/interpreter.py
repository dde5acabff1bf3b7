"""Kernels of regions by Triton's interpreter, launched as their variants say."""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ortkit.kernels.cuda import (
    MAX_GRID,
    Argument,
    CeilDiv,
    Condition,
    TensorMap,
    Variant,
)
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.sizes import Extent, extent_of, symbols_of
from ortkit.kernels.triton.source import VariantSource, sources_of
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
        sizes = sizes_of(signature, feeds)
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
        blocks = [*blocks, *(_scratch(size, sizes) for size in variants[variant].scratch)]
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
        launches = []
        for step, text in zip(variant.steps, source.steps, strict=True):
            grid = tuple(blocks_of(one, sizes) for one in step.grid)
            assert all(0 <= n <= most for n, most in zip(grid, MAX_GRID, strict=True)), grid
            arguments = [
                (
                    parameter.type,
                    _map(step.maps[parameter.argument.index], starts, sizes)
                    if parameter.argument.kind == "map"
                    else _argument(parameter.argument, starts, sizes),
                )
                for parameter in text.parameters
            ]
            if all(grid):
                launches.append(
                    {
                        "text": text.text,
                        "entry": step.entry,
                        "grid": grid,
                        "arguments": arguments,
                        "is_gluon": text.is_gluon,
                    }
                )
        job = {"blocks": list(blocks), "launches": launches}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump(job, self._process.stdin)
        self._process.stdin.flush()
        answer = pickle.load(self._process.stdout)
        assert isinstance(answer, list), f"{answer}\n{source.steps[0].text}"
        return answer


def sizes_of(signature: RegionSignature, feeds: Sequence[np.ndarray]) -> list[int]:
    """The named sizes, in order, as the shim tells them from the inputs' shapes."""
    known: dict[str, int] = {}
    for spec, array in zip(signature.inputs, feeds, strict=True):
        for dim, size in zip(spec.shape, array.shape, strict=True):
            extent = extent_of(dim)
            unknown = [symbol for symbol in extent.symbols if symbol not in known]
            if len(unknown) == 1:
                rest = extent.factor
                for symbol in extent.symbols:
                    rest *= known.get(symbol, 1)
                known[unknown[0]] = size // rest if rest else 0
    return [known[symbol] for symbol in symbols_of((*signature.inputs, *signature.outputs))]


def evaluate(extent: Extent, sizes: Sequence[int]) -> int:
    """A size of a variant, whose symbols are s0, s1 ..."""
    result = extent.factor
    for symbol in extent.symbols:
        result *= sizes[int(symbol[1:])]
    return result


def blocks_of(one: CeilDiv, sizes: Sequence[int]) -> int:
    return -(-evaluate(one.extent, sizes) // one.divisor)


def block_count(variant: Variant, sizes: Sequence[int]) -> int:
    """How many blocks of threads a variant's launches have."""
    return sum(math.prod(blocks_of(one, sizes) for one in step.grid) for step in variant.steps)


def holds(one: Condition, sizes: Sequence[int]) -> bool:
    size = evaluate(one.extent, sizes)
    return size % one.divisible_by == 0 and (one.at_most is None or size <= one.at_most)


def chosen(variants: Sequence[Variant], sizes: Sequence[int], *, is_aligned: bool) -> int:
    """The first variant that may be launched."""
    for number in fitting(variants, sizes):
        if is_aligned or not variants[number].aligned:
            return number
    raise AssertionError("no variant fits")


def fitting(variants: Sequence[Variant], sizes: Sequence[int]) -> list[int]:
    """All variants that may be launched with aligned tensors."""
    return [
        number
        for number, variant in enumerate(variants)
        if all(holds(one, sizes) for one in variant.conditions) and has_maps(variant, sizes)
    ]


def has_maps(variant: Variant, sizes: Sequence[int]) -> bool:
    """Whether there are elements in all tensors that a variant has maps of."""
    maps = (one for step in variant.steps for one in step.maps)
    return all(evaluate(dim, sizes) for one in maps for dim in one.dims)


def shape_of(
    spec: TensorSpec, signature: RegionSignature, sizes: Sequence[int]
) -> tuple[int, ...]:
    """A tensor's shape."""
    symbols = symbols_of((*signature.inputs, *signature.outputs))
    known: Mapping[str, int] = dict(zip(symbols, sizes, strict=True))
    shape = []
    for dim in spec.shape:
        size = extent_of(dim).factor
        for symbol in extent_of(dim).symbols:
            size *= known[symbol]
        shape.append(size)
    return tuple(shape)


def _argument(
    argument: Argument, starts: Sequence[int], sizes: Sequence[int]
) -> int | tuple[int, int]:
    if argument.kind == "tensor":
        return argument.index, starts[argument.index]
    if argument.kind == "scratch":
        return len(starts) + argument.index, 0
    assert argument.extent is not None
    size = evaluate(argument.extent, sizes)
    assert 0 <= size < 2 ** (31 if argument.kind == "size32" else 63)
    return size


def _map(one: TensorMap, starts: Sequence[int], sizes: Sequence[int]) -> tuple[Any, ...]:
    """Where a tensor lies, its dims and its strides in bytes."""
    dims = [evaluate(size, sizes) for size in one.dims]
    strides = [evaluate(stride, sizes) for stride in one.strides]
    return one.tensor, starts[one.tensor] + one.first, dims, strides


def _block(tensor: np.ndarray, shift: int) -> tuple[np.ndarray, int]:
    """The tensor's bytes among others, and where they start."""
    block = np.full(_AROUND + 16 + tensor.nbytes + _AROUND, _UNTOUCHED, np.uint8)
    start = _AROUND - block.ctypes.data % 16 + shift
    block[start : start + tensor.nbytes] = np.frombuffer(tensor.tobytes(), np.uint8)
    return block, start


def _scratch(size: Extent, sizes: Sequence[int]) -> np.ndarray:
    return np.full(evaluate(size, sizes), _UNTOUCHED, np.uint8)
