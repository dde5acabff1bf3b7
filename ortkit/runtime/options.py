"""Settings as ONNX Runtime's own options, and its messages as ours."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

from ortkit.errors import LoadError, ModelError, OrtkitError, RunError
from ortkit.runtime.settings import SessionSettings

_LEVELS = {
    "off": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
#: ONNX Runtime's prefix: `[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : `.
_PREFIX = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
#: Where in its own sources it stopped: a path, a line, and a C++ signature up to the condition.
_SOURCE = re.compile(r"/onnxruntime_src/\S+:\d+ (?:\S.*?\) )?(?:\[with [^\]]*\] )?")
#: The same in short: `provider_options_utils.h:182 Parse `.
_POSITION = re.compile(r"\b[\w/]+\.(?:h|cc|cu):\d+ (?:operator\(\)|\w+) ")
#: What its CUDA provider adds: the machine's name and its own source.
_CUDA_TAIL = re.compile(r" ; GPU=-?\d+ ; hostname=.*")
_MEMORY = re.compile(
    r"bad_alloc|out of memory|Failed to allocate memory|CUDA_ERROR_OUT"
    r"|smaller than requested bytes",
    re.I,
)


def session_options(settings: SessionSettings, ort: ModuleType) -> Any:
    """Return the `SessionOptions` for settings; libraries are not registered yet."""
    options = ort.SessionOptions()
    options.log_severity_level = settings.log_severity
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = settings.inter_op_threads
    options.graph_optimization_level = getattr(
        ort.GraphOptimizationLevel, _LEVELS[settings.optimizations]
    )
    if settings.parallel:
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.use_deterministic_compute = settings.deterministic
    options.enable_cpu_mem_arena = settings.memory_arena
    options.enable_mem_pattern = settings.memory_pattern and not settings.parallel
    if settings.optimized_model is not None:
        options.optimized_model_filepath = str(settings.optimized_model)
    if settings.trace_prefix is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(settings.trace_prefix)
    for name, size in settings.free_dimensions.items():
        options.add_free_dimension_override_by_name(name, size)
    entries = {
        # Lets `placement` say which provider runs which node; costs nothing at run time.
        "session.record_ep_graph_assignment_info": "1",
        "session.force_spinning_stop": "0" if settings.spinning else "1",
        "session.use_env_allocators": "1" if settings.shared_arena else "0",
        **settings.config,
    }
    for key, value in entries.items():
        options.add_session_config_entry(key, str(value))
    return options


def explained(error: BaseException, where: str = "", *, loading: bool = False) -> OrtkitError:
    """Return what ONNX Runtime raised as one line of ours.

    Args:
        error: What it raised.
        where: The model or the input.
        loading: Whether a session was being made: then the model may be at fault.
    """
    text = message(error)
    if isinstance(error, MemoryError) or _MEMORY.search(text):
        return RunError(
            f"out of memory: {text}", where=where, fix="use smaller inputs or a higher limit"
        )
    if loading and re.search(r"InvalidProtobuf|InvalidGraph|NoModel", type(error).__name__):
        return ModelError(text, where=where)
    return (LoadError if loading else RunError)(text, where=where)


def message(error: BaseException) -> str:
    """Return an exception's text without ONNX Runtime's prefix and source positions."""
    return plain_text(str(error)) or type(error).__name__


def plain_text(text: str) -> str:
    """Return what ONNX Runtime said on one line, without prefix and source positions."""
    text = " ".join(text.split())
    for pattern in (_SOURCE, _PREFIX, _POSITION, _CUDA_TAIL):
        text = pattern.sub("", text)
    return text.strip()
