"""The shim's kernels for CUDA in C++, against a made-up driver: no GPU is needed."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.native.objects import HERE, compiled, linked
from tests.native.test_shim import SANITIZERS, build


def fake_driver(folder: Path, flags: list[str], *definitions: str) -> Path:
    """Compile fake_cuda.cc as libcuda.so.1; returns its folder, for LD_LIBRARY_PATH.

    Beside it is fake_cublas.cc twice, as releases 13 and 14, and a provider that needs the first.
    """
    folder.mkdir()
    blas = compiled(HERE / "fake_cublas.cc", [*flags, "-fPIC"])
    shared = [*flags, "-shared"]
    for release in (14, 13):
        library = linked(folder / f"libcublas.so.{release}", [blas], shared)
    linked(
        folder / "libonnxruntime_providers_cuda.so",
        [str(library)],
        [*shared, "-Wl,--no-as-needed"],
    )
    made = compiled(HERE / "fake_cuda.cc", [*flags, *definitions, "-fPIC"])
    return linked(folder / "libcuda.so.1", [made], [*flags, "-shared"]).parent


def names_of_tests(table: str) -> list[str]:
    source = (HERE / "cuda_test.cc").read_text()
    names = source.partition(f"const Test {table}[] = {{")[2].partition("\n};")[0]
    return re.findall(r'\{"([^"]+)", \w+\}', names)


def all_ok(table: str) -> list[str]:
    return [f"{name} ok" for name in names_of_tests(table)]


def run(program: Path, mode: str, driver: Path) -> list[str]:
    """Run the tests of a mode; returns what they print."""
    surroundings = {**os.environ, "LD_LIBRARY_PATH": str(driver)}
    done = subprocess.run(
        [program, mode], env=surroundings, capture_output=True, text=True, check=False, timeout=120
    )
    if done.returncode == 2 and mode == "nothing":
        pytest.skip("this machine has a CUDA driver")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


SOURCES = (HERE / "fake_runtime.cc", HERE / "cuda_test.cc")


def check(program: Path, driver: Path, nothing: Path) -> None:
    """Run all tests with a driver, and those for machines that lack one in three ways."""
    assert len(names_of_tests("with_driver")) >= 17
    assert run(program, "driver", driver) == all_ok("with_driver")
    for mode in ("no device", "ended"):
        assert run(program, mode, driver) == all_ok("without_driver")
    assert run(program, "nothing", nothing) == all_ok("without_driver")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("program"), [], *SOURCES)


def test_the_shim_does_what_it_should(program: Path, tmp_path: Path) -> None:
    check(program, fake_driver(tmp_path / "driver", []), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_a_sanitizer_finds_nothing(sanitizer: str, tmp_path: Path) -> None:
    flags = SANITIZERS[sanitizer]
    driver = fake_driver(tmp_path / "driver", flags)
    check(build(tmp_path, flags, *SOURCES), driver, tmp_path)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "missing",
    ["cuFuncLoad", "cuTensorMapEncodeTiled", "cuStreamGetCaptureInfo_v3", "cuLaunchKernel"],
)
def test_a_driver_of_another_age(missing: str, program: Path, tmp_path: Path) -> None:
    """What came with CUDA 12.0 to 12.4 may be absent; without the rest there is no driver."""
    driver = fake_driver(tmp_path / "driver", [], f"-D{missing}={missing}_of_later")
    if missing != "cuLaunchKernel":
        assert run(program, "driver", driver) == all_ok("with_driver")
    else:
        assert run(program, "incomplete", driver) == all_ok("without_driver")
