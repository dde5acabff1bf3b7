"""Single products in bfloat16: our kernels, oneDNN's through torch, and ONNX Runtime's float32."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from ortkit.kernels.build.library import build_library
from ortkit.kernels.layouts.bf16_blocks import (
    Geometry,
    Product,
    pack_filter,
    pack_weight,
    signature_of,
)
from ortkit.kernels.signature import DOMAIN
from ortkit.targets.target import Target
from scripts.benches import output, products_child

OPSET = 20


@dataclass(frozen=True)
class Case:
    """A product [m, k] x [k, n], or a square convolution of `image` pixels a side."""

    name: str
    sizes: tuple[int, int, int]
    image: int = 0
    kernel: int = 1
    stride: int = 1

    @property
    def flop(self) -> float:
        """Operations, a multiply-add as two."""
        m, k, n = self.sizes
        return 2.0 * m * k * n


def _convolution(
    name: str, channels: int, columns: int, image: int, kernel: int, stride: int
) -> Case:
    side = (image + 2 * (kernel // 2) - kernel) // stride + 1
    sizes = (side * side, kernel * kernel * channels, columns)
    return Case(name, sizes, image, kernel, stride)


CASES = (
    Case("bert 128: projection", (128, 768, 768)),
    Case("bert 128: up", (128, 768, 3072)),
    Case("bert 128: down", (128, 3072, 768)),
    Case("bert 512: projection", (512, 768, 768)),
    Case("bert 512: up", (512, 768, 3072)),
    Case("bert 512: down", (512, 3072, 768)),
    Case("vit 197: up", (197, 768, 3072)),
    Case("vit 197: down", (197, 3072, 768)),
    Case("llama 128: output", (128, 2048, 2048)),
    Case("llama 128: gate", (128, 2048, 5632)),
    Case("llama 1: gate", (1, 2048, 5632)),
    Case("resnet 56: 64 to 256", (3136, 64, 256)),
    Case("resnet 56: 256 to 64", (3136, 256, 64)),
    Case("resnet 28: 128 to 512", (784, 128, 512)),
    Case("resnet 28: 512 to 128", (784, 512, 128)),
    Case("resnet 14: 1024 to 256", (196, 1024, 256)),
    Case("resnet 14: 256 to 1024", (196, 256, 1024)),
    Case("resnet 7: 2048 to 512", (49, 2048, 512)),
    Case("resnet 7: 512 to 2048", (49, 512, 2048)),
    _convolution("resnet 56: 3x3, 64", 64, 64, 56, 3, 1),
    _convolution("resnet 28: 3x3, 128", 128, 128, 28, 3, 1),
    _convolution("resnet 14: 3x3, 256", 256, 256, 14, 3, 1),
    _convolution("resnet 7: 3x3, 512", 512, 512, 7, 3, 1),
    _convolution("resnet 112: 7x7 by 2", 3, 64, 224, 7, 2),
    _convolution("resnet 28: 3x3 by 2, 128", 128, 128, 56, 3, 2),
    _convolution("resnet 14: 3x3 by 2, 256", 256, 256, 28, 3, 2),
    _convolution("resnet 14: 1x1 by 2, 512", 512, 1024, 28, 1, 2),
    _convolution("mobilenet 112: 3x3 by 2", 3, 32, 224, 3, 2),
    Case("mobilenet 112: 16 to 96", (12544, 16, 96)),
    Case("mobilenet 56: 24 to 144", (3136, 24, 144)),
)  # fmt: skip


def models(case: Case, folder: Path, level: str) -> tuple[Path, Path, Path | None]:
    """Write the case in float32, in bfloat16, and its library; None if there is no kernel."""
    m, k, n = case.sizes
    weight = np.random.default_rng(0).standard_normal((k, n), np.float32) / np.float32(np.sqrt(k))
    plain, fused, library = (folder / name for name in ("plain.onnx", "fused.onnx", "fused.so"))
    if case.image:
        side, channels = round(m**0.5), k // case.kernel**2
        pad, image = case.kernel // 2, (case.image, case.image)
        square = (case.kernel, case.kernel), (case.stride, case.stride), (pad,) * 4
        geometry = Geometry(image, channels, *square)
        product = Product((1, side, side), k, n, results=("bfloat16",), geometry=geometry)
        filters = weight.T.reshape(n, channels, case.kernel, case.kernel)
        _save_plain(plain, "Conv", (1, channels, *image), filters, geometry)
        packed = pack_filter(filters)
    else:
        product = Product((m,), k, n, results=("bfloat16",))
        _save_plain(plain, "MatMul", (m, k), weight, None)
        packed = pack_weight(weight)
    signature = signature_of(product)
    built = build_library([signature], Target("cpu", level), library)
    function = signature.function()
    function.domain, function.name = DOMAIN, signature.op_type
    given, made = signature.inputs[0], signature.outputs[0]
    graph = helper.make_graph(
        [helper.make_node(signature.op_type, ["a", "w"], ["y0"], domain=DOMAIN)],
        "product",
        [helper.make_tensor_value_info("a", TensorProto.BFLOAT16, given.shape)],
        [helper.make_tensor_value_info("y0", TensorProto.BFLOAT16, made.shape)],
        [helper.make_tensor("w", TensorProto.BFLOAT16, packed.shape, packed.tobytes(), raw=True)],
    )
    _save(graph, fused, [function])
    return plain, fused, None if built.library is None else library


def _save_plain(
    path: Path, op: str, shape: Sequence[int], weight: np.ndarray, geometry: Geometry | None
) -> None:
    attributes: dict[str, Any] = {}
    if geometry is not None:
        attributes = {"strides": geometry.strides, "pads": geometry.pads}
    graph = helper.make_graph(
        [helper.make_node(op, ["a", "w"], ["y"], **attributes)],
        "product",
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.ascontiguousarray(weight), "w")],
    )
    _save(graph, path, [])


def _save(graph: onnx.GraphProto, path: Path, functions: Sequence[onnx.FunctionProto]) -> None:
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)
    onnx.save(model, path)


# ---- timing


def measure(
    only: str, threads: int, level: str, torch_python: Path | None, folder: Path, rounds: int
) -> list[dict[str, object]]:
    """Time all cases interleaved, print a table, and return the seconds of all runs.

    Args:
        only: A part of the names of cases.
        threads: Of each engine.
        level: Of processors, with instructions for bfloat16.
        torch_python: A Python that has torch; None if there is none.
        folder: For models and jobs.
        rounds: Turns of each engine and case.
    """
    cases = [case for case in CASES if only in case.name]
    found: list[tuple[Case, tuple[Path, Path, Path | None]]] = []
    for number, case in enumerate(cases):
        here = folder / f"{threads}-{number}"
        here.mkdir()
        found.append((case, models(case, here, level)))
    pythons = {"onnxruntime": Path(sys.executable), "ortkit": Path(sys.executable)}
    if torch_python is not None:
        pythons["torch"] = torch_python
    rows: list[dict[str, object]] = []
    with ExitStack() as stack:
        workers = {}
        for engine, python in pythons.items():
            items = [_item(case, paths, engine) for case, paths in found]
            job: products_child.Job = {
                "engine": engine, "threads": threads, "seconds": 0.2, "items": items
            }  # fmt: skip
            file = folder / f"{engine}-{threads}.json"
            file.write_text(json.dumps(job), encoding="utf-8")
            workers[engine] = stack.enter_context(_worker(python, file))
        for worker in workers.values():
            _answer(worker)
        for number, (case, _) in enumerate(found):
            output.say(case.name)
            seconds: dict[str, list[float]] = {engine: [] for engine in workers}
            for turn in range(rounds):
                order = list(workers) if turn % 2 == 0 else list(reversed(workers))
                for engine in order:
                    _ask(workers[engine], number)
                    seconds[engine] += json.loads(_answer(workers[engine]))
            rows.append({"case": case.name, "flop": case.flop, "seconds": seconds})
        for worker in workers.values():
            worker.kill()
    _show(rows, threads)
    return rows


def _item(case: Case, paths: tuple[Path, Path, Path | None], engine: str) -> products_child.Item:
    plain, fused, library = paths
    m, k, n = case.sizes
    shapes = [[m, k], [n, k]]
    if case.image:
        channels = k // case.kernel**2
        shapes = [[1, channels, case.image, case.image], [n, channels, case.kernel, case.kernel]]
    return {
        "model": str(fused if engine == "ortkit" else plain),
        "library": str(library) if engine == "ortkit" and library is not None else "",
        "shapes": shapes,
        "stride": case.stride,
        "padding": case.kernel // 2,
    }


def _worker(python: Path, job: Path) -> subprocess.Popen[str]:
    command = [str(python), "-P", products_child.__file__, str(job)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _ask(worker: subprocess.Popen[str], number: int) -> None:
    assert worker.stdin is not None
    worker.stdin.write(f"{number}\n")
    worker.stdin.flush()


def _answer(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise SystemExit(f"a process ended with {worker.wait()}: {worker.args!r}")
    return line


def _show(rows: Sequence[Mapping[str, object]], threads: int) -> None:
    cells: list[list[output.Cell]] = []
    for row in rows:
        seconds, flop = row["seconds"], row["flop"]
        assert isinstance(seconds, dict)
        assert isinstance(flop, float)
        ours = seconds["ortkit"]
        line: list[output.Cell] = [str(row["case"])]
        for engine in ("onnxruntime", "torch", "ortkit"):
            runs = seconds.get(engine, ())
            line.append(f"{1e6 * min(runs):.1f} ({1e6 * median(runs):.1f})" if runs else None)
        line.append(round(flop / min(ours) / 1e9))
        for engine in ("onnxruntime", "torch"):
            runs = seconds.get(engine, ())
            ratios = (min(runs) / min(ours), median(runs) / median(ours)) if runs else None
            line.append(None if ratios is None else f"{ratios[0]:.2f} ({ratios[1]:.2f})")
        cells.append(line)
    output.table(
        f"Products in bfloat16, {threads} thread(s): us, minimum (median)",
        ("case", "float32", "oneDNN", "ortkit", "GFLOP/s", "x float32", "x oneDNN"),
        cells,
    )
