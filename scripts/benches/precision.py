"""`scripts/bench precision`: whole models in a lower precision, against ONNX Runtime and OpenVINO.

Every variant lives in a process of its own, all side by side: they run interleaved, A B C ... C B
A. Ratios are to ONNX Runtime's float32, of medians of the turns, with minima beside them; errors
are norms of differences over norms, of the worst output, against it too. `onnxruntime int8` is its
own flow: dynamic, or static with the same inputs where most products are convolutions;
`onnxruntime int8 default` is static as quantize_static does it where nothing is said; `ortkit
over` either is `ortkit optimize` of what they wrote, which must not be slower.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
import onnx

import models
from ortkit.errors import ModelError
from ortkit.kernels.metadata import library_path
from scripts.benches import corpus, output
from scripts.benches.cpu_turns import Engine, Times, take_turns, this_python

FLOAT, AGAIN, OWN_INT8 = "onnxruntime", "onnxruntime again", "onnxruntime int8"
OWN_DEFAULT = "onnxruntime int8 default"
#: What ONNX Runtime quantizes itself.
OWN = (OWN_INT8, OWN_DEFAULT)
#: `ortkit optimize` of what it wrote.
OVER: Mapping[str, str] = {f"ortkit over {name}": name for name in OWN}
#: Pairs that are set side by side: the first must be no slower than the second.
PAIRS = (("ortkit int8", OWN_INT8), *OVER.items())
#: How `ortkit optimize` is called.
OPTIMIZED: Mapping[str, tuple[str, ...]] = {
    "ortkit fp32": (),
    "ortkit bf16": ("--precision", "bf16"),
    "ortkit int8": ("--precision", "int8"),
    "ortkit int4": ("--precision", "int4"),
}
OPENVINO: Mapping[str, str] = {"openvino fp32": "openvino", "openvino bf16": "openvino bf16"}


@dataclass(frozen=True)
class Row:
    """One variant of one model."""

    model: str
    variant: str
    median_ms: float | None
    fastest_ms: float | None
    ratio: float | None
    """Of medians, to ONNX Runtime's float32."""
    error: float | None
    problem: str = ""


