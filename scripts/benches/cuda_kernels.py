"""Single kernels on a GPU: against ONNX Runtime's nodes, and against a copy of as many bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx

import ortkit
from ortkit.errors import OrtkitError
from ortkit.kernels.build.library import build_library
from ortkit.runtime.profiling.cuda_activity import CudaActivity
from ortkit.targets.target import Target
from scripts.benches.cuda_cases import CASES, SIZES, CudaCase
from scripts.benches.kernels import as_region, fused_model
from scripts.benches.output import Cell

_ROUNDS = 20


@dataclass(frozen=True)
class _Piece:
    case: CudaCase
    rows: int
    columns: int

    @property
    def name(self) -> str:
        return f"{self.case.name}, {self.rows} x {self.columns}"


def measure_kernels(folder: Path, only: str, arch: str) -> list[dict[str, Any]]:
    """Time every case at every size on the device alone; microseconds."""
    pieces = [_Piece(case, *size) for case in CASES for size in SIZES if only in case.name]
    models = {piece: piece.case.written(piece.rows, piece.columns) for piece in pieces}
    # A kernel is made of the normal form: of the operator, where ONNX has one.
    normal = {
        piece: piece.case.fused(piece.rows, piece.columns) if piece.case.fused else model
        for piece, model in models.items()
    }
    regions = {piece: as_region(model) for piece, model in normal.items()}
    library = folder / "kernels.so"
    built = build_library(list(regions.values()), Target("cuda", arch), library, "triton")
    refused = {signature.key: reason for signature, reason in built.refused}
    copies = {size: _copy_us(size[0] * size[1]) for size in SIZES}
    rows = []
    for piece, model in models.items():
        signature = regions[piece]
        row: dict[str, Any] = {
            "case": piece.case.name, "rows": piece.rows, "columns": piece.columns,
            "moved": piece.case.moved, "copy_us": copies[piece.rows, piece.columns],
            "refused": refused.get(signature.key),
        }  # fmt: skip
        for name, session in _sessions(
            piece, model, fused_model(normal[piece], signature), library
        ):
            with session:
                row[name] = _device_us(session)
        rows.append(row)
    return rows


def lines(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[Cell]]]:
    """Return the table: times, what a kernel gains, and its part of a copy's bandwidth."""
    header = ["float16", "nodes, µs", "onnxruntime", "its operator", "kernel", "gain", "of a copy"]
    table: list[list[Cell]] = []
    for row in rows:
        kernel, nodes = row.get("kernel"), row.get("nodes")
        share = row["copy_us"] * row["moved"] / 2 / kernel if isinstance(kernel, float) else None
        known = isinstance(kernel, float) and isinstance(nodes, float)
        table.append(
            [
                f"{row['case']}, {row['rows']} x {row['columns']}",
                nodes, row.get("onnxruntime"), row.get("operator"),
                row["refused"] or kernel, nodes / kernel if known else None, share,
            ]
        )  # fmt: skip
    return header, table


def _sessions(
    piece: _Piece, written: onnx.ModelProto, fused: onnx.ModelProto, library: Path
) -> Iterator[tuple[str, ortkit.Session]]:
    """Yield as written with ONNX Runtime's own fusions off and on, its operator, our kernel."""
    made: Mapping[str, Callable[[], ortkit.Session]] = {
        "nodes": lambda: ortkit.Session(written, "cuda", optimizations="off"),
        "onnxruntime": lambda: ortkit.Session(written, "cuda"),
        "kernel": lambda: ortkit.Session(fused, "cuda", kernels=library),
    }
    for name, make in made.items():
        yield name, make()
    if piece.case.fused is not None:
        yield "operator", ortkit.Session(piece.case.fused(piece.rows, piece.columns), "cuda")


def _device_us(session: ortkit.Session) -> float | str:
    """Return the median time that the kernels of a run take; why it does not run, if so."""
    rng = np.random.default_rng(0)
    feeds = {
        item.name: rng.standard_normal(tuple(map(int, item.shape or ()))).astype(item.dtype)
        for item in session.inputs
    }
    try:
        bound = session.bind(feeds)
        for _ in range(3):
            bound.run()
        return _recorded(bound.run)
    except OrtkitError as error:
        return str(error)


def _copy_us(elements: int) -> float:
    import torch

    source = torch.randn(elements, device="cuda").half()
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)
        torch.cuda.synchronize()

    copy()
    return _recorded(copy)


def _recorded(run: Callable[[], object]) -> float:
    """Return the median of what the device works in one run, in microseconds."""
    with CudaActivity() as activity:
        for _ in range(_ROUNDS):
            run()
    durations = [event.duration_us for event in activity.events(0)]
    each = len(durations) // _ROUNDS
    return median(sum(durations[i * each : (i + 1) * each]) for i in range(_ROUNDS))
