"""What the builder of onnxruntime-genai and mobius-onnx write is optimized and verified."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

import pytest

from ortkit.genai.agreement import Agreement
from ortkit.genai.optimize import optimize_genai
from ortkit.optimization.call import OptimizeOptions, optimize
from ortkit.optimization.report import Report
from tests.genai.producers import GENAI, MOBIUS, genai_folder, mobius_model

pytestmark = pytest.mark.slow
OPTIONS = OptimizeOptions(timing=False)


def lacks(*packages: str) -> str:
    """Return what is missing, as the reason to skip; empty if nothing is."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


def lacks_builder() -> str:
    """Return why genai's builder does not run; it imports classes of transformers 5."""
    if reason := lacks("torch", "transformers", "onnxruntime_genai"):
        return reason
    version = importlib.metadata.version("transformers")
    return "" if int(version.partition(".")[0]) >= 5 else f"transformers {version} is before 5"


def check(report: Report | None) -> None:
    assert report is not None
    assert report.verification is not None
    assert report.verification.verdict == "yes", report.verification.reason
    assert not report.rolled_back
    assert any(region.emitted_as for region in report.regions)
    assert report.after.nodes < report.before.nodes


@pytest.mark.skipif(bool(lacks_builder()), reason=lacks_builder())
@pytest.mark.parametrize("name", GENAI)
def test_a_folder_of_genais_builder(name: str, tmp_path: Path) -> None:
    done = optimize_genai(genai_folder(name, tmp_path / "made"), tmp_path / "opt", OPTIONS)
    (model,) = done.models
    check(model.report)
    assert isinstance(done.agreement, Agreement)
    assert done.agreement.agrees


MISSING = lacks("torch", "mobius", "onnx_shape_inference")


@pytest.mark.skipif(bool(MISSING), reason=f"{MISSING}: pip install mobius-onnx")
@pytest.mark.parametrize("name", MOBIUS)
def test_a_model_of_mobius(name: str, tmp_path: Path) -> None:
    check(optimize(mobius_model(name, tmp_path / "model.onnx"), OPTIONS).report)
