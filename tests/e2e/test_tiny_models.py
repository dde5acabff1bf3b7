"""Every architecture in models/, in every spelling: optimized, verified, not larger, loadable."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from models.catalog import BUILDERS, build, spellings
from ortkit import OptimizeOptions, optimize
from tests.e2e.judge import interface

ort = pytest.importorskip("onnxruntime")
MODELS = [(name, spelling) for name in sorted(BUILDERS) for spelling in spellings(name)]


def check(before: onnx.ModelProto, path: Path, options: OptimizeOptions) -> onnx.ModelProto:
    """Optimize; the result must be verified, no larger, and load with and without its library."""
    result = optimize(before, options)
    found = result.report.verification
    assert found is not None
    assert found.verdict == "yes", found.reason
    assert result.report.settled
    assert result.report.rolled_back == ()
    files = result.save(path)
    after = onnx.load(path)
    assert interface(after) == interface(before)
    # What ONNX Runtime has no kernel for is written as the five nodes that it has.
    split = sum(hit.pass_name == "split-group-norm" for hit in result.report.hits)
    assert result.report.after.nodes <= result.report.before.nodes + 4 * split
    for library in {None, result.library}:
        settings = ort.SessionOptions()
        settings.log_severity_level = 4
        if library is not None:
            settings.register_custom_ops_library(str(files[-1]))
        ort.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    return after


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "spelling"), MODELS)
def test_a_tiny_model_at_one_level(name: str, spelling: str, tmp_path: Path) -> None:
    level = MODELS.index((name, spelling)) % 4
    options = OptimizeOptions(level=level, samples=1)
    check(build(name, "tiny", spelling), tmp_path / "m.onnx", options)


@pytest.mark.slow
@pytest.mark.parametrize("level", range(4))
@pytest.mark.parametrize(("name", "spelling"), MODELS)
def test_a_tiny_model_at_every_level(name: str, spelling: str, level: int, tmp_path: Path) -> None:
    check(build(name, "tiny", spelling), tmp_path / "m.onnx", OptimizeOptions(level=level))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("spelling", spellings("bert"))
def test_bert_with_kernels(spelling: str, tmp_path: Path) -> None:
    after = check(build("bert", "tiny", spelling), tmp_path / "m.onnx", OptimizeOptions(level=2))
    assert any(node.domain == "ortkit.fused" for node in after.graph.node)
    assert (tmp_path / "m.ops.so").is_file()
