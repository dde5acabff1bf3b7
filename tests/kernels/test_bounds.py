"""Kernels touch nothing outside their tensors: memory around them is out of reach and they run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fused_model import bias_gelu, unary

from ortkit.kernels.link import linker
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import symbols_of
from ortkit.kernels.tvm.backend import TvmBackend
from ortkit.targets.target import Target

# A process of its own, as a stray access ends it. Arguments: library, symbol, how many sizes, and
# "rows:columns"...
# Each tensor lies once at the end and once at the start of pages between two unreachable ones.
CHILD = """
import ctypes, mmap, sys
import numpy as np
libc = ctypes.CDLL(None, use_errno=True)
keep = []

def fenced(count, at_end):
    page = mmap.PAGESIZE
    inner = max(-(-4 * count // page), 1) * page
    area = mmap.mmap(-1, inner + 2 * page)
    keep.append(area)
    base = ctypes.addressof(ctypes.c_char.from_buffer(area))
    for guard in (base, base + page + inner):
        assert libc.mprotect(ctypes.c_void_p(guard), page, 0) == 0
    offset = page + (inner - 4 * count if at_end else 0)
    return np.frombuffer(area, np.float32, count, offset), base + offset

library, symbol, sizes, *cases = sys.argv[1:]
call = ctypes.CDLL(library)[symbol]
for case in cases:
    rows, columns = map(int, case.split(":"))
    counts = (rows * columns, columns, rows * columns) if columns else (rows, rows)
    for at_end in (False, True):
        tensors = [fenced(count, at_end) for count in counts]
        for array, _ in tensors[:-1]:
            array[:] = np.linspace(-3, 3, array.size)
        tensors[-1][0][:] = np.nan
        pointers = [ctypes.c_void_p(address) for _, address in tensors]
        shape = [ctypes.c_int64(size) for size in (rows, columns)[: int(sizes)]]
        for unit in range(rows):
            assert call(*pointers, *shape, ctypes.c_int64(unit), ctypes.c_int64(unit + 1)) == 0
        assert not np.isnan(tensors[-1][0]).any(), f"{case}: not every point was computed"
print("within bounds")
"""
STATIC = [1, 3, 7, 8, 15, 16, 17, 31, 33, 100]


def check(signature: RegionSignature, cases: list[str], folder: Path) -> None:
    kernel = TvmBackend().compile(signature, Target().resolved(), folder)
    library = folder / "kernel.so"
    command = [*linker.find_linker(), "-shared", str(kernel.artifact), "-o", str(library), "-lm"]
    subprocess.run(command, check=True)
    sizes = len(symbols_of((*signature.inputs, *signature.outputs)))
    child = [sys.executable, "-c", CHILD, str(library), kernel.symbol, str(sizes), *cases]
    result = subprocess.run(child, capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "within bounds", (result.returncode, result.stderr)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("columns", STATIC)
def test_rows_of_known_size(columns: int, tmp_path: Path) -> None:
    check(bias_gelu("n", columns), [f"{rows}:{columns}" for rows in (1, 2, 5)], tmp_path)


def test_rows_of_unknown_size(tmp_path: Path) -> None:
    cases = [f"{rows}:{columns}" for rows in (1, 3) for columns in range(1, 51)]
    check(bias_gelu("n", "m"), cases, tmp_path)


def test_one_dense_axis(tmp_path: Path) -> None:
    check(unary("Tanh"), [f"{size}:0" for size in range(1, 100)], tmp_path)
