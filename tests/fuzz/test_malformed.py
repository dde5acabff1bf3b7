"""Malformed models through `inspect`, `run`, `optimize` and `verify`: one line and a code at most.

Each case is judged by `runner.py`: exit code 0 to 3, no traceback, no hang, nothing left behind,
and no result that ONNX Runtime does not load where it loads the original. A case is its number:
`python -m tests.fuzz.runner FOLDER NUMBER 1 1` repeats one, and leaves its files if it fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnxruntime")
_ROOT = Path(__file__).parents[2]


def faults(folder: Path, first: int, count: int, step: int) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.runner", str(folder / "cases"), str(first), str(count),
         str(step)],
        capture_output=True, text=True, check=False, cwd=_ROOT, timeout=120 * count,
        env={**os.environ, "ORTKIT_CACHE": str(folder / "cache")},
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == count, f"{len(lines)} of {count} were judged: {done.stderr[-2000:]}"
    return [fault for line in lines for fault in line]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(2))
def test_some_malformed_models(part: int, tmp_path: Path) -> None:
    found = faults(tmp_path, part, 10, 2)
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_many_malformed_models(part: int, tmp_path: Path) -> None:
    found = faults(tmp_path, 1000 + part, 250, 8)
    assert not found, "\n".join(found)


def test_the_judge_finds_what_it_looks_for(tmp_path: Path) -> None:
    code = (
        "import os, sys, time, types, tests.fuzz.runner as runner\n"
        "from pathlib import Path\n"
        # A command that hangs lets an hour pass, so that others have all the time they need.
        f"hung = Path({str(tmp_path)!r}, 'hung')\n"
        "now = lambda: time.monotonic() + (3600 if hung.exists() else 0)\n"
        "runner.time = types.SimpleNamespace(monotonic=now, sleep=time.sleep)\n"
        "def run(arguments):\n"
        "    command = arguments[0]\n"
        "    if command == 'hang': hung.touch(); time.sleep(60)\n"
        "    if command == 'crash': os.abort()\n"
        "    if command == 'trace': sys.stderr.write('Traceback\\n')\n"
        "    if command == 'left': Path(os.environ['TMPDIR'], 'x').touch()\n"
        "    return {'bug': 70, 'silent': 2}.get(command, 0)\n"
        "runner.run = run\n"
        "for row in ('fine', 'crash', 'left', 'hang fine', 'crash trace', 'bug', 'fine silent'):\n"
        f"    place = Path({str(tmp_path)!r}, row)\n"
        "    place.mkdir()\n"
        "    print(len(runner.judge_commands(place, [[each] for each in row.split()])), end=' ')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=_ROOT,
        timeout=120,
    )  # fmt: skip
    assert done.stdout.split() == ["0", "0", *["1"] * 5], done.stderr
