"""The shim's tests in C++, built for aarch64 and run by QEMU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.native.objects import HERE, NATIVE, SHIM
from tests.native.test_shim import names_of_tests

QEMU = os.environ.get("QEMU_AARCH64") or shutil.which("qemu-aarch64-static")
QEMU = QEMU or shutil.which("qemu-aarch64")


def cross_compiler() -> list[str]:
    """Return a C++ compiler for aarch64 that links programs without shared libraries."""
    if gcc := shutil.which("aarch64-linux-gnu-g++"):
        return [gcc, "-static"]
    if find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-musl"]
    return []


# Slow: zig compiles its C++ library once for a new target, and a program with all tests.
@pytest.mark.slow
def test_the_shim_does_what_it_should_on_aarch64(tmp_path: Path) -> None:
    if not QEMU:
        pytest.skip("no qemu-aarch64; on Debian: apt-get install qemu-user-static")
    compiler = cross_compiler()
    if not compiler:
        pytest.skip("no compiler for aarch64; pip install ziglang")
    program = tmp_path / "program"
    common = [*compiler, "-std=c++17", "-O1", f"-I{NATIVE}", f"-I{HERE}"]
    shim = [str(source) for source in sorted(NATIVE.glob("*.cc"))]
    tests = [str(HERE / "fake_runtime.cc"), str(HERE / "shim_test.cc")]
    subprocess.run([*common, *SHIM, "-c", *shim], cwd=tmp_path, check=True)
    subprocess.run([*common, "-c", *tests], cwd=tmp_path, check=True)
    objects = [str(path) for path in sorted(tmp_path.glob("*.o"))]
    subprocess.run([*compiler, *objects, "-pthread", "-ldl", "-o", str(program)], check=True)
    done = subprocess.run(
        [QEMU, str(program)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [f"{name} ok" for name in names_of_tests()]
