"""A processor without AVX-512 and AMX, as processes see it that are started here.

ONNX Runtime has no switch for the instructions that it uses. So what `cpuid` answers is changed,
for all libraries of a process alike, OpenVINO's among them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ortkit.errors import UserError
from ortkit.kernels.c_compiler import find_linker

_SOURCE = Path(__file__).with_name("hide_avx512.c")
#: What kernels are built for, beside that.
LEVEL_FLAGS = "--cpu x86-64-v3"


def hide_avx512(folder: Path) -> None:
    """Let processes that are started from here on see no AVX-512 and no AMX.

    Args:
        folder: For the library that they load first; as long as they are started.

    Raises:
        UserError: This machine does not let `cpuid` fault.
    """
    library = folder / "hide_avx512.so"
    command = [*find_linker(), "-O2", "-shared", "-fPIC", str(_SOURCE), "-o", str(library)]
    subprocess.run(command, check=True)
    surroundings = {**os.environ, "LD_PRELOAD": str(library)}
    tried = subprocess.run(
        [sys.executable, "-c", ""], env=surroundings, capture_output=True, text=True, check=False
    )
    if tried.returncode != 0:
        raise UserError(tried.stderr.strip(), where="--hide-avx512", fix="leave it out here")
    os.environ["LD_PRELOAD"] = str(library)
