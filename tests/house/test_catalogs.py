"""Catalogs agree with files, classes and names."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

import ortkit
from ortkit.passes.catalog import PASSES
from ortkit.passes.presets import ORDER
from ortkit.passes.select import load_pass, select_passes
from ortkit.rewrite.pipeline import Pipeline

FOLDER = Path(ortkit.__file__).parent / "passes"
NOT_PASSES = {"__init__", "catalog", "presets", "select"}


@pytest.mark.parametrize("name", sorted(PASSES))
def test_a_pass_is_called_the_same_everywhere(name: str) -> None:
    module, _, cls = PASSES[name].partition(":")
    assert module == f"ortkit.passes.{name.replace('-', '_')}"
    assert cls == "".join(word.title() for word in name.split("-"))
    found = getattr(import_module(module), cls)
    assert found.name == name
    assert load_pass(name).text == name
    for section in ("Before:", "After:") if "drop-unused" not in name else ():
        assert section in (found.__doc__ or ""), f"{name} does not show what it does"


def test_every_pass_of_a_preset_exists() -> None:
    assert {name for name, _ in ORDER} <= set(PASSES)
    assert len({name for name, _ in ORDER}) == len(ORDER)


@pytest.mark.parametrize("level", range(4))
def test_the_text_of_a_pipeline_parses_back(level: int) -> None:
    passes = select_passes("", level)
    assert select_passes(Pipeline(passes).text, 0) == passes
