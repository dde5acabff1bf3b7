"""`scripts/bench cuda`: whole models and single kernels on a GPU, beside what others reach there.

Models are exported here by torch in float16, for each batch (`--batch`) or with sizes by name
(`--sizes`), and given to `ortkit optimize` as they are. All ways of running one are interleaved,
up to fifteen runs each; inputs and outputs lie on the device. Times are the host's until the
device is done. "plain" is an `InferenceSession` with the CUDA provider. "torch.compile" is the
fastest of its modes, compiled for the one size: each is timed on the device in a process of its
own first, with a limit of time. Rates are the model's operations over the device's time.

With `--into` each row is written as soon as it is measured. What the file has is not measured
again, so that a run of many rows may be cut in parts. With `--gate` commands for a row each
prepare side by side, wait until the file `go` is in that folder, and then measure one after the
other.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import ortkit
from ortkit.graph.analysis.cost import model_cost
from ortkit.graph.io.open import open_model
from ortkit.kernels.metadata import library_path
from ortkit.precision.lowering import MAX_ERROR
from scripts.benches import output
from scripts.benches.cuda_decode import DECODERS, PROMPTS, TOKENS, measure_decoders
from scripts.benches.cuda_decode import lines as decode_lines
from scripts.benches.cuda_genai import lines as genai_lines
from scripts.benches.cuda_genai import measure_genai
from scripts.benches.cuda_kernels import lines, measure_kernels
from scripts.benches.cuda_kernels_of import kernels_of
from scripts.benches.cuda_limits import measure_fp8_limit, measure_limit
from scripts.benches.cuda_lowered import lines as lowered_lines
from scripts.benches.cuda_lowered import way_of
from scripts.benches.cuda_models import Architecture, architecture, names, title
from scripts.benches.cuda_modes import best_of, time_modes
from scripts.benches.cuda_modes import lines as mode_lines
from scripts.benches.cuda_nbits import lines as nbits_lines
from scripts.benches.cuda_nbits import measure_nbits
from scripts.benches.cuda_padding import lines as padding_lines
from scripts.benches.cuda_padding import measure_padding, prepare_padding
from scripts.benches.cuda_torch import MODES, compiled, modes, synchronized
from scripts.benches.gpu import about_device, alone, take_turns

WAYS = ("plain", "plain graph", "ortkit", "ortkit graph", "torch", "torch.compile")
#: What is kept of a model: as exported, optimized, and what the command said.
_ENDS = (".onnx", ".opt.onnx", ".optimize.json")
#: Ways whose time on the device is printed.
_PARTS = ("plain graph", "ortkit graph", "torch.compile")
#: Runs of a turn at most: the host needs some after another way has run. Milliseconds of a turn.
_EACH, _TURN = 15, 40.0
#: What other orders of the same computation may be off by, in errors of the model as exported.
_OFF, _LEAST_OFF = 4.0, 1e-3
#: Operations a second in half precision that NVIDIA states, by a part of the device's name.
_PEAKS = {"H100": 989e12, "H200": 989e12}


def main() -> int:
    """Measure, print and write."""
    import onnxruntime

    onnxruntime.preload_dlls()
    options = _parser().parse_args()
    device = about_device()
    print(f"{device['name']}, onnxruntime {device['onnxruntime']}")
    results: dict[str, object] = {"device": device | _versions()}
    with tempfile.TemporaryDirectory(prefix="ortkit-cuda-") as name:
        folder = Path(name) if options.folder is None else options.folder
        if options.prepare and options.parts == "padding":
            prepare_padding(folder, options.arch)
            return 0
        if options.prepare:
            for name, batch, is_dynamic in _chosen(options):
                _prepare(architecture(name, batch, is_dynamic=is_dynamic), folder, options)
            return 0
        if options.parts in {"all", "models"}:
            found, left = _models(results, folder, options)
            results |= {"models": found, "batches": options.batch}
            _print_models(found, str(device["name"]))
            if options.precision:
                output.table("in a lower precision", *lowered_lines(found, options.precision))
            if left:
                print(f"\n{left} rows are left: run it again with --into {options.into}")
        if options.parts in {"all", "kernels"}:
            rows = measure_kernels(folder, options.only_kernels, options.arch)
            results["kernels"] = rows
            output.table("time on the device, µs (median)", *lines(rows))
        if options.parts in {"all", "nbits"}:
            rows = measure_nbits(folder, options.arch, options.rounds)
            results["nbits"] = rows
            output.table("one of six products in a CUDA graph, µs (median)", *nbits_lines(rows))
        if options.parts in {"all", "decode"}:
            sizes = TOKENS if options.tokens else (*TOKENS, *PROMPTS)
            if options.rows:
                sizes = tuple(each for each in sizes if each[0] in options.rows)
            chosen = [one for one in DECODERS if re.search(options.only, one.title)]
            rows = measure_decoders(
                folder, options.arch, options.rounds, chosen, sizes, options.gate
            )
            results["decode"] = rows
            output.table("ms of the host (median)", *decode_lines(rows))
        if options.parts == "genai":  # needs a package that no other part does
            chosen = [one for one in DECODERS if re.search(options.only, one.title)]
            rows = measure_genai(folder, options.arch, options.rounds, chosen)
            results["genai"] = rows
            output.table("ms of the host (median)", *genai_lines(rows))
        if options.parts in {"all", "padding"}:
            with alone(options.gate):
                rows = measure_padding(folder, options, kernels_of)
            results["padding"] = rows
            output.table("ms (median)", *padding_lines(rows))
    where = options.into or output.write(results, options.output, "cuda")
    if options.into is not None:
        options.into.parent.mkdir(parents=True, exist_ok=True)
        options.into.write_text(json.dumps(results, indent=1), encoding="utf-8")
    print(f"\nwrote {where}")
    return 0


def _chosen(options: argparse.Namespace) -> list[tuple[str, int, bool]]:
    """Return the rows of the table: a model, its batch, and whether its sizes are named."""
    return [
        (name, batch, sizes == "dynamic")
        for sizes in options.sizes
        for name in names(options.only)
        for batch in options.batch
    ]


def _models(
    results: dict[str, object], folder: Path, options: argparse.Namespace
) -> tuple[list[dict[str, Any]], int]:
    """Measure the models that are not in the file `--into`.

    Args:
        results: What is written beside the rows.
        folder: Of the models.
        options: The command's.

    Returns:
        All rows, and how many are left.
    """
    started, left = time.perf_counter(), 0
    found: list[dict[str, Any]] = []
    if options.into is not None and options.into.exists():
        found = json.loads(options.into.read_text(encoding="utf-8"))["models"]
    known = {(row["model"], row["batch"]) for row in found}
    for name, batch, is_dynamic in _chosen(options):
        if (title(name, is_dynamic=is_dynamic), batch) in known:
            continue
        if options.seconds is not None and time.perf_counter() - started > options.seconds:
            left += 1
            continue
        one = architecture(name, batch, is_dynamic=is_dynamic)
        try:
            found.append(_model(one, folder, options))
        except Exception as error:  # noqa: BLE001  other rows are measured all the same
            output.say(f"{one.name}, {batch}: {error}")
            left += 1
        if options.into is not None:
            options.into.parent.mkdir(parents=True, exist_ok=True)
            part = options.into.with_suffix(".part")
            part.write_text(json.dumps(results | {"models": found}, indent=1), encoding="utf-8")
            part.replace(options.into)
    return found, left


def _versions() -> dict[str, object]:
    import torch
    import triton

    return {"torch": torch.__version__, "triton": triton.__version__}


def _prepare(one: Architecture, folder: Path, options: argparse.Namespace) -> None:
    """Do what takes long, to be found by a later run: export, optimize, let torch compile.

    Each of torch's ways is timed on the device, which work of others beside it changes little.
    """
    path, _, _ = _exported(one, folder, options)
    for precision in options.precision:
        _lowered(path, precision, options)
    _timed_modes(one, folder, options)


def _timed_modes(one: Architecture, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return what each of torch's ways takes; those in `folder` if there."""
    path = _stem(one, folder).with_suffix(".modes.json")
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    left = [mode for mode in _modes(one, options) if mode not in found]
    if left:
        found |= time_modes(one, left, options.mode_seconds)
        path.write_text(json.dumps(found), encoding="utf-8")
    return found


