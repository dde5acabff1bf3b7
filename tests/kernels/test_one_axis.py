"""1-D convolutions in ONNX Runtime, against the function bodies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from fused_model import fused_model, session, tensor
from ortkit.custom_ops.tvm.conv.one_axis import OneAxisConv, match

from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import LibraryBuild, build_library, refusal
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.tvm.choices import read_choices
from ortkit.targets.cpu import native_level
from ortkit.targets.target import Target

Build = Callable[..., LibraryBuild]
TAILS = {
    "": "y = Identity (c)", "silu": "g = Sigmoid (c)  y = Mul (c, g)",
    "residual": "a = LeakyRelu <alpha = 0.1> (c)  y = Add (a, r)",
}  # fmt: skip


@dataclass(frozen=True)
class Conv:
    """What is convolved; `length` and `batch` may have names."""

    channels: int
    columns: int
    taps: int
    length: int | str = 100
    batch: int | str = 1
    groups: int = 1
    dilation: int = 1
    pads: tuple[int, int] | None = None
    tail: str = ""
    has_bias: bool = True

    def signature(self, attributes: str = "") -> RegionSignature:
        reach = (self.taps - 1) * self.dilation
        pads = self.pads or (reach // 2, reach - reach // 2)
        made = self.length
        if isinstance(made, int):
            made += sum(pads) - reach
        inputs = [
            tensor("x", self.batch, self.channels, self.length),
            tensor("w", self.columns, self.channels // self.groups, self.taps),
        ]
        inputs += [tensor("b", self.columns)] if self.has_bias else []
        output = tensor("y", self.batch, self.columns, made)
        inputs += [tensor("r", *output.shape)] if self.tail == "residual" else []
        names = ", ".join(spec.name for spec in inputs)
        text = (
            f'<opset_import: ["" : 20]> f ({names}) => (y) {{ '
            f"c = Conv <dilations = [{self.dilation}], pads = {[*pads]}, group = {self.groups}"
            f"{attributes}> (x, w{', b' if self.has_bias else ''})  {TAILS[self.tail]} }}"
        )
        return RegionSignature("conv_1d", text, tuple(inputs), (output,))


def feeds(signature: RegionSignature, **sizes: int) -> dict[str, np.ndarray]:
    random, found = np.random.default_rng(7), dict[str, np.ndarray]()
    for spec in signature.inputs:
        shape = [sizes.get(str(size), size) for size in spec.shape]
        found[spec.name] = random.uniform(-1, 1, shape).astype(np.float32)
    return found


def check(build: Build, conv: Conv, **sizes: int) -> None:
    signature = conv.signature()
    made = build(signature).library
    assert made is not None
    model, given = fused_model(signature), feeds(signature, **sizes)
    terms = conv.channels // conv.groups * conv.taps
    (want,) = session(model).run(None, given)
    for threads in (1, 2):
        (got,) = session(model, Path(made.path), threads).run(None, given)
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=0, atol=4e-6 * np.sqrt(terms))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "conv",
    [
        Conv(12, 20, 3, 200, tail="silu"),
        Conv(33, 8, 7, 150, batch=2, dilation=3, tail="residual"),  # tiles at both ends
        Conv(64, 64, 1, 97, has_bias=False),  # each place by itself
        Conv(16, 16, 31, 300, groups=16, tail="silu"),  # depthwise, in a loop over taps
        Conv(12, 24, 3, 160, batch=2, groups=3, dilation=2),  # groups of channels
        Conv(6, 4, 4, 130, pads=(3, 0), tail="residual"),  # causal
        Conv(6, 4, 5, 140, pads=(0, 0)),  # shorter than the signal
        Conv(5, 7, 3, 9),  # shorter than a vector
        Conv(4, 9, 9, 3),  # shorter than the filter
        Conv(4, 3, 2, 40, pads=(30, 25)),  # whole tiles of zeros
    ],
)
def test_known_lengths(conv: Conv, build: Build) -> None:
    check(build, conv)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "conv",
    [
        Conv(10, 17, 5, "n", "batch", dilation=2, tail="residual"),
        Conv(24, 24, 7, "n", "batch", groups=24, tail="silu"),
    ],
)
def test_any_length(conv: Conv, build: Build) -> None:
    for length in (1, 5, 31, 32, 96, 97, 1000):
        check(build, conv, n=length, batch=2)


def test_a_long_signal_is_computed_in_blocks(build: Build) -> None:
    check(build, Conv(300, 10, 3, "n"), n=20_000)


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3"])
def test_narrower_processors(level: str, tmp_path: Path, cache: KernelCache) -> None:
    if not native_level().startswith("x86-64-v") or level > native_level():
        pytest.skip("this machine cannot run it")

    def build(signature: RegionSignature) -> LibraryBuild:
        return build_library([signature], Target("cpu", level), tmp_path / "a.ops.so", cache=cache)

    check(build, Conv(10, 17, 5, 133, dilation=2, tail="residual"))


def test_every_tile_computes_the_same(tmp_path: Path) -> None:
    target, conv = Target("cpu", native_level()), Conv(20, 26, 3, 333)
    found, chosen = match(conv.signature()), read_choices("pixels=4,panel=2")
    assert isinstance(found, OneAxisConv) and chosen is not None
    assert found.chosen(chosen).tile(target.level) != found.tile(target.level)
    folder = tmp_path / "kernels"
    folder.mkdir()

    def build(signature: RegionSignature) -> LibraryBuild:
        return build_library(
            [signature], target, tmp_path / "a.ops.so", cache=KernelCache(folder),
            chooser=lambda *_: "pixels=4,panel=2",
        )  # fmt: skip

    check(build, conv)


@pytest.mark.parametrize(
    ("conv", "attributes", "reason"),
    [
        (Conv(4, 4, 3), ", strides = [2]", "window moves by more than one"),
        (Conv(4, 4, 3), ', auto_pad = "SAME_UPPER"', "pads are not stated"),
        (Conv(4, 4, 3, "n", pads=(1, 0)), "", "of a length that is not known"),
        (Conv(4, 4, 3, groups=3), "", "groups that do not fit"),
    ],
)
def test_what_is_refused_has_a_reason(conv: Conv, attributes: str, reason: str) -> None:
    refused = refusal(conv.signature(attributes), Target("cpu", "native"))
    assert refused is not None
    assert reason in refused.reason
