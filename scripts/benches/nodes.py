"""Node counts on every model, each result loaded and run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from scripts.benches.compare import count
from scripts.benches.corpus import Entry
from scripts.benches.output import Cell, say, table
from scripts.benches.tools import Tool, run


def measure(
    entries: Sequence[Entry], tools: Sequence[Tool], folder: Path, timeout: float
) -> list[dict[str, object]]:
    """Run each tool on each model; print and return the node counts."""
    found = []
    for entry in entries:
        say(f"nodes: {entry.name}")
        row: dict[str, object] = {"model": entry.name, "nodes": count(entry.path)}
        feeds = folder / "feeds.npz"
        np.savez(feeds, **entry.feeds())  # type: ignore[arg-type]
        for tool in tools:
            row[tool.name] = _one(entry, tool, folder, feeds, timeout)
        found.append(row)
    header = ["model", "nodes", *(tool.name for tool in tools), "goal"]
    rows = [_row(row, tools) for row in found]
    table("Nodes left (! does not load or differs, - the tool failed)", header, rows)
    reached = sum(row[-1] == "yes" for row in rows)
    print(f"  at most as many nodes as the best peer, and right: {reached} of {len(rows)} models")
    return found


def _one(entry: Entry, tool: Tool, folder: Path, feeds: Path, timeout: float) -> dict[str, object]:
    target = folder / "out.onnx"
    target.unlink(missing_ok=True)
    used = run(tool.command(entry.path, target), timeout=timeout)
    try:
        if not used.ok or not target.exists():
            return {"nodes": None, "fault": used.error or f"exit code {used.code}"}
        compared = subprocess.run(
            [sys.executable, "-m", "scripts.benches.compare", entry.path, target, feeds],
            capture_output=True,
            text=True,
            check=False,
        )
        if compared.returncode != 0:
            return {"nodes": count(target), "fault": compared.stderr.strip()[-160:]}
        return {**json.loads(compared.stdout), "wall": used.wall, "cpu": used.cpu}
    finally:
        for path in folder.glob("out.*"):
            path.unlink()


def _row(row: dict[str, object], tools: Sequence[Tool]) -> list[Cell]:
    cells: list[Cell] = [str(row["model"]), _int(row["nodes"])]
    right: dict[str, int] = {}
    for tool in tools:
        result = row[tool.name]
        assert isinstance(result, dict)
        nodes = _int(result["nodes"])
        if nodes is not None and not result["fault"]:
            right[tool.name] = nodes
        cells.append(f"{nodes}!" if nodes is not None and result["fault"] else nodes)
    ours = min((n for name, n in right.items() if name.startswith("ortkit")), default=None)
    best = min((n for name, n in right.items() if not name.startswith("ortkit")), default=None)
    wrong = any(tool.name.startswith("ortkit") and tool.name not in right for tool in tools)
    reached = ours is not None and not wrong and (best is None or ours <= best)
    return [*cells, "yes" if reached else "NO"]


def _int(value: object) -> int | None:
    return value if isinstance(value, int) else None
