"""The programs of docs/guides/deploy.md: Python, C and C++ run, JavaScript and Java are parsed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from ortkit.cli.main import run
from scripts.wheel_smoke import build
from tests.native.test_deploy import runtime

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "deploy.md"
#: ONNX Runtime's own headers, of Debian's libonnxruntime-dev; the wheels bring none.
DEBIAN = Path("/usr/include/onnxruntime")
STAND_IN = Path(__file__).parent / "headers"
HEADERS = DEBIAN if (DEBIAN / "onnxruntime_cxx_api.h").is_file() else STAND_IN
COMPILERS = {
    "c": ("cc", ".c", ("-std=c11", "-Wall", "-Wextra", "-Werror")),
    "cpp": ("c++", ".cc", ("-std=c++17", "-Wall", "-Wextra", "-Werror")),
}


def program(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return found


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model that the page speaks of, optimized."""
    folder = tmp_path_factory.mktemp("deployed")
    onnx.save(build(), folder / "model.onnx")
    assert run(["optimize", str(folder / "model.onnx"), "--no-verify", "--quiet"]) == 0
    assert (folder / "model.opt.ops.so").is_file()
    # By the name that programs look for; the wheel's file has the whole version in its name.
    (folder / "libonnxruntime.so.1").symlink_to(runtime())
    return folder


@pytest.fixture(scope="module")
def expected(deployed: Path) -> float:
    done = subprocess.run(
        [sys.executable, "-P", "-c", program("python")],
        cwd=deployed, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(done.stdout)


@pytest.mark.parametrize("language", COMPILERS)
@pytest.mark.parametrize(
    "headers", [pytest.param(HEADERS, id="debian" if HEADERS == DEBIAN else "own-header")]
)
def test_a_native_program_gives_what_python_gives(
    language: str, headers: Path, deployed: Path, expected: float
) -> None:
    command, suffix, flags = COMPILERS[language]
    compiler = shutil.which(command)
    if compiler is None:
        pytest.skip(f"no {command}")
    source = deployed / f"deploy{suffix}"
    source.write_text(program(language), "utf-8")
    subprocess.run(
        [
            compiler, *flags, "-I", str(headers), str(source), "libonnxruntime.so.1",
            "-Wl,-rpath,$ORIGIN", "-o", str(deployed / language),
        ],
        cwd=deployed, check=True,
    )  # fmt: skip
    done = subprocess.run(
        [str(deployed / language)], cwd=deployed, capture_output=True, text=True, check=False,
        env={"ORT_DISABLE_TELEMETRY": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(expected, rel=1e-5)


def test_the_javascript_parses(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node.js")
    (tmp_path / "deploy.js").write_text(program("js"), "utf-8")
    done = subprocess.run(
        [node, "--check", str(tmp_path / "deploy.js")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_java_parses(tmp_path: Path) -> None:
    """Without ONNX Runtime's classes it cannot be compiled whole."""
    javac = shutil.which("javac")
    if javac is None:
        pytest.skip("no javac")
    (tmp_path / "Deploy.java").write_text(program("java"), "utf-8")
    done = subprocess.run(
        [javac, "--should-stop=ifNoError=PARSE", str(tmp_path / "Deploy.java")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
