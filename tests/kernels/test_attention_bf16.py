"""Attention of rounded operands in tiles, against float64 on the same rounded operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
from attention_regions import Case
from fused_model import fused_model, session
from ortkit.custom_ops.tvm.attention.amx import TileAttention
from ortkit.custom_ops.tvm.attention.fp32 import match
from single_node import as_array, as_value

from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import LibraryBuild, build_library, refusal
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.tvm.backend import TvmBackend
from ortkit.kernels.tvm.choices import read_choices
from ortkit.refusal import Refused
from ortkit.targets import cpu
from ortkit.targets.target import Target

LEVEL = "x86-64-v4-amx"
TARGET = Target("cpu", LEVEL)
#: Of a weight of 1 rounded to bfloat16, and a few of them in a sum.
WEIGHT_ERROR = 2.0**-8
Build = Callable[..., LibraryBuild]

here = pytest.mark.skipif(not cpu.runs_here(LEVEL), reason="this machine has no tiles")

FORMS = {
    "plain": Case(rounded="float32"),
    "narrow": Case(rounded="bfloat16", result="bfloat16"),
    "narrow_causal": Case(rounded="bfloat16", causal=True, width=64, v_width=64),
    "odd_widths": Case(rounded="float32", width=48, v_width=80, result="bfloat16"),
    "odd_narrow": Case(rounded="bfloat16", width=80, v_width=16, result="bfloat16"),
    "wide": Case(rounded="float32", width=160, v_width=192, heads=1, kv_heads=1),
    "grouped": Case(rounded="float32", heads=6, kv_heads=2, scale=0.4),
    "stacked": Case(rounded="bfloat16", stacked=True, heads=4, kv_heads=2, causal=True),
    "mask": Case(rounded="float32", mask=("float32", ("s", "t"))),
    "bool_mask": Case(rounded="bfloat16", mask=("bool", ("b", 1, "s", "t"))),
    "mask_of_both": Case(rounded="float32", mask=("float32", ("b", 2, "s", "t")), causal=True),
    "fixed": Case(197, 197, 2, 3, 3, rounded="bfloat16", result="bfloat16"),
    "large_groups": Case(450, 610, 2, 12, 6, rounded="bfloat16", result="bfloat16"),
    "fixed_causal": Case(37, 300, 1, 2, 1, rounded="float32", causal=True),
}
SIZES = [(1, 1), (1, 197), (7, 16), (33, 31), (128, 256), (129, 257), (300, 530)]


def rounded(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the kernel reads, as float32."""
    return {
        name: value if name == "M" else value.astype(ml_dtypes.bfloat16).astype(np.float32)
        for name, value in inputs.items()
    }


def random_inputs(case: Case, queries: int, keys: int, seed: int = 0) -> dict[str, np.ndarray]:
    """In float32, as `run` takes them."""
    plain = replace(case, rounded="", result="float32")
    found = plain.inputs(seed, s=queries, t=keys, b=2)
    if "M" in found and found["M"].dtype == bool:
        found["M"][..., 0] = True
    return found


def run(inference_session: ort.InferenceSession, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """The result as float32."""
    feeds = {}
    for each in inference_session.get_inputs():
        value = inputs[each.name]
        narrow = "bfloat16" in each.type
        feeds[each.name] = as_value(value.astype(ml_dtypes.bfloat16) if narrow else value)
    (output,) = inference_session.get_outputs()
    (found,) = inference_session.run_with_ort_values([output.name], feeds)
    kind = "bfloat16" if "bfloat16" in output.type else "float32"
    array = as_array(found, kind, int(np.prod(found.shape())))
    return np.asarray(array.astype(np.float32).reshape(found.shape()))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, cache: KernelCache) -> LibraryBuild:
    """The kernels of all cases, compiled side by side."""
    path = tmp_path_factory.mktemp("attention") / "model.opt.ops.so"
    signatures = [case.signature for case in FORMS.values()]
    return build_library(signatures, TARGET, path, cache=cache)


def kernel(case: Case, library: LibraryBuild, threads: int = 1) -> ort.InferenceSession:
    assert not library.refused, library.refused
    assert library.library is not None
    return session(fused_model(case.signature), library.library.path, threads)


def assert_near(case: Case, inputs: dict[str, np.ndarray], got: np.ndarray) -> None:
    """As near to float64 as weights rounded to bfloat16 are, and a rounded result besides."""
    exact = case.exact(rounded(inputs))
    widest = np.abs(rounded(inputs)["V"]).max(initial=0.0)
    allowed = WEIGHT_ERROR * widest + (2.0**-8 if case.result == "bfloat16" else 0.0) * widest
    assert got.shape == exact.shape
    assert np.abs(got - exact).max(initial=0.0) <= allowed
    assert np.linalg.norm(got - exact) <= 5e-3 * np.linalg.norm(exact)


