"""A pass of Olive that optimizes with ortkit, and the package configuration that names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ortkit.integrations.packages import require
from ortkit.kernels.metadata import library_path
from ortkit.optimization.call import OptimizeOptions, optimize
from ortkit.text import json_text

NAME = "OrtkitOptimization"
_EXTRA = "olive"
_ATTRIBUTE = "ortkit_report"
_passes: Any = require("olive.passes", _EXTRA)


class OrtkitOptimization(_passes.Pass):  # type: ignore[misc]
    """Rewrite, fuse and verify a model; its kernel library lies beside it."""

    @staticmethod
    def is_accelerator_agnostic(accelerator_spec: Any) -> bool:  # noqa: ARG004
        """Return that no result for one accelerator is reused for another."""
        return False

    @classmethod
    def _default_config(cls, _: Any) -> dict[str, Any]:
        """Return the fields of `OptimizeOptions` that a workflow may set."""
        PassConfigParam = require("olive.passes.pass_config", _EXTRA).PassConfigParam  # noqa: N806
        return {
            "level": PassConfigParam(
                type_=int, default_value=2, description="0 clean to 3 every fusion"
            ),
            "precision": PassConfigParam(
                type_=str, default_value="fp32", description="fp32, bf16, int8, ..."
            ),
            "kernels": PassConfigParam(type_=str, default_value="auto", description="auto or off"),
            "verify": PassConfigParam(
                type_=bool, default_value=True, description="compare with the original"
            ),
            "timing": PassConfigParam(
                type_=bool, default_value=True, description="time before and after"
            ),
            "shapes": PassConfigParam(
                type_=dict, default_value=None, description="sizes to verify and time at"
            ),
        }

    def _run_for_config(self, model: Any, config: Any, output_model_path: str) -> Any:
        """Write the model, its library and the report into the folder that Olive names."""
        source = Path(model.model_path)
        options = OptimizeOptions(
            target="cuda" if str(self.accelerator_spec.accelerator_type) == "gpu" else "cpu",
            level=config.level,
            precision=config.precision,
            kernels=config.kernels,
            verify=config.verify,
            timing=config.timing,
            shapes=config.shapes or {},
        )
        found = optimize(source, options)
        # Olive's output has this name in any case, and a library is called as its model.
        resolve = require("olive.model.utils", _EXTRA).resolve_onnx_path
        path = Path(resolve(output_model_path, "model.onnx"))
        found.save(path)
        report = path.with_suffix(".ortkit.json")
        content = found.report.to_json()
        report.write_text(json_text(content), "utf-8")
        attributes = dict(model.model_attributes or {})
        more = [report, *(item for item in [library_path(path)] if item.is_file())]
        files = [*(attributes.get("additional_files") or ()), *map(str, more)]
        attributes |= {"additional_files": files, _ATTRIBUTE: content}
        return require("olive.model", _EXTRA).ONNXModelHandler(
            model_path=str(path.parent), onnx_file_name=path.name, model_attributes=attributes
        )


def package_config() -> dict[str, Any]:
    """Return the configuration of the installed Olive with our pass in it.

    Olive takes the one that it is given in place of its own, so that ours has both.
    """
    installed = Path(str(require("olive", _EXTRA).__file__)).with_name("olive_config.json")
    content: dict[str, Any] = json.loads(installed.read_text("utf-8"))
    content["passes"][NAME] = {
        "module_path": f"ortkit.olive.{NAME}",
        "supported_providers": ["*"],
        "supported_accelerators": ["*"],
        "supported_precisions": ["*"],
        "supported_algorithms": [],
        "supported_quantization_encodings": [],
        "extra_dependencies": [],
    }
    return content


def write_package_config(path: str | Path) -> Path:
    """Write `package_config` as a file for `olive run --package-config`."""
    target = Path(path)
    target.write_text(json.dumps(package_config(), indent=2) + "\n", "utf-8")
    return target
