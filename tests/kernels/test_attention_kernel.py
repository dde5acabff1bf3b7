"""The attention kernel against float64 and ONNX Runtime's own Attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from attention_regions import Case
from fused_model import fused_model, session
from ortkit.custom_ops.tvm.attention import tiles as attention_tiles
from ortkit.custom_ops.tvm.attention.fp32 import Attention, match

from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import LibraryBuild, build_library
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.refusal import Refused
from ortkit.targets.cpu import LEVELS, native_level, runs_here
from ortkit.targets.target import Target

Build = Callable[..., LibraryBuild]
LOWEST = float(np.finfo(np.float32).min)

#: What one kernel serves at every size.
FORMS = {
    "plain": Case(),
    "causal": Case(causal=True),
    "grouped": Case(heads=6, kv_heads=2, width=64, v_width=16),
    "stacked": Case(stacked=True, heads=4, kv_heads=2, width=16, v_width=48, scale=0.3),
    "mask": Case(mask=("float32", ("s", "t")), width=48),
    "bool_mask": Case(mask=("bool", ("s", "t"))),
    "mask_of_sample": Case(mask=("float32", ("b", 1, "s", "t"))),
    "mask_of_head": Case(mask=("float32", (2, "s", "t"))),
    "mask_of_both": Case(mask=("bool", ("b", 2, "s", "t"))),
    "bool_causal": Case(mask=("bool", (1, 1, "s", "t")), causal=True, heads=4, kv_heads=1),
    "wide": Case(width=128, v_width=80, heads=1, kv_heads=1),
    "one_size": Case(queries="s", keys="s", causal=True, heads=3, kv_heads=3),
}
#: Of known sizes, at and beside the ends of tiles.
FIXED = {
    f"fixed_{queries}_{keys}": Case(queries, keys, 1, 3, 3, 16, 16)
    for queries, keys in [(1, 5), (16, 16), (37, 129), (49, 40), (197, 197)]
}
#: Forms that the tests of single properties take.
ASKED = ("plain", "causal", "mask", "bool_mask")
SIZES = [(1, 1), (1, 197), (7, 16), (16, 17), (17, 7), (33, 128), (128, 128), (197, 300)]


def run(case: Case, inputs: dict[str, np.ndarray], library: LibraryBuild | None) -> np.ndarray:
    path = None
    if library is not None:
        assert not library.refused, library.refused
        assert library.library is not None
        path = library.library.path
    return np.asarray(session(fused_model(case.signature), path).run(None, inputs)[0])


def assert_as_exact(case: Case, inputs: dict[str, np.ndarray], got: np.ndarray) -> None:
    """Not further from float64 than ONNX Runtime's own, but for a few roundings."""
    exact, own = case.exact(inputs), run(case, inputs, None)
    allowed = 2 * np.abs(own - exact).max() + 4e-7 * max(1.0, float(np.abs(exact).max()))
    assert np.abs(got - exact).max() <= allowed


@pytest.fixture
def library(build: Build) -> LibraryBuild:
    """The kernels of the cases that have their own tests."""
    return build(*(FORMS[name].signature for name in ASKED))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FORMS)
def test_every_size_is_as_accurate_as_onnx_runtime(name: str, build: Build) -> None:
    case = FORMS[name]
    library = build(case.signature)
    for queries, keys in SIZES:
        keys = queries if case.keys == case.queries else keys
        inputs = case.inputs(s=queries, t=keys, b=2)
        assert_as_exact(case, inputs, run(case, inputs, library))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FIXED)
def test_known_sizes_are_as_accurate_as_onnx_runtime(name: str, build: Build) -> None:
    case = FIXED[name]
    inputs = case.inputs()
    cases = (case, replace(case, causal=True))
    library = build(*(each.signature for each in cases))
    for each in cases:
        assert_as_exact(each, inputs, run(each, inputs, library))


