"""Reading folders of onnxruntime-genai, and what is said of damaged ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from ortkit.errors import MissingDependencyError, OrtkitError, UserError
from ortkit.genai import tokens
from ortkit.genai.folder import Change, changed_config, read_folder
from ortkit.genai.layout import Cache, layout_of
from ortkit.genai.tokens import read_tokens
from ortkit.refusal import Refused
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
    [
        ("{", "cannot be read"),
        ("[]", "has no 'model'"),
        ('{"model": {}}', "names no model"),
        ('{"model": {"a": 1, "a": 2}}', "the key 'a' is there twice"),
        ('{"model": {"context_length": NaN}}', "NaN is no number of JSON"),
        ('{"model": {"decoder": {"session_options": 5}}}', "'session_options' is no object"),
        ('{"model": ' + "[" * 100_000 + "]" * 100_000 + "}", "has too many levels"),
    ],
)
def test_damaged_configurations(tmp_path: Path, text: str, message: str) -> None:
    folder = genai_folder(tmp_path / "f")
    (folder / "genai_config.json").write_text(text)
    with pytest.raises(OrtkitError, match=message):
        read_folder(folder)


def test_a_link_out_of_the_folder_is_no_model(tmp_path: Path) -> None:
    folder, outside = genai_folder(tmp_path / "f"), tmp_path / "model.onnx"
    (folder / "model.onnx").rename(outside)
    (folder / "model.onnx").symlink_to(outside)
    with pytest.raises(UserError, match=r"decoder names a link out of the folder: model\.onnx"):
        read_folder(folder)


def test_a_folder_without_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(OrtkitError, match=r"is a folder without genai_config.json"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("part", "options"),
    [
        ("decoder", {"custom_ops_library": "evil.so"}),
        ("vision", {"custom_ops_library": "evil.so"}),  # a part without a model
        ("decoder", {"provider_options": [{"QNN": {"backend_path": "evil.so"}}]}),
    ],
)
def test_no_tokenizer_loads_native_code(
    tmp_path: Path, part: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "find_spec", lambda name: name == "onnxruntime_genai" or None)
    folder, text, content = genai_folder(tmp_path / "f"), tmp_path / "text.txt", config()
    text.write_text("a text")
    content["model"].setdefault(part, {})["session_options"] = options
    with pytest.raises(MissingDependencyError, match="no tokenizer is installed"):
        read_tokens(read_folder(written(folder, content)), text, 100)


def test_names_of_caches_without_a_layer_are_refused(tmp_path: Path) -> None:
    folder, content = genai_folder(tmp_path / "f"), config()
    content["model"]["decoder"]["inputs"]["past_key_names"] = "input_ids"
    found = layout_of(read_folder(written(folder, content)))
    assert isinstance(found, Refused)
    assert "have no %d" in found.reason


@pytest.mark.parametrize(
    ("search", "in_place"),
    [
        ({"past_present_share_buffer": True}, True),
        ({"past_present_share_buffer": True, "num_beams": 4}, False),
        ({"past_present_share_buffer": False}, False),
        ({}, False),
    ],
)
def test_caches_are_written_in_place_where_genai_is_told_so(
    tmp_path: Path, search: dict[str, Any], in_place: bool
) -> None:
    folder, content = genai_folder(tmp_path / "f"), config()
    content["search"] = search
    assert read_folder(written(folder, content)).writes_caches_in_place == in_place


def test_the_decoder_is_found_where_another_part_is_the_same_file(tmp_path: Path) -> None:
    folder, content = genai_folder(tmp_path / "f"), config()
    content["model"]["embedding"] = {"filename": "model.onnx"}
    assert read_folder(written(folder, content)).decoder is not None


def test_a_tokenizer_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_genai")
    folder, text = genai_folder(tmp_path / "f"), tmp_path / "text.txt"
    (folder / "tokenizer.json").write_text("{}")
    text.write_text("a text")
    with pytest.raises(UserError, match="its tokenizer cannot be used: ") as caught:
        read_tokens(read_folder(folder), text, 100)
    assert "\n" not in str(caught.value)


def test_states_of_convolutions_are_fed_back(tmp_path: Path) -> None:
    folder, content = genai_folder(tmp_path / "f"), config()
    model = onnx.load(folder / "model.onnx")
    for name, values in (
        ("past.1.conv", model.graph.input),
        ("present.1.conv", model.graph.output),
    ):
        values.append(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["b", 8, 2])
        )
    model.graph.node.append(onnx.helper.make_node("Neg", ["past.1.conv"], ["present.1.conv"]))
    onnx.save(model, folder / "model.onnx")
    decoder = content["model"]["decoder"]
    assert isinstance(layout_of(read_folder(written(folder, content))), Refused)
    decoder["inputs"]["past_conv_names"] = "past.%d.conv"
    decoder["outputs"]["present_conv_names"] = "present.%d.conv"
    found = layout_of(read_folder(written(folder, content)))
    assert not isinstance(found, Refused)
    assert found.caches[-1] == Cache("past.1.conv", "present.1.conv", (1, 8, 2))
