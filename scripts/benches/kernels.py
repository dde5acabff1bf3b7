"""`scripts/bench kernels`: pieces between the heavy operators, ONNX Runtime against kernels.

`before` is the model as written under all of ONNX Runtime's optimizations, `after` what `ortkit
optimize` makes of it, `kernel` the whole of it as one fused node, whatever the choice of regions
says. Processes of their own, runs alternating, one set of buffers, and what a model of nothing
takes is taken off. `/memcpy` is the kernel's time over a copy's of as many bytes, and `copy x`
what a kernel at the copy's speed would reach. Depthwise kernels are NHWC.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import onnx
from onnx import TensorProto, helper

from ortkit.errors import OrtkitError
from ortkit.kernels.build.library import build_library
from ortkit.kernels.metadata import library_path
from ortkit.kernels.signature import DOMAIN, RegionSignature, TensorSpec, body_text
from ortkit.targets.target import Target
from scripts.benches import kernels_child, output
from scripts.benches.kernel_cases import CASES, Case
from scripts.benches.pairs import Ratio, ratio_of_medians

BEFORE, AFTER, KERNEL = "before", "after", "kernel"


@dataclass(frozen=True)
class Variants:
    """The models of one case, and why some are not there."""

    models: dict[str, Path]
    libraries: dict[str, Path]
    notes: dict[str, str]


def main() -> int:
    """Build, time, print and write."""
    options = _parser().parse_args()
    results: dict[str, object] = {"machine": output.machine(None)}
    print(f"machine: {results['machine']}")
    rows: list[dict[str, object]] = []
    results["kernels"] = rows
    try:
        with tempfile.TemporaryDirectory(prefix="ortkit-kernels-") as folder:
            for case in CASES:
                if options.only in case.name:
                    rows += _measured(case, Path(folder), options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    for threads in options.threads:
        _print([row for row in rows if row["threads"] == threads], threads)
    print(f"\nwrote {output.write(results, Path('bench-results'), 'kernels')}")
    return 0


def variants_of(case: Case, folder: Path) -> Variants:
    """Write the case's model, what `ortkit optimize` makes of it, and it as one fused node."""
    folder.mkdir()
    source, optimized, fused = (folder / f"{name}.onnx" for name in (BEFORE, AFTER, KERNEL))
    model = case.build()
    onnx.save(model, source)
    models, libraries, notes = {BEFORE: source}, {}, {}
    command = [sys.executable, "-m", "ortkit", "optimize", "--level", "2", "--kernels", "auto"]
    command += ["--quiet", "--accept-unverified", str(source), "-o", str(optimized)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        notes[AFTER] = ended.stderr.strip().rpartition("\n")[2]
    else:
        models[AFTER] = optimized
        if library_path(optimized).exists():
            libraries[AFTER] = library_path(optimized)
        else:
            notes[AFTER] = "no region taken"
    library = folder / "kernel.so"
    try:
        model = case.as_kernel()
        signature = as_region(model)
        built = build_library([signature], Target(), library)
        if built.library is None:
            notes[KERNEL] = built.refused[0][1]
        else:
            onnx.save(fused_model(model, signature), fused)
            models[KERNEL], libraries[KERNEL] = fused, library
    except OrtkitError as error:
        notes[KERNEL] = str(error)
    return Variants(models, libraries, notes)


def as_region(model: onnx.ModelProto) -> RegionSignature:
    """Return the whole model as one region: scalars and lists of integers inside it."""
    held = {item.name: item for item in model.graph.initializer}
    inside = [one for one in held.values() if one.data_type == TensorProto.INT64 or not one.dims]
    weights = [one for one in held.values() if one not in inside]
    constants = [helper.make_node("Constant", [], [one.name], value=one) for one in inside]
    inputs = [*(value.name for value in model.graph.input), *(weight.name for weight in weights)]
    outputs = [value.name for value in model.graph.output]
    nodes = [*constants, *model.graph.node]
    opsets = list(model.opset_import)
    function = helper.make_function("bench", "f", inputs, outputs, nodes, opsets)
    return RegionSignature(
        "bench",
        body_text(function),
        (*map(_spec, model.graph.input), *map(_weight_spec, weights)),
        tuple(map(_spec, model.graph.output)),
    )


def fused_model(model: onnx.ModelProto, signature: RegionSignature) -> onnx.ModelProto:
    function = signature.function()
    function.domain, function.name = DOMAIN, signature.op_type
    outputs = [value.name for value in model.graph.output]
    node = helper.make_node(
        signature.op_type, [spec.name for spec in signature.inputs], outputs, domain=DOMAIN
    )
    names = {spec.name for spec in signature.inputs}
    weights = [item for item in model.graph.initializer if item.name in names]
    graph = helper.make_graph([node], "fused", model.graph.input, model.graph.output, weights)
    opsets = [*model.opset_import, helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(
        graph, opset_imports=opsets, functions=[function], ir_version=model.ir_version
    )


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    kind = value.type.tensor_type
    shape = tuple(dim.dim_value for dim in kind.shape.dim)
    return TensorSpec(value.name, _dtype(kind.elem_type), shape)


def _weight_spec(weight: onnx.TensorProto) -> TensorSpec:
    return TensorSpec(weight.name, _dtype(weight.data_type), tuple(weight.dims))


def _dtype(element: int) -> str:
    return str(helper.tensor_dtype_to_np_dtype(element))


def _measured(case: Case, folder: Path, options: argparse.Namespace) -> list[dict[str, object]]:
    output.say(case.name)
    here = folder / f"{len(list(folder.iterdir()))}"
    variants = variants_of(case, here)
    feeds = here / "feeds.npz"
    rng = np.random.default_rng(1)
    specs = as_region(case.build()).inputs
    given = {value.name for value in case.build().graph.input}
    arrays = {
        spec.name: rng.standard_normal(tuple(map(int, spec.shape))).astype(np.float32)
        for spec in specs
        if spec.name in given
    }
    np.savez(feeds, **arrays)  # type: ignore[arg-type]
    empty = _empty(here)
    rows = []
    for threads in options.threads:
        job: kernels_child.Job = {
            "models": {name: str(path) for name, path in variants.models.items()},
            "libraries": {name: str(path) for name, path in variants.libraries.items()},
            "feeds": str(feeds),
            "threads": threads,
            "seconds": options.seconds,
        }
        nothing: kernels_child.Job = {
            **job, "models": {BEFORE: str(empty)}, "libraries": {}, "seconds": 0.1,
            "feeds": str(empty.with_suffix(".npz")),
        }  # fmt: skip
        processes = [_run(job, here) for _ in range(options.processes)]
        overhead = min(median(_run(nothing, here)[BEFORE]) for _ in range(2))
        rows.append(
            {
                "case": case.name, "goal": case.goal, "threads": threads,
                "notes": variants.notes, "empty_us": 1e6 * overhead,
                "processes": processes,
            }
        )  # fmt: skip
    return rows


def _empty(folder: Path) -> Path:
    """Write a model of one trivial node, and its input: what any run takes."""
    path = folder / "empty.onnx"
    one = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", one[:1], one[1:])
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    np.savez(path.with_suffix(".npz"), x=np.ones(1, np.float32))
    return path


def _run(job: kernels_child.Job, folder: Path) -> dict[str, list[float]]:
    file = folder / "job.json"
    file.write_text(json.dumps(job), encoding="utf-8")
    command = [sys.executable, "-P", kernels_child.__file__, str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, list[float]] = json.loads(ended.stdout)
    return found


@dataclass(frozen=True)
class Line:
    """One case's numbers, in seconds without what an empty run takes."""

    minima: Mapping[str, float]
    medians: Mapping[str, float]
    ratios: Mapping[str, Ratio]


def line_of(processes: Sequence[Mapping[str, Sequence[float]]], empty: float) -> Line:
    """Sum up the runs of several processes; ratios are of `before` to the others."""
    names = list(processes[0])
    # A copy is no session's run: nothing of its time is the runtime's.
    off = {name: 0.0 if name == "memcpy" else empty for name in names}
    minima = {n: min(min(p[n]) for p in processes) - off[n] for n in names}
    medians = {n: median(median(p[n]) for p in processes) - off[n] for n in names}
    groups = {
        n: [[seconds - off[n] for seconds in process[n]] for process in processes] for n in names
    }
    ratios = {n: ratio_of_medians(groups[BEFORE], groups[n]) for n in names if n != BEFORE}
    return Line(minima, medians, ratios)


def _print(rows: Sequence[Mapping[str, object]], threads: int) -> None:
    cells: list[list[output.Cell]] = []
    notes: list[str] = []
    for row in rows:
        processes = row["processes"]
        assert isinstance(processes, list)
        line = line_of(processes, float(str(row["empty_us"])) / 1e6)
        cells.append([str(row["case"]), *_cells(line, row["goal"])])
        found = row["notes"]
        assert isinstance(found, dict)
        notes += [f"{row['case']}: {name}: {note}" for name, note in found.items()]
    output.table(
        f"Kernels, {threads} thread(s): µs, minimum (median); ratios of medians to `before`",
        ("case", "before", "after", "kernel", "memcpy", "after x", "kernel x", "95 %", "of minima",
         "goal", "copy x", "/memcpy"),
        cells,
    )  # fmt: skip
    for note in notes:
        print(f"  {note}")


def _cells(line: Line, goal: object) -> list[output.Cell]:
    times: list[output.Cell] = [
        f"{1e6 * line.minima[name]:.1f} ({1e6 * line.medians[name]:.1f})"
        if name in line.minima
        else None
        for name in (BEFORE, AFTER, KERNEL, "memcpy")
    ]
    best = line.ratios.get(KERNEL)
    return [
        *times,
        line.ratios[AFTER].value if AFTER in line.ratios else None,
        best.value if best else None,
        f"{best.low:.2f}-{best.high:.2f}" if best else None,
        line.minima[BEFORE] / line.minima[KERNEL] if best else None,
        float(str(goal)) if goal is not None else None,
        line.minima[BEFORE] / line.minima["memcpy"],
        line.minima[KERNEL] / line.minima["memcpy"] if best else None,
    ]


def _threads(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("scripts/bench kernels", description=__doc__)
    add = parser.add_argument
    add("--only", default="", help="cases with this in their name only")
    add("--threads", type=_threads, default=(1, 2), help="of a session (default: 1,2)")
    add("--processes", type=int, default=3, help="for each case (default: 3)")
    add("--seconds", type=float, default=1.0, help="of runs in each process (default: 1)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
