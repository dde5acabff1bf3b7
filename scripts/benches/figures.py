"""`scripts/bench figures`: do the figures of `ortkit compare` agree with independent ones?

In each round `ortkit compare` runs the model against itself, and a script of onnxruntime and a
clock runs it alone under `/usr/bin/time`; with `--polygraphy` its mean time is shown, too.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

from ortkit.errors import OrtkitError
from ortkit.graph.io.open import open_model
from ortkit.measure.inputs import write_inputs
from scripts.benches import output

RAW = Path(__file__).with_name("figures_raw.py")
TIME = Path("/usr/bin/time")
#: Figures and their units.
FIGURES = ("median ms", "least ms", "load ms", "first ms", "RSS MB")

Figures = Mapping[str, float]


def main() -> int:
    """Measure, print and write."""
    options = _parser().parse_args()
    if not TIME.exists():
        print(f"{TIME} is not here: install the package `time`", file=sys.stderr)
        return 2
    results: dict[str, object] = {
        "machine": output.machine(None),
        "options": {"threads": options.threads, "rounds": options.rounds},
    }
    print(f"machine: {results['machine']}")
    found: dict[str, object] = {}
    results["figures"] = found
    for model in options.models:
        output.say(f"figures: {model}")
        with tempfile.TemporaryDirectory(prefix="ortkit-figures-") as folder:
            try:
                found[str(model)] = _measure(model, Path(folder), options)
            except (OrtkitError, subprocess.SubprocessError) as error:
                print(f"{model}: {error}", file=sys.stderr)
    _print(found)
    print(f"\nwrote {output.write(results, Path('bench-results'), 'figures')}")
    return int(len(found) < len(options.models))


def _measure(
    model: Path, folder: Path, options: argparse.Namespace
) -> dict[str, list[dict[str, float]]]:
    """Return the figures of each way and round."""
    inputs = options.inputs or write_inputs(open_model(model), None, {}, folder)[0]
    ways: dict[str, Callable[[], dict[str, float]]] = {
        "ortkit": lambda: _ours(model, inputs, options),
        "raw": lambda: _raw(model, inputs, options),
    }
    if options.polygraphy is not None:
        ways["polygraphy"] = lambda: _polygraphy(model, inputs, folder, options)
    elapsed: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for number in range(options.rounds):
        for name in list(ways) if number % 2 == 0 else reversed(list(ways)):
            elapsed[name].append(ways[name]())
    return elapsed


def _ours(model: Path, inputs: Path, options: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, "-m", "ortkit", "compare", str(model), str(model), "--json"]
    command += ["--inputs", str(inputs), "--threads", str(options.threads)]
    command += ["--seconds", str(options.seconds), "--processes", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    row = json.loads(ended.stdout)["batches"][0]["rows"][0]
    return {
        "median ms": row["latency_ms"]["median"]["value"],
        "least ms": row["latency_ms"]["least"],
        "load ms": row["load_ms"]["median"],
        "first ms": row["first_run_ms"]["median"],
        "RSS MB": row["memory_bytes"]["peak"] / 1e6,
    }


def _raw(model: Path, inputs: Path, options: argparse.Namespace) -> dict[str, float]:
    command = [str(TIME), "-v", sys.executable, "-P", str(RAW), str(model), str(inputs)]
    command += [str(options.threads), str(options.seconds)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    said = json.loads(ended.stdout)
    resident = re.search(r"Maximum resident set size \(kbytes\): (\d+)", ended.stderr)
    assert resident is not None
    return {
        **{f"{name} ms": 1e3 * said[name] for name in ("median", "least", "load", "first")},
        "RSS MB": 1024 * int(resident[1]) / 1e6,
    }


def _polygraphy(
    model: Path, inputs: Path, folder: Path, options: argparse.Namespace
) -> dict[str, float]:
    """Return the mean, the one time that it tells."""
    loader = folder / "load.py"
    loader.write_text(
        f"import numpy\ndef load_data():\n    yield dict(numpy.load({str(inputs)!r}))\n",
        encoding="utf-8",
    )
    command = [str(options.polygraphy), "run", str(model), "--onnxrt", "--sequential-runners"]
    command += ["--data-loader-script", str(loader), "--warm-up", "5"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    mean = re.search(r"Average inference time: ([\d.]+) ms", ended.stdout)
    return {} if mean is None else {"mean ms": float(mean[1])}


def _print(found: Mapping[str, object]) -> None:
    rows: list[list[output.Cell]] = []
    for model, elapsed in found.items():
        assert isinstance(elapsed, dict)
        for figure in FIGURES:
            ours = [each[figure] for each in elapsed["ortkit"]]
            raw = [each[figure] for each in elapsed["raw"]]
            rows.append(
                [
                    Path(model).stem, figure, median(ours), median(raw),
                    f"{median(ours) / median(raw) - 1:+.1%}", min(ours), min(raw),
                    f"{min(ours) / min(raw) - 1:+.1%}",
                ]
            )  # fmt: skip
        means = [each["mean ms"] for each in elapsed.get("polygraphy", ()) if each]
        if means:
            rows.append([Path(model).stem, "mean ms, Polygraphy", median(means), None, "",
                         min(means), None, ""])  # fmt: skip
    header = ("model", "figure", "ortkit", "raw", "", "least: ortkit", "raw", "")
    output.table("Medians and least values over rounds", header, rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("scripts/bench figures", description=__doc__)
    add = parser.add_argument
    add("models", nargs="+", type=Path, metavar="MODEL", help="models to run")
    add("--inputs", type=Path, help="an npz file for all of them")
    add("--threads", type=int, default=1, help="of a session (default: 1)")
    add("--rounds", type=int, default=5, help="default: 5")
    add("--seconds", type=float, default=2, help="of runs in each process (default: 2)")
    add("--polygraphy", type=Path, help="its executable, to be run beside")
    return parser


if __name__ == "__main__":
    sys.exit(main())
