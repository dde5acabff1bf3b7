"""Convolution kernels in ONNX Runtime against the function bodies, which ONNX Runtime computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from conv_regions import (
    depthwise,
    expand_depthwise,
    feeds,
    full,
    head,
    pointwise,
    squeeze_excite,
    stem,
)
from fused_model import fused_model, session, tensor

from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import LibraryBuild, build_library, refusal
from ortkit.kernels.signature import RegionSignature
from ortkit.targets.cpu import native_level
from ortkit.targets.target import Target

Build = Callable[..., LibraryBuild]
SAME, WIDE, UNEVEN = (1, 1, 1, 1), (2, 2, 2, 2), (0, 0, 1, 1)

POINTWISE = {
    "image of whole tiles": (pointwise((1, 14, 14), (32, 96)), {}),
    "pixels that fill no whole tile": (pointwise((2, 9, 11), (24, 40)), {}),
    "one pixel, odd channels": (pointwise((3, 1, 1), (5, 3), "gelu"), {}),
    "many runs": (pointwise((1, 40, 40), (64, 50), "relu6"), {}),
    "gate and residual": (
        pointwise(("n", 7, 7), (96, 24), "", gate=True, residual=True),
        {"n": 3},
    ),
    "silu whose gate is read again": (pointwise((1, 5, 5), (8, 16), "twice"), {}),
    "named height": (pointwise((1, "h", 13), (20, 17), residual=True), {"h": 6}),
    "all sizes named": (pointwise(("n", "h", "w"), (20, 33)), {"n": 2, "h": 3, "w": 29}),
    "rows shorter than a tile": (pointwise(("n", "h", "w"), (7, 16)), {"n": 1, "h": 4, "w": 2}),
    "empty batch": (pointwise(("n", 4, 4), (8, 16)), {"n": 0}),
}
DEPTHWISE = {
    "3x3": (depthwise((1, 14, 14), 48, 3, 1, SAME, means=True), {}),
    "3x3 strided, uneven pads": (depthwise((2, 15, 17), 32, 3, 2, UNEVEN, "relu6"), {}),
    "5x5 strided": (depthwise(("n", 13, 12), 37, 5, 2, (1, 2, 2, 1), means=True), {"n": 2}),
    "7x7 on a small image": (depthwise((1, 7, 7), 16, 7, 1, (3, 3, 3, 3), means=True), {}),
    "dilated": (depthwise((1, 20, 21), 19, 3, 1, WIDE, dilation=2), {}),
    "wider than the image": (depthwise((1, 2, 2), 16, 5, 1, WIDE, ""), {}),
    "no pads": (depthwise((1, 9, 33), 8, 3, 1, (0, 0, 0, 0), "gelu"), {}),
    "pads of more than the filter": (depthwise((1, 9, 9), 16, 3, 3, (5, 0, 0, 5), ""), {}),
    "one channel of a vector": (depthwise((1, 6, 6), 17, 3, 1, SAME), {}),
    "named height": (depthwise(("n", "h", 12), 24, 3, 1, SAME, means=True), {"n": 2, "h": 5}),
}
EXPAND: Mapping[str, tuple[RegionSignature, dict[str, int]]] = {
    "expand, 3x3": (expand_depthwise((1, 14, 14), (16, 96), 3, 1, SAME, means=True), {}),
    "expand, strided, bands": (
        expand_depthwise((2, 56, 57), (8, 48), 3, 2, UNEVEN, "relu6"), {}
    ),
    "expand, odd and named": (
        expand_depthwise(("n", 17, 15), (5, 37), 5, 2, (1, 2, 2, 1), means=True), {"n": 2}
    ),
    "expand, stride of the filter": (
        expand_depthwise((1, 9, 9), (8, 24), 3, 3, (5, 0, 0, 5), ""), {}
    ),
    "expand, more filter than image": (expand_depthwise((1, 2, 3), (4, 16), 5, 1, WIDE), {}),
}  # fmt: skip
OTHERS = {
    "squeeze-excite": (squeeze_excite(2, 7, 8, 32), {}),
    "squeeze-excite, odd and named": (squeeze_excite("n", "r", 5, 37), {"n": 3, "r": 4}),
    "squeeze-excite, wide": (squeeze_excite(1, 7, 48, 1152), {}),
    "stem": (stem((1, 3, 32, 32), 32, 3, 2, UNEVEN), {}),
    "stem 7x7": (stem(("n", 3, 41, 39), 24, 7, 2, (3, 3, 3, 3), "relu6"), {"n": 2}),
    "stem of one channel": (stem((1, 1, "h", 28), 20, 5, 1, WIDE, ""), {"h": 9}),
}
HEAD: Mapping[str, tuple[RegionSignature, dict[str, int]]] = {
    "head of three channels": (head((2, 9, 21), (32, 3), 3, residual=True), {}),
    "head of one channel": (head((1, 6, 37), (16, 1), 5, 1, WIDE, "silu"), {}),
    "head of two, odd depth, named height": (head(("n", "h", 13), (23, 2), 3), {"n": 2, "h": 5}),
    "head of four, strided, no bias": (
        head((1, 15, 17), (40, 4), 3, 2, UNEVEN, "gelu", has_bias=False), {}
    ),
    "head, one tap": (head((1, 5, 26), (180, 3), 1, 1, (0, 0, 0, 0)), {}),
    "head, dilated": (head((1, 9, 11), (20, 3), 3, 1, WIDE, dilation=2), {}),
    "head, more filter than image": (head((1, 2, 3), (31, 3), 7, 1, (3, 3, 3, 3)), {}),
    "head, one pixel": (head((3, 1, 1), (64, 4), 1, 1, (0, 0, 0, 0), "relu6"), {}),
    "head, pads of more than the filter": (head((1, 4, 4), (16, 3), 3, 3, (4, 0, 1, 5)), {}),
    "head of gated values": (
        head(("n", 6, 9), (37, 3), 1, 1, (0, 0, 0, 0), "silu", gate=True, residual=True), {"n": 2}
    ),
    "head, empty batch": (head(("n", 4, 5), (16, 3), 3), {"n": 0}),
}  # fmt: skip
FULL: Mapping[str, tuple[RegionSignature, dict[str, int]]] = {
    "full, 3x3 strided": (full((2, 15, 17), (24, 40), 3, 2), {}),
    "full, wide rows": (full((1, 5, 70), (16, 32), 3, residual=True), {}),
    "full, 1x1 strided": (full(("n", 9, 7), (33, 48), 1, 2, (0, 0, 0, 0), ""), {"n": 2}),
    "full, named height, odd channels": (full((1, "h", 6), (5, 21), 3), {"h": 4}),
    "full, dilated": (full((1, 9, 11), (8, 16), 3, 1, WIDE, "gelu", dilation=2), {}),
    "full, 5x5, uneven pads": (full((1, 6, 7), (7, 50), 5, 2, (1, 2, 2, 1)), {}),
    "full, pads of more than the filter": (full((1, 4, 4), (8, 16), 3, 3, (4, 0, 1, 5), ""), {}),
    "full, empty batch": (full(("n", 4, 4), (8, 16), 3), {"n": 0}),
    "full, named width": (full((1, 5, "w"), (16, 48), 3, residual=True), {"w": 23}),
}
WINOGRAD: Mapping[str, tuple[RegionSignature, dict[str, int]]] = {
    "winograd, whole tiles": (full((1, 8, 12), (32, 64), 3, minimal=True), {}),
    "winograd, residual, two images": (
        full((2, 14, 14), (48, 96), 3, residual=True, minimal=True), {}
    ),
    "winograd, many runs": (full((1, 62, 61), (16, 16), 3, 1, SAME, "relu6", minimal=True), {}),
    "winograd, a narrower panel": (full((1, 7, 7), (16, 80), 3, minimal=True), {}),
    "winograd, uneven pads": (full((3, 9, 6), (16, 32), 3, 1, (0, 2, 1, 0), minimal=True), {}),
    "winograd, pads of more than the filter": (
        full((1, 5, 6), (16, 16), 3, 1, (5, 0, 0, 6), "", minimal=True), {}
    ),
    "winograd, no pads": (full((1, 3, 3), (16, 16), 3, 1, (0, 0, 0, 0), minimal=True), {}),
    "winograd, named batch": (full(("n", 7, 9), (32, 48), 3, minimal=True), {"n": 1}),
    "winograd, named batch of many": (
        full(("n", 10, 10), (16, 32), 3, residual=True, minimal=True), {"n": 37}
    ),
    "winograd, named batch of large images": (
        full(("n", 40, 30), (16, 16), 3, minimal=True), {"n": 2}
    ),
    "winograd, all sizes named": (
        full(("n", "h", "w"), (32, 48), 3, residual=True, minimal=True), {"n": 2, "h": 13, "w": 6}
    ),
    "winograd, named sides of many tiles": (
        full((1, "h", "w"), (16, 80), 3, minimal=True), {"h": 61, "w": 50}
    ),
    "winograd, named sides of one pixel": (
        full((1, "h", "w"), (16, 16), 3, 1, (2, 0, 0, 2), "", minimal=True), {"h": 1, "w": 1}
    ),
    "winograd, named width": (full((1, 9, "w"), (16, 32), 3, minimal=True), {"w": 30}),
    "winograd, named height": (full((1, "h", 9), (16, 32), 3, minimal=True), {"h": 30}),
    "winograd, empty batch": (full(("n", 8, 8), (16, 16), 3, minimal=True), {"n": 0}),
}  # fmt: skip
ALL: Mapping[str, tuple[RegionSignature, dict[str, int]]] = (
    POINTWISE | DEPTHWISE | EXPAND | OTHERS | HEAD | FULL | WINOGRAD
)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("case", ALL)
def test_kernels_agree_with_their_bodies(case: str, build: Build) -> None:
    signature, sizes = ALL[case]
    library = build(signature).library
    assert library is not None
    model, inputs = fused_model(signature), feeds(signature, sizes)
    expected = session(model).run(None, inputs)
    for threads in (1, 2):
        found = session(model, library.path, threads).run(None, inputs)
        for got, want in zip(found, expected, strict=True):
            assert got.shape == want.shape
            # Sums of up to 1152 products of about 1, in another order.
            np.testing.assert_allclose(got, want, rtol=0, atol=2e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3"])
@pytest.mark.parametrize(
    "case",
    [
        "gate and residual",
        "5x5 strided",
        "expand, odd and named",
        "stem",
        "head of three channels",
        "full, 3x3 strided",
        "full, named width",
        "winograd, residual, two images",
        "winograd, all sizes named",
    ],
)
def test_kernels_for_narrower_processors(
    case: str, level: str, tmp_path: Path, cache: KernelCache
) -> None:
    if not native_level().startswith("x86-64-v") or level > native_level():
        pytest.skip("this machine cannot run it")
    signature, sizes = ALL[case]
    target = Target("cpu", level)
    library = build_library([signature], target, tmp_path / "model.ops.so", cache=cache).library
    assert library is not None
    model, inputs = fused_model(signature), feeds(signature, sizes)
    found = session(model, library.path).run(None, inputs)
    for got, want in zip(found, session(model).run(None, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-5)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "case",
    [
        "expand, strided, bands",
        "many runs",
        "gate and residual",
        "3x3",
        "stem",
        "head of three channels",
        "pixels that fill no whole tile",
        "full, 3x3 strided",
        "winograd, many runs",
    ],
)
def test_results_do_not_depend_on_the_threads(case: str, build: Build) -> None:
    signature, sizes = ALL[case]
    library = build(signature).library
    assert library is not None
    model, inputs = fused_model(signature), feeds(signature, sizes)
    alone = session(model, library.path, 1).run(None, inputs)
    for got, want in zip(session(model, library.path, 2).run(None, inputs), alone, strict=True):
        assert np.array_equal(got, want)


def test_nan_and_infinities_stay_where_they_are(build: Build) -> None:
    signature = pointwise((1, 4, 4), (8, 16), "relu6")
    library = build(signature).library
    assert library is not None
    model, inputs = fused_model(signature), feeds(signature, {})
    inputs["x"][0, 0, 0, 0], inputs["x"][0, 1, 1, 1] = np.nan, np.inf
    found, expected = (session(model, path).run(None, inputs)[0] for path in (library.path, None))
    assert np.isnan(found[0, 0, 0]).all()
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


def test_minimal_filtering_is_nearly_as_exact(build: Build) -> None:
    """Against float64: 7.5 times what ONNX Runtime's own sums are off; the points +-1, +-2, 15."""
    signature = full((4, 16, 16), (256, 32), 3, activation="", minimal=True)
    library = build(signature).library
    assert library is not None
    model, inputs = fused_model(signature), feeds(signature, {})
    inputs["x"] = np.maximum(inputs["x"], 0)
    weight = inputs["w"].reshape(2, 256, 3, 3, 16).transpose(2, 3, 1, 0, 4).reshape(3, 3, 256, 32)
    padded = np.pad(inputs["x"].astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    exact = inputs["b"] + sum(
        padded[:, i : i + 16, j : j + 16] @ weight[i, j].astype(np.float64)
        for i in range(3)
        for j in range(3)
    )
    ours, theirs = (
        np.sqrt(np.mean((session(model, path).run(None, inputs)[0] - exact) ** 2))
        for path in (library.path, None)
    )
    assert ours <= 10 * theirs


def test_what_one_tile_reads_spoils_no_other(build: Build) -> None:
    signature = full((1, 16, 16), (16, 16), 3, activation="", minimal=True)
    library = build(signature).library
    assert library is not None
    model, inputs = fused_model(signature), feeds(signature, {})
    plain = session(model).run(None, inputs)[0]
    inputs["x"][0, 6, 6, 3] = np.nan
    found = session(model, library.path).run(None, inputs)[0]
    is_spoilt = np.isnan(found[0]).all(axis=-1)
    assert is_spoilt[5:8, 5:8].all()
    is_spoilt[4:8, 4:8] = False
    assert not is_spoilt.any()
    np.testing.assert_allclose(found[0, :4], plain[0, :4], rtol=0, atol=2e-5)


def with_body(signature: RegionSignature, old: str, new: str) -> RegionSignature:
    assert old in signature.body
    return RegionSignature(
        signature.name, signature.body.replace(old, new), signature.inputs, signature.outputs
    )


REFUSED = {
    "another pool": (
        with_body(squeeze_excite(1, 7, 8, 32), "GlobalAveragePool", "GlobalMaxPool"), ""
    ),
    "an operator that is no epilogue": (
        with_body(pointwise((1, 4, 4), (8, 16), "gelu"), "Gelu (c)", "Softmax (c)"),
        "operator Softmax in an epilogue",
    ),
    "rows that are too wide to keep": (
        expand_depthwise((1, 8, 1000), (8, 16), 5, 1, WIDE),
        "more between them than 64 KB",
    ),
    "two convolutions, the first one 3x3": (
        with_body(
            expand_depthwise((1, 8, 8), (8, 16), 3, 1, SAME),
            "kernel_shape = [1, 1]", "kernel_shape = [3, 3], pads = [1, 1, 1, 1]",
        ),
        "two convolutions the first of which is not 1x1",
    ),
    "a width that is not known": (
        depthwise((1, 8, "w"), 16, 3, 1, SAME),
        "rows of a width that is not known",
    ),
    "rows of a width that is not known, a filter too large to list its pixels": (
        full((1, 8, "w"), (16, 16), 13),
        "more than 128 taps over rows of a width that is not known",
    ),
    "weights in another order": (
        full((1, 8, 8), (16, 16), 5, 1, WIDE, minimal=True),
        "a weight that is not packed",
    ),
    "few channels over a width that is not known": (
        head((1, 8, "w"), (16, 3), 3), "rows of a width that is not known"
    ),
    "a filter too large for the stack": (
        stem((1, 64, 64, 300), 32, 7, 1, (3, 3, 3, 3)),
        "more under a row of its result than",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_has_a_reason(case: str) -> None:
    signature, reason = REFUSED[case]
    refused = refusal(signature, Target("cpu", "native"))
    assert refused is not None
    assert reason in refused.reason


def test_a_residual_of_another_shape_is_refused() -> None:
    signature = pointwise((2, 4, 4), (8, 16), residual=True)
    inputs = tuple(
        tensor("r", 1, 4, 4, 16) if spec.name == "r" else spec for spec in signature.inputs
    )
    broadcast = RegionSignature(signature.name, signature.body, inputs, signature.outputs)
    refused = refusal(broadcast, Target("cpu", "native"))
    assert refused is not None
    assert "another shape" in refused.reason
