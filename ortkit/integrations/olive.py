"""A pass of Olive that optimizes with ortkit, and the package configuration that names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from olive.hardware.accelerator import AcceleratorSpec
from olive.model import ONNXModelHandler
from olive.model.utils import resolve_onnx_path
from olive.passes import Pass
from olive.passes.pass_config import BasePassConfig, PassConfigParam

from ortkit.kernels.metadata import library_path
from ortkit.optimization.call import OptimizeOptions, optimize

NAME = "OrtkitOptimization"
_ATTRIBUTE = "ortkit_report"


class OrtkitOptimization(Pass):  # type: ignore[misc]
    """Rewrite, fuse and verify a model; its kernel library lies beside it."""

    @classmethod
    def _default_config(cls, _: AcceleratorSpec) -> dict[str, PassConfigParam]:
        """Return the fields of `OptimizeOptions` that a workflow may set."""
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

    def _run_for_config(
        self, model: ONNXModelHandler, config: type[BasePassConfig], output_model_path: str
    ) -> ONNXModelHandler:
        """Write the model, its library and the report into the folder that Olive names."""
        source = Path(model.model_path)
        given: Any = config
        options = OptimizeOptions(
            target="cuda" if str(self.accelerator_spec.accelerator_type) == "gpu" else "cpu",
            level=given.level,
            precision=given.precision,
            kernels=given.kernels,
            verify=given.verify,
            timing=given.timing,
            shapes=given.shapes or {},
        )
        found = optimize(source, options)
        # Olive's output has this name in any case, and a library is called as its model.
        path = Path(resolve_onnx_path(output_model_path, "model.onnx"))
        found.save(path)
        report = path.with_suffix(".ortkit.json")
        content = found.report.to_json()
        report.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
        attributes = dict(model.model_attributes or {})
        more = [report, *(one for one in [library_path(path)] if one.is_file())]
        files = [*attributes.get("additional_files", []), *map(str, more)]
        attributes |= {"additional_files": files, _ATTRIBUTE: content}
        return ONNXModelHandler(
            model_path=str(path.parent), onnx_file_name=path.name, model_attributes=attributes
        )


def package_config() -> dict[str, Any]:
    """Return the configuration of the installed Olive with our pass in it.

    Olive takes the one that it is given in place of its own, so that ours has both.
    """
    import olive

    installed = Path(olive.__file__).with_name("olive_config.json")
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
