"""The provider library under the address and the undefined-behaviour sanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native.test_sanitizers import FLAGS, NATIVE, preloaded

__all__ = ["preloaded"]

pytestmark = pytest.mark.slow

ROOT = NATIVE.parents[1]
PROVIDER = NATIVE / "provider"
SHIM = ("constants.cc", "cpu.cc", "describe.cc", "infer.cc", "kernel.cc", "streamed.cc")
#: A child of pytest, in which the library is this one.
CHILD = """
import sys
from pathlib import Path
import pytest
from ortkit.provider import native
native.library_path = lambda: Path({path!r})
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-k", {selection!r}, *{files!r}]))
"""
FILES = ("kernels", "library", "context", "devices", "registry", "sessions", "lifetimes")


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    folder = tmp_path_factory.mktemp("provider")
    sources = [*sorted(PROVIDER.glob("*.cc")), *(NATIVE / name for name in SHIM)]
    flags = ["-std=c++17", "-O1", "-fPIC", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden"]
    command = ["g++", *flags, *FLAGS, "-c", *map(str, sources)]
    subprocess.run(command, cwd=folder, check=True)
    path = folder / "libortkit_provider.so"
    exports = f"-Wl,--version-script={PROVIDER / 'exports.map'}"
    objects = map(str, sorted(folder.glob("*.o")))
    link = ["g++", "-shared", *FLAGS, exports, "-Wl,-z,nodelete", *objects, "-ldl", "-o", path]
    subprocess.run(link, check=True)
    return path


@pytest.mark.parametrize("name", FILES)
def test_the_tests_of_the_library_are_clean(sanitized: Path, preloaded: str, name: str) -> None:
    """All but those that start processes of their own, or count mapped libraries."""
    files = [str(ROOT / "tests" / "provider" / f"test_native_{name}.py")]
    selection = "not process and not closing_waits and not closed and not many_times"
    program = CHILD.format(path=str(sanitized), selection=selection, files=files)
    # Python itself and ONNX Runtime leave memory to the end of the process.
    options = {"ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0", "LD_PRELOAD": preloaded}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, **options},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Sanitizer" not in done.stderr, done.stderr
    assert "runtime error" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
