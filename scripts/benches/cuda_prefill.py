"""Prompts of decoders on a GPU by torch.compile, beside which ours in `cuda_decode` stand.

    python -m scripts.benches.cuda_prefill NAME ROWS MODE FILE [GATE]

compiles the computation of one of `cuda_decode.DECODERS` in float16 in one mode, and writes what a
prompt takes. MODE is `eager`, `default`, or another of torch.compile's. GATE is as `--gate`.
Weights are random. There are RMS norms, products, rotation and causal
attention of grouped heads. Keys and values go into caches, and all rows have logits.
Where torch needs a Triton of its own, start this without ours.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from scripts.benches.cuda_decode import DECODERS, Decoder
from scripts.benches.gpu import alone

#: Rows that a cache has room for, and words.
_ROOM, _WORDS = 4096, 32000
_EPSILON, _BASE = 1e-5, 1e4
#: Runs before times count, turns, and runs of one.
_WARM, _TURNS, _EACH = 3, 8, 10


def module_of(of: Decoder, device: str = "cuda", room: int = _ROOM, words: int = _WORDS) -> Any:
    """Return a torch module that computes a decoder's prompt: words [1, rows] to logits.

    Args:
        of: The decoder.
        device: Where its weights lie.
        room: Rows of its caches.
        words: How many there are.
    """
    import torch
    from torch import nn
    from torch.nn import functional

    width = of.width // of.heads
    columns = of.width, of.kv_heads * width, of.kv_heads * width

    def linear(depth: int, count: int) -> nn.Linear:
        return nn.Linear(depth, count, bias=False, dtype=torch.float16, device=device)

    def norm() -> nn.Parameter:
        return nn.Parameter(torch.ones(of.width, dtype=torch.float16, device=device))

    class Layer(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = norm(), norm()
            self.packed, self.out = linear(of.width, sum(columns)), linear(of.width, of.width)
            self.gate, self.up = linear(of.width, of.hidden), linear(of.width, of.hidden)
            self.down = linear(of.hidden, of.width)
            shape = 1, of.kv_heads, room, width
            for name in ("keys", "values"):
                cache = torch.zeros(shape, dtype=torch.float16, device=device)
                self.register_buffer(name, cache)

        def forward(self, x: Any, cos: Any, sin: Any) -> Any:
            rows = x.shape[1]
            normed = functional.rms_norm(x, (of.width,), self.before, _EPSILON)
            parts = self.packed(normed).split(columns, dim=-1)
            q, k, v = (part.view(1, rows, -1, width).transpose(1, 2) for part in parts)
            q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
            self.keys[:, :, :rows] = k
            self.values[:, :, :rows] = v
            made = functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=of.heads != of.kv_heads
            )
            x = x + self.out(made.transpose(1, 2).reshape(1, rows, of.width))
            normed = functional.rms_norm(x, (of.width,), self.between, _EPSILON)
            return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))

    class Prompt(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(words, of.width, dtype=torch.float16, device=device)
            self.layers = nn.ModuleList(Layer() for _ in range(of.layers))
            self.last, self.head = norm(), linear(of.width, words)
            half = width // 2
            angles = torch.arange(room)[:, None] * _BASE ** -(torch.arange(half) / half)
            self.register_buffer("cos", angles.cos().half().to(device))
            self.register_buffer("sin", angles.sin().half().to(device))

        def forward(self, ids: Any) -> Any:
            rows, x = ids.shape[1], self.words(ids)
            for layer in self.layers:
                x = layer(x, self.cos[:rows], self.sin[:rows])
            return self.head(functional.rms_norm(x, (of.width,), self.last, _EPSILON))

    return Prompt().eval().requires_grad_(requires_grad=False)


def _rotated(heads: Any, cos: Any, sin: Any) -> Any:
    """Rotate heads [1, heads, rows, width], whose first half goes with the other one."""
    import torch

    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _milliseconds(call: Callable[[], object]) -> float:
    """Return what a run takes on the host until the device is done, the median of turns."""
    import torch

    def turn() -> float:
        started = time.perf_counter()
        for _ in range(_EACH):
            call()
            torch.cuda.synchronize()
        return (time.perf_counter() - started) * 1e3 / _EACH

    return median(turn() for _ in range(_TURNS))


def _kernels(call: Callable[[], object]) -> dict[str, Any]:
    """Return microseconds of a run by kernel, their sum, and from the first to the last.

    Of the 12 kernels that take most, those first.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    spans = []
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(_EACH):
            call()
            torch.cuda.synchronize()
    times = {each.key: each.self_device_time_total / _EACH for each in found.key_averages()}
    ranges = sorted(
        (event.time_range.start, event.time_range.end)
        for event in found.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    count = len(ranges) // _EACH
    for turn in range(_EACH):
        some = ranges[turn * count : (turn + 1) * count]
        spans.append(max(end for _, end in some) - some[0][0])
    longest = dict(sorted(times.items(), key=lambda item: -item[1])[:12])
    return {"kernels": longest, "sum": sum(times.values()), "span": median(spans), "count": count}


def main() -> int:
    """Compile one decoder in one mode, and write what a prompt takes."""
    import torch

    name, rows, mode, path, *gate = sys.argv[1:]
    of = next(each for each in DECODERS if each.name == name)
    torch.manual_seed(0)
    module = module_of(of)
    ids = torch.randint(0, _WORDS, (1, int(rows)), device="cuda")
    options = {} if mode == "default" else {"mode": mode}
    made = module if mode == "eager" else torch.compile(module, dynamic=False, **options)
    started = time.perf_counter()
    with torch.no_grad():
        plain = module(ids).float()
        for _ in range(_WARM):
            found = made(ids).float()
        ready = time.perf_counter() - started
        off = float((found - plain).norm() / plain.norm())
        row: dict[str, Any] = {"model": name, "rows": int(rows), "mode": mode, "ready_s": ready}
        with alone(Path(*gate) if gate else None):
            row |= {"ms": _milliseconds(lambda: made(ids)), "off": off}
            row |= _kernels(lambda: made(ids)) | {"torch": torch.__version__}
    Path(path).write_text(json.dumps(row), encoding="utf-8")
    print(json.dumps(row))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
