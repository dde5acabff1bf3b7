"""Time of the whole process: interpreter, imports, read, optimize, write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from scripts.benches.corpus import Entry
from scripts.benches.output import Cell, say, table
from scripts.benches.tools import Tool, alternate, middle, run


def measure(
    entries: Sequence[Entry], tools: Sequence[Tool], folder: Path, rounds: int, timeout: float
) -> list[dict[str, object]]:
    """Run the tools interleaved on each model; print and return wall time, CPU time and memory."""
    found: list[dict[str, object]] = []
    rows: list[list[Cell]] = []
    for entry in entries:
        size = entry.path.stat().st_size / 1e6
        say(f"wall: {entry.name} ({size:.0f} MB), {rounds} rounds")
        _read(entry.path)
        usages = alternate(
            {tool.name: tool.command(entry.path, folder / "out.onnx") for tool in tools},
            rounds,
            timeout,
        )
        first = usages[tools[0].name]
        for tool in tools:
            used = usages[tool.name]
            wall = middle(used, lambda u: u.wall)
            cpu = middle(used, lambda u: u.cpu)
            peak = middle(used, lambda u: u.peak_bytes)
            ratio = _ratio(first, used, "wall")
            cpu_ratio = _ratio(first, used, "cpu")
            peak_mb = None if peak is None else round(peak / 1e6)
            rows.append([entry.name, tool.name, wall, ratio, cpu, cpu_ratio, peak_mb])
            found.append(
                {
                    "model": entry.name,
                    "bytes": entry.path.stat().st_size,
                    "tool": tool.name,
                    "wall": [u.wall for u in used],
                    "cpu": [u.cpu for u in used],
                    "peak_bytes": peak,
                    "wall_ratio": ratio,
                    "fault": used[-1].error if not used[-1].ok else "",
                }
            )
    table(
        f"Whole process, medians of {rounds} alternating rounds; ratio: {tools[0].name} to it",
        ("model", "tool", "wall s", "ratio", "cpu s", "ratio", "peak MB"),
        rows,
    )
    return found + [_in_process(entry, tools[0], folder) for entry in entries]


def _read(path: Path) -> None:
    """Bring a file into the page cache, in parts: a process starts at its parent's size."""
    with path.open("rb") as file:
        while file.read(1 << 20):
            pass


def _ratio(ours: Sequence[object], other: Sequence[object], what: str) -> float | None:
    """Return the median over rounds of ours / theirs: neighbours in time, under the same load."""
    pairs = [
        getattr(a, what) / getattr(b, what)
        for a, b in zip(ours, other, strict=False)
        if getattr(a, "ok") and getattr(b, "ok")  # noqa: B009
    ]
    return median(pairs) if pairs else None


def _in_process(entry: Entry, tool: Tool, folder: Path) -> dict[str, object]:
    report = folder / "report.json"
    command = [*tool.command(entry.path, folder / "out.onnx"), "--report", str(report)]
    totals = []
    for _ in range(3):
        run(command)
        totals.append(sum(json.loads(report.read_text(encoding="utf-8"))["seconds"].values()))
    print(f"  {entry.name}: {tool.name} open and rewrite in process {median(totals):.2f} s")
    return {"model": entry.name, "tool": tool.name, "in_process": totals}
