"""A model and its library in a C program against the ONNX Runtime of the wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import models
from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library
from ortkit.optimization.call import OptimizeOptions, optimize
from ortkit.targets import cpu
from ortkit.targets.target import Target
from tests.kernels.fused_model import bias_gelu, fused_model, random_input, session

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "deploy" / "main.cc"
CXX = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
COMPILER = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
SIGNATURE = bias_gelu("n", 24)


def runtime() -> Path:
    """The wheel's libonnxruntime; the Python package itself runs another copy of the same code."""
    spec = find_spec("onnxruntime")
    assert spec is not None
    assert spec.origin is not None
    (library,) = (Path(spec.origin).parent / "capi").glob("libonnxruntime.so.*")
    return library


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if COMPILER is None:
        pytest.skip("no C compiler")
    program = tmp_path_factory.mktemp("deploy") / "deploy"
    command = [*COMPILER.split(), "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*command, str(HERE / "deploy.c"), "-o", str(program), "-ldl"], check=True)
    return program


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "model.onnx").write_bytes(fused_model(SIGNATURE))
    build_library([SIGNATURE], Target(), folder / "model.ops.so", cache=KernelCache(folder))
    return folder / "model.onnx"


def run(program: Path, model: Path, feeds: dict[str, np.ndarray], repeat: int = 1) -> np.ndarray:
    words = [runtime(), model, model.with_suffix(".ops.so"), 24, repeat]
    sent = feeds["B"].tobytes() + feeds["X"].tobytes()
    bare = {"PATH": "/nowhere", "ORT_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(
        [program, *map(str, words)], input=sent, capture_output=True, env=bare, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return np.frombuffer(done.stdout, np.float32).reshape(repeat, *feeds["X"].shape)


@pytest.mark.parametrize("rows", [1, 7, 5000])
def test_a_c_program_gets_what_python_gets(program: Path, model: Path, rows: int) -> None:
    feeds = {spec.name: random_input(spec, {"n": rows}) for spec in SIGNATURE.inputs}
    (found,) = run(program, model, feeds)
    loaded = session(model.read_bytes(), model.with_suffix(".ops.so"))
    np.testing.assert_array_equal(found, loaded.run(None, feeds)[0])


def test_the_library_may_be_loaded_and_unloaded_again_and_again(
    program: Path, model: Path
) -> None:
    feeds = {spec.name: random_input(spec, {"n": 3}) for spec in SIGNATURE.inputs}
    found = run(program, model, feeds, repeat=20)
    for each in found:
        np.testing.assert_array_equal(each, found[0])


def test_a_library_for_another_processor_is_refused_in_one_line(
    program: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "aarch64" if cpu.machine() == "x86-64" else "x86-64"
    monkeypatch.setitem(cpu.LEVELS, cpu.native_level(), cpu.LEVELS[other])
    shutil.copy(model, tmp_path / "model.onnx")
    build_library([SIGNATURE], Target(), tmp_path / "model.ops.so", cache=KernelCache(tmp_path))
    words = [runtime(), tmp_path / "model.onnx", tmp_path / "model.ops.so", 24]
    done = subprocess.run(
        [program, *map(str, words)], input="", capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert f"these kernels need a processor of level {other}" in done.stderr


@pytest.mark.skipif(CXX is None, reason="no C++ compiler")
def test_the_example_in_cpp_runs_with_and_without_its_library(tmp_path: Path) -> None:
    source = models.build("bert", "tiny", "ts")
    (tmp_path / "model.onnx").write_bytes(source.SerializeToString())
    options = OptimizeOptions(verify=False, check_load=False)
    optimize(tmp_path / "model.onnx", options).save(tmp_path / "model.opt.onnx")
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):  # as in the archive of a release
        (tmp_path / name).symlink_to(runtime())
    assert CXX is not None
    command = [*CXX.split(), "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-L{tmp_path}"]
    command += [f"-I{HERE / 'headers'}", str(EXAMPLE), "-lonnxruntime", f"-Wl,-rpath,{tmp_path}"]
    subprocess.run([*command, "-o", "deploy"], check=True, cwd=tmp_path)

    def answer(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["./deploy", *words], cwd=tmp_path, capture_output=True, text=True, check=False,
            env={"ORT_DISABLE_TELEMETRY": "1"},
        )  # fmt: skip

    feeds = {
        "input_ids": np.full((1, 128), 7, np.int64),
        "attention_mask": np.ones((1, 128), np.int64),
    }
    (expected, *_) = session(tmp_path / "model.onnx").run(None, feeds)
    for words in (
        ("model.onnx",), ("model.opt.onnx",), ("model.opt.onnx", "./model.opt.ops.so"),
    ):  # fmt: skip
        done = answer(*words)
        assert done.returncode == 0, done.stderr
        found = np.array(done.stdout.split(), np.float32)
        np.testing.assert_allclose(found, expected.ravel()[:3], atol=1e-5)
    wrong = answer("model.opt.onnx", "./nothing.so")
    assert wrong.returncode == 1
    assert "nothing.so" in wrong.stderr
