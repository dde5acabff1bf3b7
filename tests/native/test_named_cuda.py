"""Ops under names of their users' on CUDA, in C++ against a made-up driver: no GPU is needed."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.native.objects import HERE
from tests.native.test_cuda_shim import fake_driver
from tests.native.test_shim import SANITIZERS, build

SOURCES = (HERE / "fake_runtime.cc", HERE / "named_cuda_test.cc")


def check(folder: Path, flags: list[str]) -> None:
    driver = fake_driver(folder / "driver", flags)
    program = build(folder, flags, *SOURCES, without="names_none")
    done = subprocess.run(
        [program], env={**os.environ, "LD_LIBRARY_PATH": str(driver)}, capture_output=True,
        text=True, check=False, timeout=120,
    )  # fmt: skip
    names = re.findall(r'\{"([^"]+)", \w+\}', SOURCES[1].read_text().partition("tests[] = {")[2])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [f"{name} ok" for name in names] and len(names) == 3
    assert done.stderr == ""


def test_named_ops_on_cuda(tmp_path: Path) -> None:
    check(tmp_path, [])


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_a_sanitizer_finds_nothing(sanitizer: str, tmp_path: Path) -> None:
    check(tmp_path, SANITIZERS[sanitizer])
