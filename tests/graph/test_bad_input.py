"""Files that are no models: one line each, with what is wrong, where and what to do."""

from __future__ import annotations

import io
import os
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortkit.errors import ModelError
from ortkit.graph.io.open import open_model


def small_model() -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], "n")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def large_model() -> bytes:
    model = small_model()
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1 << 19, np.float32), "w"))
    return model.SerializeToString()


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("data.pkl", b"1")
    return buffer.getvalue()


def changed(change: Callable[[onnx.ModelProto], object]) -> bytes:
    model = small_model()
    change(model)
    return model.SerializeToString()


SAFETENSORS = (40).to_bytes(8, "little") + b'{"w": {"dtype": "F32", "shape": [1]}}   ' + b"\0" * 4
NPY = io.BytesIO()
np.save(NPY, np.zeros(3))

BAD_FILES: dict[str, tuple[str, bytes, str]] = {
    "empty": ("m.onnx", b"", "the file is empty"),
    "cut off": ("m.onnx", small_model().SerializeToString()[:-20], "bytes are missing"),
    "large and cut off": ("m.onnx", large_model()[:-2000], "bytes are missing"),
    "random": ("m.onnx", random.Random(0).randbytes(5000), "no ONNX model, or a damaged one"),
    "random, large": ("m.onnx", random.Random(1).randbytes(2 << 20), "no ONNX model"),
    "zeros": ("m.onnx", bytes(5000), "no ONNX model"),
    "a text": ("m.onnx", b"Dear reader,\nthis is no model.\n", "it looks like text"),
    "text in another encoding": ("m.onnx", "Grüße".encode("latin-1"), "no ONNX model"),
    "ONNX text by another name": (
        "m.onnx",
        b"<ir_version: 10>\ng () => () {}",
        "name it .onnxtxt",
    ),
    "zip": ("m.onnx", zipped(), "a zip archive, perhaps a PyTorch or Keras checkpoint"),
    "pickle": ("m.onnx", pickle.dumps({"w": 1}), "a Python pickle"),
    "gguf": ("m.onnx", b"GGUF" + bytes(60), "a GGUF file"),
    "png": ("m.onnx", b"\x89PNG\r\n\x1a\n" + bytes(60), "a PNG picture"),
    "npy": ("m.onnx", NPY.getvalue(), "a NumPy array"),
    "safetensors": ("m.onnx", SAFETENSORS, "a safetensors file"),
    "tflite": ("m.onnx", b"\x1c\0\0\0TFL3" + bytes(60), "a TensorFlow Lite model"),
    "ort format": ("m.onnx", b"\x28\0\0\0ORTM" + bytes(60), "an ORT format model"),
    "lfs pointer": ("m.onnx", b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
    "web page": ("m.onnx", b"<!DOCTYPE html><html>404</html>", "a web page"),
    "openvino": ("m.onnx", b'<?xml version="1.0"?><net/>', "an XML document"),
    "json by another name": ("m.onnx", b'{"irVersion": "10"}', "name it .json"),
    "elf": ("m.onnx", b"\x7fELF" + bytes(60), "a program or shared library"),
    "gzip": ("m.onnx", b"\x1f\x8b\x08" + bytes(60), "unpack it first"),
    "a graph": ("m.onnx", small_model().graph.SerializeToString(), "an ONNX graph on its own"),
    "a tensor": (
        "m.onnx",
        numpy_helper.from_array(np.zeros(3), "w").SerializeToString(),
        "an ONNX tensor on its own",
    ),
    "a node": ("m.onnx", small_model().graph.node[0].SerializeToString(), "no ONNX model"),
    "no graph": ("m.onnx", changed(lambda m: m.ClearField("graph")), "no ONNX model"),
    "an empty graph": ("m.onnx", changed(lambda m: m.graph.Clear()), "the graph is empty"),
    "no outputs": (
        "m.onnx",
        changed(lambda m: m.graph.ClearField("output")),
        "the graph has no outputs",
    ),
    "no opset": (
        "m.onnx",
        changed(lambda m: m.ClearField("opset_import")),
        "there is no opset import",
    ),
    "a newer IR": ("m.onnx", changed(lambda m: setattr(m, "ir_version", 999)), "IR version 999"),
    "IR version 0": ("m.onnx", changed(lambda m: setattr(m, "ir_version", 0)), "IR version 0"),
    "onnxtxt: no model": ("m.onnxtxt", b"hello", "no model in ONNX text: line 1, column"),
    "onnxtxt: binary": ("m.onnxtxt", b"\xff\xfe\x00", "the file is not text"),
    "onnxtxt: empty": ("m.onnxtxt", b" \n", "the file is empty"),
    "onnxtxt: deep types": (
        "m.onnxtxt",
        b'<ir_version: 10, opset_import: ["" : 21]> g (' + b"seq(" * 100_000,
        "brackets are nested more than 100 deep",
    ),
    "onnxtxt: deep graphs": (
        "m.onnxtxt",
        b'<ir_version: 10, opset_import: ["" : 21]> g () => () {'
        + b"y = If(c) <then_branch = h () => () {" * 50_000,
        "brackets are nested more than 100 deep",
    ),
    "json: no model": ("m.json", b'{"a": 1}', "no model in JSON"),
    "json: cut off": ("m.json", b'{"graph": ', "no model in JSON"),
    "json: deep": ("m.json", b"[" * 100_000, "no model in JSON"),
    "json: a list": ("m.json", b"[]", "the text holds no graph"),
    "json: another message": ("m.json", b"{}", "the text holds no graph"),
    "textproto: no model": ("m.textproto", b"a: 1", "no model in protobuf text"),
    "textproto: deep": ("m.textproto", b"graph {" * 1000, "no model in protobuf text"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_one_line(name: str, tmp_path: Path) -> None:
    file_name, content, expected = BAD_FILES[name]
    path = tmp_path / file_name
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        open_model(path)
    line = str(caught.value)
    assert expected in line
    assert line.startswith(str(path))
    assert line.isprintable()
    assert len(line) < 500
    assert caught.value.fix
    assert caught.value.exit_code == 2
    if file_name.endswith(".onnx"):
        with pytest.raises(ModelError, match="model bytes"):
            open_model(content)


def test_a_missing_file_suggests_a_near_one(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    with pytest.raises(ModelError, match=r"no such file; did you mean model\.onnx\?"):
        open_model(tmp_path / "modle.onnx")
    with pytest.raises(ModelError, match="no such file; check the path"):
        open_model(tmp_path / "none" / "modle.onnx")


def test_a_dangling_link_is_called_one(tmp_path: Path) -> None:
    link = tmp_path / "model.onnx"
    link.symlink_to("missing.onnx")
    with pytest.raises(ModelError, match=r"is a link to missing\.onnx, which is missing; check"):
        open_model(link)
    with pytest.raises(ModelError, match="no such file; check the path"):
        open_model(tmp_path / "model1.onnx")
    with pytest.raises(ModelError, match=r"is a folder; name a file$"):
        open_model(tmp_path)


def test_a_folder_suggests_a_model_in_it(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a folder; name a file"):
        open_model(tmp_path)
    (tmp_path / "b.onnx").touch()
    with pytest.raises(ModelError, match=r"name a file in it, such as b\.onnx"):
        open_model(tmp_path)


def test_what_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ModelError, match="is no regular file"):
            open_model(path)


def test_odd_paths(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for name in ("a\0b", "n" * 300, "file/m.onnx", "loop", ""):
        with pytest.raises(ModelError) as caught:
            open_model(tmp_path / name)
        assert str(caught.value).isprintable()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_an_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(small_model().SerializeToString())
    path.chmod(0)
    with pytest.raises(ModelError, match="cannot be read: Permission denied"):
        open_model(path)
