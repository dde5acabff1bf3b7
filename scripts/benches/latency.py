"""`scripts/bench latency`: how long models take in ONNX Runtime, as written and optimized.

Two sessions of one process are not comparable: where the allocator puts weights and buffers is
decided once per session, and a model against itself read 1.39. So each process runs one model,
processes alternate (A B B A ...), and medians and minima are taken over processes. What the
original's first and last places of each round differ by is shown beside as the noise.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import onnx_ir as ir

from ortkit.errors import ModelError, OrtkitError
from ortkit.graph.io.open import open_model
from ortkit.graph.symbolic.dims import names
from ortkit.kernels.metadata import library_path
from ortkit.runtime.timing.variants import NotTimed, Variant, time_variants
from ortkit.verify.inputs.feeds import FeedMaker
from ortkit.verify.inputs.plans import Plan
from ortkit.verify.inputs.sizes import size_plans
from scripts.benches import corpus, output

ORIGINAL = "original"
PLAIN = "optimized"
WITH_KERNELS = "with kernels"
#: Sizes that are no length of what is computed, or that follow from others.
_OTHERS = re.compile(r"past|cache|total|height|width")


@dataclass
class Samples:
    """What the processes of one variant took; the numbers of each are milliseconds of a run."""

    medians: list[float] = field(default_factory=list)
    minima: list[float] = field(default_factory=list)
    is_first: list[bool] = field(default_factory=list)
    """Whether the process stood in the first half of its round."""

    def half(self, is_first: bool) -> Samples:
        """Return the processes of the first or the last halves of the rounds."""
        chosen = [i for i, first in enumerate(self.is_first) if first == is_first]
        return Samples([self.medians[i] for i in chosen], [self.minima[i] for i in chosen])


def ratios(before: Samples, after: Samples) -> tuple[float, float]:
    """Return how many times as fast `after` is: by medians and minima over processes."""
    return (
        median(before.medians) / median(after.medians),
        min(before.minima) / min(after.minima),
    )


def main() -> int:
    """Optimize, time, print and write."""
    options = _parser().parse_args()
    models = [Path(name) for name in options.models]
    if options.corpus is not None:
        models += [entry.path for entry in corpus.given(options.corpus)]
    if not models:
        print("no models: name some, or a folder with --corpus", file=sys.stderr)
        return 2
    results: dict[str, object] = {
        "machine": output.machine(None),
        "options": {"threads": options.threads, "rounds": options.rounds, "level": options.level},
    }
    print(f"machine: {results['machine']}")
    found: list[dict[str, object]] = []
    results["latency"] = found
    try:
        for model in models:
            with tempfile.TemporaryDirectory(prefix="ortkit-latency-") as folder:
                found += _measure(model, Path(folder), options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    _print(found)
    print(f"\nwrote {output.write(results, Path('bench-results'), 'latency')}")
    return int(any("problem" in row for row in found))


def sizes_at(model: ir.Model, length: int | None) -> Mapping[str, int]:
    """Return a number for each named size of the inputs: batches are 1, lengths `length`.

    A size is a batch's if it is called so or only ever stands first, an image's or a cache's
    if it is called so or has four axes around it. Else it is a length. Those that are
    neither batch nor length are as in verification.
    """
    shapes = FeedMaker.of(model, {}).shapes
    places = [
        (name, axis, len(shape))
        for shape in shapes
        for axis, size in enumerate(shape)
        for name in names(size)
    ]
    given = {}
    for name in dict.fromkeys(name for name, _, _ in places):
        where = [(axis, rank) for other, axis, rank in places if other == name]
        is_first = all(axis == 0 and rank > 1 for axis, rank in where)
        if is_first or "batch" in name.lower():
            given[name] = 1
        elif length is None or _OTHERS.search(name.lower()):
            continue
        elif all(rank <= 3 for _, rank in where):
            given[name] = length
    return size_plans(shapes, 1, given)[0][0]


def _measure(path: Path, folder: Path, options: argparse.Namespace) -> list[dict[str, object]]:
    """Time one model at each length; one that has none is timed once."""
    try:
        model = open_model(path)
        lengths: list[int | None] = list(options.lengths)
        if sizes_at(model, 1) == sizes_at(model, 2):
            lengths = [None]
        variants = _variants(path, folder, options)
        rows = []
        for length in lengths:
            output.say(f"latency: {path.stem}, {length or 'its own size'}")
            feeds = _feeds(model, length, folder)
            rows.append({"model": path.stem, "length": length, **_timed(variants, feeds, options)})
        return rows
    except OrtkitError as error:
        return [{"model": path.stem, "length": None, "problem": str(error)}]


def _variants(path: Path, folder: Path, options: argparse.Namespace) -> dict[str, Variant]:
    found = {ORIGINAL: Variant(path)}
    kinds = {PLAIN: "off", **({WITH_KERNELS: "auto"} if options.kernels else {})}
    for number, (name, kernels) in enumerate(kinds.items()):
        target = folder / f"{number}.onnx"
        flags = ["--level", str(options.level), "--kernels", kernels, "--quiet", "--strict"]
        flags += ["--accept-unverified"]
        command = [sys.executable, "-m", "ortkit", "optimize", *flags, str(path)]
        command += ["-o", str(target)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise ModelError(f"not optimized: {ended.stderr.strip().rpartition(chr(10))[2]}")
        library = library_path(target)
        found[name] = Variant(target, library if library.exists() else None)
    return found


def _feeds(model: ir.Model, length: int | None, folder: Path) -> Path:
    made = FeedMaker.of(model, {}).make(Plan(sizes_at(model, length), 0))
    if absent := [name for name, value in made.items() if not isinstance(value, np.ndarray)]:
        raise ModelError(f"input {absent[0]!r} is no tensor")
    path = folder / "feeds.npz"
    np.savez(path, **made)  # type: ignore[arg-type]
    return path


def _timed(
    variants: Mapping[str, Variant], feeds: Path, options: argparse.Namespace
) -> dict[str, object]:
    """Run the variants there and back in each round, each time in a process of its own."""
    elapsed = {name: Samples() for name in variants}
    turn = [(name, True) for name in variants]
    turn += [(name, False) for name in reversed(list(variants))]
    for _ in range(options.rounds):
        for name, is_first in turn:
            with tempfile.TemporaryDirectory(dir=feeds.parent) as job:
                found = time_variants(
                    [variants[name]],
                    [feeds],
                    Path(job),
                    seconds=options.seconds,
                    timeout_seconds=options.timeout,
                    threads=options.threads,
                )
            if isinstance(found, NotTimed):
                return {"problem": f"{name}: {found.reason}"}
            elapsed[name].medians.append(1e3 * median(found.seconds[0]))
            elapsed[name].minima.append(1e3 * found.fastest[0])
            elapsed[name].is_first.append(is_first)
    return {"processes": {name: asdict(samples) for name, samples in elapsed.items()}}


def _print(found: Sequence[Mapping[str, object]]) -> None:
    rows: list[list[output.Cell]] = []
    for row in found:
        label = f"{row['model']} {row['length'] or ''}".strip()
        if "problem" in row:
            rows.append([label, str(row["problem"])[:60]])
            continue
        processes = row["processes"]
        assert isinstance(processes, dict)
        elapsed = {name: Samples(**samples) for name, samples in processes.items()}
        original = elapsed[ORIGINAL]
        for name, samples in elapsed.items():
            first, second = original, samples
            title = name
            if name == ORIGINAL:
                title = "original again"
                first, second = original.half(True), original.half(False)
            by_median, by_minimum = ratios(first, second)
            times = [f"{median(samples.medians):.2f}", f"{min(samples.minima):.2f}"]
            rows.append([label, title, *times, f"{by_median:.3f}", f"{by_minimum:.3f}"])
    widest = max((len(row) for row in rows), default=0)
    header = ("model", "variant", "median ms", "min ms", "ratio", "of minima")
    padded = [[*row, *([""] * (widest - len(row)))] for row in rows]
    output.table(
        "Latency in ONNX Runtime, default settings; ratio: the original's time over it",
        header[:widest],
        padded,
    )
    print("  'original again' is the original against itself: ratios within it are noise")


def _lengths(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("scripts/bench latency", description=__doc__)
    add = parser.add_argument
    add("models", nargs="*", metavar="MODEL", help="models to time")
    add("--corpus", type=Path, help="a folder of models, timed too")
    add("--lengths", type=_lengths, default=(32, 128, 512), help="default: 32,128,512")
    add("--threads", type=int, default=2, help="of a session (default: 2)")
    add("--rounds", type=int, default=3, help="there and back over the variants (default: 3)")
    add("--seconds", type=float, default=3, help="of runs in each process (default: 3)")
    add("--timeout", type=float, default=600, help="seconds for one process (default: 600)")
    add("--level", type=int, default=2, help="of optimize (default: 2)")
    add("--kernels", action="store_true", help="time the result with generated kernels too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
