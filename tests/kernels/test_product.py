"""Products with a packed matrix in ONNX Runtime, against the function bodies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fused_model import fused_model, session, tensor
from ortkit.custom_ops.tvm.gemm.fp32 import RUNS, Product, match

from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import LibraryBuild, build_library, refusal
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.tvm.backend import TvmBackend
from ortkit.kernels.tvm.choices import read_choices
from ortkit.targets.cpu import native_level, runs_here
from ortkit.targets.target import Target

Build = Callable[..., LibraryBuild]
TAILS = {"": "y = Identity (s)", "gelu": "y = Gelu (s)", "silu": "g = Sigmoid (s)  y = Mul (s, g)"}


def packed_product(
    rows: int | str,
    depth: int,
    columns: int,
    tail: str = "",
    *,
    width: int = 48,
    has_bias: bool = True,
) -> RegionSignature:
    """Return rows times a matrix in panels of `width` columns."""
    panels = -(-columns // width)
    body = [
        f'<opset_import: ["" : 20]> f (x, w{", b" if has_bias else ""}) => (y) {{',
        "t = Transpose <perm = [1, 0, 2]> (w)",
        f"n = Constant <value_ints = [{depth}, {panels * width}]> ()",
        f"{'m' if columns == panels * width else 'r'} = Reshape (t, n)",
    ]
    if columns < panels * width:
        body += [
            "z = Constant <value_ints = [0]> ()",
            f"e = Constant <value_ints = [{columns}]> ()",
            "a = Constant <value_ints = [1]> ()",
            "m = Slice (r, z, e, a)",
        ]
    body += ["p = MatMul (x, m)", "s = Add (p, b)"] if has_bias else ["s = MatMul (x, m)"]
    inputs = [tensor("x", rows, depth), tensor("w", panels, depth, width)]
    inputs += [tensor("b", columns)] if has_bias else []
    text = "  ".join([*body, TAILS[tail], "}"])
    return RegionSignature("product", text, tuple(inputs), (tensor("y", rows, columns),))


def feeds(signature: RegionSignature, rows: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(rows)
    sizes = {
        spec.name: tuple(rows if isinstance(size, str) else size for size in spec.shape)
        for spec in signature.inputs
    }
    return {name: random.uniform(-1, 1, size).astype(np.float32) for name, size in sizes.items()}


def library(build: Build, signature: RegionSignature) -> Path:
    made = build(signature).library
    assert made is not None
    return Path(made.path)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("columns", "depth", "tail", "has_bias"),
    [
        (96, 40, "gelu", True),  # whole panels
        (100, 33, "silu", True),  # a last panel of 4 columns
        (77, 20, "", False),  # one of 29
        (31, 64, "gelu", True),  # less than a panel
    ],
)
def test_any_number_of_rows(
    columns: int, depth: int, tail: str, has_bias: bool, build: Build
) -> None:
    signature = packed_product("n", depth, columns, tail, has_bias=has_bias)
    path, model = library(build, signature), fused_model(signature)
    plain, ours, both = session(model), session(model, path), session(model, path, 2)
    # Rows of less than a tile, all that may be left after tiles, and more than one to a run.
    for rows in (*range(20), 64, 145, 9 * RUNS, 9 * RUNS + 1, 300):
        given = feeds(signature, rows)
        (want,) = plain.run(None, given)
        (got,) = ours.run(None, given)
        assert got.shape == want.shape == (rows, columns)
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-5)
        assert np.array_equal(both.run(None, given)[0], got)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rows", [1, 8, 9, 48, 150])
@pytest.mark.parametrize("width", [16, 32, 64])
def test_known_rows_and_other_panels(rows: int, width: int, build: Build) -> None:
    signature = packed_product(rows, 30, 70, "gelu", width=width)
    path, model, given = library(build, signature), fused_model(signature), feeds(signature, rows)
    for threads in (1, 2):
        (got,) = session(model, path, threads).run(None, given)
        np.testing.assert_allclose(got, session(model).run(None, given)[0], rtol=0, atol=2e-5)


@pytest.mark.parametrize("rows", [400, 1700])
def test_rows_that_do_not_stay_near_are_computed_in_blocks(rows: int, build: Build) -> None:
    signature = packed_product("n", 2048, 100)
    path, model, given = library(build, signature), fused_model(signature), feeds(signature, rows)
    (got,) = session(model, path, 2).run(None, given)
    want = given["x"] @ given["w"].transpose(1, 0, 2).reshape(2048, -1)[:, :100] + given["b"]
    np.testing.assert_allclose(got, want, rtol=0, atol=5e-4)


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3"])
def test_narrower_processors(level: str, tmp_path: Path, cache: KernelCache) -> None:
    if not native_level().startswith("x86-64-v") or level > native_level():
        pytest.skip("this machine cannot run it")
    signature = packed_product("n", 30, 70, "gelu")
    made = build_library([signature], Target("cpu", level), tmp_path / "a.ops.so", cache=cache)
    assert made.library is not None
    model = fused_model(signature)
    for rows in (1, 6, 7, 40):
        given = feeds(signature, rows)
        (got,) = session(model, made.library.path).run(None, given)
        np.testing.assert_allclose(got, session(model).run(None, given)[0], rtol=0, atol=2e-5)


@pytest.mark.parametrize("depth", [1, 3, 4, 6, 127])
def test_steps_of_narrower_processors(depth: int, tmp_path: Path, cache: KernelCache) -> None:
    """Some steps of the depth make one turn of a loop: none, all, or some are left over."""
    target = Target("cpu", "x86-64-v3")
    if not runs_here(target.level):
        pytest.skip("this machine cannot run it")
    known = [(rows, packed_product(rows, depth, 100, "silu")) for rows in (1, 6, 23)]
    any_number = packed_product("n", depth, 100, "silu")
    signatures = [*(each for _, each in known), any_number]
    made = build_library(signatures, target, tmp_path / "a.ops.so", cache=cache)
    assert made.library is not None
    for rows, signature in [*known, *((rows, any_number) for rows in (0, 1, 5, 12, 200))]:
        model, given = fused_model(signature), feeds(signature, rows)
        x, w, b = (given[name].astype(np.float64) for name in "xwb")
        want = x @ w.transpose(1, 0, 2).reshape(depth, -1)[:, :100] + b
        for threads in (1, 2):
            (got,) = session(model, made.library.path, threads).run(None, given)
            np.testing.assert_allclose(got, want / (1 + np.exp(-want)), rtol=0, atol=2e-5)


def test_rows_of_several_axes(build: Build) -> None:
    flat = packed_product("n", 30, 70)
    inputs = (tensor("x", "n", 3, "m", 30), *flat.inputs[1:])
    signature = RegionSignature("product", flat.body, inputs, (tensor("y", "n", 3, "m", 70),))
    path, model = library(build, signature), fused_model(signature)
    for rows in (1, 4, 7):
        given = feeds(signature, rows)
        for threads in (1, 2):
            (got,) = session(model, path, threads).run(None, given)
            np.testing.assert_allclose(got, session(model).run(None, given)[0], rtol=0, atol=2e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rows", ["n", 48])
@pytest.mark.parametrize("choices", ["pixels=4", "panel=1", "pixels=10,panel=2"])
def test_every_tile_computes_the_same(rows: int | str, choices: str, tmp_path: Path) -> None:
    signature = packed_product(rows, 30, 150, "gelu")
    target, folder = Target("cpu", native_level()), tmp_path / "kernel"
    folder.mkdir()
    backend = TvmBackend()
    assert [*backend.parameters(signature, target)] == ["pixels", "panel"]
    found = match(signature)
    assert isinstance(found, Product)
    chosen = read_choices(choices)
    assert chosen is not None
    wide = "x86-64-v4"  # AVX2 has tiles of one vector alone
    assert found.chosen(chosen).tile(wide) != found.tile(wide)
    made = build_library(
        [signature], target, tmp_path / "a.ops.so", cache=KernelCache(folder),
        chooser=lambda *_: choices,
    )  # fmt: skip
    assert made.library is not None
    model = fused_model(signature)
    for count in (1, 17, 48) if rows == "n" else (48,):
        given = feeds(signature, count)
        (got,) = session(model, made.library.path, 2).run(None, given)
        np.testing.assert_allclose(got, session(model).run(None, given)[0], rtol=0, atol=2e-5)


def test_nan_stays_in_its_row(build: Build) -> None:
    signature = packed_product("n", 30, 70, "gelu")
    path, given = library(build, signature), feeds(signature, 30)
    given["x"][11, 3] = np.nan
    (got,) = session(fused_model(signature), path).run(None, given)
    assert np.isnan(got[11]).all()
    assert np.isfinite(np.delete(got, 11, 0)).all()


def test_units_are_many_enough_for_threads_and_weights_are_told() -> None:
    found = match(packed_product("n", 64, 480))
    assert isinstance(found, Product)
    launch = found.launch("x86-64-v4")
    assert [size.static for size in launch.units] == [10, RUNS]
    assert (launch.points.factor, len(launch.points.symbols)) == (48 // RUNS, 1)
    assert launch.shared_nanoseconds == 64 * 480 * 4 * 66 // 1000


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("MatMul (x,", "MatMul (u,", "a product of something that is computed in the region"),
        ("Gelu (s)", "Softmax (s)", "operator Softmax in an epilogue"),
    ],
)
def test_what_is_refused_has_a_reason(old: str, new: str, reason: str) -> None:
    signature = packed_product("n", 30, 70, "gelu")
    body = signature.body.replace("{  t =", "{ u = Relu (x)  t =").replace(old, new)
    other = RegionSignature("product", body, signature.inputs, signature.outputs)
    refused = refusal(other, Target("cpu", "native"))
    assert refused is not None
    assert reason in refused.reason


@pytest.mark.parametrize(
    ("old", "new"), [("[1, 0, 2]", "[0, 1, 2]"), ("[70]", "[69]"), ("[0]", "[1]")]
)
def test_another_packing_is_no_such_product(old: str, new: str) -> None:
    signature = packed_product("n", 30, 70)
    body = signature.body.replace(old, new)
    assert body != signature.body
    other = RegionSignature("product", body, signature.inputs, signature.outputs)
    assert not isinstance(match(other), Product)
