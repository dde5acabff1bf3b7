"""Execution providers by the names that people use, and none of them dropped in silence."""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import importlib.util
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ortkit.errors import MissingDependencyError, UserError
from ortkit.runtime.installation import Installation
from ortkit.runtime.settings import SessionTarget

SUFFIX = "ExecutionProvider"
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
#: What the CUDA provider of onnxruntime-gpu 1.31 takes, for suggestions only.
_CUDA_OPTIONS = (
    "arena_extend_strategy", "cudnn_conv1d_pad_to_nc1d", "cudnn_conv_algo_search",
    "cudnn_conv_use_max_workspace", "default_memory_arena_cfg", "device_id",
    "do_copy_in_default_stream", "enable_cuda_graph", "enable_skip_layer_norm_strict_mode",
    "fuse_conv_bias", "gpu_mem_limit", "has_user_compute_stream", "prefer_nhwc", "sdpa_kernel",
    "tunable_op_enable", "tunable_op_max_tuning_duration_ms", "tunable_op_tuning_enable",
    "use_ep_level_unified_stream", "use_tf32", "user_compute_stream",
)  # fmt: skip


@dataclass(frozen=True)
class Provider:
    """An execution provider and its options, as ONNX Runtime takes them."""

    name: str
    options: Mapping[str, str]


@dataclass(frozen=True)
class Providers:
    """What a session is created with."""

    wanted: tuple[Provider, ...]
    """Most wanted first."""
    notes: tuple[str, ...]
    """What is not as it was asked for."""


def resolve(target: SessionTarget, ort: ModuleType | Installation, *, fallback: bool) -> Providers:
    """Turn a target into providers that this ONNX Runtime has.

    Args:
        target: See `SessionTarget`. `auto` is CUDA where the runtime and the machine have it.
        ort: The onnxruntime module, or another ONNX Runtime.
        fallback: Whether one that is missing is left out with a note.

    Raises:
        MissingDependencyError: A provider is not in this ONNX Runtime.
        UserError: A name or an option is not known.
    """
    available = list(ort.get_available_providers())
    known = sorted({*available, *ort.get_all_providers()})
    if isinstance(target, str) and target.lower() == "auto":
        names: list[tuple[str, Mapping[str, object]]] = [(CPU, {})]
        if CUDA in available and device_count() > 0:
            names.insert(0, (CUDA, {}))
        target = names
    elif isinstance(target, str):
        target = [target]
    elif not isinstance(target, Iterable):
        raise _no_target(target)
    wanted: list[Provider] = []
    notes: list[str] = []
    for entry in target:
        given, options = _named(entry)
        name = _full_name(given, known)
        if name not in available:
            problem = f"this ONNX Runtime has no {name}"
            if not fallback:
                raise MissingDependencyError(problem, where=f"target {given!r}", fix=_how(name))
            notes.append(f"{problem}: left out")
            continue
        if name in {provider.name for provider in wanted}:
            raise UserError("is named twice", where=f"target {given!r}", fix="name it once")
        if name == CPU and options:
            raise UserError(
                f"the CPU provider takes no options, given: {', '.join(options)}",
                where=f"target {given!r}",
                fix="use the session's arguments (threads, memory_arena, ...)",
            )
        wanted.append(Provider(name, {key: _text(value) for key, value in options.items()}))
    if not any(item.name == CPU for item in wanted):
        # ONNX Runtime adds it in any case; named, it can be asked for what it ran.
        wanted.append(Provider(CPU, {}))
    return Providers(tuple(wanted), tuple(notes))


def _named(entry: object) -> tuple[str, Mapping[str, object]]:
    if isinstance(entry, str):
        return entry, {}
    if isinstance(entry, tuple | list) and len(entry) == 2:
        name, options = entry
        if isinstance(name, str) and isinstance(options, Mapping):
            return name, options
    raise _no_target(entry)


def _no_target(given: object) -> UserError:
    return UserError(
        f"{given!r} names no provider", where="target", fix="cpu, cuda, or (name, {option: value})"
    )


def short_name(name: str) -> str:
    """Return `cuda` for `CUDAExecutionProvider`."""
    return name.removesuffix(SUFFIX).lower()


def option_hint(message: str) -> str:
    """Return which option was meant where ONNX Runtime refused one by name, or nothing."""
    for option in _words(message):
        near = difflib.get_close_matches(option, _CUDA_OPTIONS, n=1, cutoff=0.7)
        if near and near[0] != option:
            return f"did you mean {near[0]!r}?"
    return ""


def preload(ort: ModuleType) -> str:
    """Load CUDA's and cuDNN's libraries from their wheels, if they are installed as such.

    Returns:
        What onnxruntime said about those that it did not find, on one line.
    """
    if not hasattr(ort, "preload_dlls"):
        return ""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        # onnxruntime looks beside itself, wheels may be in another of Python's folders.
        for folder in _library_folders(ort):
            ort.preload_dlls(directory=str(folder))
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        ort.preload_dlls()
    return " ".join(said.getvalue().split())


def _library_folders(ort: ModuleType) -> list[Path]:
    """Return the folders of NVIDIA's wheels that are not installed beside onnxruntime."""
    spec = importlib.util.find_spec("nvidia")
    beside = Path(str(ort.__file__)).resolve().parent.parent
    roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []
    return sorted(
        folder
        for root in roots
        if root.resolve().parent != beside
        for folder in root.glob("*/lib")
    )


def device_count() -> int:
    """Return how many NVIDIA devices the driver shows, 0 without a driver."""
    driver, count = _driver(), ctypes.c_int(0)
    if driver is None or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def device_name() -> str:
    """Return what the driver calls the first NVIDIA device, empty without one."""
    driver, handle, name = _driver(), ctypes.c_int(), ctypes.create_string_buffer(256)
    if driver is None or driver.cuDeviceGet(ctypes.byref(handle), 0) != 0:
        return ""
    if driver.cuDeviceGetName(name, len(name), handle) != 0:
        return ""
    return name.value.decode(errors="replace")


def _driver() -> ctypes.CDLL | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return driver if driver.cuInit(0) == 0 else None


def _full_name(given: str, known: Sequence[str]) -> str:
    by_name = {name.lower(): name for name in known}
    by_name |= {short_name(name): name for name in known}
    found = by_name.get(given.lower())
    if found is not None:
        return found
    near = difflib.get_close_matches(given.lower(), by_name, n=1)
    fix = f"did you mean {near[0]!r}?" if near else "cpu, cuda, or a provider's full name"
    raise UserError("is no execution provider", where=f"target {given!r}", fix=fix)


def _how(name: str) -> str:
    install = "install a build of ONNX Runtime that has it"
    if name == CUDA:
        install = 'install onnxruntime-gpu in place of onnxruntime (".[cuda]")'
    return f"{install}; in Python also fallback=True"


def _text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _words(message: str) -> list[str]:
    return [word.strip("\"'`.,:;()[]") for word in message.split() if "_" in word]
