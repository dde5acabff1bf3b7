"""Folders of Hugging Face Optimum: exported, optimized, run with kernels, saved with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import ortkit
from ortkit.cli.main import run as command
from ortkit.cli.optimize_optimum import run
from ortkit.integrations import optimum
from ortkit.integrations.optimum import (
    from_pretrained,
    optimize_folder,
    save_pretrained,
    write_folder,
)
from tests.integrations.needed import needs
from tests.integrations.planted_model import write_model

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "scripts" / "optimum-package"
NEEDS = needs("torch", "transformers", "optimum", extra="optimum")


def exported(folder: Path) -> tuple[Any, Path]:
    """Return a small classifier with random weights, and the folder that Optimum exports it to."""
    import torch
    import transformers
    from optimum.onnxruntime import ORTModelForSequenceClassification

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=100, hidden_size=64, num_hidden_layers=1, num_attention_heads=4,
        intermediate_size=128,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).eval()
    model.save_pretrained(folder / "torch")
    made = ORTModelForSequenceClassification.from_pretrained(folder / "torch", export=True)
    made.save_pretrained(folder / "onnx")
    return model, folder / "onnx"


@pytest.mark.slow
@NEEDS
def test_a_model_runs_on_our_kernels_and_is_saved_with_them(tmp_path: Path) -> None:
    import torch
    from optimum.onnxruntime import ORTModelForSequenceClassification as Kind

    model, folder = exported(tmp_path)
    (path,) = optimize_folder(folder, tmp_path / "opt")
    assert sorted(item.name for item in path.parent.iterdir()) == [
        "config.json", "model.onnx", "model.ops.so",
    ]  # fmt: skip
    ids = torch.randint(0, 100, (2, 7))
    feeds = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    expected = model(**feeds).logits.detach()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # that the library is not loaded
        found = from_pretrained(Kind, path.parent)
    torch.testing.assert_close(found(**feeds).logits, expected, rtol=1e-4, atol=1e-5)
    saved = save_pretrained(found, tmp_path / "saved")
    assert saved.with_name("model.ops.so").is_file()
    ortkit.Session(saved, kernels="require", target="cpu")
    with pytest.raises(ortkit.UserError, match="are made here"):
        from_pretrained(Kind, path.parent, session_options=None)


def test_a_folder_is_optimized_whole(tmp_path: Path) -> None:
    folder = tmp_path / "exported"
    folder.mkdir()
    write_model(folder / "model.onnx")
    (folder / "config.json").write_text("{}", "utf-8")
    (folder / "model.onnx.json").write_text("[]", "utf-8")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}", "utf-8")
    made = optimize_folder(folder, tmp_path / "opt", ortkit.OptimizeOptions(level=1, timing=False))
    assert made == (tmp_path / "opt" / "model.onnx",)
    assert (tmp_path / "opt" / "config.json").read_text("utf-8") == "{}"
    names = (str(path.relative_to(tmp_path / "opt")) for path in (tmp_path / "opt").rglob("*"))
    assert sorted(names) == [
        "1_Pooling", "1_Pooling/config.json", "config.json", "model.onnx", "model.onnx.json",
    ]  # fmt: skip
    (output,) = ortkit.Session(made[0]).run({"x": np.ones((2, 8), np.float32)}).values()
    np.testing.assert_array_equal(output, np.ones((2, 8), np.float32))
    with pytest.raises(ortkit.UserError, match="is there already; name a new folder"):
        optimize_folder(folder, tmp_path / "opt")
    with pytest.raises(ortkit.UserError, match="there is no ONNX model in it"):
        optimize_folder(tmp_path, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_the_command_takes_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, output = tmp_path / "exported", tmp_path / "opt"
    folder.mkdir()
    for name in ("decoder_model", "encoder_model"):
        write_model(folder / f"{name}.onnx")
    (folder / "config.json").write_text("{}", "utf-8")
    given = ["optimize", str(folder), "-o", str(output), "--level", "1", "--no-timing"]
    assert command([*given, "--text", "text.txt"]) == 2
    assert "--text: is for folders of onnxruntime-genai" in capsys.readouterr().err
    assert command([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in found["models"]] == ["decoder_model", "encoder_model"]
    assert found["agreement"] is None
    assert sorted(path.name for path in output.iterdir()) == [
        "config.json", "decoder_model.onnx", "encoder_model.onnx",
    ]  # fmt: skip
    assert command(given) == 2
    assert "is there already; name a new folder" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_not_there(tmp_path: Path) -> None:
    class Unwritable:
        def save(self, path: Path) -> None:
            path.write_bytes(b"")
            raise ortkit.UserError("the disk is full")

    (tmp_path / "exported").mkdir()
    write_model(tmp_path / "exported" / "model.onnx")
    with pytest.raises(ortkit.UserError, match="the disk is full"):
        write_folder(
            tmp_path / "exported", tmp_path / "opt", {"model.onnx": cast(Any, Unwritable())}
        )
    assert [item.name for item in tmp_path.iterdir()] == ["exported"]
    inside_a_file = tmp_path / "exported" / "model.onnx" / "opt"
    with pytest.raises(ortkit.UserError, match=r"model\.onnx: cannot be made: "):
        write_folder(tmp_path / "exported", inside_a_file, {})


@pytest.mark.parametrize(
    ("asked", "target"),
    [
        ({}, "CPUExecutionProvider"),
        ({"provider": "CUDAExecutionProvider"}, "CUDAExecutionProvider"),
        ({"providers": ["CUDAExecutionProvider"]}, ["CUDAExecutionProvider"]),
    ],
)
def test_kernels_are_those_for_the_provider(
    asked: dict[str, Any], target: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kind:
        @staticmethod
        def from_pretrained(_: str, **given: Any) -> Any:
            return given

    def options(path: Path, target: object) -> str:
        return f"options for {path} on {target}"

    monkeypatch.setattr(optimum, "require", lambda *_: None)
    monkeypatch.setattr(optimum, "session_options", options)
    found = from_pretrained(Kind, tmp_path, subfolder="onnx", **asked)
    assert found["session_options"] == f"options for {tmp_path}/onnx/model.onnx on {target}"


def test_the_command_ends_as_optimize_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, output = tmp_path / "exported", tmp_path / "opt"
    folder.mkdir()
    assert run(folder, output, level=1) == 2
    assert capsys.readouterr().err.count("\n") == 1
    write_model(folder / "model.onnx")
    assert run(folder, output, level=1) == 0
    assert "model.onnx: " in (said := capsys.readouterr().out)
    assert "verified" in said
    assert (output / "model.onnx").is_file()
    assert run(folder, output, level=1) == 2
    assert "is there already; name a new folder" in capsys.readouterr().err


def test_the_package_of_the_command_is_of_the_tree() -> None:
    """An `__init__.py` in it would hide Optimum, whose folder it shares."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == ortkit.__version__
    assert project["dependencies"] == [f"ortkit[cpu,optimum]=={ortkit.__version__}"]
    found = [path.name for path in (PACKAGE / "optimum").rglob("*.py")]
    assert found == ["register_ortkit.py"]


