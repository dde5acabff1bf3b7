"""`scripts/bench int8`: the eight models of the README in int8, side by side.

Every model is quantized by ONNX Runtime as its documentation advises: dynamically, or statically
in QDQ format where most products are convolutions. `ortkit int8` is `ortkit optimize` of that;
`ortkit bf16` and `ortkit precision int8` are that of the float32 model with `--precision`. The
variants live in processes of their own and run interleaved. OpenVINO reads the QDQ format, so it
gets every model in it.

`--prepare` makes the models in a folder and measures nothing; a later run with the same folder
measures them alone. With `--threads 1,2` each model is measured with 1 thread, then with 2.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import onnx

import models
from ortkit.errors import ModelError
from ortkit.kernels.metadata import library_path
from scripts.benches import corpus, output
from scripts.benches.cpu_turns import Engine, take_turns, this_python
from scripts.benches.int8_share import Share, reasons_of, share_of
from scripts.benches.precision import middle, quantize, relative_error

MODELS = (
    "bert", "gpt2", "llama", "vit", "whisper_encoder", "resnet50", "mobilenet_v2",
    "efficientnet_b0",
)  # fmt: skip
FLOAT, RUNTIME, OURS, OPENVINO = "float32", "onnxruntime int8", "ortkit int8", "openvino int8"
BF16, LOWERED = "ortkit bf16", "ortkit precision int8"
#: What `ortkit optimize` lowers from float32, and the precision that it is asked for.
PRECISIONS: Mapping[str, str] = {BF16: "bf16", LOWERED: "int8"}
#: Tokens of a sequence.
_LENGTH = 128
#: An output whose last axis has this many numbers may be logits.
_LEAST_CLASSES = 10


@dataclass(frozen=True)
class Row:
    """One variant of one model."""

    model: str
    variant: str
    threads: int
    median_ms: float | None = None
    fastest_ms: float | None = None
    by_float: float | None = None
    by_runtime: float | None = None
    by_bf16: float | None = None
    error: float | None = None
    top1: float | None = None
    share: Share | None = None
    problem: str = ""


@dataclass(frozen=True)
class Files:
    """The files of one model in a folder."""

    folder: Path
    name: str

    @property
    def source(self) -> Path:
        """In float32."""
        return self.folder / f"{self.name}.onnx"

    @property
    def feeds(self) -> Path:
        """Its inputs, as npz."""
        return self.source.with_suffix(".npz")

    def variant(self, name: str) -> Path:
        """The model of a variant; the library lies beside it."""
        return self.folder / f"{self.name}.{name.replace(' ', '-')}.onnx"

    def report(self, name: str) -> Path:
        """What `ortkit optimize` says of a variant, as JSON."""
        return self.variant(name).with_suffix(".json")


def main() -> int:
    """Make what is missing, measure, print and write."""
    options = _parser().parse_args()
    names = options.only.split(",") if options.only else MODELS
    folder = options.folder or Path("build/int8-models")
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for name in names:
        files = Files(folder, name)
        problems = prepare(files, options)
        if not options.prepare:
            shares: dict[str, Share] = {}
            for threads in thread_counts(options.threads):
                rows += _measured(files, problems, options, threads, shares)
        for problem in problems.items():
            output.say(f"int8: {name}: {': '.join(problem)}")
    if options.prepare:
        return 0
    results: dict[str, object] = {
        "machine": output.machine(None),
        "options": {k: v for k, v in vars(options).items() if isinstance(v, int | str | bool)},
        "int8": [asdict(row) for row in rows],
    }
    path = output.write(results, Path("bench-results"), "int8")
    show(rows)
    print(f"\nwrote {path}")
    return int(any(row.problem for row in rows))


def prepare(files: Files, options: argparse.Namespace) -> dict[str, str]:
    """Make the models that are not there, and return why some cannot be."""
    if not files.feeds.exists():
        output.say(f"int8: {files.name}: building")
        onnx.save(models.build(files.name, "full"), files.source)
        drawn = models.feeds(onnx.load(files.source, load_external_data=False), sequence=_LENGTH)
        np.savez(files.feeds, **drawn)  # type: ignore[arg-type]
    problems: dict[str, str] = {}
    wanted = (RUNTIME, OURS, *PRECISIONS, *((OPENVINO,) if options.openvino_python else ()))
    for name in wanted:
        if files.variant(name).exists():
            continue
        output.say(f"int8: {files.name}: {name}")
        try:
            _make(files, name, thread_counts(options.threads)[0])
        except ModelError as error:
            problems[name] = str(error)
    return problems


def _make(files: Files, name: str, threads: int) -> None:
    """Make the model of a variant.

    Raises:
        ModelError: That failed.
    """
    target = files.variant(name)
    command = [sys.executable, "-m"]
    if name == OURS or name in PRECISIONS:
        source = files.variant(RUNTIME) if name == OURS else files.source
        # What it computes is compared here; that a model is right, `ortkit optimize` says.
        command += [
            "ortkit", "optimize", str(source), "-o", str(target), "--json", "--no-verify",
            "--no-timing", "--threads", str(threads),
        ]  # fmt: skip
        if name in PRECISIONS:
            command += ["--precision", PRECISIONS[name], "--inputs", str(files.feeds)]
        if name == LOWERED:
            command += ["--calibrate", str(files.feeds)]
    else:
        how = "--static" if name == OPENVINO else "--quantize"
        command += [__spec__.name, how, str(files.source), str(target)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise ModelError(ended.stderr.strip().rpartition("\n")[2][:200] or "it failed")
    if command[2] == "ortkit":
        files.report(name).write_text(ended.stdout, encoding="utf-8")


def thread_counts(text: str) -> list[int]:
    """Return the numbers of threads of a text with commas between them."""
    return [int(part) for part in text.split(",")]


def _measured(
    files: Files,
    problems: Mapping[str, str],
    options: argparse.Namespace,
    threads: int,
    shares: dict[str, Share],
) -> list[Row]:
    """Time the variants of one model with a number of threads.

    Args:
        files: The model's.
        problems: Why some variants cannot be made.
        options: Of the command.
        threads: Of each process.
        shares: Of each variant; those that are missing are added.
    """
    clock = "processor" if options.processor_time else "wall"
    engines = {FLOAT: Engine(this_python(), "onnxruntime", files.source, clock=clock)}
    for name in (RUNTIME, OURS, *PRECISIONS):
        library = library_path(files.variant(name))
        engines[name] = Engine(
            this_python(), "onnxruntime", files.variant(name),
            library.resolve() if library.exists() else None, clock,
        )  # fmt: skip
    if options.openvino_python:
        python = options.openvino_python
        engines[OPENVINO] = Engine(python, "openvino", files.variant(OPENVINO), clock=clock)
    engines = {name: engine for name, engine in engines.items() if name not in problems}
    output.say(f"int8: {files.name}: measuring, {threads} threads")
    with tempfile.TemporaryDirectory(prefix="ortkit-int8-") as made:
        folder = Path(made)
        times, failed = take_turns(
            engines, files.feeds, folder, threads=threads, processes=options.processes,
            turns=options.turns,
        )  # fmt: skip
        rows = []
        for name, elapsed in times.items():
            row = Row(
                files.name, name, threads, 1e3 * middle(elapsed), 1e3 * min(map(min, elapsed))
            )  # fmt: skip
            if FLOAT in times:
                reference = folder / f"{FLOAT}.npz"
                row = replace(
                    row, by_float=middle(times[FLOAT]) / middle(elapsed),
                    error=relative_error(reference, folder / f"{name}.npz"),
                    top1=top1_agreement(reference, folder / f"{name}.npz"),
                )  # fmt: skip
            if RUNTIME in times:
                row = replace(row, by_runtime=middle(times[RUNTIME]) / middle(elapsed))
            if BF16 in times:
                row = replace(row, by_bf16=middle(times[BF16]) / middle(elapsed))
            if name in (RUNTIME, OURS, *PRECISIONS):
                if name not in shares:
                    shares[name] = share_of(engines[name], folder, reasons_of(files.report(name)))
                row = replace(row, share=shares[name])
            rows.append(row)
    return rows + [
        Row(files.name, name, threads, problem=why) for name, why in {**problems, **failed}.items()
    ]


def top1_agreement(reference: Path, other: Path) -> float | None:
    """Return the top-1 agreement, a part of all rows; None where no output has classes."""
    with np.load(reference) as one, np.load(other) as two:
        pairs = [(one[a], two[b]) for a, b in zip(one.files, two.files, strict=True)]
    found = [
        float((a.argmax(-1) == b.argmax(-1)).mean())
        for a, b in pairs
        if a.dtype.kind == "f" and a.ndim and a.shape[-1] >= _LEAST_CLASSES and a.shape == b.shape
    ]
    return min(found, default=None)


def show(rows: Sequence[Row]) -> None:
    """Print one table for all models."""
    output.table(
        "int8, ms",
        ("model", "variant", "threads", "median", "fastest", "times float32",
         "times onnxruntime int8", "times bf16", "error", "top-1", "in int8", "not in int8"),
        [
            (
                row.model, row.variant, row.threads, _fixed(row.median_ms),
                _fixed(row.fastest_ms), _fixed(row.by_float), _fixed(row.by_runtime),
                _fixed(row.by_bf16),
                "" if row.error is None else f"{row.error:.1e}",
                "" if row.top1 is None else f"{100 * row.top1:.1f} %",
                "" if row.share is None
                else f"{row.share.on_bytes} of {row.share.total}",
                row.problem or ("" if row.share is None else row.share.why),
            )
            for row in rows
        ],
    )  # fmt: skip


def _fixed(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("scripts/bench int8", description=__doc__)
    add = parser.add_argument
    add("--only", metavar="NAMES", help="these of the models, with commas between them")
    add("--folder", type=Path, help="where the models are kept (default: build/int8-models)")
    add("--prepare", action="store_true", help="make the models, and measure nothing")
    add("--threads", default="1", help="of each process; several, with commas (default: 1)")
    add("--processes", type=int, default=2, help="of each variant (default: 2)")
    add("--turns", type=int, default=8, help="of each process (default: 8)")
    add("--processor-time", action="store_true", help="count the time of threads, not of a clock")
    add("--openvino-python", type=Path, help="a Python that has openvino, timed too")
    return parser


def _quantize(how: str, source: Path, target: Path) -> None:
    """Quantize a model, in a process of its own: the quantizer prints and warns."""
    entry = corpus.Entry(source.stem, source)
    quantize(entry, target, by_channel=how == "--static")


if __name__ == "__main__":
    if sys.argv[1:2] in (["--quantize"], ["--static"]):
        _quantize(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
        sys.exit(0)
    sys.exit(main())
