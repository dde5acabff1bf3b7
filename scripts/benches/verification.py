"""`scripts/bench verification`: every model of models/ optimized and verified, as users get it.

Each is built in full size, and a process of its own optimizes it with the defaults: level 2, what
verification covers and how long it may take. A row says what the report says.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx

import models
from models.catalog import BUILDERS, spellings
from scripts.benches import output


@dataclass(frozen=True)
class Row:
    """What became of one model."""

    model: str
    spelling: str
    verdict: str
    values: int = 0
    """Values in between that were compared."""
    late: int = 0
    """Values for which no time was left."""
    input_sets: int = 0
    kernels: int = 0
    rolled_back: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()
    verify_seconds: float = 0.0
    """Of the stages that compare, without the check of kernels alone."""
    kernel_seconds: float = 0.0
    """Of the check of kernels alone."""
    seconds: float = 0.0
    """Of the process, from its start to its end."""
    problem: str = ""


def main() -> int:
    """Optimize, print and write; return 1 if a model is no `yes` or something was put back."""
    options = _parser().parse_args()
    names = options.only.split(",") if options.only else list(BUILDERS)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in names:
            rows.append(measured(name, options.spelling, Path(temporary)))
            output.say(f"{name}: {rows[-1].verdict}, {rows[-1].verify_seconds:.1f} s")
    show(rows)
    results = {**output.machine(None), "rows": [asdict(row) for row in rows]}
    print(output.write(results, options.output, "verification"))
    return int(any(row.verdict != "yes" or row.rolled_back for row in rows))


def measured(name: str, spelling: str, folder: Path) -> Row:
    """Build one model, optimize it, and say what the report says.

    Args:
        name: As the catalog of models/ has it.
        spelling: The exporter; empty for the usual one.
        folder: For the model and the result, which are removed.
    """
    spelling = spelling or spellings(name)[0]
    source, target = folder / f"{name}.onnx", folder / f"{name}.optimized.onnx"
    onnx.save(models.build(name, "full", spelling), source)
    command = [
        sys.executable,
        "-m",
        "ortkit",
        "optimize",
        str(source),
        "-o",
        str(target),
        "--json",
    ]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    for path in folder.glob(f"{name}*"):
        path.unlink()
    try:
        report = json.loads(done.stdout)
    except ValueError:
        problem = done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
        return Row(name, spelling, "-", problem=problem)
    return row_of(name, spelling, report, seconds)


def row_of(name: str, spelling: str, report: Mapping[str, Any], seconds: float) -> Row:
    """Return what the JSON of `ortkit optimize` says of a verification."""
    found, stages = report["verification"], report["seconds"]
    kernels = (report["kernel_check"] or {}).get("rows", ())
    return Row(
        name,
        spelling,
        found["verdict"],
        len(found["values"]["compared"]),
        len(found["values"]["late"]),
        found["samples"],
        len(kernels),
        tuple(map(str, report["rolled_back"])),
        tuple(f"{gap['what']}: {gap['reason']}" for gap in found["not_compared"]),
        stages.get("verify", 0.0),
        stages.get("check kernels", 0.0),
        seconds,
    )


def show(rows: Sequence[Row]) -> None:
    """Print a table, and a line for what was put back, not compared or failed."""
    header = [
        "model", "verdict", "values", "kernels", "put back", "verify, s", "kernels, s", "all, s",
    ]  # fmt: skip
    cells = [
        [
            f"{row.model} {row.spelling}",
            row.verdict,
            f"{row.values} of {row.values + row.late}" if row.late else row.values,
            row.kernels,
            len(row.rolled_back),
            row.verify_seconds,
            row.kernel_seconds,
            row.seconds,
        ]
        for row in rows
    ]
    output.table("models of models/ in full size, level 2", header, cells)
    for row in rows:
        for text in (*row.rolled_back, *row.not_compared, *filter(None, (row.problem,))):
            print(f"  {row.model}: {text}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench verification", description=__doc__)
    parser.add_argument("--only", default="", help="names of models, with commas between them")
    parser.add_argument("--spelling", default="", help="the exporter (each model's usual one)")
    parser.add_argument("--output", type=Path, default=Path("bench-results"))
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
