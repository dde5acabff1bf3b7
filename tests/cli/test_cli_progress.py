"""Progress: on a terminal's stderr only, with a bar while kernels are compiled."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path

import onnx
import onnx.parser
import pytest

NODES = "".join(f"a{i} = Tanh(a{i - 1})  b{i} = MatMul(a{i}, w)  " for i in range(1, 3))
TEXT = f"""<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 64] a0, float[64, 64] w) => (float[n, 64] y, float[n, 64] b1, float[n, 64] b2)
{{ {NODES} s = Sigmoid(b1)  m = Mul(s, b1)  y = Add(m, b2) }}
"""


def shown(tmp_path: Path, *flags: str) -> tuple[str, str]:
    """Return what goes to a terminal on stderr, and stdout."""
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    ours, theirs = pty.openpty()
    received: list[bytes] = []

    def read() -> None:
        try:
            while part := os.read(ours, 1 << 16):
                received.append(part)
        except OSError:  # the other side is closed
            return

    reader = threading.Thread(target=read)
    reader.start()
    command = [sys.executable, "-m", "ortkit", "optimize", "m.onnx", "--no-verify", *flags]
    environment = {**os.environ, "ORTKIT_CACHE": str(tmp_path / "cache"), "TERM": "xterm"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=theirs, check=True
    )
    os.close(theirs)
    reader.join()
    os.close(ours)
    return b"".join(received).decode(), done.stdout.decode()


def test_a_terminal_sees_the_stages_and_a_bar(tmp_path: Path) -> None:
    text, _ = shown(tmp_path)
    assert "kernels" in text
    assert re.search("[━╸╺]{3}", text)


@pytest.mark.parametrize("flag", ["--json", "--quiet"])
def test_a_terminal_sees_nothing_where_nothing_is_wanted(flag: str, tmp_path: Path) -> None:
    # Without kernels the stages would be shown all the same.
    text, out = shown(tmp_path, flag, "--kernels", "off")
    assert text == ""
    assert out.startswith("{") if flag == "--json" else out == ""


def test_the_bar_follows_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.progress import Progress

    from ortkit.cli import show

    seen: list[tuple[object, object]] = []

    def update(self: object, task: object, **given: object) -> None:
        seen.append((given.get("completed"), given.get("total")))

    monkeypatch.setattr(Progress, "update", update)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with show.progress(quiet=False) as progress:
        progress("kernels")
        progress.count(3, 7)
        progress("save")
    assert seen == [(0, None), (3, 7), (0, None)]
