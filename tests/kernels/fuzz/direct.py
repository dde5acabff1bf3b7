"""The compiled functions by themselves: any cut of the units, and nothing beyond a tensor's ends.

Each tensor lies in pages of its own, at their end or their beginning, between pages that may not
be touched: a kernel that reads or writes beside a tensor ends the process.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import random
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np

from fuzz.feeds import Run
from fuzz.judge import same
from fuzz.values import Region, numpy_dtype
from ortkit.kernels.backend import Kernel
from ortkit.kernels.link.linker import find_linker
from ortkit.kernels.sizes import Extent, symbols_of

_PAGE = mmap.PAGESIZE
_NO_ACCESS = 0
_LIBC = ctypes.CDLL(None, use_errno=True)


class Functions:
    """Kernels, linked into a plain library."""

    def __init__(self, kernels: Mapping[str, Kernel], folder: Path) -> None:
        path = folder / "functions.so"
        objects = sorted({str(kernel.artifact) for kernel in kernels.values()})
        command = [*find_linker(), "-shared", "-o", str(path), *objects, "-lm"]
        subprocess.run(command, check=True, capture_output=True)
        self._library = ctypes.CDLL(str(path))
        self._kernels = kernels

    def fault(self, region: Region, run: Run, expected: Sequence[np.ndarray]) -> str:
        """Return how calls with cut units differ from what a session computed; empty if not."""
        signature = region.signature()
        kernel = self._kernels[signature.key]
        symbols = symbols_of((*signature.inputs, *signature.outputs))
        sizes = [run.sizes[symbol] for symbol in symbols]
        units = math.prod(_at(extent, sizes) for extent in kernel.launch.units)
        rng = random.Random(region.seed)
        cuts = [[(0, units)], _cut(units, rng)]
        for at_end, cut in zip((True, False), cuts, strict=True):
            found = self._call(kernel, region, run, sizes, cut, at_end=at_end)
            for value, one, other in zip(region.outputs, found, expected, strict=True):
                if not same(one, other):
                    return f"output {value.name} in units {cut} of {units} is different"
        for source, target in kernel.launch.inplace:
            found = self._call(
                kernel, region, run, sizes, [(0, units)], at_end=True, shared=(source, target)
            )
            if not all(same(a, b) for a, b in zip(found, expected, strict=True)):
                return f"output {target} in the place of input {source} is different"
        return ""

    def _call(
        self,
        kernel: Kernel,
        region: Region,
        run: Run,
        sizes: Sequence[int],
        cut: Sequence[tuple[int, int]],
        *,
        at_end: bool,
        shared: tuple[int, int] | None = None,
    ) -> list[np.ndarray]:
        function = self._library[kernel.symbol]
        function.restype = ctypes.c_int32
        with ExitStack() as stack:
            tensors = [
                stack.enter_context(_guarded(run.feeds[value.name], at_end=at_end))
                for value in region.inputs
            ]
            for index, value in enumerate(region.outputs):
                if shared is not None and shared[1] == index:
                    tensors.append(tensors[shared[0]])
                    continue
                shape = [size.at(run.sizes) for size in value.shape]
                # What is not written is seen: no two calls find the same there.
                blank = np.full(shape, 1 + at_end).astype(numpy_dtype(value.dtype))
                tensors.append(stack.enter_context(_guarded(blank, at_end=at_end)))
            pointers = [ctypes.c_void_p(array.ctypes.data) for array in tensors]
            numbers = [ctypes.c_int64(size) for size in sizes]
            for begin, end in cut:
                function(*pointers, *numbers, ctypes.c_int64(begin), ctypes.c_int64(end))
            return [np.array(array) for array in tensors[len(region.inputs) :]]


def _at(extent: Extent, sizes: Sequence[int]) -> int:
    """Return an extent's size; its names are `s0`, `s1` ... by place."""
    return extent.factor * math.prod(sizes[int(name.removeprefix("s"))] for name in extent.symbols)


def _cut(units: int, rng: random.Random) -> list[tuple[int, int]]:
    """Cut the units anywhere, single ones among the pieces, and shuffle them."""
    points = {0, units, *(rng.randint(0, units) for _ in range(3))}
    points |= {min(units, point + 1) for point in list(points)}
    ordered = sorted(points)
    pieces = list(pairwise(ordered))
    rng.shuffle(pieces)
    return pieces


@contextmanager
def _guarded(array: np.ndarray, *, at_end: bool) -> Iterator[np.ndarray]:
    """Yield a copy that ends where a page ends, or begins where one begins, guarded on both sides.

    At the end it is aligned to its elements only, which is all that a kernel may count on.
    """
    inside = -(-max(array.nbytes, 1) // _PAGE) * _PAGE
    memory = mmap.mmap(-1, inside + 2 * _PAGE)
    whole = np.frombuffer(memory, np.uint8)
    start = whole.ctypes.data
    for guard in (start, start + _PAGE + inside):
        _protect(guard, _NO_ACCESS)
    offset = _PAGE + (inside - array.nbytes if at_end else 0)
    copy = np.ndarray(array.shape, array.dtype, memory, offset)
    copy[...] = array
    try:
        yield copy
    finally:
        for guard in (start, start + _PAGE + inside):
            _protect(guard, mmap.PROT_READ | mmap.PROT_WRITE)


def _protect(address: int, how: int) -> None:
    if _LIBC.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(_PAGE), how) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
