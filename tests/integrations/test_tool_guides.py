"""The guides of torch, Optimum and Olive: their programs, run where the packages are installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import models.__main__
from tests.integrations.needed import needs
from tests.integrations.test_optimum import exported
from tests.integrations.test_server_guides import blocks

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_python(page: str) -> None:
    names: dict[str, object] = {}
    for program in blocks(page, "python"):
        exec(compile(program, page, "exec"), names)


@needs("torch", extra="export")
def test_the_guide_of_torch(folder: Path) -> None:
    run_python("torch")
    assert (folder / "model.ops.so").is_file()


@needs("torch", "transformers", "optimum", extra="optimum")
def test_the_guide_of_optimum(folder: Path) -> None:
    exported(folder)[1].rename(folder / "exported")
    run_python("optimum")
    assert (folder / "saved" / "model.ops.so").is_file()


@needs("torch", "olive", extra="olive")
def test_the_guide_of_olive(folder: Path) -> None:
    models.__main__.main(["bert", "-o", "model.onnx"])
    run_python("olive")
    (workflow,) = blocks("olive", "json")
    (folder / "workflow.json").write_text(workflow, "utf-8")
    command = blocks("olive", "sh")[1].split()
    assert command[:2] == ["olive", "run"]
    done = subprocess.run([sys.executable, "-m", "olive", *command[1:]], check=False)
    assert done.returncode == 0
    assert list((folder / "out").rglob("model.ops.so"))
