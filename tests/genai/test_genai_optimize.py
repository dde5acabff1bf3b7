"""A folder in, a folder out: onnxruntime-genai generates the same from both."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from ortkit.cli.main import run
from ortkit.errors import CheckError, UserError
from ortkit.genai import optimize as optimize_module
from ortkit.genai.agreement import Agreement
from ortkit.genai.optimize import optimize_genai
from ortkit.targets.cpu import runs_here
from scripts.json_schemas import schemas
from tests.cli.test_cli_json import documented, misfits, paths
from tests.genai.folders import genai_folder
from tests.verify.genai_model import WORDS, genai_model


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a folder, and what was made of it with kernels."""
    root = tmp_path_factory.mktemp("genai")
    source, target = genai_folder(root / "source"), root / "target"
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    done = optimize_genai(source, target)
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before
    (model,) = done.models
    assert model.report is not None
    assert model.report.verification is not None
    assert model.report.verification.verdict == "yes"
    assert any(region.emitted_as for region in model.report.regions)
    assert isinstance(done.agreement, Agreement)
    assert done.agreement.agrees
    assert done.agreement.same_greedy == done.agreement.decoded == 40
    return source, target


def generated(folder: Path, count: int) -> list[int]:
    genai = pytest.importorskip("onnxruntime_genai")
    model = genai.Model(str(folder))
    parameters = genai.GeneratorParams(model)
    parameters.set_search_options(max_length=count, do_sample=False)
    generator = genai.Generator(model, parameters)
    generator.append_tokens(np.arange(2, 12, dtype=np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)]


def test_genai_generates_the_same_tokens(made: tuple[Path, Path]) -> None:
    source, target = made
    options = json.loads((target / "genai_config.json").read_text())["model"]["decoder"]
    assert options["session_options"]["custom_ops_library"] == "model.ops.so"
    assert (target / "notes.txt").is_file()
    found = generated(target, 200)
    assert found == generated(source, 200)
    assert len(found) > 20


def test_a_result_optimized_again_is_the_same(made: tuple[Path, Path], tmp_path: Path) -> None:
    _, target = made
    optimize_genai(target, tmp_path / "again")
    first, second = (
        {path.name: path.read_bytes() for path in folder.iterdir()}
        for folder in (target, tmp_path / "again")
    )
    assert first == second


def test_a_sliding_cache(tmp_path: Path) -> None:
    done = optimize_genai(genai_folder(tmp_path / "s", window=24), tmp_path / "t")
    assert isinstance(done.agreement, Agreement)
    assert done.agreement.agrees


def test_products_that_round_rows_to_int8(tmp_path: Path) -> None:
    """At accuracy level 4 products become kernels; genai runs them from their library."""
    source = genai_folder(tmp_path / "s", genai_model(width=128, level=4))
    done = optimize_genai(source, tmp_path / "t")
    report = done.models[0].report
    assert report is not None
    assert report.verification is not None
    assert report.verification.verdict == "yes"
    if runs_here("x86-64-v4") or runs_here("x86-64-v3"):
        kinds = [region.kind for region in report.regions if region.emitted_as]
        assert "matmul_nbits" in kinds
    assert isinstance(done.agreement, Agreement)
    assert done.agreement.agrees
    assert len(generated(tmp_path / "t", 64)) == 64


def test_outputs_that_are_refused(made: tuple[Path, Path], tmp_path: Path) -> None:
    source, target = made
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("kept")
    for output in (source, source / "inside", source.parent, tmp_path / "mine"):
        with pytest.raises(UserError):
            optimize_genai(source, output)
    assert (tmp_path / "mine" / "file").read_text() == "kept"
    assert (target / "genai_config.json").is_file()


def test_a_decoder_that_chooses_other_tokens_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = genai_folder(tmp_path / "s"), tmp_path / "t"
    real = optimize_module.compare_folders

    def compare(original: object, candidate: object, *rest: object, **named: object) -> object:
        path = candidate.model(candidate.decoder)  # type: ignore[attr-defined]
        model = onnx.load(path)
        (scales,) = (each for each in model.graph.initializer if each.name == "head.s")
        array = -onnx.numpy_helper.to_array(scales)
        scales.CopyFrom(onnx.numpy_helper.from_array(array, "head.s"))
        onnx.save(model, path)
        return real(original, candidate, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(optimize_module, "compare_folders", compare)
    with pytest.raises(CheckError, match="chooses other tokens"):
        optimize_genai(source, target)
    assert not target.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s"]


def test_the_command_line(
    made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = made
    text = tmp_path / "text.npy"
    np.save(text, np.random.default_rng(0).integers(0, WORDS, 30))
    given = ["verify", str(source), str(target), "--text", str(text)]
    assert run([*given, "--steps", "24", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "ortkit.verify-genai/1"
    assert_documented(found, "verify FOLDER")
    assert found["models"]["decoder"]["verdict"] == "yes"
    assert found["agreement"]["same_greedy"] == found["agreement"]["decoded"] == 24
    first, second = found["agreement"]["perplexity"]
    assert abs(first / second - 1) < 0.01
    np.save(text, np.array([WORDS]))
    assert run(["verify", str(source), str(target), "--text", str(text)]) == 2
    assert f"token {WORDS} is not in the vocabulary" in capsys.readouterr().err
    assert run(["optimize", str(source), "-o", str(tmp_path / "o"), "--html", "x.html"]) == 2
    assert "is about one model, not a folder" in capsys.readouterr().err
    other = genai_folder(tmp_path / "other", total="total", packed=False)
    assert run(["verify", str(source), str(other)]) == 1
    capsys.readouterr()
    assert run(["optimize", str(source), "-o", str(tmp_path / "new"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "ortkit.optimize-genai/1"
    assert_documented(found, "optimize FOLDER")


def assert_documented(found: dict[str, object], title: str) -> None:
    """Check a document against its schema, and its keys against the page."""
    known = documented(title)
    top = {re.split(r"[.\[{]", path)[0] for path in known}
    assert top == set(found)
    assert {path for path in paths(found, known) if not path.startswith("models")} <= known
    assert list(misfits(found, schemas()[f"{title.replace(' ', '-')}.json"])) == []
