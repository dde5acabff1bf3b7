"""The steps of Dockerfile are run as scripts: a fresh environment stands for the image."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from scripts.wheel_smoke import build

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text("utf-8")
STEPS = re.findall(r"^RUN ((?:.*\\\n)*.*)$", TEXT, re.MULTILINE)
#: Why a step is not run, by what it calls.
NOT_RUN = {"useradd": "it would add a user to this machine"}


def of(program: str) -> list[str]:
    return [step for step in STEPS if step.startswith(program)]


def test_every_step_is_known() -> None:
    known = [step for program in ("apt-get", "pip", *NOT_RUN) for step in of(program)]
    assert sorted(known) == sorted(STEPS)
    assert len(of("pip")) == 2


def test_what_is_copied_and_started_exists() -> None:
    sources = re.findall(r"^COPY (?!--from)(\S+) ", TEXT, re.MULTILINE)
    assert sources
    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert 'ENTRYPOINT ["ortkit"]' in TEXT


@pytest.mark.parametrize("step", of("apt-get"))
def test_the_packages_exist(step: str) -> None:
    """Debian's names; nothing is installed."""
    if shutil.which("apt-cache") is None:
        pytest.skip("no apt-cache")
    (words,) = re.findall(r"--no-install-recommends ([\w+ -]+)", step)
    for name in words.split():
        done = subprocess.run(["apt-cache", "show", name], capture_output=True, check=False)
        assert done.returncode == 0, f"Debian has no {name}"


# Builds a wheel and installs it with a runtime: a minute or two, and it needs the network.
@pytest.mark.slow
def test_the_image_would_run(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "image"], check=True)
    source = tmp_path / "ortkit"
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    shutil.copy(ROOT / "constraints.txt", tmp_path / "constraints.txt")
    # Where the image has these paths, the scripts get those of the test.
    moved = {
        "/tmp/wheels": tmp_path / "wheels",
        "/tmp/constraints.txt": tmp_path / "constraints.txt",
        "/wheels": tmp_path / "wheels",
        "/ortkit": source,
    }
    commands = tmp_path / "image" / "bin"
    environment = {
        "HOME": str(tmp_path),
        "PATH": f"{commands}:/usr/bin:/bin",
        **{name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")},
        **{name: value for name, value in os.environ.items() if name.startswith("PIP_")},
    }
    paths = re.compile(rf"(?<![\w*/])({'|'.join(map(re.escape, moved))})(?![\w-])")
    for step in of("pip"):
        script = paths.sub(lambda found: str(moved[found[1]]), step)
        done = subprocess.run(
            ["sh", "-e", "-c", script], cwd=tmp_path, env=environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{script}\n{done.stderr}"
    onnx.save(build(), tmp_path / "model.onnx")
    for arguments in (["doctor"], ["optimize", "model.onnx"]):
        done = subprocess.run(
            [commands / "ortkit", *arguments], cwd=tmp_path, env=environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "model.opt.ops.so").is_file()
