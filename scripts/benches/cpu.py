"""`scripts/bench cpu`: whole models in fp32, against ONNX Runtime and OpenVINO.

Every variant lives in a process of its own, all side by side: they run interleaved, A B C ... C B
A, and are started again several times. `original again` is the original once more: what it is off
1 by is noise. Intervals are at 95 %, by resampling processes and then turns. The ceiling is the
original's time over that of its heavy operators, from a profile. Sixty pairs for each of eight
models, one and two threads, batches of one and eight take two to three hours on two cores. With
--quick (batch 1, two threads, 16 pairs) it is some ten minutes. --all takes the models of models/
at their full sizes. With --keep they and their optimized forms are kept: --prepare makes them, and
a later call measures, as many of them as --only names. Where a machine is never idle,
--processor-time counts what the threads computed and not what they waited. --hide-avx512 measures
all engines as on a processor with AVX2.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from models.catalog import BUILDERS, build, spellings
from ortkit.errors import ModelError, OrtkitError, UserError
from ortkit.graph.io.open import open_model
from ortkit.graph.io.save import save_model
from ortkit.graph.symbolic.dims import names
from ortkit.kernels.metadata import library_path
from ortkit.runtime.heavy import HEAVY
from ortkit.runtime.timing.variants import NotTimed, Variant, time_variants
from ortkit.verify.inputs.feeds import FeedMaker
from ortkit.verify.inputs.plans import Plan
from scripts.benches import corpus, output
from scripts.benches.cpu_table import Row, show
from scripts.benches.cpu_turns import Engine, output_error, take_turns, this_python
from scripts.benches.hidden import LEVEL_FLAGS, hide_avx512
from scripts.benches.latency import sizes_at

ORIGINAL, AGAIN, PLAIN, KERNELS, OPENVINO = (
    "original", "original again", "level 2", "with kernels", "openvino",
)  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """How a model is run."""

    batch: int
    threads: int


def main() -> int:
    """Optimize, time, print and write."""
    options = _parser().parse_args()
    with contextlib.ExitStack() as stack:
        try:
            return _run(options, stack)
        except OrtkitError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code


def _run(options: argparse.Namespace, stack: contextlib.ExitStack) -> int:
    models = [Path(name) for name in options.models]
    if options.corpus is not None:
        models += [entry.path for entry in corpus.given(options.corpus)]
    if options.all:
        names = options.only.split(",") if options.only else list(BUILDERS)
        options.keep = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        models += _built(names, options.keep)
    if not models:
        print("no models: name some, or a folder with --corpus", file=sys.stderr)
        return 2
    _set_quick(options)
    if options.hide_avx512:
        hide_avx512(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        options.optimize += f" {LEVEL_FLAGS}"
    if options.prepare and options.keep is None:
        raise UserError("needs a folder to keep them in", where="--prepare", fix="add --keep")
    if options.prepare:
        for model in models:
            _engines(model, options.keep, options)
        return 0
    results: dict[str, object] = {
        "machine": output.machine(None),
        "options": {k: v for k, v in vars(options).items() if isinstance(v, (int, str, list))},
    }
    print(f"machine: {results['machine']}")
    rows: list[Row] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for model in models:
            with tempfile.TemporaryDirectory(prefix="ortkit-cpu-") as folder:
                rows += _measure(model, Path(folder), options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    results["cpu"] = [row.to_json() for row in rows]
    # What was measured is kept even where it cannot be shown.
    path = output.write(results, Path("bench-results"), "cpu")
    show(rows)
    print(f"\nwrote {path}")
    return int(any(row.problem for row in rows))


def _built(names: Sequence[str], folder: Path) -> list[Path]:
    """Return models of models/ at their full sizes; builds those that are not in the folder.

    Raises:
        UserError: There is no such model, or the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot be made: {error.strerror}", where=str(folder)) from error
    paths = []
    for name in names:
        paths.append(path := folder / f"{name}.onnx")
        if not path.exists():
            output.say(f"cpu: build {name}")
            save_model(open_model(build(name, "full", spellings(name)[0])), path)
    return paths


def _set_quick(options: argparse.Namespace) -> None:
    if options.quick:
        options.batches, options.threads = [1], [2]
        options.processes, options.turns = 2, 8


def _measure(path: Path, folder: Path, options: argparse.Namespace) -> list[Row]:
    """Time one model in every setting that it has."""
    try:
        model = open_model(path)
        clock = "processor" if options.processor_time else "wall"
        made = _engines(path, options.keep or folder, options)
        engines = {name: replace(each, clock=clock) for name, each in made.items()}
    except OrtkitError as error:
        return [Row.failed(path.stem, str(error))]
    rows = []
    for batch in options.batches:
        if batch > 1 and not _has_batch(model):
            output.say(f"cpu: {path.stem} has a batch of its own, {batch} is left out")
            continue
        try:
            feeds = _feeds(path, model, batch, options.length, folder)
        except OrtkitError as error:
            rows.append(Row.failed(path.stem, str(error)))
            continue
        for threads in options.threads:
            output.say(f"cpu: {path.stem}, batch {batch}, {threads} thread(s)")
            rows.append(
                _timed(path.stem, engines, feeds, folder, Setting(batch, threads), options)
            )
    return rows


