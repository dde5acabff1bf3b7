"""The generated code of kernels, kept to be read."""

from __future__ import annotations

import ast
import json
from importlib.util import find_spec
from pathlib import Path

import onnx
import onnx.parser
import pytest

import ortkit
from ortkit.cli.main import run
from ortkit.errors import UserError
from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library
from ortkit.targets.target import Target
from tests.kernels.fused_model import bias_gelu

MODEL = """<ir_version: 10, opset_import: ["" : 20]>
g (float[8, 768] x, float[768] w) => (float[8, 768] y) {
  a = Add(x, w)  b = Sigmoid(a)  c = Mul(a, b)  d = Tanh(c)  y = Sub(d, x)
}"""
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
needs_tvm = pytest.mark.skipif(find_spec("tvm") is None, reason="tvm is not installed")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path


@needs_triton
def test_code_for_cuda_says_what_it_is_and_how_it_is_launched(tmp_path: Path) -> None:
    signature, cache = bias_gelu("n", 48), KernelCache(tmp_path / "cache")
    target, folder = Target("cuda", "sm_90"), tmp_path / "code"
    for turn in ("compiled", "from the cache"):
        built = build_library(
            [signature, signature], target, tmp_path / "a.so", "triton", cache,
            sources=folder / turn,
        )  # fmt: skip
        names = built.sources[signature.key]
        ends = [f".{variant}.0.{kind}" for variant in range(3) for kind in ("py", "ptx")]
        assert sorted(names) == sorted(signature.op_type + end for end in ends)
        assert sorted(names) == sorted(path.name for path in (folder / turn).iterdir())
    assert built.compiled == 0
    text = (folder / turn / f"{signature.op_type}.0.0.py").read_text()
    tree = ast.parse(text)
    assert f"ortkit_{signature.key}" in {getattr(item, "name", "") for item in tree.body}
    for line in (
        "# variant 0, the first of which this holds: 48*n is at most 2147352576; "
        "all tensors start at multiples of 16 bytes",
        "# launch 1 of 1: ceil(48*n / 1024) x 1 x 1 blocks of 128 threads, 0 bytes of shared",
        f"# ortkit.fused::{signature.op_type}",
        "#   in   X: float32[n, 48]",
        "S = Add (X, B)",
        "# Gelu",
    ):
        assert line in text
    ptx = (folder / turn / f"{signature.op_type}.0.0.ptx").read_text()
    assert f".entry ortkit_{signature.key}" in ptx
    assert ptx.endswith("\n")


def test_names_of_sizes_stay_in_comments(tmp_path: Path) -> None:
    if find_spec("triton") is None:
        pytest.skip("triton is not installed")
    signature = bias_gelu("n\nimport nothing\u2028here", 48)
    built = build_library(
        [signature], Target("cuda", "sm_90"), tmp_path / "a.so", "triton",
        KernelCache(tmp_path / "cache"), sources=tmp_path / "code",
    )  # fmt: skip
    (name, *_) = [source for source in built.sources[signature.key] if source.endswith(".py")]
    tree = ast.parse((tmp_path / "code" / name).read_text("utf-8"))
    modules = [item.names[0].name for item in tree.body if isinstance(item, ast.Import)]
    assert modules == ["triton", "triton.language"]


@needs_triton
def test_the_command_keeps_code_for_cuda(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "code"
    command = ["optimize", str(model), "--target", "cuda", "--arch", "sm_90", "--no-verify"]
    assert run([*command, "--keep-source", str(folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (region,) = [item for item in document["regions"] if item["emitted_as"]]
    assert region["sources"]
    assert sorted(region["sources"]) == sorted(path.name for path in folder.iterdir())
    assert {str(folder / name) for name in region["sources"]} <= set(document["files"])
    assert all(name.startswith(region["emitted_as"]) for name in region["sources"])


@needs_tvm
def test_the_command_keeps_code_for_the_cpu(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "code"
    command = ["optimize", str(model), "--level", "3", "--no-verify"]
    assert run([*command, "--keep-source", str(folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (region,) = [item for item in document["regions"] if item["emitted_as"]]
    (name,) = region["sources"]
    text = (folder / name).read_text()
    assert "T.prim_func" in text
    assert f"# ortkit.fused::{region['emitted_as']}" in text
    ast.parse(text)


def test_no_kernels_no_code(model: Path, tmp_path: Path) -> None:
    options = ortkit.OptimizeOptions(kernels="off", verify=False, keep_source=True)
    assert ortkit.optimize(model, options).save_sources(tmp_path / "code") == ()


@needs_tvm
def test_code_that_was_not_kept_is_said(model: Path, tmp_path: Path) -> None:
    made = ortkit.optimize(model, ortkit.OptimizeOptions(level=3, verify=False))
    assert made.library is not None
    with pytest.raises(UserError, match="the kernels' code was not kept"):
        made.save_sources(tmp_path / "code")


def test_a_folder_that_is_a_file(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    command = ["optimize", str(model), "--no-verify", "--quiet", "--keep-source"]
    assert run([*command, str(tmp_path / "file")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "file: is no folder" in line
