"""What the emitter for bfloat16 promises of memory."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
from ortkit.custom_ops.tvm.gemm.bf16_emitter import Bf16Emitter

from ortkit.kernels.link.linker import find_linker
from ortkit.kernels.tvm.build import write_object
from ortkit.targets import cpu

LEVEL = "x86-64-v4-bf16"


@pytest.mark.skipif(not cpu.runs_here(LEVEL), reason="this machine has no bfloat16")
def test_aligned_arrays_begin_where_a_line_of_the_cache_does(tmp_path: Path) -> None:
    e = Bf16Emitter("places")
    found = e.pointer("found", "uint64")
    e.local(3, "float32")
    for number, (count, dtype) in enumerate([(64, "float32"), (33, "uint16"), (7, "uint8")]):
        buffer, origin = e.aligned(count, dtype)
        with e.loop(e.i64(count)) as index:
            e.store(buffer, e.constant(1, dtype), origin + index)
        address = e.tir.reinterpret("uint64", e.tir.address_of(buffer[origin]))
        e.store(found, address, e.i64(number))
    write_object(e.function(), LEVEL, tmp_path / "places.o")
    library = tmp_path / "places.so"
    command = [*find_linker(), "-shared", "-o", str(library), str(tmp_path / "places.o")]
    subprocess.run(command, check=True, capture_output=True)
    places = (ctypes.c_uint64 * 3)()
    assert ctypes.CDLL(str(library)).places(places) == 0
    assert all(places)
    assert [place % 64 for place in places] == [0, 0, 0]
