"""Which libraries a session loads, and that it says so when it loads none."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

import ortkit
from ortkit.errors import RunError, UserError
from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library
from ortkit.kernels.signature import DOMAIN
from ortkit.runtime import registering
from ortkit.targets.target import Target
from tests.kernels.fused_model import unary

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 256] x, float[256] b) => (float[n, 256] y) {
  s = Add(x, b)  t = Tanh(s)  e = Exp(t)  y = Mul(e, s)
}
"""
FEEDS = {"x": np.ones((64, 256), np.float32), "b": np.full(256, 0.5, np.float32)}


@pytest.fixture(scope="module")
def optimized(tmp_path_factory: pytest.TempPathFactory) -> ortkit.Optimized:
    made = ortkit.optimize(
        onnx.parser.parse_model(TEXT), ortkit.OptimizeOptions(level=3, verify=False)
    )
    assert made.library is not None
    return made


@pytest.fixture
def saved(optimized: ortkit.Optimized, tmp_path: Path) -> Path:
    optimized.save(tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def runs_kernel(session: ortkit.Session) -> bool:
    return any(placed.domain == DOMAIN for placed in session.placement())


def test_the_library_beside_the_model_is_loaded(saved: Path) -> None:
    with ortkit.Session(saved, "cpu") as session:
        assert [path.name for path in session.libraries] == ["m.ops.so"]
        assert not session.notes
        assert runs_kernel(session)
        s = 1.5 * np.ones((64, 256), np.float32)
        np.testing.assert_allclose(session.run(FEEDS)["y"], np.exp(np.tanh(s)) * s, rtol=1e-5)


def test_what_optimize_returns_is_a_model(optimized: ortkit.Optimized) -> None:
    with ortkit.Session(optimized, "cpu") as session:
        assert runs_kernel(session)
        folder = session.libraries[0].parent
    assert not folder.exists()


def test_none_is_loaded_on_request(saved: Path) -> None:
    with ortkit.Session(saved, "cpu", kernels="never") as session:
        assert not session.libraries
        assert not session.notes
        assert not runs_kernel(session)
        assert session.run(FEEDS)["y"].shape == (64, 256)


def remove(library: Path) -> None:
    library.unlink()


def change(library: Path) -> None:
    library.write_bytes(library.read_bytes() + b"\0")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (remove, "is not beside the model"),
        (change, "is not the one that the model was saved with"),
    ],
)
def test_a_wrong_library_is_said_and_functions_run(saved: Path, damage: object, says: str) -> None:
    damage(saved.with_name("m.ops.so"))  # type: ignore[operator]
    with ortkit.Session(saved, "cpu") as session:
        assert len(session.notes) == 1
        assert says in session.notes[0]
        assert "function bodies run instead" in session.notes[0]
        assert not runs_kernel(session)
        assert session.run(FEEDS)["y"].shape == (64, 256)
    with pytest.raises(RunError, match=says):
        ortkit.Session(saved, "cpu", kernels="require")


def test_an_older_library_lacks_ops(saved: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.so"
    build_library([unary("Tanh")], Target(), other, cache=KernelCache(tmp_path))
    with pytest.raises(RunError, match="lacks 1 of the model's fused ops"):
        ortkit.Session(saved, "cpu", kernels=other)


def test_a_file_that_is_no_library(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(RunError, match=r"text\.so was refused"):
        ortkit.Session(saved, "cpu", kernels=tmp_path / "text.so")
    with pytest.raises(UserError, match="no such file"):
        ortkit.Session(saved, "cpu", kernels=tmp_path / "missing.so")


def test_a_library_elsewhere_is_not_loaded(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "away"
    folder.mkdir()
    shutil.move(saved.with_name("m.ops.so"), folder / "m.ops.so")
    model = onnx.load(saved)
    for entry in model.metadata_props:
        if entry.key == "ortkit.library":
            entry.value = "away/m.ops.so"
    onnx.save(model, saved)
    with ortkit.Session(saved, "cpu") as session:
        assert "m.ops.so is not beside the model" in session.notes[0]
        assert not session.libraries


def test_an_embedded_library_is_loaded(optimized: ortkit.Optimized, tmp_path: Path) -> None:
    written = optimized.save(tmp_path / "e.onnx", embed_library=True)
    assert [path.name for path in written] == ["e.onnx"]
    with ortkit.Session(tmp_path / "e.onnx", "cpu") as session:
        assert not session.notes
        assert runs_kernel(session)
    model = onnx.load(tmp_path / "e.onnx")
    for entry in model.metadata_props:
        if entry.key == "ortkit.library.data":
            entry.value = "AAAA"
    onnx.save(model, tmp_path / "e.onnx")
    with ortkit.Session(tmp_path / "e.onnx", "cpu", trust=True) as session:
        assert "is not the one that the model was saved with" in session.notes[0]


def test_a_model_in_memory_names_its_library(saved: Path) -> None:
    with ortkit.Session(saved.read_bytes(), "cpu") as session:
        assert "kernels=PATH" in session.notes[0]
    with ortkit.Session(saved.read_bytes(), "cpu", kernels=saved.with_name("m.ops.so")) as session:
        assert runs_kernel(session)


def test_extensions_are_registered_where_the_model_has_their_ops() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.contrib" : 1]>
    g (string[n] x) => (string[n] y) { y = ai.onnx.contrib.StringUpper(x) }
    """
    with ortkit.Session(onnx.parser.parse_model(text), "cpu") as session:
        assert session.run(np.array(["abc"]))["y"].tolist() == ["ABC"]


def test_why_no_gpu_here_runs_a_kernel_is_said() -> None:
    """The library notes it in the options; tests/native/cuda_test.cc sees that it does."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    assert registering._left_out(options, ["ortkit.fused::a"]) == ""
    for op in "ab":
        text = f"no image for sm_75 of kernel {op}0: the function body runs"
        options.add_session_config_entry(f"ortkit.fused::{op}@left_out", text)
    found = registering._left_out(options, [f"ortkit.fused::{op}" for op in "abc"])
    assert found == " (no image for sm_75)"
