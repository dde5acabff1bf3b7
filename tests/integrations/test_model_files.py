"""The files of a model that is handed on, whatever path it is named by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

import ortkit
from ortkit.errors import UserError
from ortkit.integrations.model_files import copy_model

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 2] X) => (float[n, 2] Y) <float[2] B = {1, 2}> { Y = Add(X, B) }
"""


def saved(folder: Path, data: str) -> Path:
    folder.mkdir()
    model = onnx.parser.parse_model(MODEL)
    weight = onnx.numpy_helper.from_array(np.asarray([1, 2], np.float32), "B")
    model.graph.initializer[0].CopyFrom(weight)  # only raw data go to a file
    onnx.save(
        model, folder / "m.onnx", save_as_external_data=True, location=data, size_threshold=0
    )
    return folder / "m.onnx"


@pytest.mark.parametrize("named", ["real/m.onnx", "folder-link/m.onnx", "links/m.onnx"])
def test_weights_come_along_from_relative_paths_and_links(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(Path("real"), "m.data")
    Path("folder-link").symlink_to("real")
    Path("links").mkdir()  # as download caches keep a model and its data
    for name in ("m.onnx", "m.data"):
        (Path("links") / name).symlink_to(Path("../real") / name)
    copy = copy_model(Path(named), Path("copy"), None)
    assert {path.name for path in Path("copy").iterdir()} == {"model.onnx", "m.data"}
    with ortkit.Session(copy, "cpu") as session:
        np.testing.assert_array_equal(
            session.run({"X": np.zeros((1, 2), np.float32)})["Y"], [[1, 2]]
        )


def test_weights_do_not_take_the_place_of_the_model(tmp_path: Path) -> None:
    model = saved(tmp_path / "real", "model.onnx")
    with pytest.raises(UserError, match=r"its weights cannot be called model\.onnx"):
        copy_model(model, tmp_path / "copy", None)
    assert not (tmp_path / "copy").exists()
