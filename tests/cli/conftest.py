"""What the command line's tests share: models on disk, and calling a command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx.parser
import pytest

import models
from ortkit.cli.main import run

SMALL = """<ir_version: 10, opset_import: ["" : 20]>
small (float[n, 8] x) => (float[n, 8] y)
<float[8] w = {1, 2, 3, 4, 5, 6, 7, 8}>
{ a = Relu(x)  b = Identity(a)  c = Tanh(b)  y = Add(c, w) }
"""


@dataclass(frozen=True)
class Done:
    """What a command left."""

    code: int
    out: str
    err: str


Call = Callable[..., Done]


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    """Return a function that runs `ortkit` in this process."""

    def called(*arguments: str | Path) -> Done:
        capfd.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Done(code, captured.out, captured.err)

    return called


@pytest.fixture
def brief_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `ortkit try` time for a moment, on usual inputs however busy the machine is."""
    monkeypatch.setattr("ortkit.runtime.timing.variants._LEAST_RUNS", 0.01)
    monkeypatch.setattr("ortkit.trial.trial._MOST_TIMING_SECONDS", 0.4)
    monkeypatch.setattr("ortkit.trial.trial._MOST_PROFILE_SECONDS", 0.1)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of models: small, other (computes something else), bert; and a library."""
    made = tmp_path_factory.mktemp("models")
    onnx.save(onnx.parser.parse_model(SMALL), made / "small.onnx")
    onnx.save(onnx.parser.parse_model(SMALL.replace("Tanh", "Sigmoid")), made / "other.onnx")
    onnx.save(models.build("bert"), made / "bert.onnx")
    (made / "trusted.so").write_bytes(b"\x7fELF, for a library")
    return made
