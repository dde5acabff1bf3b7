"""Products with gates, residuals and factors of columns, against float64."""

from __future__ import annotations

from collections.abc import Callable
from math import erf
from pathlib import Path

import numpy as np
import pytest
from fused_model import fused_model, session, tensor
from ortkit.custom_ops.tvm.gemm.fp32 import Product, match

from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import LibraryBuild, build_library
from ortkit.kernels.layouts.fp32_panels import gated_layout, layout
from ortkit.kernels.node_writer import NodeWriter
from ortkit.kernels.signature import RegionSignature, signature_of
from ortkit.refusal import Refused
from ortkit.targets.cpu import native_level
from ortkit.targets.target import Target

Build = Callable[..., LibraryBuild]
Dim = int | str
GATES = ("plain", "gelu", "silu")


def product(
    rows: tuple[Dim, ...],
    depth: int,
    columns: int,
    gate: str = "",
    *,
    scale: tuple[Dim, ...] | None = None,
    residual: bool = False,
    has_bias: bool = True,
) -> RegionSignature:
    """Return rows times a matrix; `columns` are those of the result."""
    whole = 2 * columns if gate else columns
    packing = gated_layout(depth, whole) if gate else layout(depth, whole)
    w = NodeWriter()
    value = w.op("MatMul", w.op("Mul", "x", "s") if scale else "x", w.unpacked("w", packing))
    value = w.op("Add", value, "b") if has_bias else value
    if gate:
        first, second = w.split(value, w.integers(columns, columns), axis=-1)
        if gate == "gelu":
            first = w.op("Gelu", first)
        elif gate == "silu":
            second = w.op("Mul", second, w.op("Sigmoid", second))
        value = w.op("Mul", second, first)
    value = w.op("Add", "r", value) if residual else value
    inputs = {"x": tensor("x", *rows, depth), "w": tensor("w", *packing.shape)}
    inputs |= {"b": tensor("b", whole)} if has_bias else {}
    inputs |= {"s": tensor("s", *scale)} if scale else {}
    inputs |= {"r": tensor("r", *rows, columns)} if residual else {}
    outputs = {value: tensor("y", *rows, columns)}
    return signature_of("product", w.nodes, 20, inputs, outputs)