def _timed(
    name: str,
    engines: Mapping[str, Engine],
    feeds: Path,
    folder: Path,
    setting: Setting,
    options: argparse.Namespace,
) -> Row:
    times, problems = take_turns(
        engines, feeds, folder, threads=setting.threads, processes=options.processes,
        turns=options.turns,
    )  # fmt: skip
    if ORIGINAL not in times:
        return Row.failed(name, f"{ORIGINAL}: {problems[ORIGINAL]}")
    errors = {
        other: output_error(folder / f"{ORIGINAL}.npz", folder / f"{other}.npz")
        for other in times
        if other not in (ORIGINAL, AGAIN)
    }
    ceiling = _ceiling(engines[ORIGINAL].model, feeds, folder, setting.threads)
    return Row(name, setting.batch, setting.threads, times, errors, problems, ceiling)


def _ceiling(model: Path, feeds: Path, folder: Path, threads: int) -> float | None:
    found = time_variants(
        [Variant(model)], [feeds], folder, seconds=0.5, profile_seconds=3.0,
        timeout_seconds=600, threads=threads,
    )  # fmt: skip
    if isinstance(found, NotTimed) or found.profile is None:
        return None
    share = found.profile.share(HEAVY)
    return 1 / share if share > 0 else None


def _engines(path: Path, folder: Path, options: argparse.Namespace) -> dict[str, Engine]:
    """Return the variants by name; writes the optimized models.

    Raises:
        ModelError: A model could not be optimized.
    """
    found = {name: Engine(this_python(), "onnxruntime", path) for name in (ORIGINAL, AGAIN)}
    for name, kernels in ((PLAIN, "off"), (KERNELS, "auto")):
        target = folder / f"{path.stem}.{kernels}.onnx"
        flags = ["--level", "2", "--kernels", kernels, "--quiet", "--accept-unverified"]
        flags += options.optimize.split()
        command = [sys.executable, "-m", "ortkit", "optimize", *flags, str(path)]
        if not target.exists():
            ended = subprocess.run(
                [*command, "-o", str(target)], capture_output=True, text=True, check=False
            )
        if not target.exists():
            raise ModelError(f"not optimized: {ended.stderr.strip().rpartition(chr(10))[2]}")
        library = library_path(target)
        has_library = library.exists()
        found[name] = Engine(
            this_python(), "onnxruntime", target, library if has_library else None
        )
    if options.openvino_python is not None:
        found[OPENVINO] = Engine(options.openvino_python, "openvino", path)
    return found


def _has_batch(model: ir.Model) -> bool:
    """Return whether every input's first axis is one and the same named size."""
    shapes = FeedMaker.of(model, {}).shapes
    first = {tuple(names(shape[0])) for shape in shapes if shape}
    return len(first) == 1 and len(next(iter(first))) == 1


def _feeds(path: Path, model: ir.Model, batch: int, length: int, folder: Path) -> Path:
    """Write inputs: those stored beside the model, repeated for a batch, else made up.

    Raises:
        ModelError: An input is no tensor.
    """
    target = folder / f"feeds-{batch}.npz"
    if path.with_suffix(".npz").exists():
        made: Mapping[str, object] = corpus.Entry(path.stem, path).feeds()
        if batch > 1:
            made = {
                name: np.repeat(value[:1], batch, axis=0)
                for name, value in made.items()
                if isinstance(value, np.ndarray)
            }
    else:
        sizes = {**sizes_at(model, length)}
        shapes = FeedMaker.of(model, {}).shapes
        if batch > 1:
            sizes |= {name: batch for shape in shapes if shape for name in names(shape[0])}
        made = FeedMaker.of(model, {}).make(Plan(sizes, 0))
    if absent := [name for name, value in made.items() if not isinstance(value, np.ndarray)]:
        raise ModelError(f"input {absent[0]!r} is no tensor")
    np.savez(target, **made)  # type: ignore[arg-type]
    return target


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("scripts/bench cpu", description=__doc__)
    add = parser.add_argument
    add("models", nargs="*", metavar="MODEL", help="models to time")
    add("--corpus", type=Path, help="a folder of models, timed too")
    add("--all", action="store_true", help="the models of models/ at their full sizes, timed too")
    add("--only", default="", metavar="NAMES", help="with --all: these, separated by commas")
    add(
        "--keep", type=Path, metavar="FOLDER", help="keep models and optimized forms, and use them"
    )
    add("--prepare", action="store_true", help="with --keep: make them, measure nothing")
    add("--processor-time", action="store_true",
        help="time of all threads instead: for busy machines, with --threads 1")  # fmt: skip
    add("--hide-avx512", action="store_true",
        help="let no engine see AVX-512 and AMX, and build kernels for AVX2")  # fmt: skip
    add("--quick", action="store_true", help="batch 1, 2 threads, 2 processes of 8 turns")
    add("--batches", type=_numbers, default=[1, 8], help="default: 1,8")
    add("--threads", type=_numbers, default=[1, 2], help="of each process (default: 1,2)")
    add("--processes", type=int, default=5, help="of each variant (default: 5)")
    add("--turns", type=int, default=12, help="of each process (default: 12)")
    add("--length", type=int, default=128, help="of sequences that are made up (default: 128)")
    add("--optimize", default="", metavar="FLAGS", help="more flags of ortkit optimize")
    add("--openvino-python", type=Path, help="a Python that has openvino, timed too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
