"""What is kept of a compiled kernel besides its object file, as JSON types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ortkit.kernels.backend import Kernel, Launch, Target
from ortkit.kernels.sizes import Extent

Record = dict[str, object]


def record_of(kernel: Kernel) -> Record:
    """Return what `kernel_from` needs; it is the same for all signatures of one key."""
    return {"symbol": kernel.symbol, "launch": asdict(kernel.launch)}


def kernel_from(
    record: Mapping[str, Any],
    key: str,
    backend: str,
    target: Target,
    artifact: Path,
    compile_seconds: float = 0.0,
) -> Kernel | None:
    """Return the kernel of a record, None if it is no such record."""
    symbol = record.get("symbol")
    try:
        launch = _launch(record["launch"])
    except (KeyError, TypeError, ValueError):
        return None
    if not isinstance(symbol, str):
        return None
    return Kernel(key, backend, target, artifact, symbol, launch, compile_seconds)


def _launch(record: Mapping[str, Any]) -> Launch:
    return Launch(
        units=tuple(_extent(one) for one in record["units"]),
        points=_extent(record["points"]),
        picoseconds_per_point=int(record["picoseconds_per_point"]),
        inplace=tuple((int(source), int(target)) for source, target in record["inplace"]),
    )


def _extent(record: Mapping[str, Any]) -> Extent:
    return Extent(int(record["factor"]), tuple(map(str, record["symbols"])))
