"""Decoders on a GPU: a token and prompts over caches that past and present share.

Models have the form of onnxruntime-genai's builder for CUDA and random weights, in float16 or in 4
bits. A token is a replayed CUDA graph, a prompt is not. Times are the host's until the device is
done; those of kernels are CUPTI's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import ortkit
from ortkit.runtime.profiling.cuda_activity import CudaActivity
from scripts.benches import output
from scripts.benches.gpu import alone, take_turns
from scripts.benches.output import Cell

_RNG = np.random.default_rng(0)
#: A prime number of random ones: matrices repeat them, shifted from row to row.
_POOL = _RNG.standard_normal(1_000_003, np.float32)
_SHIFT = 7919
_BLOCK, _EACH, _TURNS = 32, 10, 8
#: Words, and rows of a cache.
WORDS, ROOM = 32000, 4096
#: New rows, and keys with them: of a token, and of prompts.
TOKENS, PROMPTS = ((1, 2048), (1, 4096)), ((16, 16), (512, 512), (2048, 2048))


@dataclass(frozen=True)
class Decoder:
    """A Llama.

    Args:
        bits: Of a weight, 16 or 4.
    """

    name: str
    layers: int
    width: int
    hidden: int
    heads: int
    kv_heads: int
    bits: int = 16

    @property
    def title(self) -> str:
        """Name and bits, as the table has them."""
        return f"{self.name}, {self.bits} bits"

    @property
    def weights(self) -> int:
        """Weights that each token reads."""
        kv = self.kv_heads * (self.width // self.heads)
        layer = self.width * (2 * self.width + 2 * kv + 3 * self.hidden)
        return self.layers * layer + self.width * WORDS

    def bytes_of_token(self, keys: int) -> float:
        """Return the bytes of weights, and of keys and values, that a token reads."""
        cache = 2 * 2 * self.layers * self.kv_heads * (self.width // self.heads) * keys
        return self.weights * (2.0 if self.bits == 16 else 0.5 + 2.0 / _BLOCK) + cache

    def model(self) -> onnx.ModelProto:
        """Return the model, sizes by name."""
        return _Writer(self).model()


DECODERS = tuple(
    Decoder(name, *sizes, bits)
    for name, sizes in {
        "8B-like": (4, 4096, 14336, 32, 8),
        "1B-like": (8, 2048, 8192, 32, 8),
    }.items()
    for bits in (16, 4)
)


class _Writer:
    def __init__(self, of: Decoder) -> None:
        self._of = of
        self._nodes: list[onnx.NodeProto] = []
        self._held: list[onnx.TensorProto] = []

    def _op(self, op_type: str, inputs: list[str], count: int = 1, **attributes: Any) -> list[str]:
        """Add a node; those of ONNX Runtime's domain have a `domain`."""
        names = [f"{op_type}_{len(self._nodes)}_{number}" for number in range(count)]
        self._nodes.append(helper.make_node(op_type, inputs, names, **attributes))
        return names

    def _keep(self, value: np.ndarray[Any, Any]) -> str:
        name = f"w{len(self._held)}"
        self._held.append(numpy_helper.from_array(value, name))
        return name

    def _half(self, *shape: int, scale: float = 1.0) -> str:
        # No two are equal: what two products of equal matrices make would be computed once.
        begun = np.roll(_POOL, _SHIFT * len(self._held))
        return self._keep(np.resize((begun * np.float32(scale)).astype(np.float16), shape))

    def _product(self, x: str, depth: int, columns: int) -> str:
        if self._of.bits == 16:
            weight = self._half(depth, columns, scale=depth**-0.5)
            return self._op("MatMul", [x, weight])[0]
        # Without the lowest number the mean is 0, so that scores of attention stay small.
        low, high = _RNG.integers(1, 16, (2, columns, depth // _BLOCK, _BLOCK // 2), np.uint8)
        weight = low | high << 4
        scale = _RNG.uniform(0.5, 1.5, columns * depth // _BLOCK) * depth**-0.5 / 4.6
        inputs = [x, self._keep(weight), self._keep(scale.astype(np.float16))]
        return self._op("MatMulNBits", inputs, domain="com.microsoft", K=depth, N=columns, bits=4,
                        block_size=_BLOCK)[0]  # fmt: skip

    def _norm(self, x: str, rest: str) -> tuple[str, str]:
        """Return the normalized sum, and the sum."""
        scale = self._keep(np.ones(self._of.width, np.float16))
        if not rest:
            made = self._op("SimplifiedLayerNormalization", [x, scale], axis=-1, epsilon=1e-5)
            return made[0], x
        made = self._op("SkipSimplifiedLayerNormalization", [x, rest, scale], 4,
                        domain="com.microsoft", epsilon=1e-5)  # fmt: skip
        self._nodes[-1].output[1] = self._nodes[-1].output[2] = ""
        return made[0], made[3]

    def model(self) -> onnx.ModelProto:
        of, width = self._of, self._of.width // self._of.heads
        kv = of.kv_heads * width
        ends = self._keep(np.array([1], np.int64)), self._keep(np.array(1, np.int64))
        counted = self._op("ReduceSum", ["attention_mask", ends[0]], keepdims=0)
        lengths = self._op("Cast", self._op("Sub", [counted[0], ends[1]]), to=TensorProto.INT32)[0]
        shape = self._op("Shape", ["attention_mask"])
        total = self._op("Cast", self._op("Gather", [shape[0], ends[1]]), to=TensorProto.INT32)[0]
        angles = np.arange(ROOM)[:, None] * 1e4 ** -(np.arange(width // 2) / (width // 2))
        cos, sin = (self._keep(f(angles).astype(np.float16)) for f in (np.cos, np.sin))
        rest = ""
        (x,) = self._op("Gather", [self._half(WORDS, of.width), "input_ids"])
        caches, results = [], []
        for layer in range(of.layers):
            normed, rest = self._norm(x, rest)
            packed = self._product(normed, of.width, of.width + 2 * kv)
            past = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
            attended = self._op(
                "GroupQueryAttention",
                [packed, "", "", *past, lengths, total, cos, sin], 3, domain="com.microsoft",
                num_heads=of.heads, kv_num_heads=of.kv_heads, do_rotary=1,
            )  # fmt: skip
            present = [f"present.{layer}.{kind}" for kind in ("key", "value")]
            self._nodes[-1].output[1:] = present
            size = ("batch", of.kv_heads, "room", width)
            caches += [_info(name, TensorProto.FLOAT16, size) for name in past]
            results += [_info(name, TensorProto.FLOAT16, size) for name in present]
            x = self._product(attended[0], of.width, of.width)
            normed, rest = self._norm(x, rest)
            gate, up = (self._product(normed, of.width, of.hidden) for _ in range(2))
            (curved,) = self._op("Mul", [gate, self._op("Sigmoid", [gate])[0]])
            x = self._product(self._op("Mul", [curved, up])[0], of.hidden, of.width)
        normed, _ = self._norm(x, rest)
        logits = self._product(normed, of.width, WORDS)
        self._nodes.append(helper.make_node("Identity", [logits], ["logits"]))
        given = [
            _info("input_ids", TensorProto.INT64, ("batch", "rows")),
            _info("attention_mask", TensorProto.INT64, ("batch", "total")),
            *caches,
        ]
        results.insert(0, _info("logits", TensorProto.FLOAT16, ("batch", "rows", WORDS)))
        graph = helper.make_graph(self._nodes, "decoder", given, results, self._held)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _info(name: str, dtype: int, shape: tuple[str | int, ...]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def feeds_of(of: Decoder, rows: int, keys: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return inputs of new rows, with which a cache with room for more has `keys` rows."""
    mask = np.zeros((1, ROOM), np.int64)
    mask[:, :keys] = 1
    found = {"input_ids": _RNG.integers(0, WORDS, (1, rows)), "attention_mask": mask}
    shape = 1, of.kv_heads, ROOM, of.width // of.heads
    for layer in range(of.layers):
        for kind in ("key", "value"):
            cache = np.resize(_POOL.astype(np.float16), shape)
            found[f"past_key_values.{layer}.{kind}"] = cache
    return found


def measure_decoders(
    folder: Path,
    arch: str,
    rounds: int,
    chosen: Iterable[Decoder] = DECODERS,
    sizes: Iterable[tuple[int, int]] = (*TOKENS, *PROMPTS),
    gate: Path | None = None,
) -> list[dict[str, Any]]:
    """Time decoders at numbers of new rows and of keys; milliseconds. Each is said at once."""
    found = []
    folder.mkdir(parents=True, exist_ok=True)
    for of in chosen:
        output.say(of.title)
        plain = folder / f"{of.name}-{of.bits}.onnx"
        onnx.save(of.model(), plain, save_as_external_data=True, location=f"{plain.name}.data")
        ours = ortkit.optimize(
            plain, ortkit.OptimizeOptions(target="cuda", arch=arch, verify=False)
        )
        for rows, keys in sizes:
            row = {"model": of.name, "bits": of.bits, "rows": rows, "keys": keys}
            with alone(gate):
                row |= _times(of, plain, ours, rows, keys, rounds)
            found.append(row)
            output.say(f"{rows} rows, {keys} keys: {row['plain']:.3f}, {row['ortkit']:.3f} ms")
            _say_kernels(row["kernels"]["ortkit"])
    return found


def _say_kernels(of: dict[str, Any]) -> None:
    """Print what kernels of a run take, in microseconds."""
    each = ", ".join(f"{name[:40]} {took:.1f}" for name, took in of["times"].items())
    output.say(f"{of['count']} kernels in {of['span']:.0f} us, idle {of['idle']:.0f}: {each}")


def _times(
    of: Decoder, plain: Path, ours: ortkit.Optimized, rows: int, keys: int, rounds: int
) -> dict[str, Any]:
    feeds, is_token = feeds_of(of, rows, keys), rows == 1
    share = {name: name.replace("past_key_values", "present") for name in feeds if "past" in name}
    with (
        ortkit.Session(plain, "cuda", cuda_graph=is_token) as theirs,
        ortkit.Session(ours, "cuda", kernels="require", cuda_graph=is_token) as kernels,
    ):
        bound = {
            name: session.bind({key: feed.copy() for key, feed in feeds.items()}, share=share)
            for name, session in (("plain", theirs), ("ortkit", kernels))
        }
        logits = [np.asarray(item.run()["logits"], np.float64) for item in bound.values()]
        elapsed = take_turns({name: one.run for name, one in bound.items()}, rounds, _EACH)
        parts = {name: _kernels(one) for name, one in bound.items()}
    off = float(np.linalg.norm(logits[1] - logits[0]) / np.linalg.norm(logits[0]))
    ms = {name: median(times) for name, times in elapsed.items()}
    rate = of.bytes_of_token(keys) / ms["ortkit"] / 1e6 if is_token else 0.0
    return ms | {"off": off, "kernels": parts, "bytes_per_ns": rate}


def _kernels(bound: ortkit.Binding) -> dict[str, Any]:
    """Return microseconds of a run by kernel, and from the first to the last."""
    with CudaActivity() as activity:
        for _ in range(_TURNS):
            bound.run()
    events = [event for event in activity.events(0) if event.kind == "kernel"]
    each = len(events) // _TURNS
    spans, gaps, times = [], [], Counter[str]()
    for turn in range(_TURNS):
        some = sorted(events[turn * each : (turn + 1) * each], key=lambda event: event.start_us)
        spans.append(some[-1].start_us + some[-1].duration_us - some[0].start_us)
        end, idle = some[0].start_us, 0.0
        for event in some:
            idle += max(0.0, event.start_us - end)
            end = max(end, event.start_us + event.duration_us)
            times[event.name] += event.duration_us / _TURNS
        gaps.append(idle)
    return {
        "count": each, "span": median(spans), "idle": median(gaps),
        "times": dict(times.most_common(16)),
    }  # fmt: skip


def lines(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[Cell]]]:
    """Return the table: times, what is gained, and of the device: kernels, span and gaps."""
    header = [
        "decoder", "rows", "keys", "onnxruntime", "ours", "gain", "bytes/ns", "kernels",
        "span, us", "idle, us", "off",
    ]  # fmt: skip
    table: list[list[Cell]] = []
    for row in rows:
        of = row["kernels"]["ortkit"]
        table.append(
            [
                f"{row['model']}, {row['bits']} bits", row["rows"], row["keys"], row["plain"],
                row["ortkit"], row["plain"] / row["ortkit"], row["bytes_per_ns"], of["count"],
                of["span"], of["idle"], f"{row['off']:.1e}",
            ]
        )  # fmt: skip
    return header, table
