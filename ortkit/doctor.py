"""What this machine has of what ortkit can use, what is missing, and how to get it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from ortkit import env
from ortkit.errors import OrtkitError
from ortkit.isolation.ended import Crashed, Ended, Failed
from ortkit.isolation.run import run_isolated
from ortkit.private_folder import private_folder_refusal
from ortkit.targets.probes import Probed, gpus_here, onnxruntime_here, tvm_here
from ortkit.version import __version__

SCHEMA = "ortkit.doctor/1"
#: Distributions that all install the package `onnxruntime`, over each other.
RUNTIMES = (
    "onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino",
    "onnxruntime-rocm", "onnxruntime-qnn", "onnxruntime-training", "ort-nightly",
    "ort-nightly-gpu",
)  # fmt: skip
PYTHONS = ((3, 11), (3, 13))
#: Which processes get huge pages, as custom_ops/native/constants.cc reads it.
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PROBE_SECONDS = 60
#: Of the failures of the OrtkitExecutionProvider the last ones are shown.
SHOWN_FAILURES = 3

State = Literal["ok", "missing", "optional", "broken"]
"""`missing` is needed by some command; `optional` is absent and needed by none by default."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for."""

    group: str
    name: str
    state: State
    value: str
    """A version, a path, or what is wrong."""
    fix: str = ""
    """What to do about it, empty if nothing needs doing."""


@dataclass(frozen=True)
class Diagnosis:
    """Everything that was looked for."""

    findings: tuple[Finding, ...]

    @property
    def problems(self) -> tuple[Finding, ...]:
        """What is missing or broken."""
        return tuple(
            finding for finding in self.findings if finding.state in ("missing", "broken")
        )

    def to_json(self) -> dict[str, object]:
        """Return the document of `ortkit doctor --json`."""
        return {
            "schema": SCHEMA,
            "healthy": not self.problems,
            "findings": [asdict(finding) for finding in self.findings],
        }


def diagnose(progress: Callable[[str], None] | None = None) -> Diagnosis:
    """Look at the machine; never raises because of what it finds.

    Packages with native parts are loaded in processes of their own: a broken one must not
    take this one with it.
    """
    parts = (
        _system, _libraries, _runtime, _extensions, _kernels, _provider, _gpu, _storage,
        _calibration,
    )  # fmt: skip
    findings: list[Finding] = []
    for part in parts:
        if progress is not None:
            progress(part.__name__.strip("_"))
        findings.extend(part())
    return Diagnosis(tuple(findings))


def _system() -> Iterator[Finding]:
    yield Finding("system", "ortkit", "ok", __version__)
    found = platform.python_version()
    low, high = (".".join(map(str, python)) for python in PYTHONS)
    if PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        yield Finding("system", "python", "ok", f"{found} ({sys.executable})")
    else:
        fix = f"use Python {low} to {high}"
        yield Finding("system", "python", "broken", f"{found} is not supported", fix)
    yield Finding("system", "platform", "ok", platform.platform())
    yield Finding("system", "cpu", "ok", f"{_cpu_level()}, {_cores()} cores usable")
    if sys.platform == "linux":
        yield _huge_pages()


def _huge_pages() -> Finding:
    """Say whether a process may ask for pages of 2 MiB, as kernels of 4-bit weights do."""
    name, fix = "huge pages", f"for language models: echo madvise > {HUGE_PAGES}"
    try:
        modes = HUGE_PAGES.read_text("ascii")
    except OSError:
        why = "not supported by this system: weights of 4 and 8 bits are read more slowly"
        return Finding("system", name, "optional", why)
    chosen = modes.partition("[")[2].partition("]")[0]
    if chosen == "never":
        why = "off: weights of 4 and 8 bits are read more slowly"
        return Finding("system", name, "optional", why, fix)
    return Finding("system", name, "ok", chosen)


def _cpu_level() -> str:
    try:
        from ortkit.targets.cpu import native_level
    except ImportError:  # a library is missing, and reported below
        return platform.machine()
    return native_level()


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _libraries() -> Iterator[Finding]:
    for name in ("numpy", "onnx", "onnx-ir", "onnxscript", "rich"):
        if (found := _version(name)) is None:
            fix = f"install ortkit again, or: pip install {name}"
            yield Finding("libraries", name, "missing", "not installed", fix)
        else:
            yield Finding("libraries", name, "ok", found)


def _runtime() -> Iterator[Finding]:
    installed = [name for name in RUNTIMES if _version(name) is not None]
    if not installed and find_spec("onnxruntime") is None:
        fix = 'pip install "ortkit[cpu]", or "ortkit[cuda]" for an NVIDIA GPU; never both'
        yield Finding("runtime", "onnxruntime", "missing", "not installed", fix)
        return
    if len(installed) > 1:
        yield Finding(
            "runtime", "one runtime only", "broken",
            f"{' and '.join(installed)} are installed over each other",
            f"pip uninstall -y {' '.join(installed)}, then install one of them",
        )  # fmt: skip
    name = installed[0] if len(installed) == 1 else "onnxruntime"
    loaded = _probe(onnxruntime_here)
    if isinstance(loaded, str):
        fix = f"pip install --force-reinstall {name}"
        yield Finding("runtime", name, "broken", f"does not load: {loaded}", fix)
        return
    yield Finding("runtime", name, "ok", loaded.version)
    providers = ", ".join(text.removesuffix("ExecutionProvider") for text in loaded.names)
    yield Finding("runtime", "providers", "ok", providers)


def _extensions() -> Iterator[Finding]:
    found = _version("onnxruntime-extensions")
    yield Finding(
        "runtime", "onnxruntime-extensions", "ok" if found else "optional",
        found or "not installed",
        "" if found else "for models with its tokenizer ops: pip install onnxruntime-extensions",
    )  # fmt: skip


