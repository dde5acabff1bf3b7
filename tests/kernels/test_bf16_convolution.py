"""Convolutions of bfloat16: what the kernels compute against ONNX Runtime's own Conv."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from fused_model import fused_model, session
from test_bf16_product import GELU, LEVELS, run, x86_64

from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library, refusal
from ortkit.kernels.layouts.bf16_blocks import Geometry, Product, pack_filter, signature_of
from ortkit.kernels.signature import RegionSignature
from ortkit.targets.target import Target

SQUARE = Geometry((9, 11), 32, (3, 3), pads=(1, 1, 1, 1))


def convolution(geometry: Geometry, columns: int, batch: int | str = 1, **more: object) -> Product:
    """The product of a convolution, with the sizes of its result."""
    g = geometry
    height, width = (
        (g.image[i] + g.pads[i] + g.pads[i + 2] - g.dilations[i] * (g.kernel[i] - 1) - 1)
        // g.strides[i]
        + 1
        for i in (0, 1)
    )
    depth = g.kernel[0] * g.kernel[1] * g.channels
    return replace(
        Product((batch, height, width), depth, columns, geometry=geometry),
        **more,  # type: ignore[arg-type]
    )


FORMS = {
    "same": convolution(SQUARE, 48, bias=True, activation=GELU, residual="float32"),
    "few channels": convolution(
        Geometry((21, 18), 3, (7, 7), (2, 2), (3, 3, 3, 3)), 40, results=("bfloat16",)
    ),
    "dilated": convolution(
        Geometry((13, 14), 40, (3, 2), (1, 2), (1, 0, 2, 1), (2, 2)), 50, "batch"
    ),
    "wider than the image": convolution(Geometry((4, 3), 5, (5, 5), pads=(4, 4, 4, 4)), 17, 2),
    "strided points": convolution(Geometry((14, 14), 64, (1, 1), (2, 2)), 96, "batch"),
    "dilated lines": convolution(
        Geometry((9, 12), 64, (3, 2), pads=(2, 1, 0, 1), dilations=(2, 1)), 33, "batch"
    ),
    "one column": convolution(Geometry((20, 5), 32, (4, 1)), 32, "batch"),
    # More columns than a slice of work takes at once, and more rows than a block.
    "wide": convolution(Geometry((10, 10), 128, (3, 3), pads=(1, 1, 1, 1)), 520, "batch"),
}


def random_feeds(product: Product, batch: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(batch)
    geometry = product.geometry
    assert geometry is not None
    result = {}
    for spec in signature_of(product).inputs:
        shape = [batch if isinstance(size, str) else size for size in spec.shape]
        if spec.name == "w":
            shape = [product.columns, geometry.channels, *geometry.kernel]
        values = rng.standard_normal(shape, np.float32)
        if spec.name == "w":
            result["w"] = pack_filter(values / np.sqrt(np.float32(product.depth)))
        else:
            result[spec.name] = values.astype(spec.dtype)
    return result


@pytest.mark.sampled(3)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("form", FORMS)
def test_results(form: str, level: str, tmp_path: Path, cache: KernelCache) -> None:
    """The body is ONNX Runtime's own Conv of the same rounded numbers."""
    product = FORMS[form]
    signature = signature_of(product)
    made = build_library([signature], Target("cpu", level), tmp_path / "k.so", cache=cache)
    assert made.library is not None, made.refused
    model = fused_model(signature)
    for batch in (1, 3) if "batch" in product.rows else (1,):
        feeds = random_feeds(product, batch)
        (want,) = run(session(model), feeds)
        results = [run(session(model, made.library.path, n), feeds)[0] for n in (1, 3)]
        np.testing.assert_array_equal(*results)
        step = 2.0**-7 if product.results == ("bfloat16",) else 1e-5
        np.testing.assert_allclose(results[0], want, rtol=step, atol=1e-5)


@pytest.mark.parametrize("level", LEVELS)
def test_what_lies_outside_of_the_image_is_zero(
    level: str, tmp_path: Path, cache: KernelCache
) -> None:
    """Not what lies beside it in memory."""
    product = convolution(replace(SQUARE, channels=5), 16, 2)
    signature = signature_of(product)
    made = build_library([signature], Target("cpu", level), tmp_path / "k.so", cache=cache)
    assert made.library is not None, made.refused
    feeds = random_feeds(product, 2)
    feeds["a"] = np.full_like(feeds["a"], np.nan)
    feeds["a"][0] = ml_dtypes.bfloat16(1)
    (got,) = run(session(fused_model(signature), made.library.path), feeds)
    assert np.isfinite(got[0]).all()
    assert np.isnan(got[1]).all()


# ---- what is refused
def changed(product: Product, old: str, new: str) -> RegionSignature:
    signature = signature_of(product)
    assert old in signature.body
    return replace(signature, body=signature.body.replace(old, new))


PLAIN = convolution(SQUARE, 32)


@x86_64
@pytest.mark.parametrize(
    ("signature", "reason"),
    [
        (
            changed(PLAIN, "[3, 3, 32, 32]", "[3, 32, 3, 32]"),
            "a packed weight that is taken apart in another way",
        ),
        (
            changed(PLAIN, "Cast <to = 1> (a)", "Identity (a)"),
            "something that is no NHWC input of bfloat16",
        ),
        (
            changed(PLAIN, "<perm = [0, 2, 3, 1]> (p_conv)", "<perm = [0, 3, 2, 1]> (p_conv)"),
            "a convolution whose result is not NHWC",
        ),
        (changed(PLAIN, "strides = [1, 1]", "strides = [0, 1]"), "a stride, dilation or kernel"),
        (
            changed(PLAIN, "pads = [1, 1, 1, 1]", "pads = [1, 1, -10, 1]"),
            "a convolution without a result",
        ),
        (
            changed(PLAIN, "Conv <", "Conv <group = 2, "),
            "a convolution of groups, or with a bias of its own",
        ),
    ],
)  # fmt: skip
def test_what_is_no_such_convolution_is_refused(signature: RegionSignature, reason: str) -> None:
    found = refusal(signature, Target("cpu", "x86-64-v4-bf16"), "tvm")
    assert found is not None
    assert reason in found.reason


def test_a_filter_is_packed_as_the_matrix_of_its_patches() -> None:
    weight = np.arange(4 * 3 * 2 * 2, dtype=np.float32).reshape(4, 3, 2, 2)
    packed = pack_filter(weight)
    assert packed.shape == (1, 16, 16, 2)
    # Row 7 of the matrix: line 1, column 0, channel 1.
    assert packed[0, 3, 2, 1] == weight[2, 1, 1, 0]


def test_a_filter_of_another_rank_is_refused() -> None:
    with pytest.raises(ValueError, match="a filter of rank 3, not 4"):
        pack_filter(np.zeros((2, 3, 4), np.float32))
