"""Reading folders of onnxruntime-genai, and what is said of damaged ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ortkit.errors import OrtkitError, UserError
from ortkit.genai.folder import Change, changed_config, read_folder
from ortkit.genai.tokens import read_tokens
from tests.genai.folders import config, genai_folder


def written(folder: Path, content: dict[str, Any]) -> Path:
    (folder / "genai_config.json").write_text(json.dumps(content))
    return folder


def test_models_of_all_parts_are_found(tmp_path: Path) -> None:
    folder, content = genai_folder(tmp_path / "f"), config()
    names = ("vision.onnx", "embed.onnx", "first.onnx", "second.onnx")
    for name in names:
        (folder / name).write_bytes(b"")
    content["model"]["vision"] = {"filename": "vision.onnx", "config_filename": "p.json"}
    content["model"]["embedding"] = {"filename": "embed.onnx"}
    stages = [{"one": {"filename": "first.onnx"}}, {"two": {"filename": "second.onnx"}}]
    content["model"]["vision"]["pipeline"] = stages
    found = read_folder(written(folder, content))
    assert {each.filename for each in found.sections} == {"model.onnx", *names}
    assert found.decoder is not None
    assert found.decoder.filename == "model.onnx"


def test_sessions_get_libraries_and_keep_what_the_user_set(tmp_path: Path) -> None:
    folder, content = genai_folder(tmp_path / "f"), config()
    (folder / "vision.onnx").write_bytes(b"")
    content["model"]["vision"] = {"filename": "vision.onnx"}
    content["model"]["decoder"]["session_options"]["intra_op_num_threads"] = 3
    given = read_folder(written(folder, content))
    change = {
        "model.onnx": Change("model.ops.so", {"intra_op_num_threads": 0}),
        "vision.onnx": Change("vision.ops.so", {"intra_op_num_threads": 0}),
    }
    made = changed_config(given, change)["model"]
    decoder, vision = made["decoder"]["session_options"], made["vision"]["session_options"]
    assert decoder["custom_ops_library"] == "model.ops.so"
    assert vision["custom_ops_library"] == "vision.ops.so"
    # Without options of its own a model had the decoder's.
    assert decoder["intra_op_num_threads"] == vision["intra_op_num_threads"] == 3
    assert vision["log_id"] == "onnxruntime-genai"
    assert "custom_ops_library" not in given.config["model"]["decoder"]["session_options"]


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("filename",), "../model.onnx", "decoder names a file outside of the folder"),
        (("filename",), "/etc/passwd", "decoder names a file outside of the folder"),
        (("filename",), "gone.onnx", "decoder names gone.onnx, which is not there"),
        (
            ("session_options", "custom_ops_library"),
            "../../evil.so",
            "decoder names a file outside of the folder",
        ),
        (("shared_initializers",), [{"name": "w"}], "weights that several models share"),
    ],
)
def test_bad_configurations(
    tmp_path: Path, place: tuple[str, ...], value: object, message: str
) -> None:
    folder, content = genai_folder(tmp_path / "f"), config()
    part = content["model"]["decoder"]
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    with pytest.raises(OrtkitError, match=message):
        read_folder(written(folder, content))


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "cannot be read"), ("[]", "has no 'model'"), ('{"model": {}}', "names no model")],
)
def test_damaged_configurations(tmp_path: Path, text: str, message: str) -> None:
    folder = genai_folder(tmp_path / "f")
    (folder / "genai_config.json").write_text(text)
    with pytest.raises(OrtkitError, match=message):
        read_folder(folder)


def test_a_folder_without_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(OrtkitError, match=r"is a folder without genai_config.json"):
        read_folder(tmp_path)


def test_a_tokenizer_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_genai")
    folder, text = genai_folder(tmp_path / "f"), tmp_path / "text.txt"
    (folder / "tokenizer.json").write_text("{}")
    text.write_text("a text")
    with pytest.raises(UserError, match="its tokenizer cannot be used: ") as caught:
        read_tokens(read_folder(folder), text, 100)
    assert "\n" not in str(caught.value)