def main() -> int:
    """Make the variants, time them, print and write."""
    options = _parser().parse_args()
    entries = [corpus.Entry(Path(name).stem, Path(name)) for name in options.models]
    if options.corpus is not None:
        entries += corpus.given(options.corpus)
    if not entries:
        print("no models: name some, or a folder with --corpus", file=sys.stderr)
        return 2
    rows: list[Row] = []
    try:
        for entry in entries:
            with tempfile.TemporaryDirectory(prefix="ortkit-precision-") as folder:
                rows += _measure(entry, Path(folder), options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    results: dict[str, object] = {
        "machine": output.machine(None),
        "options": {k: v for k, v in vars(options).items() if isinstance(v, int | str | list)},
        "precision": [asdict(row) for row in rows],
    }
    path = output.write(results, Path("bench-results"), "precision")
    show(rows)
    show_pairs(rows)
    print(f"\nwrote {path}")
    return int(any(row.problem for row in rows))


def show(rows: list[Row]) -> None:
    """Print one table for all models."""
    output.table(
        "whole models, ms",
        ("model", "variant", "median", "fastest", "ratio", "error", ""),
        [
            (
                row.model, row.variant, _fixed(row.median_ms), _fixed(row.fastest_ms),
                _fixed(row.ratio), "" if row.error is None else f"{row.error:.1e}", row.problem,
            )
            for row in rows
        ],
    )  # fmt: skip


def show_pairs(rows: list[Row]) -> None:
    """Print how the variants in int8 compare; noise is what float32 differs from itself."""
    by_model: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_model.setdefault(row.model, {})[row.variant] = row
    lines = []
    for model, found in by_model.items():
        noise = abs(1 - (found[AGAIN].ratio or 1.0)) if AGAIN in found else 0.0
        for name, other in PAIRS:
            one, two = found.get(name), found.get(other)
            if one is None or two is None or not one.median_ms or not two.median_ms:
                continue
            by_median = two.median_ms / one.median_ms
            by_fastest = (two.fastest_ms or 0.0) / (one.fastest_ms or 1.0)
            error = (one.error or 0.0) / two.error if two.error else None
            lines.append(
                (model, name, other, _fixed(by_median), _fixed(by_fastest), _fixed(error),
                 _verdict(by_median, by_fastest, noise))
            )  # fmt: skip
    if lines:
        output.table(
            "int8, side by side",
            ("model", "variant", "beside", "times as fast", "by fastest", "error", ""), lines,
        )  # fmt: skip


def _verdict(by_median: float, by_fastest: float, noise: float) -> str:
    """Say whether a variant is slower: by medians and by the fastest runs, beyond the noise."""
    if max(by_median, by_fastest) < 1 - noise:
        return "slower"
    return "faster" if min(by_median, by_fastest) > 1 + noise else "as fast"


def _fixed(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}"


def _measure(entry: corpus.Entry, folder: Path, options: argparse.Namespace) -> list[Row]:
    """Make and time the variants of one model."""
    feeds = folder / "feeds.npz"
    np.savez(feeds, **dict(_feeds(entry, options.past)))  # type: ignore[arg-type]
    engines = {name: Engine(this_python(), "onnxruntime", entry.path) for name in (FLOAT, AGAIN)}
    problems: dict[str, str] = {}
    others = () if options.openvino_python is None else tuple(OPENVINO)
    for name in (*OPTIMIZED, *OWN, *OVER, *others):
        if options.only and name not in options.only:
            continue
        output.say(f"precision: {entry.name}: {name}")
        try:
            engines[name] = _made(name, entry, feeds, folder, options)
        except ModelError as error:
            problems[name] = str(error)
    times, failed = take_turns(
        engines, feeds, folder, threads=options.threads, processes=options.processes,
        turns=options.turns,
    )  # fmt: skip
    return _rows(entry.name, times, {**problems, **failed}, folder)


def _rows(model: str, times: Times, problems: Mapping[str, str], folder: Path) -> list[Row]:
    if FLOAT not in times:
        return [Row(model, FLOAT, None, None, None, None, problems.get(FLOAT, "not timed"))]
    before = middle(times[FLOAT])
    rows = [
        Row(
            model, name, 1e3 * middle(elapsed), 1e3 * min(map(min, elapsed)),
            before / middle(elapsed),
            relative_error(folder / f"{FLOAT}.npz", folder / f"{name}.npz"),
        )
        for name, elapsed in times.items()
    ]  # fmt: skip
    return rows + [Row(model, name, None, None, None, None, why) for name, why in problems.items()]


def relative_error(reference: Path, other: Path) -> float:
    """Return the norm of the difference over the norm, of the worst output in float."""
    with np.load(reference) as one, np.load(other) as two:
        pairs = [(one[a], two[b]) for a, b in zip(one.files, two.files, strict=True)]
    found = [
        float(np.linalg.norm((a.astype(float) - b).ravel()) / (np.linalg.norm(a.ravel()) or 1.0))
        for a, b in pairs
        if a.dtype.kind == "f"
    ]
    return max(found, default=0.0)


def middle(elapsed: list[list[float]]) -> float:
    """Return the median of all turns."""
    return median(seconds for turns in elapsed for seconds in turns)


def _made(
    name: str, entry: corpus.Entry, feeds: Path, folder: Path, options: argparse.Namespace
) -> Engine:
    """Make one variant, on the inputs that are timed.

    Raises:
        ModelError: It failed.
    """
    if name in OPENVINO:
        return Engine(options.openvino_python, OPENVINO[name], entry.path)
    target, source = _place(folder, name), entry.path
    if name in OWN:
        # In a process of its own: it prints and warns.
        how = "--quantize" if name == OWN_INT8 else "--quantize-default"
        _run(sys.executable, "-m", __spec__.name, how, str(entry.path), str(target))
        return Engine(this_python(), "onnxruntime", target)
    if name in OVER and not (source := _place(folder, OVER[name])).exists():
        raise ModelError(f"there is no {OVER[name]}")
    _run(
        sys.executable, "-m", "ortkit", "optimize", str(source), "-o", str(target), "--quiet",
        "--accept-unverified",
        "--inputs", str(feeds), "--threads", str(options.threads), *OPTIMIZED.get(name, ()),
        *options.optimize.split(),
    )  # fmt: skip
    library = library_path(target)
    return Engine(this_python(), "onnxruntime", target, library if library.exists() else None)


def _place(folder: Path, name: str) -> Path:
    """Return where the model of a variant lies."""
    return folder / f"{name.replace(' ', '-')}.onnx"


def _feeds(entry: corpus.Entry, past: int | None) -> Mapping[str, np.ndarray]:
    """Return what is run on: one more token of a decoder if it has this many already."""
    if past is None:
        return entry.feeds()
    model = onnx.load(entry.path, load_external_data=False)
    return models.feeds(model, sequence=1, past=past)


def _run(*command: str) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise ModelError(ended.stderr.strip().rpartition("\n")[2][:200] or "it failed")


def quantize(
    entry: corpus.Entry, target: Path, *, by_default: bool = False, by_channel: bool = False
) -> None:
    """Quantize a model as ONNX Runtime's documentation advises for its kind.

    Args:
        entry: The model, with what it is calibrated on.
        target: Where to.
        by_default: Statically as `quantize_static` does where nothing is said.
        by_channel: Statically as advised for convolutions, whatever its kind.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic, quantize_static

    ops = [node.op_type for node in onnx.load(entry.path, load_external_data=False).graph.node]
    is_dynamic = ops.count("Conv") <= ops.count("MatMul") + ops.count("Gemm")
    if is_dynamic and not (by_default or by_channel):
        quantize_dynamic(entry.path, target, per_channel=True)
        return

    class Reader:
        sets = [dict(entry.feeds())]

        def get_next(self) -> dict[str, np.ndarray] | None:
            return self.sets.pop() if self.sets else None

    if by_default:
        quantize_static(entry.path, target, Reader())
        return
    quantize_static(
        entry.path, target, Reader(), per_channel=True, activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("scripts/bench precision", description=__doc__)
    add = parser.add_argument
    add("models", nargs="*", metavar="MODEL", help="models to time")
    add("--corpus", type=Path, help="a folder of models, timed too")
    add("--only", action="append", metavar="VARIANT", help="beside float32; may be repeated")
    add("--threads", type=int, default=2, help="of each process (default: 2)")
    add("--processes", type=int, default=2, help="of each variant (default: 2)")
    add("--turns", type=int, default=8, help="of each process (default: 8)")
    add("--optimize", default="", metavar="FLAGS", help="more flags of ortkit optimize")
    add("--past", type=int, metavar="N", help="decode one token after N: of models with a cache")
    add("--openvino-python", type=Path, help="a Python that has openvino, timed too")
    return parser


if __name__ == "__main__":
    if sys.argv[1:2] in (["--quantize"], ["--quantize-default"]):
        source = Path(sys.argv[2])
        quantize(
            corpus.Entry(source.stem, source), Path(sys.argv[3]),
            by_default=sys.argv[1] == "--quantize-default",
        )  # fmt: skip
        sys.exit(0)
    sys.exit(main())
