"""What cuBLASLt needs for the matrix products of a model: the fastest of its algorithms.

The limit of a model whose products are cuBLASLt's: each product with its bias, the weights of
products that read one input side by side. What stands between products is not in it.
"""

from __future__ import annotations

import ctypes
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.symbolic.dims import names, product, substitute

#: Of the library's answers to a shape, best first by its own estimate.
_ALGORITHMS = 16
_WORKSPACE = 64 << 20
#: Launches of a graph, and how often it is replayed.
_LAUNCHES, _REPLAYS = 20, 5
#: Launches rotate among operands, which together do not fit a cache of 60 MB.
_ROTATED_BYTES = 160_000_000
#: Numbers of cublasLt.h and library_types.h.
_COMPUTE_32F, _REAL_32F, _REAL_16F = 68, 0, 2
_EPILOGUE, _BIAS_POINTER, _MAX_WORKSPACE = 7, 8, 1
_EPILOGUE_BIAS = 4


@dataclass(frozen=True)
class Product:
    """Rows [rows, depth] by weights [depth, columns]."""

    rows: int
    depth: int
    columns: int

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.rows * self.depth * self.columns


def products_of(model: ir.Model, sizes: Mapping[str, int]) -> Counter[Product]:
    """Return how often a model has each product with weights.

    Args:
        model: Read, not changed.
        sizes: Numbers for named sizes.
    """
    shapes = Shapes.infer(model)
    columns: dict[tuple[str, int, int], int] = defaultdict(int)
    for node in model.graph:
        if node.op_type not in {"MatMul", "Gemm"} or len(node.inputs) < 2:
            continue
        left, right = node.inputs[:2]
        made = shapes.shape(node.outputs[0])
        if left is None or right is None or right.const_value is None or made is None:
            continue
        weight = right.const_value.shape.numpy()
        is_turned = node.attributes.get_int("transB", 0) == 1
        depth, width = reversed(weight[-2:]) if is_turned else weight[-2:]
        rows = substitute(product(made[:-1]), dict(sizes))
        if names(rows) or not isinstance(rows, int):
            continue
        columns[left.name or "", rows, int(depth)] += int(width)
    return Counter(Product(rows, depth, width) for (_, rows, depth), width in columns.items())


