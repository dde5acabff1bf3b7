"""Everything ortkit reads from its surroundings: environment variables and folders."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import ModuleType

#: `off` keeps ONNX Runtime's own log off the stderr of a process and of its children.
_NO_TELEMETRY = "ORT_DISABLE_TELEMETRY"
_RUNTIME_LOG = "ORTKIT_RUNTIME_LOG"
_FATAL = 4


def cache_dir() -> Path:
    """Return the folder for compiled kernels (not created here).

    `ORTKIT_CACHE` names it; else it lies under `XDG_CACHE_HOME` or `~/.cache`, and for users
    without a home folder, as in some containers, in that for temporary files.
    """
    if named := os.environ.get("ORTKIT_CACHE"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "ortkit"
    home = _home()
    if home is None:
        return Path(tempfile.gettempdir()) / f"ortkit-cache-{os.getuid()}"
    return home / ".cache" / "ortkit"


def state_dir() -> Path | None:
    """Return the folder for what must outlive the cache (not created here), None without a home.

    It lies under `XDG_STATE_HOME` or `~/.local/state`.
    """
    base = os.environ.get("XDG_STATE_HOME")
    if base:
        return Path(base) / "ortkit"
    home = _home()
    return None if home is None else home / ".local" / "state" / "ortkit"


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:
        return None


def trusted_libraries() -> str | None:
    """Return `ORTKIT_TRUST`: hashes of trusted kernel libraries, or the file that lists them."""
    return os.environ.get("ORTKIT_TRUST") or None


def cache_size() -> str | None:
    """Return how large the cache of kernels may grow, as `ORTKIT_CACHE_SIZE` has it."""
    return os.environ.get("ORTKIT_CACHE_SIZE") or None


def ray_address() -> str | None:
    """Return the Ray cluster that `RAY_ADDRESS` names."""
    return os.environ.get("RAY_ADDRESS") or None


def ends_on_pass_error() -> bool:
    """Say whether a pass that raises ends `optimize`, as `ORTKIT_PASS_ERRORS=raise` asks for."""
    return os.environ.get("ORTKIT_PASS_ERRORS") == "raise"


def times_results() -> bool:
    """Say whether `ortkit optimize` times its result; `ORTKIT_TIMING=off` keeps it from that."""
    return os.environ.get("ORTKIT_TIMING") != "off"


def compiler_command() -> str | None:
    """Return the C compiler that `CC` names, or None for the default search."""
    return os.environ.get("CC") or None


def keep_telemetry_off() -> None:
    """Turn ONNX Runtime's telemetry off, unless the user has decided either way.

    Must run before onnxruntime is imported.
    """
    os.environ.setdefault(_NO_TELEMETRY, "1")


def has_telemetry() -> bool:
    """Say whether ONNX Runtime's telemetry may be on."""
    return os.environ.get(_NO_TELEMETRY) != "1"


def keep_runtime_log_off() -> None:
    """Let `set_runtime_log` silence ONNX Runtime, unless the user has decided either way.

    The command line says in one line what went wrong; ONNX Runtime's log would say it again.
    """
    os.environ.setdefault(_RUNTIME_LOG, "off")


def set_runtime_log(onnxruntime: ModuleType) -> None:
    """Silence ONNX Runtime's default logger, which no session's own severity reaches.

    In a process whose log was not kept off it stays as it is: it belongs to the caller.
    """
    if os.environ.get(_RUNTIME_LOG) == "off":
        onnxruntime.set_default_logger_severity(_FATAL)
