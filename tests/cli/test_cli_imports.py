"""What starting the command line loads: nothing heavy. Counted in modules, not in seconds."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {
    "google", "ml_dtypes", "numpy", "onnx", "onnx_ir", "onnxruntime", "onnxscript", "rich",
    "torch", "triton", "tvm", "inspect", "ast", "importlib.metadata", "subprocess",
}  # fmt: skip
#: Python 3.11 itself has 30 at start, argparse and what it needs some 50 more.
MOST_MODULES = 200


def modules_after(code: str) -> set[str]:
    report = "import sys, json; print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    # -S: site hooks of the environment load modules of their own.
    command = [sys.executable, "-c", f"{code}\n{report}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr))


RUN = "from ortkit.cli.main import run\nassert run({!r}) == 0"


@pytest.mark.parametrize(
    "code",
    [
        RUN.format(["--help"]),
        RUN.format(["--version"]),
        RUN.format(["optimize", "--help"]),
        RUN.format(["try", "--help"]),
        RUN.format(["completion", "bash"]),
        "import ortkit",
    ],
)
def test_starting_loads_nothing_heavy(code: str) -> None:
    loaded = modules_after(code)
    bare = modules_after("pass")
    assert (loaded - bare) & HEAVY == set()
    assert len(loaded) < MOST_MODULES


def test_inspecting_needs_no_runtime(folder) -> None:
    path = str(folder / "small.onnx")
    loaded = modules_after(RUN.format(["inspect", path]))
    assert loaded & {"onnxruntime", "tvm", "onnxscript"} == set()
    assert "onnx_ir" in loaded
