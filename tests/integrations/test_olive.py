"""A workflow of Olive with our pass: run by Olive itself, with the merged configuration."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import models.__main__
import ortkit
from ortkit.errors import MissingDependencyError
from tests.integrations.needed import needs
from tests.integrations.planted_model import write_model

NEEDS = needs("torch", "olive", extra="olive")


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return our pass with a stand-in for Olive, as far as a pass sees it."""
    parts = {
        "olive": {},
        "olive.model": {"ONNXModelHandler": SimpleNamespace},
        "olive.model.utils": {"resolve_onnx_path": lambda folder, name: f"{folder}/{name}"},
        "olive.passes": {"Pass": object},
        "olive.passes.pass_config": {"PassConfigParam": SimpleNamespace},
    }
    for name, content in parts.items():
        module = ModuleType(name)
        module.__dict__.update(content, __spec__=ModuleSpec(name, None))
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "ortkit.integrations.olive", raising=False)
    module = importlib.import_module("ortkit.integrations.olive")
    yield module.OrtkitOptimization
    sys.modules.pop("ortkit.integrations.olive", None)


def test_results_are_of_one_accelerator(ours: Any) -> None:
    assert not ours.is_accelerator_agnostic(SimpleNamespace(accelerator_type="cpu"))


def test_files_of_earlier_passes_are_kept(ours: Any, tmp_path: Path) -> None:
    write_model(tmp_path / "m.onnx")
    defaults = {name: item.default_value for name, item in ours._default_config(None).items()} | {
        "level": 1,
        "timing": False,
    }
    config = SimpleNamespace(**defaults)
    made = ours()
    made.accelerator_spec = SimpleNamespace(accelerator_type="cpu")
    for number, earlier in enumerate((None, ["a.json"])):
        model = SimpleNamespace(
            model_path=str(tmp_path / "m.onnx"), model_attributes={"additional_files": earlier}
        )
        folder = tmp_path / str(number)
        folder.mkdir()
        found = made._run_for_config(model, config, str(folder))
        report = str(folder / "model.ortkit.json")
        assert found.model_attributes["additional_files"] == [*(earlier or []), report]


def test_without_olive_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ortkit.integrations.olive", raising=False)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: (name != "olive" and find(name, *more)) or None,
    )
    with pytest.raises(MissingDependencyError, match=r"ortkit\[olive\]"):
        importlib.import_module("ortkit.integrations.olive")


@pytest.mark.slow
@NEEDS
def test_a_workflow_writes_the_model_its_library_and_the_report(tmp_path: Path) -> None:
    import olive

    from ortkit.olive import write_package_config

    models.__main__.main(["bert", "-o", str(tmp_path / "bert.onnx")])
    package = write_package_config(tmp_path / "package.json")
    workflow = {
        "input_model": {"type": "OnnxModel", "model_path": str(tmp_path / "bert.onnx")},
        "systems": {
            "local": {
                "type": "LocalSystem",
                "accelerators": [
                    {"device": "cpu", "execution_providers": ["CPUExecutionProvider"]}
                ],
            }
        },
        "target": "local",
        "passes": {"ortkit": {"type": "OrtkitOptimization", "level": 2}},
        "output_dir": str(tmp_path / "out"),
        "cache_dir": str(tmp_path / "cache"),
    }
    (tmp_path / "workflow.json").write_text(json.dumps(workflow), "utf-8")
    olive.run(str(tmp_path / "workflow.json"), package_config=str(package))
    (path,) = (tmp_path / "out").rglob("model.onnx")
    ortkit.Session(path, kernels="require", target="cpu")
    report = json.loads(path.with_suffix(".ortkit.json").read_text("utf-8"))
    assert report["verification"]["verdict"] == "yes"
    assert report["timing"] is not None


@NEEDS
@pytest.mark.slow
def test_the_configuration_keeps_what_olive_has() -> None:
    from ortkit.olive import package_config

    passes = package_config()["passes"]
    assert passes["OrtkitOptimization"]["module_path"] == "ortkit.olive.OrtkitOptimization"
    assert {"OnnxConversion", "OrtTransformersOptimization"} & passes.keys()
