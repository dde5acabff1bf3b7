"""A workflow of Olive with our pass: run by Olive itself, with the merged configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import models.__main__
import ortkit
from tests.integrations.needed import needs

NEEDS = needs("torch", "olive", extra="olive")


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
