"""Integrations whose packages do not go with constraints.txt, in environments of their own.

mlserver 1.7.1 and tritonclient 2.73.0 need protobuf below 7, and the pins have 7.36. So
`scripts/test --all` makes an environment, installs ortkit with these extras and runs the tests.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_INSTALL_SECONDS, _TEST_SECONDS = 900, 1200
_NO_NETWORK = ("No matching distribution", "Connection", "Temporary failure", "Network")


@dataclass(frozen=True)
class Environment:
    """Extras that are installed together, and the tests that need them."""

    extras: str
    package: str
    """One that the environment of this run lacks, if it lacks any."""
    reason: str
    """Why they are not in the environment of the other tests."""
    tests: Sequence[str]


ENVIRONMENTS = {
    "servers": Environment(
        "cpu,test,triton-server,mlserver,ray-serve,mlflow",
        "mlserver",
        "mlserver 1.7.1 and tritonclient 2.73.0 need protobuf<7; constraints.txt has 7.36.2",
        ("test_triton.py", "test_mlserver.py", "test_ray_serve.py", "test_mlflow.py",
         "test_server_guides.py", "test_served.py"),
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_integrations_hold_in_an_environment_of_their_own(name: str, tmp_path: Path) -> None:
    wanted = ENVIRONMENTS[name]
    if importlib.util.find_spec(wanted.package) is not None:
        pytest.skip(f"{wanted.package} is installed here: its tests run in this environment")
    # Shown at the end of the run, also by workers.
    warnings.warn(f"an environment of its own for {name}: {wanted.reason}", stacklevel=1)
    python = tmp_path / "environment" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "environment"], check=True)
    installed = subprocess.run(
        [python, "-m", "pip", "install", "-q", "--disable-pip-version-check",
         f"{ROOT}[{wanted.extras}]"],
        capture_output=True, text=True, check=False, timeout=_INSTALL_SECONDS,
    )  # fmt: skip
    if installed.returncode and any(text in installed.stderr for text in _NO_NETWORK):
        pytest.skip("its packages cannot be installed: no network")
    assert installed.returncode == 0, installed.stderr[-3000:]
    tests = [str(ROOT / "tests" / "integrations" / each) for each in wanted.tests]
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-rs", "-W", "ignore", "-p", "no:cacheprovider", *tests],
        cwd=ROOT, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True,
        text=True, check=False, timeout=_TEST_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]
    assert " skipped" not in done.stdout, done.stdout[-2000:]