def feeds(signature: RegionSignature, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    return {
        spec.name: random.uniform(
            -1, 1, [sizes[size] if isinstance(size, str) else size for size in spec.shape]
        ).astype(np.float32)
        for spec in signature.inputs
    }


def exact(given: dict[str, np.ndarray], columns: int, gate: str = "") -> np.ndarray:
    """Return what a product is in float64."""
    wide = {name: array.astype(np.float64) for name, array in given.items()}
    packed = wide["w"]
    if packed.ndim == 4:
        matrix = packed.transpose(1, 2, 0, 3).reshape(packed.shape[1], 2, -1)[:, :, :columns]
    else:
        matrix = packed.transpose(1, 0, 2).reshape(packed.shape[1], -1)[:, :columns]
    rows = wide["x"] * wide.get("s", np.ones(()))
    result = rows @ matrix.reshape(len(matrix), -1) + wide.get("b", np.zeros(()))
    if gate:
        first, second = result[..., :columns], result[..., columns:]
        if gate == "gelu":
            first = first / 2 * (1 + np.vectorize(erf, otypes=[float])(first / np.sqrt(2)))
        elif gate == "silu":
            second = second / (1 + np.exp(-second))
        result = first * second
    return result + wide.get("r", np.zeros(()))


def assert_exact(
    build: Build, signature: RegionSignature, sizes: dict[str, int], gate: str = ""
) -> None:
    library = build(signature).library
    assert library is not None
    given, model = feeds(signature, sizes), fused_model(signature)
    (columns,) = signature.outputs[0].shape[-1:]
    assert isinstance(columns, int)
    want = exact(given, columns, gate)
    alone, both = (session(model, Path(library.path), n).run(None, given)[0] for n in (1, 2))
    assert alone.shape == want.shape
    np.testing.assert_allclose(alone, want, rtol=0, atol=1e-4)
    assert np.array_equal(alone, both)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rows", [0, 1, 13, 100, 300])
@pytest.mark.parametrize("columns", [32, 40, 37, 16, 5, 100])
@pytest.mark.parametrize("gate", GATES)
def test_halves_gate_each_other(rows: int, columns: int, gate: str, build: Build) -> None:
    signature = product(("n",), 33, columns, gate, has_bias=columns != 16)
    assert isinstance(match(signature), Product)
    assert_exact(build, signature, {"n": rows}, gate)


@pytest.mark.parametrize(("rows", "columns"), [((2, 7, 9), 48), ((1, 1, 1), 20)])
def test_known_rows_of_several_axes(rows: tuple[int, ...], columns: int, build: Build) -> None:
    assert_exact(build, product(rows, 64, columns, "gelu"), {}, "gelu")


@pytest.mark.parametrize("columns", [96, 70])
@pytest.mark.parametrize("gate", ["", "plain"])
def test_rows_of_the_results_shape_are_added(columns: int, gate: str, build: Build) -> None:
    signature = product(("n", "h"), 40, columns, gate, residual=True)
    for sizes in ({"n": 1, "h": 1}, {"n": 3, "h": 50}, {"n": 0, "h": 4}):
        assert_exact(build, signature, sizes, gate)


@pytest.mark.parametrize("gate", ["", "silu"])
@pytest.mark.parametrize("images", ["n", 1])
def test_columns_of_each_image_have_factors(images: Dim, gate: str, build: Build) -> None:
    signature = product(
        ("n", 5, 7), 45, 50, gate, scale=(images, 1, 1, 45), residual=True
    )  # fmt: skip
    found = match(signature)
    assert isinstance(found, Product)
    assert found.scale is not None
    for count in (0, 1, 4):
        assert_exact(build, signature, {"n": count}, gate)


@pytest.mark.parametrize("sides", [("h", "w"), (40, 41)])
def test_factors_of_images_of_many_runs(sides: tuple[Dim, Dim], build: Build) -> None:
    signature = product((2, *sides), 20, 33, scale=(2, 1, 1, 20))
    for height, width in ((1, 1), (40, 41)) if sides[0] == "h" else ((40, 41),):
        assert_exact(build, signature, {"h": height, "w": width})


@pytest.mark.parametrize(
    ("rows", "scale"), [(("n", 5, 7), (1, 1, 7, 45)), (("n",), ("n", 45)), ((4, 5), (2, 1, 45))]
)
def test_other_factors_are_no_part_of_a_product(
    rows: tuple[Dim, ...], scale: tuple[Dim, ...]
) -> None:
    assert not isinstance(match(product(rows, 45, 50, scale=scale)), Product)


def test_halves_of_other_sizes_are_no_gate() -> None:
    signature = product(("n",), 33, 32, "plain")
    body = signature.body.replace("{32,32}", "{31,33}")
    assert body != signature.body
    other = RegionSignature(signature.name, body, signature.inputs, signature.outputs)
    assert not isinstance(match(other), Product)


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3"])
def test_narrower_processors(level: str, tmp_path: Path, cache: KernelCache) -> None:
    if not native_level().startswith("x86-64-v") or level > native_level():
        pytest.skip("this machine cannot run it")
    signature = product(("n", 9), 30, 37, "gelu", scale=("n", 1, 30), residual=True)
    target = Target("cpu", level)
    library = build_library([signature], target, tmp_path / "a.ops.so", cache=cache).library
    assert library is not None
    given = feeds(signature, {"n": 3})
    (got,) = session(fused_model(signature), library.path).run(None, given)
    np.testing.assert_allclose(got, exact(given, 37, "gelu"), rtol=0, atol=1e-4)


def test_nan_stays_in_its_row_and_its_image(build: Build) -> None:
    signature = product((2, 3, 5), 30, 40, "plain", scale=(2, 1, 1, 30))
    library = build(signature).library
    assert library is not None
    given = feeds(signature, {})
    given["x"][0, 1, 2, 3] = given["s"][1, 0, 0, 7] = np.nan
    (got,) = session(fused_model(signature), Path(library.path)).run(None, given)
    assert np.isnan(got[1]).all()
    assert np.isnan(got[0, 1, 2]).all()
    assert np.isnan(got[0]).sum() == 40


def test_a_residual_of_another_shape_is_refused() -> None:
    signature = product(("n", 5), 33, 40, residual=True)
    inputs = tuple(
        tensor("r", 1, 5, 40) if spec.name == "r" else spec for spec in signature.inputs
    )
    broadcast = RegionSignature(signature.name, signature.body, inputs, signature.outputs)
    refused = match(broadcast)
    assert isinstance(refused, Refused)
    assert "another shape" in refused.reason