def test_more_keys_than_scratch_holds(build: Build) -> None:
    case = Case(3, 4096, 1, 1, 1, 64, 64, mask=("float32", (3, 4096)))
    inputs = case.inputs()
    inputs["M"][1, :4000] = -np.inf  # the largest score comes late
    inputs["M"][2] = np.linspace(-50, 50, 4096, dtype=np.float32)  # and grows all the time
    assert_as_exact(case, inputs, run(case, inputs, build(case.signature)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "level", [level for level in LEVELS if runs_here(level) and level != native_level()]
)
def test_tiles_of_lower_levels(level: str, tmp_path: Path, cache: KernelCache) -> None:
    case = Case(causal=True, mask=("bool", ("s", "t")), heads=4, width=64, v_width=48)
    path = tmp_path / "model.opt.ops.so"
    library = build_library([case.signature], Target("cpu", level), path, cache=cache)
    for queries, keys in SIZES[2:]:
        inputs = case.inputs(s=queries, t=keys, b=2)
        inputs["M"][:, 0] = True
        assert_as_exact(case, inputs, run(case, inputs, library))


@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 3, 3), (1, 0, 3), (1, 20, 0)])
def test_nothing_to_attend_to(batch: int, queries: int, keys: int, library: LibraryBuild) -> None:
    """No keys make zeros; ONNX Runtime's own kernel takes none of these."""
    case = FORMS["plain"]
    got = run(case, case.inputs(b=batch, s=queries, t=keys), library)
    assert got.shape == (batch, queries, 64)
    assert not got.any()


def test_threads_change_no_bit(build: Build) -> None:
    case = Case(causal=True, heads=5, kv_heads=5)
    path = build(case.signature).library
    assert path is not None
    inputs = case.inputs(s=211, t=300, b=3)
    results = [
        session(fused_model(case.signature), path.path, threads).run(None, inputs)[0]
        for threads in (1, 4)
    ]
    assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.parametrize("hidden", [-np.inf, LOWEST, -3.4e38, -1e9])
def test_rows_that_are_masked_whole(hidden: float, library: LibraryBuild) -> None:
    case = FORMS["mask"]
    inputs = case.inputs(s=19, t=150, b=1)
    inputs["M"][3] = hidden
    inputs["M"][18] = hidden
    inputs["M"][5, 10:] = hidden
    got, own = run(case, inputs, library), run(case, inputs, None)
    np.testing.assert_allclose(got, own, rtol=0, atol=2e-6)
    assert (got[0, 3] == 0).all() == (hidden <= LOWEST)


def test_bool_rows_that_are_masked_whole(library: LibraryBuild) -> None:
    case = FORMS["bool_mask"]
    inputs = case.inputs(s=19, t=33, b=1)
    inputs["M"][[0, 17]] = False
    got, own = run(case, inputs, library), run(case, inputs, None)
    np.testing.assert_allclose(got, own, rtol=0, atol=2e-6)
    assert (got[0, [0, 17]] == 0).all()


