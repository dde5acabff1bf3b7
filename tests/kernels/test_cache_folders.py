"""Caches that others can write to are not used, which is said once, and stops nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import onnx.parser
import pytest
from fused_model import unary

from ortkit import OptimizeOptions, optimize
from ortkit.cli.main import run
from ortkit.doctor import _storage
from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library
from ortkit.kernels.cache_files import is_said, read_cached, say_unused, write_cached
from ortkit.targets.target import Target

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="folders have no owners here")
GELU = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 32] x) => (float[n, 32] y)
<float[32] b = {BIAS}>
{ a = Add(x, b)  y = Gelu(a) }
""".replace("BIAS", ", ".join(["0.5"] * 32))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(GELU), path)
    return path


def line_of(cache: Path, mode: str = "0777") -> str:
    return (
        f"the cache is not used: {cache} can be written by all users (mode {mode}): "
        f"chmod go-w {cache}; ORTKIT_CACHE names another folder"
    )


def test_kernels_are_made_without_a_cache_that_others_can_write_to(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "cache")
    first = build_library([unary("Tanh")], Target(), tmp_path / "a.so", cache=cache)
    assert (first.compiled, first.note, len(cache.entries())) == (1, "", 1)
    cache.folder.chmod(0o777)
    second = build_library([unary("Tanh")], Target(), tmp_path / "b.so", cache=cache)
    assert second.compiled == 1
    assert second.note == line_of(cache.folder)
    assert cache.entries() == ()
    cache.folder.chmod(0o700)
    third = build_library([unary("Tanh")], Target(), tmp_path / "c.so", cache=cache)
    assert (third.compiled, third.note, len(cache.entries())) == (0, "", 1)


def test_a_kernel_of_another_user_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = KernelCache(tmp_path / "cache")
    build_library([unary("Tanh")], Target(), tmp_path / "a.so", cache=cache)
    (entry,) = cache.folder.iterdir()
    if os.geteuid() == 0:
        os.chown(entry, 12_345, -1)
    else:
        entry.chmod(0o606)
    again = build_library([unary("Tanh")], Target(), tmp_path / "b.so", cache=cache)
    assert (again.compiled, again.note) == (1, "")


@pytest.mark.parametrize("which", ["the folder", "the one above"])
def test_it_is_said_by_the_commands_of_the_cache(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    cache = tmp_path / "above" / "cache"
    cache.mkdir(parents=True)
    shared = cache if which == "the folder" else cache.parent
    shared.chmod(0o777)
    line = line_of(shared)
    monkeypatch.setenv("ORTKIT_CACHE", str(cache))
    assert run(["cache", "list"]) == 0
    assert capfd.readouterr().out.startswith("0 kernels")
    assert [record.getMessage() for record in caplog.records] == [f"ortkit: {line}"]
    assert run(["cache", "clear"]) == 2
    assert capfd.readouterr().err == f"ortkit: {line}\n"
    (found,) = _storage()
    assert (found.name, found.state) == ("kernel cache", "broken")
    assert found.value in line.replace("the cache is ", "")
    assert list(cache.iterdir()) == []


def test_it_is_said_once_on_stderr(model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    report = tmp_path / "report.json"
    command = ["optimize", str(model), "--no-verify", "--report", str(report)]
    done = subprocess.run(
        [sys.executable, "-m", "ortkit", *command], capture_output=True, text=True, check=True,
        timeout=300, env={**os.environ, "ORTKIT_CACHE": str(cache)},
    )  # fmt: skip
    assert done.stderr == f"ortkit: {line_of(cache)}\n"
    assert json.loads(report.read_text("utf-8"))["kernel_note"] == line_of(cache)
    assert list(cache.iterdir()) == []


def test_a_folder_above_with_the_sticky_bit_is_fine(tmp_path: Path) -> None:
    (tmp_path / "above").mkdir()
    (tmp_path / "above").chmod(0o1777)
    cache = KernelCache(tmp_path / "above" / "cache" / "kernels")
    write_cached(cache.folder / "a.kernel", "key", '{"a": 1}')
    paths = (cache.folder.parent, cache.folder, *cache.folder.iterdir())
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o700, 0o700, 0o600]
    assert cache.refusal() == ""


def test_a_cache_behind_a_link_is_used(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("cache")
    write_cached(tmp_path / "link" / "file", "key", '{"a": 1}')
    assert read_cached(tmp_path / "link" / "file", "key", dict) == {"a": 1}


def test_each_reason_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    for reason in ("one reason", "another", "one reason"):
        say_unused(reason)
    said = [record.getMessage() for record in caplog.records]
    line = "the cache is not used: one reason; ORTKIT_CACHE names another folder"
    assert said == [f"ortkit: {line}", f"ortkit: {line}".replace("one reason", "another")]
    assert is_said(line)


# ---- changed entries, from end to end
def test_a_changed_cache_gives_the_right_kernels_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("ORTKIT_CACHE", str(cache))
    first = optimize(model, OptimizeOptions(verify=False)).save(tmp_path / "first.onnx")
    (entry,) = (cache / "kernels").iterdir()
    content = entry.read_bytes()
    changed = content.replace(b'"factor": ', b'"factor": 9', 1)
    assert changed != content
    entry.write_bytes(changed)
    again = optimize(model)
    assert again.report.verification is not None
    assert again.report.verification.verdict == "yes"
    second = again.save(tmp_path / "second.onnx")
    assert entry.read_bytes() == content
    assert first[1].read_bytes() == second[1].read_bytes()
