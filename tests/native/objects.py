"""Object files of the tests in C++, by the commands that make them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "custom_ops" / "native"
COMPILER = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
#: Shared by the workers of a run; `conftest.py` sets it.
folder = Path()
_COMMON = ("-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-I{NATIVE}", f"-I{HERE}")
#: As custom_ops/CMakeLists.txt compiles the shim.
SHIM = ("-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fvisibility=hidden")


def compiled(source: Path, flags: Sequence[str]) -> str:
    """Return the path of a source's object file; it is compiled the first time in a run."""
    command = [str(COMPILER), *_COMMON, *flags, "-c", str(source)]
    key = hashlib.sha256("\0".join(command).encode()).hexdigest()[:16]
    result = folder / f"{source.stem}-{key}.o"
    with (folder / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.is_file():
            made = result.with_suffix(".part")
            subprocess.run([*command, "-o", str(made)], check=True)
            made.rename(result)
    return str(result)


def linked(result: Path, objects: Sequence[str], flags: Sequence[str]) -> Path:
    """Link object files to a program or, with `-shared`, a library."""
    subprocess.run([str(COMPILER), *flags, *objects, "-o", str(result)], check=True)
    return result