def measure_limit(model: ir.Model, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Time the products of a model by cuBLASLt on the GPU, in float16 with sums in float32.

    Returns:
        Microseconds of a run, and of each product how often there is one, microseconds of the
        fastest algorithm, and those of the library's first choice.
    """
    found = products_of(model, sizes)
    lines, total = [], 0.0
    for one, count in found.items():
        best, first = _fastest(one)
        total += count * best
        lines.append([one.rows, one.depth, one.columns, count, best, first])
    return {
        "microseconds": total,
        "operations": sum(item.operations * count for item, count in found.items()),
        "products": lines,
    }


def measure_fp8_limit(model: ir.Model, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Time the products of a model by torch's scaled product in fp8, to float16.

    With a factor for each tensor, which is cuBLASLt's own choice of an algorithm. Nothing is added
    behind, and operands are in eight bits before.

    Returns:
        Microseconds of a run, and of each product how often there is one and its microseconds.
    """
    lines, total = [], 0.0
    for one, count in products_of(model, sizes).items():
        if one.depth % 16 or one.columns % 16:
            continue
        best = _fp8_microseconds(one)
        total += count * best
        lines.append([one.rows, one.depth, one.columns, count, best])
    return {"microseconds": total, "products": lines}


def _fp8_microseconds(one: Product) -> float:
    """Time one product in fp8 by `torch._scaled_mm`."""
    import torch

    each = one.rows * one.depth + one.depth * one.columns + 2 * one.rows * one.columns
    copies = max(2, min(_LAUNCHES, _ROTATED_BYTES // each + 1))
    narrow = torch.float8_e4m3fn
    operands = [
        (
            torch.randn(one.rows, one.depth, device="cuda").to(narrow),
            torch.randn(one.columns, one.depth, device="cuda").to(narrow).t(),
            None,
        )
        for _ in range(copies)
    ]
    factor = torch.ones((), device="cuda")

    def launch(x: Any, w: Any, y: Any, stream: int) -> None:  # noqa: ARG001
        torch._scaled_mm(
            x, w, scale_a=factor, scale_b=factor, out_dtype=torch.float16, use_fast_accum=True
        )

    launch(*operands[0], 0)
    return _microseconds(launch, operands)


class _Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: an algorithm, and what it needs."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


def _library() -> ctypes.CDLL:
    """Return the cuBLASLt that torch has loaded."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    found = re.search(r"\S*/libcublasLt\.so\S*", maps)
    if found is None:
        raise SystemExit("torch has loaded no cuBLASLt")
    return ctypes.CDLL(found.group())


def _check(status: int) -> None:
    if status:
        raise SystemExit(f"cuBLASLt answers {status}")


def _fastest(one: Product) -> tuple[float, float]:
    """Return microseconds of the fastest algorithm, and of the library's first choice."""
    import torch

    each = 2 * (one.rows * one.depth + one.depth * one.columns + one.rows * one.columns)
    copies = max(2, min(_LAUNCHES, _ROTATED_BYTES // each + 1))
    half = {"device": "cuda", "dtype": torch.float16}
    operands = [
        (
            torch.randn(one.rows, one.depth, **half),
            torch.randn(one.depth, one.columns, **half) / one.depth**0.5,
            torch.empty(one.rows, one.columns, **half),
        )
        for _ in range(copies)
    ]
    bias = torch.randn(one.columns, **half)
    torch.mm(operands[0][0], operands[0][1])  # loads the library
    x, w, y = operands[0]
    expected = torch.addmm(bias, x, w)
    elapsed = []
    for launch in _launches(one, bias):
        launch(x, w, y, torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        torch.testing.assert_close(y, expected, rtol=2e-2, atol=2e-2)
        elapsed.append(_microseconds(launch, operands))
    if not elapsed:
        raise SystemExit(f"cuBLASLt has no algorithm for {one}")
    return min(elapsed), elapsed[0]


def _launches(one: Product, bias: Any) -> Iterator[Any]:
    """Yield a call for each algorithm: X, W, Y of row-major matrices, and the stream.

    The library's matrices are column-major: it computes Y' = W' X', and a bias by rows of that.
    """
    import torch

    library = _library()
    handle, description, preference = (ctypes.c_void_p() for _ in range(3))
    _check(library.cublasLtCreate(ctypes.byref(handle)))
    _check(
        library.cublasLtMatmulDescCreate(
            ctypes.byref(description), ctypes.c_int(_COMPUTE_32F), ctypes.c_int(_REAL_32F)
        )
    )
    for attribute, value in (
        (_EPILOGUE, ctypes.c_int32(_EPILOGUE_BIAS)),
        (_BIAS_POINTER, ctypes.c_void_p(bias.data_ptr())),
    ):
        _check(
            library.cublasLtMatmulDescSetAttribute(
                description, ctypes.c_int(attribute), ctypes.byref(value),
                ctypes.c_size_t(ctypes.sizeof(value)),
            )
        )  # fmt: skip
    layouts = [
        _layout(library, rows, columns)
        for rows, columns in (
            (one.columns, one.depth), (one.depth, one.rows), (one.columns, one.rows),
        )
    ]  # fmt: skip
    _check(library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)))
    most = ctypes.c_uint64(_WORKSPACE)
    _check(
        library.cublasLtMatmulPreferenceSetAttribute(
            preference, ctypes.c_int(_MAX_WORKSPACE), ctypes.byref(most), ctypes.c_size_t(8)
        )
    )
    found, count = (_Heuristic * _ALGORITHMS)(), ctypes.c_int()
    _check(
        library.cublasLtMatmulAlgoGetHeuristic(
            handle, description, layouts[0], layouts[1], layouts[2], layouts[2], preference,
            ctypes.c_int(_ALGORITHMS), found, ctypes.byref(count),
        )
    )  # fmt: skip
    workspace = torch.empty(_WORKSPACE, dtype=torch.uint8, device="cuda")
    factor, nothing = ctypes.c_float(1.0), ctypes.c_float(0.0)

    for number in range(count.value):
        if found[number].status:
            continue
        algorithm = ctypes.byref(found[number].algorithm)

        def launch(x: Any, w: Any, y: Any, stream: int, algorithm: Any = algorithm) -> None:
            x, w, y = (ctypes.c_void_p(each.data_ptr()) for each in (x, w, y))
            _check(
                library.cublasLtMatmul(
                    handle, description, ctypes.byref(factor), w, layouts[0], x, layouts[1],
                    ctypes.byref(nothing), y, layouts[2], y, layouts[2], algorithm,
                    ctypes.c_void_p(workspace.data_ptr()), ctypes.c_size_t(_WORKSPACE),
                    ctypes.c_void_p(stream),
                )
            )  # fmt: skip

        yield launch
    for layout in layouts:
        _check(library.cublasLtMatrixLayoutDestroy(layout))
    _check(library.cublasLtMatmulPreferenceDestroy(preference))
    _check(library.cublasLtMatmulDescDestroy(description))
    _check(library.cublasLtDestroy(handle))


def _layout(library: ctypes.CDLL, rows: int, columns: int) -> ctypes.c_void_p:
    """Return a column-major matrix's layout."""
    layout = ctypes.c_void_p()
    _check(
        library.cublasLtMatrixLayoutCreate(
            ctypes.byref(layout), ctypes.c_int(_REAL_16F), ctypes.c_uint64(rows),
            ctypes.c_uint64(columns), ctypes.c_int64(rows),
        )
    )  # fmt: skip
    return layout


def _microseconds(launch: Any, operands: list[Any]) -> float:
    """Time launches in a CUDA graph; the fastest replay."""
    import torch

    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for number in range(_LAUNCHES):
            launch(*operands[number % len(operands)], stream.cuda_stream)
    graph.replay()
    elapsed = []
    for _ in range(_REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        elapsed.append(1e3 * start.elapsed_time(end) / _LAUNCHES)
    return float(min(elapsed))