def _stem(one: Architecture, folder: Path) -> Path:
    """Return the path of a model's files, with an end that is replaced."""
    name = one.name if one.is_dynamic else f"{one.name}-{len(one.example)}"
    return folder / f"{name}.onnx"


def _modes(one: Architecture, options: argparse.Namespace) -> list[str]:
    """Return the ways in which torch compiles a model that are asked for."""
    return modes(one, options.modes) if options.compile else []


def _exported(
    one: Architecture, folder: Path, options: argparse.Namespace
) -> tuple[Path, Path, dict[str, object]]:
    """Return the model, the optimized one, and how that went; those in `folder` if there."""
    folder.mkdir(parents=True, exist_ok=True)
    path, optimized, noted = (_stem(one, folder).with_suffix(end) for end in _ENDS)
    if not noted.exists():
        if not path.exists():
            _export(one, path)
        noted.write_text(json.dumps(_optimize(path, optimized, options)), encoding="utf-8")
    return path, optimized, json.loads(noted.read_text(encoding="utf-8"))


def _lowered(
    path: Path, precision: str, options: argparse.Namespace
) -> tuple[Path, dict[str, object]]:
    """Return an exported model in a lower precision, and how that went."""
    optimized, noted = (path.with_suffix(f".{precision}{end}") for end in _ENDS[1:])
    if not noted.exists():
        noted.write_text(
            json.dumps(_optimize(path, optimized, options, "--precision", precision)),
            encoding="utf-8",
        )
    return optimized, json.loads(noted.read_text(encoding="utf-8"))


