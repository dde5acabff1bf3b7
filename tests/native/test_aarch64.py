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


HOST = """
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char** given) {
  void* library = dlopen(given[1], RTLD_NOW);
  if (!library) return fprintf(stderr, "%s\\n", dlerror()), 1;
  for (int i = 2; i < count; ++i)
    if (!dlsym(library, given[i])) return fprintf(stderr, "%s\\n", dlerror()), 1;
  return puts("loaded") < 0;
}
"""
#: What a process asks each library for.
ASKED = {
    "runtime": ["RegisterCustomOps", "ortkit_arena_statistics", "ortkit_activity_take"],
    "provider": ["CreateEpFactories", "ReleaseEpFactory"],
}
#: Where Debian's cross compilers keep the C library that programs load.
LIBRARIES = Path("/usr/aarch64-linux-gnu")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both shared libraries for aarch64 as the wheel has them, and return their folder."""
    gcc, cmake = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("cmake")
    if not QEMU or not gcc or not cmake or not LIBRARIES.is_dir():
        pytest.skip("no qemu-aarch64, cmake or g++-aarch64-linux-gnu; apt-get install has them")
    folder = tmp_path_factory.mktemp("aarch64")
    (folder / "host.c").write_text(HOST)
    subprocess.run([gcc, folder / "host.c", "-ldl", "-o", folder / "host"], check=True)
    settings = {
        "CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_C_COMPILER": gcc, "CMAKE_CXX_COMPILER": gcc.removesuffix("gcc") + "g++",
    }  # fmt: skip
    given = [f"-D{name}={value}" for name, value in settings.items()]
    custom_ops = HERE.parents[1] / "custom_ops"
    for arguments in (["-S", custom_ops, "-B", folder, *given], ["--build", folder, "-j2"]):
        subprocess.run([cmake, *arguments], check=True, stdout=subprocess.DEVNULL)
    return folder


# The provider's C++ takes a cross compiler half a minute.
@pytest.mark.slow
@pytest.mark.parametrize("name", ASKED)
def test_a_shared_library_loads_on_aarch64(name: str, libraries: Path) -> None:
    library = libraries / f"libortkit_{name}.so"
    done = subprocess.run(
        [str(QEMU), "-L", str(LIBRARIES), str(libraries / "host"), str(library), *ASKED[name]],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout == "loaded\n", done.stderr
