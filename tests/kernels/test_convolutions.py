"""Convolution kernels in ONNX Runtime against the function bodies, which ONNX Runtime computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from conv_regions import depthwise, expand_depthwise, feeds, pointwise, squeeze_excite, stem
from fused_model import fused_model, session, tensor

from ortkit.kernels import LibraryBuild, RegionSignature, Target, build_library, refusal
from ortkit.kernels.cache import KernelCache
from ortkit.kernels.cpu import native_level

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
ALL: Mapping[str, tuple[RegionSignature, dict[str, int]]] = POINTWISE | DEPTHWISE | EXPAND | OTHERS


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


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3"])
@pytest.mark.parametrize(
    "case", ["gate and residual", "5x5 strided", "expand, odd and named", "stem"]
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


@pytest.mark.parametrize(
    "case",
    [
        "expand, strided, bands",
        "many runs",
        "gate and residual",
        "3x3",
        "stem",
        "pixels that fill no whole tile",
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
    "a width that is not known": (
        depthwise((1, 8, "w"), 16, 3, 1, SAME),
        "rows of a width that is not known",
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
