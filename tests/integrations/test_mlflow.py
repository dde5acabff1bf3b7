"""MLflow logs an optimized model and loads it with its kernels, in a store of files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortkit.errors import RunError, UserError
from tests.integrations.needed import needs
from tests.integrations.served_models import expected, optimized
from tests.runtime.foreign import compile_foreign, untrusted_model

pytestmark = [pytest.mark.slow, needs("mlflow", extra="mlflow")]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    with mlflow.start_run():
        yield tmp_path / "store"


def loaded(info: Any) -> Any:
    import mlflow

    return mlflow.pyfunc.load_model(info.model_uri)


def test_a_logged_model_is_loaded_with_its_kernels(store: Path, tmp_path: Path) -> None:
    import ortkit.mlflow

    info = ortkit.mlflow.log_model(optimized(tmp_path), kernels="require", threads=1)
    names = {path.name for path in store.rglob("*") if path.is_file()}
    assert {"MLmodel", "model.onnx", "model.ops.so"} <= names
    requirements = next(store.rglob("requirements.txt")).read_text("utf-8")
    assert "ortkit==" in requirements
    model = loaded(info)
    assert [spec.name for spec in model.metadata.get_input_schema().inputs] == ["X"]
    x = np.random.default_rng(0).standard_normal((3, 24), np.float32)
    np.testing.assert_allclose(model.predict({"X": x})["Y"], expected(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.predict(x)["Y"], expected(x), rtol=1e-5, atol=1e-6)
    with pytest.raises(Exception, match="missing inputs"):
        model.predict({"Z": x})


def test_a_library_that_is_exchanged_is_not_loaded(store: Path, tmp_path: Path) -> None:
    import ortkit.mlflow

    info = ortkit.mlflow.log_model(optimized(tmp_path), kernels="require")
    (library,) = store.rglob("model.ops.so")
    mark = tmp_path / "was-loaded"
    (tmp_path / "elsewhere").mkdir()
    shutil.copyfile(compile_foreign(tmp_path / "elsewhere", mark), library)
    with pytest.raises(RunError, match="is not the one that the model was saved with"):
        loaded(info)
    assert not mark.exists()


def test_a_library_from_elsewhere_is_not_logged(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ortkit.mlflow

    model, mark = untrusted_model(tmp_path, monkeypatch)
    with pytest.raises(UserError, match="was not built by this user"):
        ortkit.mlflow.log_model(model)
    # Who says so logs it, and whoever loads it decides again.
    info = ortkit.mlflow.log_model(model, trust=True, target="cpu")
    a = np.ones((4, 1024), np.float32)
    assert loaded(info).predict({"a": a})["c"].max() == 2
    assert not mark.exists()
