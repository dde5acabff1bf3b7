"""C source of programs: functions as custom_ops/native/provider/kernel.h declares them.

A program reads its inputs' sizes, checks that they are what it was made for, makes the outputs,
and runs its kernels on the session's threads. What lies between them is given back after the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from ortkit.kernels.backend import Kernel
from ortkit.kernels.link.linker import program_headers
from ortkit.provider.own.program import Program
from ortkit.provider.own.writer import ProgramWriter, adapter

#: The files that decide what is written.
_WRITERS = ("source.py", "writer.py", "sizes.py", "scratch.py")


def fingerprint() -> str:
    """Name what writes programs: libraries of another one are made again."""
    files = [Path(__file__).with_name(name) for name in _WRITERS]
    content = b"".join(path.read_bytes() for path in (*files, *program_headers()))
    return hashlib.sha256(content).hexdigest()[:16]


def programs_source(
    programs: Sequence[Program], kernels: Mapping[str, Kernel]
) -> tuple[str, dict[str, bytes]]:
    """Return the C source of programs, and the files of constants that it includes by name.

    Args:
        programs: Of each key one; `unsolved` of each is None.
        kernels: By the keys of signatures.
    """
    files: dict[str, bytes] = {}
    parts = ['#include "program.h"\n']
    for key in sorted({step.signature.key for item in programs for step in item.steps}):
        step = next(s for one in programs for s in one.steps if s.signature.key == key)
        parts.append(adapter(step, kernels[key]))
    for program in sorted(programs, key=lambda one: one.symbol):
        writer = ProgramWriter(program, kernels)
        parts.append(writer.text())
        files |= writer.files
    if files:
        names = "\n".join(f"CONSTANT({name});" for name in sorted(files))
        parts.insert(1, f"{names}\n")
    return "\n".join(parts), {f"{name}.bin": content for name, content in files.items()}
