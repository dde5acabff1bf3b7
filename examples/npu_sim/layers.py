"""What the device computes: layers, each with its tiles and with what follows at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from examples.npu_sim.machine import Timeline
from examples.npu_sim.schedule import Work, choose, run

Array = Any
_BYTES = 4
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "Relu": lambda x: np.maximum(x, 0),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Tanh": np.tanh,
}


def ints(node: ir.Node, name: str, default: list[int]) -> list[int]:
    """Return an attribute that is a list of integers."""
    attribute = node.attributes.get(name)
    return list(attribute.as_ints()) if attribute is not None else default


def number(node: ir.Node, name: str, default: float) -> float:
    """Return an attribute that is a number."""
    attribute = node.attributes.get(name)
    return float(attribute.value) if attribute is not None else default


@dataclass(frozen=True)
class Clock:
    """Where a layer's time goes: the machine's units, not before a certain cycle."""

    timeline: Timeline
    after: int
    name: str

    def vector(self, elements: int, size: int) -> int:
        """Count a layer of the vector unit, whose data streams through."""
        machine = self.timeline.machine
        work = max(machine.vector(elements), machine.transfer(size))
        return self.timeline.add("vector", self.name, work, after=self.after, size=size)


def convolution(
    clock: Clock, node: ir.Node, x: Array, weight: Array, bias: Array | None = None
) -> tuple[Array, int]:
    """Compute a Conv tile by tile, as the schedule has them."""
    stride = ints(node, "strides", [1, 1])
    dilation = ints(node, "dilations", [1, 1])
    top, left, bottom, right = ints(node, "pads", [0, 0, 0, 0])
    groups = int(number(node, "group", 1))
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    kernel = weight.shape[2:]
    span = [(size - 1) * step + 1 for size, step in zip(kernel, dilation, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(padded, span, (2, 3))
    windows = windows[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]
    images, _, rows, columns = windows.shape[:4]
    outputs, inputs = weight.shape[0] // groups, weight.shape[1]
    row_bytes = inputs * padded.shape[3] * stride[0] * _BYTES
    work = Work(
        channels=outputs, depth=inputs * kernel[0] * kernel[1], rows=rows, columns=columns,
        row_bytes=row_bytes, halo_bytes=inputs * padded.shape[3] * (span[0] - 1) * _BYTES,
    )  # fmt: skip
    tiling = choose(clock.timeline.machine, work)
    y = np.empty((images, weight.shape[0], rows, columns), np.float32)
    end = clock.after
    for image in range(images):
        for group in range(groups):
            taken = windows[image, group * inputs : (group + 1) * inputs]
            held = weight[group * outputs : (group + 1) * outputs]
            made = y[image, group * outputs : (group + 1) * outputs]
            for channel, row in tiling.tiles(work):
                made[channel, row] = np.tensordot(
                    held[channel], taken[:, row], ((1, 2, 3), (0, 3, 4))
                )
            end = run(clock.timeline, work, tiling, name=clock.name, after=end)
    if bias is not None:
        y += bias[:, None, None]
    return y, end


def product(
    clock: Clock, node: ir.Node, a: Array, b: Array, c: Array | None = None
) -> tuple[Array, int]:
    """Compute a Gemm tile by tile."""
    a = a.T if number(node, "transA", 0) else a
    b = b.T if number(node, "transB", 0) else b
    (rows, depth), channels = a.shape, b.shape[1]
    work = Work(channels=channels, depth=depth, rows=rows, columns=1, row_bytes=depth * _BYTES)
    tiling = choose(clock.timeline.machine, work)
    y = np.empty((rows, channels), np.float32)
    for channel, row in tiling.tiles(work):
        y[row, channel] = a[row] @ b[:, channel]
    end = run(clock.timeline, work, tiling, name=clock.name, after=clock.after)
    y *= np.float32(number(node, "alpha", 1))
    if c is not None:
        y += np.float32(number(node, "beta", 1)) * c
    return y, end


def pooling(clock: Clock, node: ir.Node, x: Array) -> tuple[Array, int]:
    """Compute a MaxPool."""
    kernel, stride = ints(node, "kernel_shape", []), ints(node, "strides", [1, 1])
    top, left, bottom, right = ints(node, "pads", [0, 0, 0, 0])
    padding = ((0, 0), (0, 0), (top, bottom), (left, right))
    padded = np.pad(x, padding, constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel, (2, 3))
    y = windows[:, :, :: stride[0], :: stride[1]].max((4, 5))
    return y, clock.vector(y.size * kernel[0] * kernel[1], x.nbytes + y.nbytes)


def average(clock: Clock, node: ir.Node, x: Array) -> tuple[Array, int]:
    """Compute a GlobalAveragePool."""
    return x.mean((2, 3), keepdims=True), clock.vector(x.size, x.nbytes)


def addition(clock: Clock, node: ir.Node, a: Array, b: Array) -> tuple[Array, int]:
    """Compute an Add."""
    y = a + b
    return y, clock.vector(y.size, a.nbytes + b.nbytes + y.nbytes)


def activation(clock: Clock, node: ir.Node, x: Array) -> tuple[Array, int]:
    """Compute a function of each element."""
    y = ACTIVATIONS[node.op_type](x).astype(np.float32)
    return y, clock.vector(y.size, x.nbytes + y.nbytes)


def flattening(clock: Clock, node: ir.Node, x: Array) -> tuple[Array, int]:
    """Compute a Flatten: the same memory in another shape, which takes no time."""
    axis = int(number(node, "axis", 1))
    rows = int(np.prod(x.shape[:axis], dtype=np.int64))
    return x.reshape(rows, -1) if x.size else x.reshape(rows, 0), clock.after


LAYERS: dict[str, Callable[..., tuple[Array, int]]] = {
    "Conv": convolution,
    "Gemm": product,
    "MaxPool": pooling,
    "GlobalAveragePool": average,
    "Add": addition,
    "Flatten": flattening,
    **dict.fromkeys(ACTIVATIONS, activation),
}
