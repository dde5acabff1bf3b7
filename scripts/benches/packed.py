"""`scripts/bench packed`: making sessions, and memory of several, with packed weights and without.

Each model is measured as it came, as `ortkit optimize` packs it, and as `--pack no` leaves it. The
packed one is also measured with one arena for all sessions of a process. PSS counts a page that n
processes share as an n-th of one in each. All sessions have run once.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from scripts.benches import output, packed_child

#: Processes, and sessions in each.
_ONE, _FOUR = (1, 1), (2, 2)
#: The variant that is measured with one arena for the sessions of a process, too.
_WITH_ARENA = "packed"


def main() -> int:
    """Optimize, measure, print and write."""
    options = _parser().parse_args()
    results: dict[str, object] = {"machine": output.machine(None)}
    print(f"machine: {results['machine']}")
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="ortkit-packed-") as folder:
        for model in options.models:
            for name, path in _variants(model, Path(folder)).items():
                output.say(f"packed: {model.stem}, {name}")
                for variant, arena in ((name, False), (f"{name}, one arena", True)):
                    if arena and name != _WITH_ARENA:
                        continue
                    measured = _measure(path, options, shares_arena=arena)
                    rows.append({"model": model.stem, "variant": variant, **measured})
    keys = ("wall_ms", "cpu_ms", "file_mb", "one_mb", "four_mb", "ratio")
    output.table(
        "Making a session (medians); PSS of one session and of four in two processes",
        ("model", "variant", "wall ms", "cpu ms", "files MB", "one MB", "four MB", "four / one"),
        [[str(row["model"]), str(row["variant"]), *(row[key] for key in keys)] for row in rows],  # type: ignore[list-item]
    )
    results["packed"] = rows
    print(f"\nwrote {output.write(results, Path('bench-results'), 'packed')}")
    return 0


def _variants(model: Path, folder: Path) -> dict[str, Path]:
    """Return the model and its optimized forms, by name."""
    found = {"original": model}
    for name, pack in (("packed", "auto"), ("one file", "no")):
        found[name] = target = folder / f"{model.stem}.{pack}.onnx"
        command = [sys.executable, "-m", "ortkit", "optimize", str(model), "-o", str(target)]
        flags = ["--pack", pack, "--quiet", "--no-verify", "--no-timing"]
        subprocess.run([*command, *flags], check=True)
    return found


def _measure(model: Path, options: argparse.Namespace, *, shares_arena: bool) -> dict[str, object]:
    def sessions(count: tuple[int, int]) -> list[dict[str, float]]:
        return _sessions(model, count, options, shares_arena=shares_arena)

    made = [sessions(_ONE)[0] for _ in range(options.rounds)]
    one, four = (sum(each["pss"] for each in sessions(count)) for count in (_ONE, _FOUR))
    files = [model, *model.parent.glob(f"{model.name}.*.data")]
    return {
        "wall_ms": 1e3 * median(each["wall"] for each in made),
        "cpu_ms": 1e3 * median(each["cpu"] for each in made),
        "file_mb": sum(each.stat().st_size for each in files) / 1e6,
        "one_mb": one / 1e6,
        "four_mb": four / 1e6,
        "ratio": four / one,
    }


def _sessions(
    model: Path, count: tuple[int, int], options: argparse.Namespace, *, shares_arena: bool
) -> list[dict[str, float]]:
    """Return what each of some processes says while all of them hold their sessions."""
    processes, sessions = count
    job = {"model": str(model), "sessions": sessions, "threads": options.threads}
    job |= {"size": options.length, "shares_arena": shares_arena}
    command = [sys.executable, packed_child.__file__, json.dumps(job)]
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    try:
        for each in running:
            assert each.stdout is not None
            if each.stdout.readline() != "ready\n":
                raise SystemExit(f"{model} does not run")
        answers = []
        for each in running:
            assert each.stdin is not None
            assert each.stdout is not None
            each.stdin.write("\n")
            each.stdin.flush()
            answers.append(json.loads(each.stdout.readline()))
    finally:
        for each in running:
            each.kill()
            each.wait()
    return answers


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("scripts/bench packed", description=__doc__)
    add = parser.add_argument
    add("models", nargs="+", type=Path, metavar="MODEL", help="models to measure")
    add("--rounds", type=int, default=5, help="sessions made for a median (default: 5)")
    add("--threads", type=int, default=2, help="of each session (default: 2)")
    add("--length", type=int, default=128, help="of sizes that are not known (default: 128)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