def _kernels() -> Iterator[Finding]:
    yield _tvm()
    triton = _version("triton")
    if triton is None:
        fix = 'for CUDA kernels: pip install "ortkit[cuda]"'
        yield Finding("kernels", "triton", "optional", "not installed", fix)
    else:
        yield Finding("kernels", "triton", "ok", triton)
    yield _compiler()
    yield _shim()


def _tvm() -> Finding:
    installed = _version("apache-tvm")
    if installed is None and find_spec("tvm") is None:
        fix = 'for CPU kernels: pip install "ortkit[cpu]"'
        return Finding("kernels", "tvm", "missing", "not installed", fix)
    loaded = _probe(tvm_here)
    if isinstance(loaded, str):
        fix = "pip install --force-reinstall apache-tvm"
        return Finding("kernels", "tvm", "broken", f"does not load: {loaded}", fix)
    if not loaded.names:
        fix = "pip install apache-tvm (its wheels have LLVM)"
        return Finding("kernels", "tvm", "broken", "built without LLVM", fix)
    return Finding("kernels", "tvm", "ok", installed or loaded.version)


def _compiler() -> Finding:
    try:
        from ortkit.kernels.link.linker import find_linker

        command = find_linker()
    except ImportError as error:
        return Finding("kernels", "C compiler", "missing", f"not looked for: {error}")
    except OrtkitError as error:
        return Finding("kernels", "C compiler", "missing", error.problem, error.fix)
    first = _first_line([*command, "--version"])
    if first is None:
        return Finding(
            "kernels", "C compiler", "broken", f"{' '.join(command)} does not run",
            "install gcc or clang, or: pip install ziglang",
        )  # fmt: skip
    return Finding("kernels", "C compiler", "ok", f"{' '.join(command)}: {first}")


def _shim() -> Finding:
    try:
        from ortkit.kernels.link.linker import find_shim

        return Finding("kernels", "custom-op shim", "ok", str(find_shim()[0]))
    except ImportError as error:
        return Finding("kernels", "custom-op shim", "missing", f"not looked for: {error}")
    except OrtkitError as error:
        return Finding("kernels", "custom-op shim", "missing", error.problem, error.fix)


def _provider() -> Iterator[Finding]:
    try:
        from ortkit.provider.native import library_path
        from ortkit.provider.own.failures import FILE, read

        path = library_path()
    except ImportError as error:
        yield Finding("provider", "library", "missing", f"not looked for: {error}")
        return
    except OrtkitError as error:
        yield Finding("provider", "library", "missing", error.problem, error.fix)
        return
    yield Finding("provider", "library", "ok", str(path))
    folder = env.cache_dir() / "provider"
    found = read(folder)
    if not found:
        yield Finding("provider", "failures", "ok", "none recorded")
    for failure in found[-SHOWN_FAILURES:]:
        model = failure.model or "a model in memory"
        yield Finding(
            "provider", "failures", "broken", f"{failure.when}, {model}: {failure.message}",
            "run it with the provider's option strict=1; "
            f"remove {folder / FILE} to forget what was recorded",
        )  # fmt: skip


def _gpu() -> Iterator[Finding]:
    loaded = _probe(gpus_here)
    if isinstance(loaded, str) or not loaded.names:
        reason = loaded if isinstance(loaded, str) else "no GPU"
        yield Finding("gpu", "NVIDIA driver", "optional", reason)
        return
    yield Finding("gpu", "NVIDIA driver", "ok", f"CUDA {loaded.version}")
    for index, name in enumerate(loaded.names):
        yield Finding("gpu", f"GPU {index}", "ok", str(name))


def _storage() -> Iterator[Finding]:
    try:
        folder = env.cache_dir()
        sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        fix = "set ORTKIT_CACHE to a folder that can be read and written"
        yield Finding("cache", "kernel cache", "broken", str(error), fix)
        return
    from ortkit.kernels.cache_files import FOLDERS

    reasons = (private_folder_refusal(folder / name) for name in FOLDERS)
    if reason := next(filter(None, reasons), ""):
        fix = "or set ORTKIT_CACHE to a folder of your own"
        yield Finding("cache", "kernel cache", "broken", f"not used: {reason}", fix)
        return
    yield Finding(
        "cache", "kernel cache", "ok",
        f"{folder}: {len(sizes)} files, {sum(sizes) / 1e6:.1f} MB",
    )  # fmt: skip


def _calibration() -> Iterator[Finding]:
    try:
        from ortkit.kernels.tuning.calibration import load_calibration

        found = load_calibration()
    except (ImportError, RuntimeError) as error:  # RuntimeError: there is no home folder
        yield Finding("cache", "calibration", "optional", f"not looked for: {error}")
        return
    if found.machine:
        yield Finding("cache", "calibration", "ok", found.machine)
    else:
        fix = "for kernels chosen by this machine's costs: ortkit calibrate"
        yield Finding("cache", "calibration", "optional", "not done here; defaults are used", fix)


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _probe(look: Callable[[None], Probed]) -> Probed | str:
    """Call a function in a process of its own; return in a line why it returns nothing."""
    env.keep_telemetry_off()
    found = run_isolated(look, None, timeout_seconds=PROBE_SECONDS, imports="nothing")
    if isinstance(found, Crashed):
        return f"crashes with signal {found.signal}"
    if isinstance(found, Ended):
        return found.problem if isinstance(found, Failed) else str(found)
    return found


def _first_line(command: list[str]) -> str | None:
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=PROBE_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = ended.stdout.strip().splitlines()
    return lines[0] if ended.returncode == 0 and lines else None
