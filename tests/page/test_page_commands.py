"""`--html` of optimize, diff and inspect writes a page, and refuses what cannot be written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest

from ortkit.cli.main import run
from ortkit.errors import UserError
from ortkit.graph.analysis.diff import diff_models
from ortkit.graph.io.open import open_model
from ortkit.optimization.call import OptimizeOptions, optimize
from ortkit.page.graph.compared import page_of_diff
from tests.page.page_models import AFTER, BEFORE, parsed


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "a.onnx", tmp_path / "b.onnx"
    for path, text in zip(paths, (BEFORE, AFTER), strict=True):
        ir.save(parsed(text), path)
    return paths


def data(page: Path) -> dict[str, Any]:
    text = page.read_text(encoding="utf-8").partition('id="data">')[2].partition("</script>")[0]
    found: dict[str, Any] = json.loads(text)
    return found


def test_optimize(files: tuple[Path, Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    arguments = ["optimize", str(files[0]), "--in-place", "--no-verify", "--kernels", "off"]
    assert run([*arguments, "--html", str(page), "--quiet"]) == 0
    before, after = data(page)["graphs"]
    assert len(before["nodes"]["name"]) == 11
    written = onnx.load(files[0])
    names = {output for node in written.graph.node for output in node.output}
    assert names <= set(after["values"]["name"])
    assert {"Passes", "Operators"} <= {table["title"] for table in data(page)["tables"]}


def test_diff_and_inspect(files: tuple[Path, Path], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert run(["diff", *map(str, files), "--html", str(page)]) == 0
    assert [len(graph["nodes"]["name"]) for graph in data(page)["graphs"]] == [11, 5]
    assert run(["inspect", str(files[0]), "--html", str(page)]) == 0
    (graph,) = data(page)["graphs"]
    at = graph["nodes"]["name"].index("/a/MatMul")
    assert graph["nodes"]["facts"][at][0] == ["FLOPs", "8192*n"]


def test_cards_of_a_diff_say_what_became_of_what(files: tuple[Path, Path]) -> None:
    """Each thing has one card."""
    page = page_of_diff(*map(open_model, files), diff_models(*files))
    cards = {card.name: (card.figure, card.remark) for card in page.cards}
    assert len(cards) == len(page.cards)
    assert cards == {
        "Nodes": ("9 → 3", "6 removed, 2 changed"),
        "Functions": ("2 added", ""),
        "Weights": ("1 added", ""),
        "Opsets and metadata": ("1 added", ""),
    }


@pytest.mark.parametrize("command", ["optimize", "inspect"])
def test_the_model_is_not_written_over(
    command: str, files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, str(files[0]), "--html", str(files[0])]) == 2
    assert "--html" in capsys.readouterr().err


def test_a_source_that_changed_is_not_shown(files: tuple[Path, Path], tmp_path: Path) -> None:
    optimized = optimize(files[0], OptimizeOptions(verify=False, kernels="off"))
    optimized.save(files[0])
    with pytest.raises(UserError, match="has changed since"):
        optimized.save_html(tmp_path / "page.html")
    kept = optimize(onnx.load(files[1]), OptimizeOptions(verify=False, kernels="off"))
    assert kept.save_html(tmp_path / "page.html").exists()