@pytest.mark.sampled(4)
@here
@pytest.mark.parametrize("name", FORMS)
def test_every_size_against_float64(name: str, library: LibraryBuild) -> None:
    case = FORMS[name]
    one = kernel(case, library)
    sizes = [(0, 0)] if name.startswith("fixed") else SIZES
    for queries, keys in sizes:
        inputs = random_inputs(case, queries, keys)
        assert_near(case, inputs, run(one, inputs))


@here
def test_scores_that_grow_from_block_to_block(library: LibraryBuild) -> None:
    case = FORMS["mask"]
    inputs = random_inputs(case, 3, 1500)
    inputs["M"][0] = np.linspace(-50, 50, 1500)
    inputs["M"][1] = np.linspace(50, -50, 1500)
    inputs["M"][2, :1400] = -np.inf
    assert_near(case, inputs, run(kernel(case, library), inputs))


@here
@pytest.mark.parametrize("name", ["plain", "large_groups"])
def test_keys_that_matter_more_and_more(name: str, library: LibraryBuild) -> None:
    """Each block of keys outweighs those before it by far, or by less than what is let pass."""
    case = FORMS[name]
    plan = match(case.signature)
    assert isinstance(plan, TileAttention)
    assert (plan.group > 128) is (name == "large_groups")
    for growth in (1.0, 40.0):
        inputs = random_inputs(case, 450, 610)
        inputs["K"] *= np.geomspace(0.01, growth, 610, dtype=np.float32)[None, :, None]
        assert_near(case, inputs, run(kernel(case, library), inputs))


@here
@pytest.mark.parametrize("hidden", [-np.inf, float(np.finfo(np.float32).min)])
def test_rows_that_are_masked_whole_are_zero(hidden: float, library: LibraryBuild) -> None:
    case = FORMS["mask"]
    inputs = random_inputs(case, 40, 150)
    inputs["M"][[3, 39]] = hidden
    got = run(kernel(case, library), inputs)
    assert not got[:, [3, 39]].any()
    assert got[:, 4].any()


@here
def test_what_is_no_number_stays_in_its_row(library: LibraryBuild) -> None:
    case = FORMS["plain"]
    inputs = random_inputs(case, 40, 50)
    clean = run(kernel(case, library), inputs)
    inputs["Q"][0, 11, 5] = np.nan
    got = run(kernel(case, library), inputs)
    assert np.isnan(got[0, 11, :32]).all()
    got[0, 11, :32] = clean[0, 11, :32]
    np.testing.assert_array_equal(got, clean)


@here
def test_blocks_that_causality_hides_are_not_read(library: LibraryBuild) -> None:
    case = FORMS["narrow_causal"]
    inputs = random_inputs(case, 300, 300)
    clean = run(kernel(case, library), inputs)
    for name in "KV":
        inputs[name][:, 256:] = np.nan
    got = run(kernel(case, library), inputs)
    np.testing.assert_array_equal(got[:, :256], clean[:, :256])
    assert np.isnan(got[:, 257:]).all()


@here
@pytest.mark.parametrize(("queries", "keys"), [(0, 3), (20, 0)])
def test_nothing_to_attend_to_gives_zeros(queries: int, keys: int, library: LibraryBuild) -> None:
    case = FORMS["plain"]
    got = run(kernel(case, library), random_inputs(case, queries, keys))
    assert got.shape == (2, queries, 64)
    assert not got.any()


@here
def test_threads_do_not_change_a_bit(library: LibraryBuild) -> None:
    case = FORMS["narrow_causal"]
    inputs = random_inputs(case, 700, 300)
    results = [run(kernel(case, library, threads), inputs) for threads in (1, 4)]
    np.testing.assert_array_equal(*results)


