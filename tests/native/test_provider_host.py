"""A model compiled ahead of time in a C program: no Python, no TVM, the wheel's ONNX Runtime."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ortkit.provider import native
from tests.native.test_deploy import runtime
from tests.provider.native_library import build
from tests.provider.native_providers import floats
from tests.provider.test_native_context import expected, write

HERE = Path(__file__).parent
COMPILER = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if COMPILER is None:
        pytest.skip("no C compiler")
    program = tmp_path_factory.mktemp("host") / "host"
    command = [*COMPILER.split(), "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror"]
    source = str(HERE / "provider_host.c")
    subprocess.run([*command, source, "-o", str(program), "-ldl"], check=True)
    return program


def run(
    program: Path, model: Path, rows: int, trust: str = "1", repeat: int = 1
) -> subprocess.CompletedProcess[bytes]:
    feeds = floats("abc", rows, 4)
    words = [runtime(), native.library_path(), model, rows, trust, repeat]
    return subprocess.run(
        [program, *map(str, words)],
        input=b"".join(feeds[name].tobytes() for name in "abc"),
        capture_output=True,
        env={"PATH": "/nowhere", "ORT_DISABLE_TELEMETRY": "1"},
        timeout=120,
        check=False,
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("embed", ["1", "0"])
@pytest.mark.parametrize(("rows", "repeat"), [(1, 1), (5000, 1), (3, 10)])
def test_a_c_program_runs_what_was_compiled_ahead_of_time(
    program: Path, tmp_path: Path, embed: str, rows: int, repeat: int
) -> None:
    """With REPEAT also after the library was unregistered under a live session."""
    model = write(build(tmp_path), tmp_path, embed=embed)
    done = run(program, model, rows, "1", repeat)
    assert done.returncode == 0, done.stderr.decode()
    found = np.frombuffer(done.stdout, np.float32).reshape(repeat, rows, 4)
    for each in found:
        want = expected(floats("abc", rows, 4))
        np.testing.assert_allclose(each, want, rtol=1e-5, atol=2e-6)  # sums of about 8


def test_a_c_program_is_told_that_a_model_holds_code(program: Path, tmp_path: Path) -> None:
    done = run(program, write(build(tmp_path), tmp_path), 1, "0")
    assert done.returncode == 1
    (line,) = done.stderr.decode().splitlines()[-1:]
    assert line.startswith("CreateSession: OrtkitExecutionProvider: the kernel library of")
    assert line.endswith("set the provider option trust to 1")