def installed(folder: Path) -> dict[str, str]:
    """Install the package of the command, and return the environment that has it."""
    pip = [sys.executable, "-m", "pip", "-q"]
    command = [*pip, "install", "--no-deps", "--target", folder, PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No matching distribution" in done.stderr or "Connection" in done.stderr:
        pytest.skip("what builds it cannot be installed: no network")
    assert done.returncode == 0, done.stderr
    return {**os.environ, "PYTHONPATH": str(folder)}


@pytest.mark.slow
@NEEDS
def test_optimum_cli_has_the_command(tmp_path: Path) -> None:
    _, folder = exported(tmp_path)
    environment = installed(tmp_path / "site")

    def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "optimum.commands.optimum_cli", *arguments]
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )

    page = cli("--help").stdout
    assert all(name in page for name in ("export", "onnxruntime", "ortkit"))
    given = ("ortkit", "optimize", "--onnx_model", str(folder), "-o", "opt")
    done = cli(*given)
    assert done.returncode == 0, done.stderr
    assert "model.onnx: " in done.stdout
    ortkit.Session(tmp_path / "opt" / "model.onnx", kernels="require", target="cpu")
    again = cli(*given)
    assert again.returncode == 2
    assert "is there already; name a new folder" in again.stderr
    assert "Traceback" not in again.stderr