@here
def test_parts_of_one_tensor_that_is_rounded(build: Build) -> None:
    text = """<opset_import: ["" : 23]> f (X) => (Y) {
        W = Cast <to = 1> (X)
        sizes = Constant <value_ints = [64, 32, 32]> ()
        Q, K, V = Split <axis = -1> (W, sizes)
        Y = Attention <q_num_heads = 4, kv_num_heads = 2> (Q, K, V)
    }"""
    after = """<opset_import: ["" : 23]> f (X) => (Y) {
        sizes = Constant <value_ints = [64, 32, 32]> ()
        A, B, C = Split <axis = -1> (X, sizes)
        D = Cast <to = 16> (A)  E = Cast <to = 16> (B)  F = Cast <to = 16> (C)
        Q = Cast <to = 1> (D)  K = Cast <to = 1> (E)  V = Cast <to = 1> (F)
        Y = Attention <q_num_heads = 4, kv_num_heads = 2> (Q, K, V)
    }"""
    values = np.random.default_rng(0).standard_normal((2, 45, 128)).astype(np.float32)
    output = TensorSpec("Y", "float32", (2, "s", 64))
    results = []
    for body, kind in ((text, "bfloat16"), (after, "float32")):
        spec = TensorSpec("X", kind, (2, "s", 128))
        signature = RegionSignature("attention", body, (spec,), (output,))
        library = build(signature)
        results.append(run(kernel_of(signature, library), {"X": values}))
    np.testing.assert_array_equal(*results)
    parts = dict(zip("QKV", np.split(rounded({"X": values})["X"], [64, 96], axis=2), strict=True))
    exact = Case(heads=4, kv_heads=2, width=16, v_width=16).exact(parts)
    assert np.linalg.norm(results[0] - exact) <= 5e-3 * np.linalg.norm(exact)


def kernel_of(signature: RegionSignature, library: LibraryBuild) -> ort.InferenceSession:
    assert library.library is not None, library.refused
    return session(fused_model(signature), library.library.path)


def test_levels_without_tiles_say_so() -> None:
    found = refusal(FORMS["plain"].signature, Target("cpu", "x86-64-v4-bf16"), "tvm")
    assert isinstance(found, Refused)
    assert "no tiles" in found.reason


def test_only_some_rounded_operands_are_refused() -> None:
    case = FORMS["plain"].signature
    mixed = case.body.replace("(wQ, wK, wV)", "(wQ, wK, V)")
    assert mixed != case.body
    found = match(RegionSignature("attention", mixed, case.inputs, case.outputs))
    assert isinstance(found, Refused)
    assert "others not" in found.reason


def test_a_sum_that_is_rounded_is_refused() -> None:
    text = """<opset_import: ["" : 23]> f (X, B, K, V) => (Y) {
        S = Add (X, B)  N = Cast <to = 16> (S)  Q = Cast <to = 1> (N)
        k = Cast <to = 1> (K)  v = Cast <to = 1> (V)
        Y = Attention <q_num_heads = 2, kv_num_heads = 2> (Q, k, v)
    }"""
    rows = {"X": "float32", "K": "bfloat16", "V": "bfloat16"}
    x, k, v = (TensorSpec(name, kind, (1, "s", 32)) for name, kind in rows.items())
    bias, y = TensorSpec("B", "float32", (32,)), TensorSpec("Y", "float32", (1, "s", 32))
    found = match(RegionSignature("attention", text, (x, bias, k, v), (y,)))
    assert isinstance(found, Refused)
    assert "sum that is rounded" in found.reason


@pytest.mark.sampled(3)
@here
@pytest.mark.parametrize("choices", ["keys=32", "keys=512", "panel=1", "panel=6,keys=64"])
@pytest.mark.parametrize("name", ["narrow_causal", "wide", "fixed"])
def test_every_choice_computes_the_same(
    name: str, choices: str, tmp_path: Path, cache: KernelCache
) -> None:
    case = FORMS[name]
    assert [*TvmBackend().parameters(case.signature, TARGET)] == ["panel", "keys"]
    made = build_library(
        [case.signature], TARGET, tmp_path / "a.ops.so", cache=cache, chooser=lambda *_: choices
    )
    one = kernel(case, made, threads=2)
    for queries, keys in [(197, 197)] if name == "fixed" else [(1, 1), (129, 257), (300, 530)]:
        inputs = random_inputs(case, queries, keys)
        assert_near(case, inputs, run(one, inputs))


@pytest.mark.parametrize("choices", ["", "keys=32", "keys=512,panel=6", "panel=1"])
@pytest.mark.parametrize("name", FORMS)
def test_scratch_fits_a_thread_stack(name: str, choices: str) -> None:
    plan, chosen = match(FORMS[name].signature), read_choices(choices)
    assert isinstance(plan, TileAttention)
    assert chosen is not None
    if choices:
        rule, plan = plan, plan.chosen(chosen)
        assert (plan.block_keys, plan.group) != (rule.block_keys, rule.group)
    form = plan.form
    packed = plan.block_keys * (plan.depth + form.v.width) * 2
    rows = 32 * (plan.block_keys + 32) * 6 + plan.group * (plan.depth * 2 + form.v.width * 4)
    assert packed + rows < 400 * 1024
    assert plan.block_keys % 32 == plan.group % 32 == 0
