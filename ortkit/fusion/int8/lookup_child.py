"""What ONNX Runtime makes of all bytes, computed in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from ortkit.env import keep_telemetry_off, set_runtime_log

#: Bytes that there are.
BYTES = 256


@dataclass(frozen=True)
class Table:
    """The result for each byte, uint8 [256]."""

    data: bytes


#: A table, or why there is none.
Outcome: TypeAlias = Table | str


@dataclass(frozen=True)
class TablesJob:
    """Models of functions of bytes, each from uint8 [256] to uint8 [256]."""

    models: tuple[bytes, ...]


def tables(job: TablesJob) -> tuple[Outcome, ...]:
    """Return what becomes of all bytes in each model, under ONNX Runtime's own optimizations."""
    keep_telemetry_off()
    import onnxruntime

    set_runtime_log(onnxruntime)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    found: list[Outcome] = []
    for model in job.models:
        try:
            session = onnxruntime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"], enable_fallback=0
            )
            (made,) = session.run(None, {"x": np.arange(BYTES, dtype=np.uint8)})
        except Exception as error:  # noqa: BLE001 - its exceptions have no base of their own
            problem, _, _ = str(error).strip().partition("\n")
            found.append(f"ONNX Runtime does not run it: {problem}")
            continue
        is_table = made.dtype == np.uint8 and made.shape == (BYTES,)
        found.append(Table(made.tobytes()) if is_table else "it makes no byte of each byte")
    return tuple(found)
