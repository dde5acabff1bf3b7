"""Tables on the terminal, numbers in a JSON file."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

Cell = str | int | float | None


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table; the first column to the left, the others to the right."""
    text = [list(header), *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in text) for i in range(len(header))]
    print(f"\n{title}")
    for index, row in enumerate(text):
        print("  " + "  ".join(_pad(c, widths[i], i == 0) for i, c in enumerate(row)).rstrip())
        if index == 0:
            print("  " + "  ".join("-" * width for width in widths))
    sys.stdout.flush()


def say(text: str) -> None:
    """Print one line of progress to stderr."""
    print(f"  {text}", file=sys.stderr, flush=True)


def write(results: dict[str, object], folder: Path, name: str = "graph") -> Path:
    """Write the results as `NAME-TIME.json` into `folder`; return where."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return path


def machine(peers_python: Path | None) -> dict[str, object]:
    """Say what the numbers were measured on and with."""
    return {
        "when": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": {
            name: metadata.version(name)
            for name in ("ortkit", "onnx", "onnx-ir", "onnxruntime", "numpy")
        },
        "peers": _peer_versions(peers_python),
    }


def _peer_versions(python: Path | None) -> dict[str, str]:
    if python is None:
        return {}
    names = ("onnxsim", "onnxslim", "onnx", "onnxruntime")
    code = (
        "import importlib.metadata as m\n"
        f"for n in {names!r}: print(n, next((d.version for d in m.distributions(name=n)), '-'))"
    )
    asked = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return dict(line.split() for line in asked.stdout.splitlines())


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    return f"{cell:.2f}" if isinstance(cell, float) else str(cell)


def _pad(text: str, width: int, is_first: bool) -> str:
    return text.ljust(width) if is_first else text.rjust(width)
