"""The guides of servers: their files and programs, on a model that they speak of."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import models.__main__
from ortkit.cli.main import run
from tests.integrations.needed import needs
from tests.integrations.test_mlserver import Server
from tests.integrations.test_ray_serve import port as port  # a fixture

GUIDES = Path(__file__).parents[2] / "docs" / "guides" / "integrations"
pytestmark = pytest.mark.slow


def blocks(name: str, language: str) -> list[str]:
    text = (GUIDES / f"{name}.md").read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    models.__main__.main(["bert", "--spelling", "ts", "-o", "model.onnx"])
    assert run(["optimize", "model.onnx", "--no-verify", "--quiet"]) == 0
    return tmp_path


@needs("mlserver", "tritonclient", extra="mlserver")
def test_the_guide_of_mlserver(folder: Path) -> None:
    (settings,) = blocks("mlserver", "json")
    (program,) = blocks("mlserver", "python")
    _, start = blocks("mlserver", "sh")
    assert start == "mlserver start .\n"  # as `Server` does
    content = json.loads(settings)
    content["parameters"]["extra"]["kernels"] = "require"
    (folder / "model-settings.json").write_text(json.dumps(content))
    server = Server(folder)
    try:
        server.wait("bert")
        program = program.replace("localhost:8080", f"127.0.0.1:{server.http}")
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False
        )
        assert (done.stdout, done.returncode) == ("(1, 16, 64)\n", 0), done.stderr
    finally:
        server.process.terminate()
        server.process.wait(30)


@needs("ray", "starlette", extra="ray-serve")
def test_the_guide_of_ray_serve(
    folder: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {}
    os.environ.pop("RAY_ADDRESS", None)
    for text in blocks("ray-serve", "python"):
        exec(text, names)
    assert "(1, 16, 64)" in capsys.readouterr().out


@needs("mlflow", extra="mlflow")
def test_the_guide_of_mlflow(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((folder / "store").as_uri())
    names: dict[str, Any] = {}
    for text in blocks("mlflow", "python"):
        exec(text, names)
    assert "(1, 16, 64)" in capsys.readouterr().out
