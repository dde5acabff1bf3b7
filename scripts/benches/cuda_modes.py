"""Which mode of torch.compile is fastest on the device for a model: each in its own process.

    python -m scripts.benches.cuda_modes MODEL BATCH MODE FILE

compiles in one mode and writes what a run takes. A mode that fails, or is not ready in time, gets
a note.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.benches import output
from scripts.benches.cuda_kernels_of import kernels_of
from scripts.benches.cuda_models import Architecture, architecture
from scripts.benches.cuda_torch import compiled

#: The key of a mode that was not measured.
FAILED = "failed"


def time_modes(one: Architecture, modes: Sequence[str], seconds: float) -> dict[str, Any]:
    """Compile a model in each mode, one after the other, and time its runs on the device.

    Args:
        one: The model, of fixed sizes.
        modes: Of `cuda_torch.MODES`.
        seconds: After these a mode is given up.

    Returns:
        By mode, microseconds on the device and the seconds until it was ready, or why it failed.
    """
    found: dict[str, Any] = {}
    for mode in modes:
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "mode.json"
            command = [sys.executable, "-m", "scripts.benches.cuda_modes", one.name]
            try:
                ended = subprocess.run(
                    [*command, str(len(one.example)), mode, str(path)],
                    timeout=seconds, check=False, capture_output=True, text=True,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                found[mode] = {FAILED: f"not ready in {seconds:.0f} s"}
                continue
            if ended.returncode or not path.exists():
                said = ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"]
                found[mode] = {FAILED: said[-1][:200]}
                continue
            found[mode] = json.loads(path.read_text("utf-8"))
            found[mode]["seconds"] = time.perf_counter() - started
    return found


def best_of(found: dict[str, Any]) -> str | None:
    """Return the mode that takes least on the device; None if all failed."""
    times = {mode: each["microseconds"] for mode, each in found.items() if FAILED not in each}
    return min(times, key=times.__getitem__) if times else None


def lines(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[output.Cell]]]:
    """Return a table of all modes of all rows: a header, and ms on the device, or why not."""
    header = ["torch.compile", "batch", "mode", "device, ms", "ready in, s", ""]
    found: list[list[output.Cell]] = []
    for row in rows:
        modes = row.get("torch modes", {})
        best = best_of(modes)
        for mode, each in modes.items():
            ms = each["microseconds"] / 1e3 if FAILED not in each else None
            note = each.get(FAILED, "fastest" if mode == best else "")
            found.append([row["model"], row["batch"], mode, ms, each.get("seconds"), note])
    return header, found


def main() -> int:
    """Compile a model in one mode, and write what its runs take."""
    name, batch, mode, path = sys.argv[1:]
    call = compiled(architecture(name, int(batch), is_dynamic=False), mode)
    found = {"microseconds": kernels_of(call)["microseconds"]}
    Path(path).write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
