"""What it costs to start."""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.benches.output import table
from scripts.benches.tools import alternate, middle


def measure(peers_python: Path | None, rounds: int) -> list[dict[str, object]]:
    """Start the commands interleaved; print and return median wall and CPU time."""
    python = sys.executable
    commands = {
        "python -c pass": [python, "-c", "pass"],
        "ortkit --help": [python, "-m", "ortkit", "--help"],
        "import ortkit": [python, "-c", "import ortkit"],
        "import ortkit.optimization.call": [python, "-c", "import ortkit.optimization.call"],
        "import onnx, onnx_ir": [python, "-c", "import onnx, onnx_ir"],
    }
    if peers_python is not None:
        for name in ("onnxsim", "onnxslim"):
            script = str(peers_python.with_name(name))
            commands[f"{name} --help"] = [str(peers_python), script, "--help"]
    usages = alternate(commands, rounds, 60)  # type: ignore[arg-type]
    found: list[dict[str, object]] = [
        {
            "command": name,
            "wall": middle(used, lambda u: u.wall),
            "cpu": middle(used, lambda u: u.cpu),
        }
        for name, used in usages.items()
    ]
    table(
        f"Start-up, medians of {rounds} alternating rounds; goals: --help 0.3 s, import 0.5 s",
        ("command", "wall s", "cpu s"),
        [[str(row["command"]), row["wall"], row["cpu"]] for row in found],  # type: ignore[list-item]
    )
    return found