@pytest.mark.parametrize("name", ["Q", "K", "V", "M"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_goes_where_it_does_in_onnx_runtime(
    name: str, value: float, library: LibraryBuild
) -> None:
    case = FORMS["mask"]
    inputs = case.inputs(s=40, t=150, b=1)
    place = (7, 140) if name == "M" else (0, 11, 5)
    inputs[name][place] = value
    got, own = run(case, inputs, library), run(case, inputs, None)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(own))
    np.testing.assert_allclose(got, own, rtol=0, atol=2e-6)


def test_what_causality_hides_is_not_read(library: LibraryBuild) -> None:
    case = FORMS["causal"]
    inputs = case.inputs(s=300, t=300, b=1)
    clean = run(case, inputs, library)
    for name in "KV":
        inputs[name][0, 200:] = np.nan
    got = run(case, inputs, library)
    assert got[0, :192].tobytes() == clean[0, :192].tobytes()
    assert np.isnan(got[0, 200:]).all()


def test_bias_and_parts_of_one_tensor(build: Build) -> None:
    text = """<opset_import: ["" : 23]> f (X, B, C) => (Y) {
        sizes = Constant <value_ints = [64, 32, 32]> ()
        S = Add (X, B)
        Q, K, U = Split <axis = -1> (S, sizes)
        V = Add (C, U)
        Y = Attention <q_num_heads = 4, kv_num_heads = 2> (Q, K, V)
    }"""
    plain = text.replace("V = Add (C, U)", "").replace("U =", "V =").replace(", C)", ")")
    specs = [TensorSpec("X", "float32", (2, "s", 128)), TensorSpec("B", "float32", (128,))]
    output = TensorSpec("Y", "float32", (2, "s", 64))
    signature = RegionSignature("attention", plain, tuple(specs), (output,))
    rng = np.random.default_rng(0)
    inputs = {"X": rng.standard_normal((2, 45, 128)), "B": rng.standard_normal(128)}
    inputs = {name: value.astype(np.float32) for name, value in inputs.items()}
    library = build(signature).library
    assert library is not None
    model = fused_model(signature)
    got = session(model, library.path).run(None, inputs)[0]
    np.testing.assert_allclose(got, session(model).run(None, inputs)[0], rtol=0, atol=3e-6)
    twice = RegionSignature(
        "attention", text, (*specs, TensorSpec("C", "float32", (32,))), (output,)
    )
    assert isinstance(match(twice), Refused)  # a bias before and one after


def test_bias_of_separate_rows(build: Build) -> None:
    text = """<opset_import: ["" : 23]> f (X, K, Z, B, C, D) => (Y) {
        Q = Add (X, B)  L = Add (C, K)  V = Add (Z, D)
        Y = Attention <q_num_heads = 2, kv_num_heads = 2, is_causal = 1> (Q, L, V)
    }"""
    rows = [TensorSpec(name, "float32", (1, "s", 32)) for name in "XKZ"]
    biases = [TensorSpec(name, "float32", (32,)) for name in "BCD"]
    signature = RegionSignature(
        "attention", text, (*rows, *biases), (TensorSpec("Y", "float32", (1, "s", 32)),)
    )
    rng = np.random.default_rng(0)
    inputs = {spec.name: rng.standard_normal((1, 70, 32)).astype(np.float32) for spec in rows}
    inputs |= {spec.name: rng.standard_normal(32).astype(np.float32) for spec in biases}
    library = build(signature).library
    assert library is not None
    model = fused_model(signature)
    got = session(model, library.path).run(None, inputs)[0]
    np.testing.assert_allclose(got, session(model).run(None, inputs)[0], rtol=0, atol=3e-6)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case(width=40), "multiple of 16"),
        (Case(v_width=256), "up to 192"),
        (Case(attributes="softcap = 2.0"), "soft cap"),
        (Case(attributes="softmax_precision = 11"), "softmax of another type"),
        (Case(scale=-1.0), "not positive"),
        (Case(mask=("float32", ("s", "u"))), "queries and keys"),
        (Case(mask=("float32", ("t",))), "queries and keys"),
        (Case(mask=("float32", (4, 1, "s", "t"))), "another number of samples"),
        (Case(mask=("int64", ("s", "t"))), "int64"),
        (Case(heads=3, kv_heads=2), "do not fit"),
    ],
)
def test_what_is_refused_says_why(case: Case, reason: str) -> None:
    found = match(case.signature)
    assert isinstance(found, Refused)
    assert reason in found.reason


def test_past_keys_are_refused() -> None:
    text = '<opset_import: ["" : 23]> f (Q, K, V, P, R) => (Y) { Y = Attention (Q, K, V, , P, R) }'
    head = ("b", 2, "s", 32)
    specs = tuple(TensorSpec(name, "float32", head) for name in "QKVPR")
    found = match(RegionSignature("attention", text, specs, (TensorSpec("Y", "float32", head),)))
    assert isinstance(found, Refused)
    assert "past" in found.reason


def test_other_regions_are_none_of_its_business() -> None:
    text = '<opset_import: ["" : 23]> f (X) => (Y) { Y = Softmax (X) }'
    x, y = TensorSpec("X", "float32", ("n", 8)), TensorSpec("Y", "float32", ("n", 8))
    assert match(RegionSignature("softmax", text, (x,), (y,))) is None


@pytest.mark.parametrize("level", LEVELS)
def test_tiles_fit_the_registers_and_scratch_the_stack(level: str) -> None:
    tiles = attention_tiles.tiling(level)
    registers = attention_tiles.REGISTERS[level]
    for rows, vectors in [
        (tiles.key_rows, tiles.vectors), (tiles.query_rows, tiles.columns)
    ]:  # fmt: skip
        wide = vectors * -(-16 // registers.lanes)
        assert (rows + 1) * wide + 1 <= registers.count
    assert tiles.keys % tiles.key_rows == 0
    assert 16 % tiles.query_rows == 0
    assert 4 * tiles.queries * (tiles.keys + 2 * 192) <= 64 * 1024
    found = match(Case().signature)
    assert isinstance(found, Attention)
    assert found.launch(level).points.symbols == ("s", "t")
