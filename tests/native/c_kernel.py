"""Kernel libraries around kernels written in C, to look at what the shim hands over."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ortkit.kernels.backend import Kernel, Launch
from ortkit.kernels.link.linker import link_library
from ortkit.kernels.signature import RegionSignature
from ortkit.targets.target import Target

_COMPILER = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")


def library_of_c(folder: Path, source: str, signature: RegionSignature, launch: Launch) -> Path:
    """Return the library of one op whose kernel is the C function `probe` in `source`.

    Skips the test where there is no C compiler.
    """
    if _COMPILER is None:
        pytest.skip("no C compiler")
    text, artifact = folder / "probe.c", folder / "probe.o"
    text.write_text(source)
    command = [*_COMPILER.split(), "-std=c11", "-O1", "-fPIC", "-c", str(text), "-o"]
    subprocess.run([*command, str(artifact)], check=True)
    target = Target().resolved()
    kernel = Kernel("probe", "tests", target, artifact, "probe", launch, 0.0)
    link_library([kernel], [signature], folder / "probe.so", target)
    return folder / "probe.so"
