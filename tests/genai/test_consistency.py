"""Configurations that are not of their model: what genai stops at, and what does it no harm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ortkit.cli.main import run
from ortkit.errors import ModelError
from ortkit.genai.consistency import check_decoder
from ortkit.genai.folder import read_folder
from ortkit.genai.layout import DecoderLayout, layout_of
from tests.genai.folders import config, genai_folder


def changed(folder: Path, place: str, value: object) -> Path:
    """Write a folder with another entry in its configuration; None: without it."""
    content = config()
    *keys, last = place.split(".")
    part: Any = content["model"]
    for key in keys:
        part = part[key]
    part[last] = value
    if value is None:
        del part[last]
    genai_folder(folder)
    (folder / "genai_config.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("vocab_size", 3, "vocab_size is 3, and the model has logits of 48 tokens"),
        ("vocab_size", None, "vocab_size is missing, and the model has logits of 48 tokens"),
        ("vocab_size", "many", "vocab_size is 'many', not a number above 0"),
        ("context_length", 0, "context_length is 0, not a number above 0"),
        ("decoder.head_size", 8, "head_size is 8, and heads of cache 'present.0.key' have 16"),
        ("decoder.inputs.input_ids", "gone", "input_ids is 'gone', and the model has no such"),
        ("decoder.inputs.past_key_names", "k.%d", "past_key_names is 'k.%d', and the model has"),
        ("decoder.outputs.logits", "gone", "logits is 'gone', and the model has no such output"),
    ],
)
def test_what_genai_stops_at(tmp_path: Path, place: str, value: object, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        check_decoder(read_folder(changed(tmp_path / "f", place, value)))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("place", "value", "note"),
    [
        ("decoder.num_hidden_layers", 2, ""),
        ("decoder.num_hidden_layers", 1, "num_hidden_layers is 1, and the model has caches of 2"),
        ("decoder.num_hidden_layers", 10**15, "and the model has caches of 2 layers"),
        ("decoder.num_key_value_heads", 4, "num_key_value_heads is 4, and caches of the model"),
    ],
)
def test_what_does_no_harm(tmp_path: Path, place: str, value: object, note: str) -> None:
    folder = read_folder(changed(tmp_path / "f", place, value))
    found = check_decoder(folder)
    assert len(found) == bool(note)
    assert all(note in each for each in found)
    assert isinstance(layout_of(folder), DecoderLayout)


def test_nothing_is_written_without_verification(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, output = changed(tmp_path / "f", "vocab_size", 3), tmp_path / "out"
    arguments = [str(folder), "-o", str(output), "--level", "0", "--no-verify", "--no-timing"]
    assert run(["optimize", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not output.exists()
