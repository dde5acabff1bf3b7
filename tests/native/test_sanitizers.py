"""The shim in a real session under the address and the undefined-behaviour sanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library
from ortkit.kernels.link import linker
from ortkit.targets.target import Target
from tests.kernels.fused_model import bias_gelu, fused_model, random_input

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "custom_ops" / "native"
FLAGS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g"]
SIGNATURE = bias_gelu("n", 24)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def preloaded() -> str:
    """What must come before anything that allocates or throws: the sanitizer, then libstdc++."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    found = [
        subprocess.run(
            ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libstdc++.so.6")
    ]
    if not all(Path(name).is_file() for name in found):
        pytest.skip("libasan is not installed")
    return " ".join(found)


def sanitized_shim(folder: Path, *extra: Path) -> Path:
    """The archive as custom_ops/CMakeLists.txt makes it, with the sanitizers' checks."""
    folder.mkdir()
    sources = [*sorted(NATIVE.glob("*.cc")), *extra]
    flags = ["-std=c++17", "-O1", "-fPIC", "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden"]
    command = ["g++", *flags, "-fno-threadsafe-statics", *FLAGS, f"-I{NATIVE}", "-c"]
    subprocess.run([*command, *map(str, sources)], cwd=folder, check=True)
    archive = folder / linker.SHIM_ARCHIVE
    subprocess.run(["ar", "rcs", archive, *sorted(folder.glob("*.o"))], check=True)
    return archive


def run_model(
    tmp_path: Path, preloaded: str, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> subprocess.CompletedProcess[str]:
    monkeypatch.setattr(linker, "find_shim", lambda: (archive, NATIVE / linker.MANIFEST_HEADER))
    monkeypatch.setenv("CC", " ".join(["gcc", *FLAGS]))
    build_library([SIGNATURE], Target(), tmp_path / "x.so", cache=KernelCache(tmp_path / "cache"))
    model = onnx.load_from_string(fused_model(SIGNATURE))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")  # so that what does not fit reaches the shim
    onnx.save(model, tmp_path / "model.onnx")
    feeds = {spec.name: random_input(spec, {"n": 4000}) for spec in SIGNATURE.inputs}
    np.savez(tmp_path / "feeds.npz", **feeds)
    surroundings = {
        **os.environ,
        "LD_PRELOAD": preloaded,
        # Python frees nothing at its end; the wheel is not built for checks of its own memory.
        "ASAN_OPTIONS": "detect_leaks=0:alloc_dealloc_mismatch=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }
    names = ("model.onnx", "x.so", "feeds.npz")
    command = [sys.executable, str(HERE / "sanitized_model.py")]
    command += [str(tmp_path / name) for name in names]
    return subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)


def test_a_model_runs_without_a_finding(
    tmp_path: Path, preloaded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = sanitized_shim(tmp_path / "shim")
    done = run_model(tmp_path, preloaded, archive, monkeypatch)
    assert (done.returncode, done.stdout) == (0, "ran to its end\n"), done.stderr[-3000:]
    assert "Sanitizer" not in done.stderr
    assert "runtime error" not in done.stderr


def test_the_sanitizer_would_have_seen_a_mistake(
    tmp_path: Path, preloaded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with a read beyond the heap at load: what runs above is really checked."""
    mistake = tmp_path / "mistake.cc"
    mistake.write_text(
        "#include <cstdlib>\n"
        'extern "C" int ReadBeyond() {\n'
        "  char* block = static_cast<char*>(malloc(8));\n"
        "  char* volatile beyond = block + 8;\n"
        "  const int read = *beyond;\n"
        "  free(block);\n"
        "  return read;\n"
        "}\n"
        "__attribute__((constructor)) static void AtLoad() { ReadBeyond(); }\n"
    )
    archive = sanitized_shim(tmp_path / "shim", mistake)
    flags = (*linker._FLAGS, "-Wl,-u,ReadBeyond")
    monkeypatch.setattr(linker, "_FLAGS", flags)
    done = run_model(tmp_path, preloaded, archive, monkeypatch)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
