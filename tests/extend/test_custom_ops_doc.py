"""docs/guides/custom-ops.md is run: a newcomer's op, defined, tested, built and run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "custom-ops.md"
FENCED = re.compile(r"```(?P<kind>python|console)\n(?P<text>.*?)```", re.DOTALL)


def blocks(kind: str) -> list[str]:
    found = FENCED.finditer(PAGE.read_text(encoding="utf-8"))
    return [item["text"] for item in found if item["kind"] == kind]


def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    define, use, *_ = blocks("python")
    (commands,) = blocks("console")
    (tmp_path / "my_ops.py").write_text(define)
    lines = commands.splitlines()
    for number, line in enumerate(lines):
        if not line.startswith("$ ortkit "):
            continue
        command = [sys.executable, "-m", *shlex.split(line.removeprefix("$ "))]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        expected = lines[number + 1] if number + 1 < len(lines) else "$"
        if not expected.startswith("$"):
            assert done.stdout.strip() == expected
    done = subprocess.run(
        [sys.executable, "-c", use], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "[0., 9.]" in done.stdout, done.stderr


def test_it_takes_under_30_lines() -> None:
    define, use, *_ = blocks("python")
    (commands,) = blocks("console")
    lines = [*define.splitlines(), *use.splitlines()]
    lines += [line for line in commands.splitlines() if line.startswith("$")]
    assert len([line for line in lines if line.strip()]) < 30


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("place", "toolchain"), [(2, "tvm"), (3, "triton")])
def test_kernels_of_your_own(place: int, toolchain: str, tmp_path: Path) -> None:
    pytest.importorskip(toolchain)
    define, kernel = blocks("python")[0], blocks("python")[place]
    (tmp_path / "my_ops.py").write_text(f"{define}\n\n{kernel}")
    command = [sys.executable, "-m", "ortkit", "ops", "test", "SquaredReLU", "--from", "my_ops.py",
               "--dtype", "float32", "--json"]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (op,) = json.loads(done.stdout)["ops"]
    assert [item["backend"] for item in op["kernels"]] == [toolchain]
    assert op["check"]["kernels"] >= 9 and op["check"]["faults"] == []
