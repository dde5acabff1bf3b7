"""Models in the registry of MLflow, as Python functions that run their kernels.

MLflow's own flavour for ONNX registers no library, so it runs the function bodies.
Source: mlflow 3.17, mlflow/pyfunc/model.py and mlflow/onnx/__init__.py.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortkit.errors import UserError
from ortkit.integrations.model_files import MODEL_FILE, copy_model, trusted_library
from ortkit.integrations.packages import require
from ortkit.integrations.served import check_settings, served_session
from ortkit.runtime.ort import onnxruntime_packages
from ortkit.runtime.session import Session
from ortkit.runtime.specs import TensorSpec
from ortkit.temporary import TemporaryFolder
from ortkit.version import __version__

_EXTRA = "mlflow"
_log = logging.getLogger("mlflow.pyfunc")
_pyfunc: Any = require("mlflow.pyfunc", _EXTRA)


class OrtkitModel(_pyfunc.PythonModel):  # type: ignore[misc]
    """A model that MLflow loads: arrays by input name in, arrays by output name out."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        """Keep the settings of the session, which is made where the model is loaded."""
        self._settings = dict(settings)
        self._session: Session | None = None

    def load_context(self, context: Any) -> None:
        """Load the model; its library must be trusted on this machine."""
        model = Path(context.artifacts["model"]) / MODEL_FILE
        self._session = served_session(model, self._settings)
        for note in self._session.notes:
            _log.warning("%s", note)

    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:  # noqa: ARG002
        """Run the model on arrays by input name, or on the only input itself."""
        if self._session is None:
            raise UserError("the model is not loaded", fix="use mlflow.pyfunc.load_model")
        return self._session.run(model_input)


def log_model(
    model: str | os.PathLike[str],
    name: str = "model",
    *,
    target: str = "auto",
    kernels: str = "auto",
    threads: int = 0,
    trust: bool = False,
    **mlflow_options: Any,
) -> Any:
    """Log a model with its weights and its kernel library, as `mlflow.pyfunc.log_model` does.

    Its signature has the model's inputs and outputs, and its requirements are this version of
    ortkit and of ONNX Runtime.

    Args:
        model: An ONNX file; its library must be trusted.
        name: Name of the logged model.
        target: Where it will run, as `ortkit.Session` has it.
        kernels: auto, never, or require: it is not loaded without its kernels.
        threads: Threads of one run; 0: one for each core.
        trust: Whether the library is logged even if it was built elsewhere. Whoever loads the
            model decides again: `ortkit trust` and `ORTKIT_TRUST` of their machine.
        mlflow_options: More options of `mlflow.pyfunc.log_model`.

    Returns:
        MLflow's `ModelInfo`.

    Raises:
        ModelError: It is no valid model.
        UserError: The library is not trusted, or a setting is not known.
        MissingDependencyError: MLflow is not installed.
    """
    path = Path(model)
    settings = {"target": target, "kernels": kernels, "threads": threads}
    check_settings(settings)
    library = None if kernels == "never" else trusted_library(path, trust=trust)
    # It says what the model takes, and that it loads.
    with served_session(path, {"target": "cpu", "kernels": "never"}) as session:
        inputs, outputs, version = session.inputs, session.outputs, session.version
    package = min(onnxruntime_packages(), default="onnxruntime")
    options = {
        "signature": _signature(inputs, outputs),
        "pip_requirements": [f"ortkit=={__version__}", f"{package}=={version}"],
        **mlflow_options,
    }
    with TemporaryFolder("mlflow") as folder:
        copy_model(path, folder / "model", library)
        return _pyfunc.log_model(
            name=name,
            python_model=OrtkitModel(settings),
            artifacts={"model": str(folder / "model")},
            **options,
        )


def _signature(inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> Any:
    schema: Any = require("mlflow.types.schema", _EXTRA)
    models: Any = require("mlflow.models", _EXTRA)

    def of(specs: tuple[TensorSpec, ...]) -> Any:
        return schema.Schema([
            schema.TensorSpec(
                spec.dtype,
                tuple(size if isinstance(size, int) else -1 for size in spec.shape or ()),
                spec.name,
            )
            for spec in specs
        ])  # fmt: skip

    if any(spec.dtype is None for spec in (*inputs, *outputs)):
        return None
    return models.ModelSignature(inputs=of(inputs), outputs=of(outputs))