def _export(one: Architecture, path: Path) -> None:
    """Write a model that is whole as soon as it is there: others may prepare the same one."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        one.export(Path(folder) / path.name)
        # The model names its data file, so that it comes last.
        for made in sorted(Path(folder).iterdir(), key=lambda each: each.name == path.name):
            made.replace(path.with_name(made.name))


def _model(one: Architecture, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    output.say(one.name)
    row: dict[str, Any] = {"model": one.name, "batch": len(one.example)}
    path, optimized, row["optimize"] = _exported(one, folder, options)
    row["operations"] = model_cost(open_model(path), one.sizes).flops
    import torch

    with ExitStack() as stack, torch.no_grad():
        expected = one.module(one.example)
        expected = getattr(expected, "last_hidden_state", expected)
        calls: dict[str, Callable[[], object]] = {}
        errors: dict[str, float] = {}
        for name, graph in (("plain", False), ("plain graph", True)):
            run, outcome = _plain(path, one.example, expected, graph=graph)
            calls[name] = run
            run()
            errors[name] = _error(outcome, expected)
        feeds = {"x": one.example}
        for name, graph in (("ortkit", False), ("ortkit graph", True)):
            session = stack.enter_context(
                ortkit.Session(optimized, "cuda", cuda_graph=graph, kernels="require")
            )
            bound = session.bind(feeds)
            bound.run()
            calls[name] = bound.run
            errors[name] = _error(torch.from_dlpack(bound.outputs["y"]), expected)
            row[f"{name}: notes"] = list(session.notes)
        if problem := wrong(errors):
            raise ValueError(problem)
        for precision in options.precision:
            lowered, row[f"{precision}: optimize"] = _lowered(path, precision, options)
            session = stack.enter_context(
                ortkit.Session(lowered, "cuda", cuda_graph=True, kernels="require")
            )
            bound = session.bind(feeds)
            bound.run()
            calls[way_of(precision)] = bound.run
            found = _error(torch.from_dlpack(bound.outputs["y"]), expected)
            errors[way_of(precision)] = found
            if not found <= MAX_ERROR[precision]:
                raise ValueError(f"{precision} is off by {found:.1e} of the norm")
        if not one.is_dynamic:
            calls["torch"] = synchronized(lambda: one.module(one.example))
        started = time.perf_counter()
        row["torch modes"] = spent = _timed_modes(one, folder, options)
        best = best_of(spent)
        by_torch = {} if best is None else {f"torch: {best}": compiled(one, best)}
        row["compile_s"] = time.perf_counter() - started
        stack.enter_context(alone(options.gate))
        ways = calls | by_torch
        each = {name: _runs_of_turn(call) for name, call in ways.items()}
        row["milliseconds"] = elapsed = take_turns(ways, options.rounds, each=each)
        if by_torch:
            ((name, call),) = by_torch.items()
            row["torch mode"] = name
            elapsed["torch.compile"], calls["torch.compile"] = elapsed[name], call
        output.say(", ".join(f"{name} {median(each):.3f}" for name, each in elapsed.items()))
        row["errors"] = errors
        lower = map(way_of, options.precision)
        for name in (
            "plain graph",
            "ortkit graph",
            *lower,
            *(["torch.compile"] if by_torch else []),
        ):
            row[f"{name}: device"] = kernels_of(calls[name])
        if not one.is_dynamic and not one.is_net:
            row["products: device"] = measure_limit(open_model(path), one.sizes)
            if "fp8" in options.precision:
                row["fp8 products: device"] = measure_fp8_limit(open_model(path), one.sizes)
    return row


def _runs_of_turn(call: Callable[[], object]) -> int:
    """Return how often a way is run in its turn: fewer times where a run takes long."""
    call()
    started = time.perf_counter()
    call()
    elapsed = 1e3 * (time.perf_counter() - started)
    return int(min(_EACH, max(1.0, _TURN / elapsed)))


def _optimize(
    path: Path, optimized: Path, options: argparse.Namespace, *more: str
) -> dict[str, object]:
    """Run the command as a user does, with nothing in the cache."""
    command = [sys.executable, "-m", "ortkit", "optimize", str(path), "-o", str(optimized), *more]
    command += ["--accept-unverified"] if options.verify else ["--no-verify"]
    started = time.perf_counter()
    with _empty_cache() as cache:
        ended = subprocess.run(
            [*command, "--target", "cuda", "--arch", options.arch],
            capture_output=True,
            text=True,
            check=False,
            env=cache,
        )
    if ended.returncode:
        raise SystemExit(ended.stderr)
    library = library_path(optimized)
    return {
        "seconds": time.perf_counter() - started,
        "library_bytes": library.stat().st_size if library.exists() else 0,
        "said": ended.stdout,
    }


@contextmanager
def _empty_cache() -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory(prefix="ortkit-cache-") as folder:
        yield os.environ | {"ORTKIT_CACHE": folder}


def _plain(
    path: Path, example: Any, expected: Any, *, graph: bool
) -> tuple[Callable[[], object], Any]:
    """Return a bound run of an `InferenceSession`, and the memory of its output."""
    import onnxruntime
    import torch

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    provider = ("CUDAExecutionProvider", {"enable_cuda_graph": "1"} if graph else {})
    session = onnxruntime.InferenceSession(
        str(path), options, providers=[provider, "CPUExecutionProvider"]
    )
    io, out = session.io_binding(), torch.empty_like(expected)
    for bind, name, tensor in (
        (io.bind_input, "x", example.contiguous()),
        (io.bind_output, "y", out),
    ):
        kind = np.dtype(str(tensor.dtype).removeprefix("torch."))
        bind(name, "cuda", 0, kind, tuple(tensor.shape), tensor.data_ptr())
    return partial(_run_bound, session, io, (example, out)), out


def _run_bound(session: Any, io: Any, held: tuple[Any, ...]) -> object:  # noqa: ARG001
    """Run a session; a binding does not hold the memory that it names, which `held` does."""
    return session.run_with_iobinding(io)


def _error(value: Any, expected: Any) -> float:
    reference = expected.float()
    return float((value.float() - reference).norm() / reference.norm())


def wrong(errors: Mapping[str, float]) -> str:
    """Say which way is off by much more than the model as exported; empty if none is.

    Args:
        errors: Of each way, the norm of its error over that of torch's result.
    """
    most = _OFF * errors["plain"] + _LEAST_OFF
    off = [name for name, error in errors.items() if not error <= most]
    return ", ".join(f"{name} is off by {errors[name]:.1e} of the norm" for name in off)


def _print_models(found: list[dict[str, Any]], device: str) -> None:
    """Print the times of the host, and those of the device with rates.

    A row of sizes by name stands beside what torch compiled for the same sizes, fixed. "to torch"
    is to the faster of torch as it is and compiled.
    """
    hosts: list[list[output.Cell]] = []
    devices: list[list[output.Cell]] = []
    peak = next((rate for name, rate in _PEAKS.items() if name in device), None)
    known = {(row["model"], row["batch"]): row for row in found}
    by_torch = {key: row for key, row in known.items() if "torch mode" in row}
    for row in found:
        times = {name: median(values) for name, values in row["milliseconds"].items()}
        beside = by_torch.get((row["model"].removesuffix(", dynamic"), row["batch"]), {})
        for name in ("torch", "torch.compile") if beside else ():
            times[name] = median(beside["milliseconds"][name])
        torch = min(
            (times[name] for name in ("torch", "torch.compile") if name in times), default=None
        )
        best = times["ortkit graph"]
        spent = {
            name: each[f"{name}: device"]["microseconds"] / 1e3
            for name, each in zip(_PARTS, (row, row, beside), strict=True)
            if f"{name}: device" in each
        }
        fixed = known.get((row["model"].removesuffix(", dynamic"), row["batch"]), {})
        products = fixed.get("products: device", {}).get("microseconds")
        rates = {name: row["operations"] / each / 1e9 for name, each in spent.items()}
        error = f"{row['errors']['ortkit graph']:.0e} ({row['errors']['plain']:.0e})"
        hosts.append(
            [
                row["model"], row["batch"], *(times.get(name) for name in WAYS),
                times["plain"] / best,
                None if torch is None else torch / best,
                beside.get("torch mode", "").removeprefix("torch: "),
                row["optimize"]["seconds"], error,
            ]
        )  # fmt: skip
        devices.append(
            [
                row["model"], row["batch"], *(spent.get(name) for name in _PARTS),
                products / 1e3 if products else None,
                *(rates.get(name) for name in _PARTS),
                *(None if peak is None or name not in rates else 1e14 * rates[name] / peak
                  for name in _PARTS),
            ]
        )  # fmt: skip
    header = [
        "host, ms (median)", "batch", *WAYS, "to plain", "to torch", "torch's mode",
        "optimize, s", "error",
    ]  # fmt: skip
    output.table("models in float16", header, hosts)
    header = [
        "device", "batch", *(f"{name}, ms" for name in _PARTS), "cuBLASLt's products, ms",
        *(f"{name}, TFLOP/s" for name in _PARTS), *(f"{name}, % of peak" for name in _PARTS),
    ]  # fmt: skip
    output.table("models in float16", header, devices)
    if any(row.get("torch modes") for row in found):
        output.table("each way in a process of its own", *mode_lines(found))


def _sizes(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/bench cuda", description=__doc__)
    parser.add_argument(
        "--parts", default="all",
        choices=("all", "models", "kernels", "nbits", "decode", "genai", "padding"),
    )  # fmt: skip
    parser.add_argument("--only", default="", help="models by a regular expression")
    parser.add_argument("--tokens", action="store_true", help="of decoders, without prompts")
    parser.add_argument(
        "--rows", type=_sizes, default=[], help="of decoders, such as 1,2048: all by default"
    )
    parser.add_argument("--only-kernels", default="", help="kernels whose name contains this")
    parser.add_argument("--arch", default="sm_90", help="the GPU's")
    parser.add_argument("--batch", type=_sizes, default=[1], help="of the inputs, such as 1,8,32")
    parser.add_argument(
        "--sizes", type=lambda text: text.split(","), default=["fixed"],
        help="of the exports: fixed, dynamic (by name), or both with a comma",
    )  # fmt: skip
    parser.add_argument(
        "--precision", type=lambda text: text.split(","), default=[],
        help="that models are lowered to beside float16: fp8",
    )  # fmt: skip
    parser.add_argument("--into", type=Path, help="a file of rows, to which others are added")
    parser.add_argument("--seconds", type=float, help="no row is begun after these")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument(
        "--modes", type=lambda text: text.split(","), default=[],
        help=f"of torch.compile: {', '.join(MODES)}; all of them by default",
    )  # fmt: skip
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument(
        "--mode-seconds", type=float, default=300.0,
        help="after these one mode of torch.compile is given up",
    )  # fmt: skip
    parser.add_argument(
        "--no-verify", dest="verify", action="store_false",
        help="what runs on a CPU takes long in large batches; errors are measured in any case",
    )  # fmt: skip
    parser.add_argument("--folder", type=Path, help="where models are kept, and taken from")
    parser.add_argument("--gate", type=Path, help="a folder: wait for `go` in it, then measure")
    parser.add_argument("--prepare", action="store_true", help="fill the folder, measure nothing")
    parser.add_argument("--output", type=Path, default=Path("bench-results"))
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
