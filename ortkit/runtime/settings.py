"""What a session is asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from ortkit.errors import UserError

SessionTarget: TypeAlias = str | Sequence[str | tuple[str, Mapping[str, object]]]
"""`auto`, `cpu`, `cuda`, an execution provider's name, or several with their options."""

Kernels: TypeAlias = Literal["auto", "never", "require"] | str | os.PathLike[str]
"""Which kernel library is loaded; anything but the three words is a library's path."""

Optimizations = Literal["all", "extended", "basic", "off"]

_FLAGS = (
    "trust", "fallback", "parallel", "deterministic", "cuda_graph", "check_finite",
    "memory_arena", "memory_pattern", "shared_arena", "spinning",
)  # fmt: skip
#: By field: its type, and how that is called.
_TYPES: Mapping[str, tuple[Any, str]] = {
    "kernels": (str | os.PathLike, "auto, never, require or a path"),
    **dict.fromkeys(_FLAGS, (bool, "True or False")),
    **dict.fromkeys(("threads", "inter_op_threads", "log_severity"), (int, "a number")),
    "config": (Mapping, "names and values"),
    "free_dimensions": (Mapping, "names and sizes"),
    **dict.fromkeys(("optimized_model", "trace_prefix"), (str | os.PathLike | None, "a path")),
    "libraries": (Sequence | os.PathLike, "a list of paths"),
}


@dataclass(frozen=True)
class SessionSettings:
    """All arguments of `Session` but the model; its arguments are described there."""

    target: SessionTarget = "auto"
    kernels: Kernels = "auto"
    trust: bool = False
    fallback: bool = False
    threads: int = 0
    inter_op_threads: int = 0
    parallel: bool = False
    deterministic: bool = False
    cuda_graph: bool = False
    optimizations: Optimizations = "all"
    check_finite: bool = False
    memory_arena: bool = True
    memory_pattern: bool = True
    shared_arena: bool = False
    spinning: bool = True
    log_severity: int = 4
    config: Mapping[str, str] = field(default_factory=dict)
    free_dimensions: Mapping[str, int] = field(default_factory=dict)
    optimized_model: str | os.PathLike[str] | None = None
    trace_prefix: str | os.PathLike[str] | None = None
    libraries: Sequence[str | os.PathLike[str]] = ()

    def __post_init__(self) -> None:
        for name, (kind, expected) in _TYPES.items():
            if not isinstance(given := getattr(self, name), kind):
                raise UserError(f"cannot be {given!r}", where=name, fix=f"give {expected}")
            if isinstance(given, Mapping):
                object.__setattr__(self, name, dict(given))  # the caller's may change
        known = get_args(Optimizations)
        if self.optimizations not in known:
            problem, fix = f"{self.optimizations!r} is not known", f"use {', '.join(known)}"
            raise UserError(problem, where="optimizations", fix=fix)
        for name in ("optimized_model", "trace_prefix"):
            path: str | os.PathLike[str] | None = getattr(self, name)
            # ONNX Runtime writes nothing there, and says so late or not at all.
            if path is not None and not (folder := Path(path).absolute().parent).is_dir():
                raise UserError(f"there is no folder {folder}", where=name, fix="make it")
        self._check_libraries()
        for name in ("threads", "inter_op_threads"):
            if not 0 <= (value := getattr(self, name)) < 1 << 31:
                raise UserError(
                    f"{value!r} is no number of threads", where=name, fix="0 lets ORT decide"
                )
        if self.log_severity not in range(5):
            raise UserError(
                f"{self.log_severity!r} is not known", where="log_severity", fix="0 to 4"
            )
        for size, value in self.free_dimensions.items():
            if not isinstance(size, str) or not isinstance(value, int) or value < 0:
                raise UserError(f"{value!r} is no size", where=f"free_dimensions, {size!r}")
        for key in self.config:
            if not isinstance(key, str):
                raise UserError(f"{key!r} is no entry's name", where="config")

    def _check_libraries(self) -> None:
        if isinstance(self.libraries, str | os.PathLike):
            raise UserError("is one path", where="libraries", fix="give a list of paths")
        for library in self.libraries:
            if not isinstance(library, str | os.PathLike) or not Path(library).is_file():
                raise UserError(
                    "no such file", where=f"libraries, {library}", fix="check the path"
                )
