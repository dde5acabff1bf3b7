"""Fused nodes with their library and without it: the same numbers as the model before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from models.catalog import BUILDERS, build, spellings
from models.feeds import feeds
from ortkit import OptimizeOptions, optimize
from ortkit.fusion.regions import cost_model
from ortkit.verify.compare import compare_outputs
from tests.e2e.suites import Case, node_cases, run, same
from tests.fusion.region_models import accept, fuse

ort = pytest.importorskip("onnxruntime")
MODELS = [(name, spelling) for name in sorted(BUILDERS) for spelling in spellings(name)]
#: onnx's checker infers the function of the one and cannot; in the branch for 2-D grids of the
#: others, which never runs, shapes do not fit, which ONNX Runtime sees once they are known.
LEFT_OUT = ("test_mvn", "test_affine_grid_3d")
#: Of so many cases one is judged where the whole is not asked for.
STRIDE = 8


@pytest.fixture
def every_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take regions of any size and gain: tiny models have none that pay."""
    monkeypatch.setattr(cost_model, "MINIMUM_GAIN", -np.inf)
    monkeypatch.setattr(cost_model, "MINIMUM_SAVED_NS", -np.inf)
    monkeypatch.setattr(cost_model, "MINIMUM_POINTS", 0)


def results(path: Path, library: Path | None, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    if library is not None:
        settings.register_custom_ops_library(str(library))
    session = ort.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    return list(session.run(None, given))


def check(name: str, spelling: str, level: int, folder: Path) -> None:
    before = build(name, "tiny", spelling)
    onnx.save(before, folder / "before.onnx")
    result = optimize(before, OptimizeOptions(level=level, verify=False, check_load=False))
    path, library = result.save(folder / "after.onnx")[0], result.library
    taken = [region for region in result.report.regions if region.emitted_as is not None]
    assert library is not None or not taken
    onnx.checker.check_model(onnx.load(path), full_check=True)
    given = feeds(before)
    want = results(folder / "before.onnx", None, given)
    for beside in (library, None):
        got = results(path, beside, given)
        for output, first, second in zip(before.graph.output, want, got, strict=True):
            judged = compare_outputs(output.name, first, second)
            assert judged.equal, f"{'with' if beside else 'without'} library: {judged.reason}"


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("every_region")
@pytest.mark.parametrize(("name", "spelling"), MODELS)
def test_a_tiny_model(name: str, spelling: str, tmp_path: Path) -> None:
    check(name, spelling, 2 + MODELS.index((name, spelling)) % 2, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("every_region")
@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.parametrize(("name", "spelling"), MODELS)
def test_a_tiny_model_at_each_level(name: str, spelling: str, level: int, tmp_path: Path) -> None:
    check(name, spelling, level, tmp_path)


def judge_bodies(cases: list[Case]) -> tuple[list[str], int]:
    """Put regions into functions; return what is wrong, and how many cases had one."""
    faults: list[str] = []
    fused = 0
    for case in cases:
        if case.name.startswith(LEFT_OUT):
            continue
        try:
            want = run(case.model, case.feeds())
        except Exception:  # noqa: BLE001  ONNX Runtime lacks the op, or a type of it
            continue
        after = fuse(case.model, accept)
        if not after.functions or len(after.functions) == len(case.model.functions):
            continue
        fused += 1
        got = run(after, case.feeds())
        if not all(map(same, want, got)):
            faults.append(case.name)
    return faults, fused


def test_bodies_of_the_cases_of_onnx() -> None:
    faults, fused = judge_bodies(node_cases()[::STRIDE])
    assert faults == []
    assert fused >= 50


@pytest.mark.slow
def test_bodies_of_all_cases_of_onnx() -> None:
    faults, fused = judge_bodies(node_cases())
    assert faults == []
    assert fused >= 600
