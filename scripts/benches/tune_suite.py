"""The regions that shipped defaults are found on: each kind of loop, at several sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx

from ortkit.kernels.signature import RegionSignature
from scripts.benches.kernel_cases import Writer, depthwise_inner
from scripts.benches.kernels import as_region

Element: TypeAlias = type[np.floating[Any]]
Build: TypeAlias = Callable[[Element], onnx.ModelProto]
_ROOT_TWO = 2.0**0.5


@dataclass(frozen=True)
class SuiteRegion:
    """One region of known sizes."""

    name: str
    signature: RegionSignature


def suite(dtype: Element, *, by_hand: bool = False) -> tuple[SuiteRegion, ...]:
    """Return the regions in one element type, with those of kernels by hand if they are wanted."""
    builds = [*_builds(), *(_by_hand() if by_hand else ())]
    return tuple(SuiteRegion(name, as_region(build(dtype))) for name, build in builds)


def _builds() -> Iterator[tuple[str, Build]]:
    for rows, columns in ((16, 768), (128, 3072), (512, 3072), (4096, 4096)):
        yield f"bias GELU residual {rows}x{columns}", _gelu(rows, columns)
        yield f"SwiGLU {rows}x{columns}", _swiglu(rows, columns)
        yield f"residual sum {rows}x{columns}", _sum(rows, columns)
    for rows, columns in ((64, 256), (128, 768), (512, 768), (128, 2048), (2048, 4096)):
        yield f"Add LayerNorm {rows}x{columns}", _layer_norm(rows, columns)
        yield f"RMSNorm {rows}x{columns}", _rms_norm(rows, columns)
    for heads, length in ((12, 64), (12, 128), (12, 512), (8, 1024)):
        yield f"masked softmax {heads}x{length}x{length}", _softmax(heads, length)
    for rows, columns in ((1, 32000), (64, 32000)):
        yield f"softmax of logits {rows}x{columns}", _logits(rows, columns)
    for channels, size in ((32, 112), (96, 56), (1280, 7)):
        yield f"SiLU {channels}x{size}x{size}", _silu(channels, size)
        yield f"channel scale {channels}x{size}x{size}", _scale(channels, size)
        yield f"global mean {channels}x{size}x{size}", _mean(channels, size)
    for rows, columns in ((128, 768), (1024, 1024)):
        yield f"mean over rows {rows}x{columns}", _mean_of_rows(rows, columns)
        yield f"head transpose {rows}x{columns}", _heads(rows, columns)
        yield f"transpose, bias, Relu {rows}x{columns}", _turned(rows, columns)
    for length in (128, 1024):
        yield f"rotary 12x{length}x64", _rotary(length)


def _by_hand() -> Iterator[tuple[str, Build]]:
    """Yield what there are hand-written kernels with choices for on CPUs, in float32."""
    for window, size in ((3, 112), (5, 28), (7, 28)):
        for stride in (1, 2):
            build = depthwise_inner(stride, is_plain=False, window=window, size=size)
            name = f"depthwise {window}x{window} stride {stride} 96x{size}x{size}"
            yield name, lambda _, build=build: build()
    for size, before, after in ((56, 24, 96), (14, 240, 80), (7, 960, 160)):
        yield f"1x1 convolution {before}x{size}x{size} to {after}", _pointwise(size, before, after)
    for length in (128, 512):
        yield f"attention 12x{length}x64", _attention(length)


def _gelu(rows: int, columns: int) -> Build:
    def build(dtype: Element) -> onnx.ModelProto:
        w = Writer(dtype)
        x = w("Add", w.input("x", rows, columns), w.weight("bias", columns))
        erf = w("Erf", w("Div", x, w.number(_ROOT_TWO)))
        gelu = w("Mul", w("Mul", x, w("Add", erf, w.number(1.0))), w.number(0.5))
        return w.model(w("Add", gelu, w.input("r", rows, columns)))

    return build


def _swiglu(rows: int, columns: int) -> Build:
    def build(dtype: Element) -> onnx.ModelProto:
        w = Writer(dtype)
        gate, up = w.input("gate", rows, columns), w.input("up", rows, columns)
        return w.model(w("Mul", w("Mul", gate, w("Sigmoid", gate)), up))

    return build


def _sum(rows: int, columns: int) -> Build:
    def build(dtype: Element) -> onnx.ModelProto:
        w = Writer(dtype)
        biased = w("Add", w.input("x", rows, columns), w.weight("bias", columns))
        return w.model(w("Relu", w("Add", biased, w.input("r", rows, columns))))

    return build


def _layer_norm(rows: int, columns: int) -> Build:
    def build(dtype: Element) -> onnx.ModelProto:
        w = Writer(dtype)
        total = w("Add", w.input("x", rows, columns), w.input("r", rows, columns))
        weights = w.weight("scale", columns), w.weight("bias", columns)
        return w.model(w("LayerNormalization", total, *weights, axis=-1, epsilon=1e-5), total)

    return build


def _rms_norm(rows: int, columns: int) -> Build:
    def build(dtype: Element) -> onnx.ModelProto:
        w = Writer(dtype)
        x = w.input("x", rows, columns)
        mean = w("ReduceMean", w("Mul", x, x), w.integers(-1))
        root = w("Sqrt", w("Add", mean, w.number(1e-5)))
        return w.model(w("Mul", w.weight("scale", columns), w("Div", x, root)))

    return build


def _softmax(heads: int, length: int) -> Build:
    def build(dtype: Element) -> onnx.ModelProto:
        w = Writer(dtype)
        scores = w.input("x", 1, heads, length, length)
        masked = w("Add", scores, w.input("mask", 1, 1, 1, length))
        return w.model(w("Softmax", masked, axis=-1))

    return build


def _logits(rows: int, columns: int) -> Build:
    def build(dtype: Element) -> onnx.ModelProto:
        w = Writer(dtype)
        scaled = w("Mul", w.input("x", rows, columns), w.number(0.7))
        return w.model(w("Softmax", scaled, axis=-1))

    return build


def _silu(channels: int, size: int) -> Build:
    def build(dtype: Element) -> onnx.ModelProto:
        w = Writer(dtype)
        x = w.input("x", 1, channels, size, size)
        return w.model(w("Mul", x, w("Sigmoid", x)))

    return build


def _scale(channels: int, size: int) -> Build:
    def build(dtype: Element) -> onnx.ModelProto:
        w = Writer(dtype)
        x = w.input("x", 1, channels, size, size)
        return w.model(w("Mul", x, w.input("s", 1, channels, 1, 1)))

    return build


def _mean(channels: int, size: int) -> Build:
    def build(dtype: Element) -> onnx.ModelProto:
        w = Writer(dtype)
        return w.model(w("ReduceMean", w.input("x", 1, channels, size, size), w.integers(2, 3)))

    return build


def _mean_of_rows(rows: int, columns: int) -> Build:
    def build(dtype: Element) -> onnx.ModelProto:
        w = Writer(dtype)
        x = w.input("x", 4, rows, columns)
        return w.model(w("Sub", x, w("ReduceMean", x, w.integers(1))))

    return build


def _heads(rows: int, columns: int) -> Build:
    def build(dtype: Element) -> onnx.ModelProto:
        w = Writer(dtype)
        x = w.input("x", 1, rows, columns // 64, 64)
        return w.model(w("Transpose", x, perm=[0, 2, 1, 3]))

    return build


def _turned(rows: int, columns: int) -> Build:
    def build(dtype: Element) -> onnx.ModelProto:
        w = Writer(dtype)
        biased = w("Add", w.input("x", 2, rows, columns), w.weight("bias", columns))
        return w.model(w("Relu", w("Transpose", biased, perm=[0, 2, 1])))

    return build


def _rotary(length: int) -> Build:
    def build(dtype: Element) -> onnx.ModelProto:
        w = Writer(dtype)
        x = w.input("x", 1, 12, length, 64)
        cos, sin = w.input("cos", 1, 1, length, 64), w.input("sin", 1, 1, length, 64)
        first = w("Slice", x, w.integers(0), w.integers(32), w.integers(3))
        second = w("Slice", x, w.integers(32), w.integers(2**63 - 1), w.integers(3))
        rotated = w("Concat", w("Neg", second), first, axis=-1)
        return w.model(w("Add", w("Mul", x, cos), w("Mul", rotated, sin)))

    return build


def _pointwise(size: int, before: int, after: int) -> Build:
    def build(dtype: Element) -> onnx.ModelProto:
        w = Writer(dtype)
        x = w("Transpose", w.input("x", 1, size, size, before), perm=[0, 3, 1, 2])
        packed = w("Transpose", w.weight("weight", after // 16, before, 16), perm=[0, 2, 1])
        weight = w("Reshape", packed, w.integers(after, before, 1, 1))
        y = w("Conv", x, weight, w.weight("bias", after), kernel_shape=[1, 1])
        return w.model(w("Transpose", w("Relu", y), perm=[0, 2, 3, 1]))

    return build


def _attention(length: int) -> Build:
    def build(dtype: Element) -> onnx.ModelProto:
        w = Writer(dtype, opset=23)
        return w.model(w("Attention", *(w.input(name, 1, 12, length, 64) for name in "qkv")))

    return build
