"""`scripts/gpu_check`: kernels of every kind under compute-sanitizer, in a session on this GPU.

First without it, for the results; then memcheck and racecheck. A kernel that writes past its
tensor must be found, or finding nothing would say nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ortkit.kernels.cuda import CudaKernel
from ortkit.kernels.triton.generate import sources_of
from ortkit.targets.cuda import ARCHITECTURES
from scripts.benches import output
from scripts.sanitizer.cases import CASES
from scripts.sanitizer.races import hand_overs, of_libraries, programs_of
from scripts.sanitizer.suite import Suite, build, compiled, nodes_of, wrong_outputs

_CHILD = Path(__file__).with_name("child.py")
_TOOLKIT = Path("/usr/local/cuda/bin")
_SUMMARIES = {
    "memcheck": r"ERROR SUMMARY: (\d+) error",
    "racecheck": r"RACECHECK SUMMARY: (\d+) hazard",
}
_SECONDS = 300.0


def main() -> int:
    """Build, run, count, write; 1 if something is found."""
    parser = argparse.ArgumentParser(prog="scripts.sanitizer", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("bench-results"), metavar="DIR")
    folder = parser.parse_args().output
    results: dict[str, object] = {"when": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"}
    if reason := why_not():
        print(f"skipped: {reason}")
        print(f"wrote {output.write(results | {'skipped': reason}, folder, 'gpu-sanitizer')}")
        return 0
    tool = find_tool()
    assert tool is not None
    results |= about(tool)
    print(f"{results['gpu']}, driver {results['driver']}, {results['sanitizer']}")
    with tempfile.TemporaryDirectory(prefix="ortkit-sanitizer-") as name:
        found = check(tool, int(str(results["architecture"])), Path(name))
    results |= found
    print(f"wrote {output.write(results, folder, 'gpu-sanitizer')}")
    return 1 if found["failures"] else 0


def check(tool: Path, architecture: int, folder: Path) -> dict[str, object]:
    """Run everything; `failures` says what is wrong, a line each."""
    started = time.perf_counter()
    kernels = compiled(CASES, architecture, folder / "code")
    pairs = zip(CASES, kernels, strict=True)
    suite = build([node for case, kernel in pairs for node in nodes_of(case, kernel)], folder)
    seconds = {"build": time.perf_counter() - started}
    counts: dict[str, int | None] = {}
    failures = []
    seconds["plain"], said = run(suite, [])
    if (folder / "results.npz").exists():
        with np.load(folder / "results.npz") as file:
            failures += wrong_outputs(suite, {each: file[each] for each in file.files})
    else:
        failures.append(f"the session failed: {said.strip().splitlines()[-1:]}")
    # A run that is cut off has said what it found before.
    for line in failures:
        print(line, flush=True)
    for kind in _SUMMARIES:
        seconds[kind], said = run(suite, [str(tool), "--tool", kind, "--print-limit", "1000"])
        found = errors_of(kind, said)
        if kind == "racecheck" and found:
            steps = [step for one in kernels for item in one.variants for step in item.steps]
            roles = len(hand_overs(said, programs_of(kernels, architecture)))
            others = len(of_libraries(said, {step.entry for step in steps}))
            counts["racecheck, roles handed over"] = roles
            counts["racecheck, kernels of libraries"] = others
            found -= roles + others
        counts[kind] = found
        print(f"{kind}: {found} errors in {seconds[kind]:.0f} s", flush=True)
        if counts[kind] != 0:
            failures.append(f"{kind}: {counts[kind]} errors")
            print(said)
    broken = build_broken(kernels[0], architecture, folder / "broken")
    seconds["mistake"], said = run(broken, [str(tool), "--tool", "memcheck"])
    counts["memcheck of a mistake"] = errors_of("memcheck", said)
    if not counts["memcheck of a mistake"]:
        failures.append("memcheck does not see a kernel that writes behind its tensor")
    rows = [(kind, counts.get(kind), seconds.get(kind)) for kind in {**seconds, **counts}]
    output.table(f"{len(suite.nodes)} kernels", ("", "errors", "s"), rows)
    for line in failures:
        print(f"FAILED {line}")
    return {
        "kernels": [node.signature.name for node in suite.nodes],
        "errors": counts,
        "seconds": {kind: round(elapsed, 2) for kind, elapsed in seconds.items()},
        "failures": failures,
    }


def build_broken(kernel: CudaKernel, architecture: int, folder: Path) -> Suite:
    """Return the first case with a kernel that writes past its tensor."""
    from ortkit.kernels.triton.build import write_images

    folder.mkdir()
    case = CASES[0]
    sources = sources_of(case.signature())
    assert isinstance(sources, tuple)
    (step,) = sources[0].steps
    beyond = replace(step, text=step.text.replace("tl.store(y0 +", "tl.store(y0 + 4096 +"))
    made = write_images([replace(sources[0], steps=(beyond,))], [architecture], folder)
    broken = replace(kernel, variants=made.variants, images=made.images)
    return build(nodes_of(case, broken), folder)


def run(suite: Suite, command: Sequence[str]) -> tuple[float, str]:
    """Run the child under a command; returns the seconds and what it printed."""
    started = time.perf_counter()
    whole = [*command, sys.executable, str(_CHILD), str(suite.job)]
    try:
        done = subprocess.run(
            whole, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            check=False, timeout=_SECONDS,
        )  # fmt: skip
        said = done.stdout
    except subprocess.TimeoutExpired:
        said = f"it did not end within {_SECONDS:g} s"
    return time.perf_counter() - started, said


def errors_of(kind: str, said: str) -> int | None:
    """Return how many errors a tool counted; None if it did not get that far."""
    found = re.findall(_SUMMARIES[kind], said)
    return int(found[-1]) if found else None


def find_tool() -> Path | None:
    """Return compute-sanitizer."""
    found = shutil.which("compute-sanitizer")
    if found is not None:
        return Path(found)
    beside = _TOOLKIT / "compute-sanitizer"
    return beside if beside.is_file() else None


def why_not() -> str:
    """Return why nothing can be checked here, empty if it can."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "there is no CUDA driver"
    if find_tool() is None:
        return f"compute-sanitizer is neither on PATH nor in {_TOOLKIT}"
    if shutil.which("nvidia-smi") is None:
        return "nvidia-smi, which tells what GPU this is, is not there"
    for name in ("triton", "onnxruntime"):
        if find_spec(name) is None:
            return f"{name} is not installed"
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return "this is not onnxruntime-gpu"
    return ""


def about(tool: Path) -> dict[str, object]:
    """Say what is checked on and with."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
    said = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    name, driver, capability = (part.strip() for part in said.splitlines()[0].split(","))
    major, _, minor = capability.partition(".")
    here = int(major) * 10 + int(minor)
    usable = [
        architecture
        for architecture in ARCHITECTURES
        if architecture // 10 == here // 10 and architecture <= here
    ]
    version = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True)
    names = ("ortkit", "onnxruntime-gpu", "triton", "numpy")
    return {
        "gpu": name,
        "driver": driver,
        "architecture": max(usable, default=ARCHITECTURES[0]),
        "sanitizer": version.stdout.strip().splitlines()[-1],
        "versions": {name: _version(name) for name in names},
    }


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main())
