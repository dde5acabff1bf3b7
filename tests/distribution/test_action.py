"""action.yml: each step is run as a script; other systems are told what ortkit runs on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from scripts.wheel_smoke import build

ROOT = Path(__file__).parents[2]
ACTION = (ROOT / "action.yml").read_text("utf-8")
#: What each step runs.
STEPS = re.findall(r"^      run: '(.*)'$", ACTION, re.MULTILINE)


def run(step: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a step with an `ortkit` that is the one under test, wherever scripts are installed."""
    commands = folder / "bin"
    commands.mkdir(exist_ok=True)
    (commands / "ortkit").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ortkit "$@"\n')
    (commands / "ortkit").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{commands}:{os.environ['PATH']}",
        "GITHUB_ACTION_PATH": str(ROOT),
        "GITHUB_OUTPUT": str(folder / "outputs"),
        **variables,
    }
    return subprocess.run(
        ["bash", "-c", step], cwd=folder, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def test_every_input_reaches_a_step() -> None:
    names = re.findall(
        r"^  ([\w-]+):\n    description", ACTION.partition("outputs:")[0], re.MULTILINE
    )
    assert len(names) == 4
    for name in names:
        assert f"inputs.{name} }}}}" in ACTION


# Three commands, each in processes of its own: 12 s.
@pytest.mark.slow
def test_the_steps_optimize_verify_and_compare(tmp_path: Path) -> None:
    install, optimize, verify, compare = STEPS
    assert install.endswith('scripts/action" install')
    onnx.save(build(), tmp_path / "m.onnx")
    done = run(optimize, tmp_path, MODEL="m.onnx", OPTIONS="--level 2 --no-verify")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "outputs").read_text() == "optimized=m.opt.onnx\n"
    assert (tmp_path / "m.opt.ops.so").is_file()
    done = run(verify, tmp_path, MODEL="m.onnx")
    assert done.returncode == 0, done.stderr
    given = {"MODEL": "m.onnx", "SHAPE": "rows=64", "MEASURE_SECONDS": "0.1"}
    done = run(compare, tmp_path, **given, FAIL_SLOWER="500")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "m.opt.onnx" in done.stdout


def test_a_model_that_differs_fails(tmp_path: Path) -> None:
    model = build()
    onnx.save(model, tmp_path / "m.onnx")
    onnx.save(model, tmp_path / "m.opt.onnx")
    onnx.load(tmp_path / "m.opt.onnx")
    model.graph.initializer[4].raw_data = b"\0\0\x80\x3f"  # 1 in place of 0.5
    onnx.save(model, tmp_path / "m.opt.onnx")
    done = run(STEPS[2], tmp_path, MODEL="m.onnx")
    assert done.returncode == 1


def test_an_unknown_step_is_a_usage_error(tmp_path: Path) -> None:
    done = run('"$GITHUB_ACTION_PATH/scripts/action" deploy', tmp_path)
    assert done.returncode == 2
    assert done.stderr == "usage: scripts/action install|optimize|verify|compare\n"


@pytest.mark.parametrize("system", ["Darwin", "Windows"])
def test_another_system_is_said_in_one_message(system: str, tmp_path: Path) -> None:
    done = subprocess.run(
        ["cmake", "-S", ROOT / "custom_ops", "-B", tmp_path, f"-DCMAKE_SYSTEM_NAME={system}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert f"ortkit runs on Linux, and this is {system}." in " ".join(done.stderr.split())
