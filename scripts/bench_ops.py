"""Time the examples of custom_ops/examples against torch: `python scripts/bench_ops.py OPS.so`.

Needs torch and onnxruntime, not ortkit; the library is made with `ortkit ops build VectorAdd
SquaredReLU BiasSoftmax ResidualLayerNorm FlashAttention --from ortkit.custom_ops.examples
--dtype float32 -o OPS.so`. One thread each, interleaved; prints the smallest and the median time
of each in microseconds. More arguments: the beginnings of the names to time.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime as ort
import torch
from torch.nn import functional

ROUNDS, SECONDS = 60, 4.0
HEAD = '<ir_version: 10, opset_import: ["" : 20, "ortkit.examples" : 1]> '


def session(path: str, text: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(Path(path).resolve()))
    options.intra_op_num_threads = 1
    model = onnx.parser.parse_model(HEAD + text)
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def bound(made: ort.InferenceSession, feeds: dict[str, np.ndarray]) -> Callable[[], object]:
    """Return a run on memory that is bound once, as torch's tensors are."""
    binding = made.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for name, value in zip(
        [o.name for o in made.get_outputs()], made.run(None, feeds), strict=True
    ):
        binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(value))
    return lambda: made.run_with_iobinding(binding)


def cases(path: str) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    draw = np.random.default_rng(0)

    def some(*shape: int) -> np.ndarray:
        return draw.standard_normal(shape).astype(np.float32)

    x, y, w, b = some(512, 3072), some(512, 3072), some(3072), some(3072)
    q, k, v = some(1, 8, 512, 64), some(1, 8, 512, 64), some(1, 8, 512, 64)
    tx, ty, tw, tb, tq, tk, tv = map(torch.from_numpy, (x, y, w, b, q, k, v))
    rows, heads = "float[m,n]", "float[a,8,c,64]"

    def one(
        op: str, inputs: dict[str, tuple[str, np.ndarray]], outputs: str
    ) -> Callable[[], object]:
        given = ", ".join(f"{kind} {name}" for name, (kind, _) in inputs.items())
        call = f"ortkit.examples.{op}({', '.join(inputs)})"
        text = f"g ({given}) => ({outputs}) {{ {outputs} = {call} }}"
        return bound(session(path, text), {name: array for name, (_, array) in inputs.items()})

    return {
        "VectorAdd": (
            one("VectorAdd", {"x": (rows, x), "z": (rows, y)}, "y"), lambda: tx + ty,
        ),
        "SquaredReLU": (
            one("SquaredReLU", {"x": (rows, x)}, "y"), lambda: torch.relu(tx).square(),
        ),
        "BiasSoftmax": (
            one("BiasSoftmax", {"x": (rows, x), "b": ("float[n]", b)}, "y"),
            lambda: torch.softmax(tx + tb, -1),
        ),
        "ResidualLayerNorm": (
            one("ResidualLayerNorm", {"x": (rows, x), "r": (rows, y), "w": ("float[n]", w),
                                      "b": ("float[n]", b)}, "y, t"),
            lambda: functional.layer_norm(tx + ty, (3072,), tw, tb),
        ),
        "FlashAttention": (
            one("FlashAttention", {"q": (heads, q), "k": (heads, k), "v": (heads, v)}, "y"),
            lambda: functional.scaled_dot_product_attention(tq, tk, tv),
        ),
    }  # fmt: skip


def timed(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return 1e6 * (time.perf_counter() - started)


def compare(name: str, sides: Mapping[str, Callable[[], object]]) -> None:
    """Time sides interleaved, and print how many times as long as the first the others take."""
    times: dict[str, list[float]] = {side: [] for side in sides}
    end = time.perf_counter() + SECONDS
    for _ in range(5):
        [run() for run in sides.values()]
    while len(times["ortkit"]) < ROUNDS and time.perf_counter() < end:
        for side, run in sides.items():
            times[side].append(timed(run))
    print(f"{name:32}", end="")
    for side, found in times.items():
        print(f" {side} {min(found):7.0f} {statistics.median(found):7.0f}", end="")
    ours = times.pop("ortkit")
    for side, found in times.items():
        ratios = min(found) / min(ours), statistics.median(found) / statistics.median(ours)
        print(f"  {side} / ortkit {ratios[0]:.2f} {ratios[1]:.2f}", end="")
    print(flush=True)


def main(arguments: list[str]) -> None:
    torch.set_num_threads(1)
    chosen = tuple(arguments[1:]) or ("",)
    for name, sides in cases(arguments[0]).items():
        if name.startswith(chosen):
            compare(name, dict(zip(("ortkit", "torch"), sides, strict=True)))


if __name__ == "__main__":
    main(sys.argv[1:])
