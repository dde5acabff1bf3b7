"""`optimize --kernels` without a toolchain: on without kernels, or what to install."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx.parser
import pytest

from ortkit.kernels import c_compiler
from ortkit.kernels.link import linker
from ortkit.kernels.tvm import backend

GELU = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 32] x) => (float[n, 32] y)
<float[32] b = {BIAS}>
{ a = Add(x, b)  y = Gelu(a) }
""".replace("BIAS", ", ".join(["0.5"] * 32))


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(GELU), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def without_tvm(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    return "tvm is not installed (pip install apache-tvm)"


def without_a_compiler(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(c_compiler, "find_spec", lambda name: None)
    return "no C compiler to link kernels with; install gcc or clang, or `pip install ziglang`"


def with_a_broken_compiler(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    (folder / "cc").write_text("#!/bin/sh\necho collect2: ld is gone >&2\nexit 1\n")
    (folder / "cc").chmod(0o755)
    monkeypatch.setenv("CC", str(folder / "cc"))
    return "failed to link the kernel library: collect2: ld is gone"


WAYS = {"tvm": without_tvm, "no compiler": without_a_compiler, "broken": with_a_broken_compiler}


@pytest.mark.parametrize("way", WAYS)
def test_auto_goes_on_without_kernels_and_says_so_once(
    way: str, call, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = WAYS[way](monkeypatch, tmp_path)
    done = call("optimize", model, "-o", "out.onnx")
    assert done.code == 0, done.err
    assert (done.out + done.err).count(said) == 1
    assert "no kernels: " in done.err
    assert "verified  yes" in done.out
    assert [path.name for path in tmp_path.glob("out*")] == ["out.onnx"]
    listed = json.loads(call("optimize", model, "--no-verify", "--json").out)
    assert said in listed["kernel_note"]
    assert listed["regions"] == []


def test_a_native_part_of_other_sources_is_an_error(
    call, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linker, "MANIFEST_VERSION", linker.MANIFEST_VERSION + 1)
    done = call("optimize", model, "-o", "out.onnx")
    assert done.code == 2
    assert "the native part of ortkit was built from other sources" in done.err
    assert done.err.count("\n") == 1
    assert list(tmp_path.glob("out*")) == []


@pytest.mark.parametrize("way", WAYS)
def test_a_backend_by_name_fails_with_what_to_do(
    way: str, call, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = WAYS[way](monkeypatch, tmp_path)
    done = call("optimize", model, "--kernels", "tvm", "-o", "out.onnx")
    assert said in done.err
    assert done.out == ""
    assert list(tmp_path.glob("out*")) == []
    if way == "broken":
        assert done.code == 70
    else:
        assert (done.code, done.err.count("\n")) == (2, 1)


def test_a_kernel_that_does_not_compile_is_left_to_the_runtime(
    call, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ortkit.refusal import Refused

    def failed(jobs, count, seconds=0.0):
        return [Refused("the compiler crashed with signal 11 (SIGSEGV): LLVM ERROR: no")] * len(
            jobs
        )

    monkeypatch.setattr("ortkit.kernels.build.library.compile_all", failed)
    done = call("optimize", model, "--json")
    assert done.code == 0, done.err
    content = json.loads(done.out)
    (region,) = content["regions"]
    assert region["emitted_as"] is None
    assert region["reason"].endswith("LLVM ERROR: no")
    assert content["verification"]["verdict"] == "yes"
    assert len(content["files"]) == 1
