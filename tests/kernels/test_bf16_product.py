"""Matrix products of bfloat16: what the kernels compute, and where they refuse."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnxruntime as ort
import pytest
from fused_model import fused_model, session
from single_node import as_array, as_value

from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library, refusal
from ortkit.kernels.layouts.bf16_blocks import (
    Product,
    pack_weight,
    rounded,
    signature_of,
    unpack_weight,
)
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.tvm.build import assembly
from ortkit.kernels.tvm.templates import template_for
from ortkit.refusal import Refused
from ortkit.targets import cpu
from ortkit.targets.target import Target

LEVELS = [level for level in ("x86-64-v4-bf16", "x86-64-v4-amx") if cpu.runs_here(level)]
GELU, SILU = "t = Gelu (s)", "g = Sigmoid (s)  t = Mul (s, g)"
PLAIN = Product(("rows",), 64, 32)
FORMS = {
    "plain": PLAIN,
    "narrow": replace(PLAIN, columns=40, bias=True, activation=GELU),
    "one strip": replace(PLAIN, columns=7, results=("bfloat16",)),
    "two results": replace(PLAIN, bias=True, activation=SILU, results=("float32", "bfloat16")),
    "ragged two results": replace(PLAIN, columns=77, results=("bfloat16", "float32")),
    "ragged depth": replace(PLAIN, depth=51, columns=36, residual="float32"),
    "float32": replace(PLAIN, source="float32", columns=100, residual="bfloat16", bias=True),
    "ragged float32": replace(PLAIN, source="float32", depth=33, columns=21),
    "four axes": replace(PLAIN, rows=(2, "rows", 3), columns=64, residual="bfloat16"),
    "static": replace(PLAIN, rows=(70,), columns=48),
    "one axis": replace(PLAIN, rows=()),
    "gate": replace(PLAIN, rows=("rows", 3, 2), source="float32", gate=True, bias=True),
    "ragged gate": replace(PLAIN, rows=(3, "rows", 5), depth=53, gate=True, columns=20),
}

x86_64 = pytest.mark.skipif(cpu.machine() != "x86-64", reason="x86-64 has levels")


def random_feeds(product: Product, rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    result = {}
    for spec in signature_of(product).inputs:
        shape = [rows if isinstance(size, str) else size for size in spec.shape]
        values = rng.standard_normal(shape, np.float32)
        if spec.name == "w":
            values = rng.standard_normal((product.depth, product.columns), np.float32)
            result["w"] = pack_weight(values)
        else:
            result[spec.name] = values.astype(spec.dtype)
    return result


def run(inference_session: ort.InferenceSession, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """All results as float32."""
    outputs = inference_session.get_outputs()
    values = {name: as_value(value) for name, value in feeds.items()}
    found = inference_session.run_with_ort_values([output.name for output in outputs], values)
    types = ["bfloat16" if "bfloat16" in output.type else "float32" for output in outputs]
    shapes = [value.shape() for value in found]
    arrays = map(as_array, found, types, map(math.prod, shapes))
    return [
        array.astype(np.float32).reshape(shape)
        for array, shape in zip(arrays, shapes, strict=True)
    ]


def expected(product: Product, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """In float64 from the rounded operands."""
    a = (feeds["a"].astype(np.float32) * feeds.get("g", np.ones(1, np.float32))).astype(
        ml_dtypes.bfloat16
    )
    a = a.astype(np.float64)
    weight = unpack_weight(feeds["w"], product.depth, product.columns).astype(np.float64)
    value = a @ weight + feeds.get("b", np.zeros(1)).astype(np.float64)
    if product.activation == GELU:
        erf = np.vectorize(math.erf)
        value = 0.5 * value * (1 + erf(value / np.sqrt(2)))
    elif product.activation == SILU:
        value = value / (1 + np.exp(-value))
    value = value + feeds.get("r", np.zeros(1)).astype(np.float64)
    return [
        rounded(value.astype(np.float32)) if kind == "bfloat16" else value
        for kind in product.results
    ]


class Kernels:
    """Sessions with and without the library of one product."""

    def __init__(self, product: Product, level: str, folder: Path, cache: KernelCache) -> None:
        signature = signature_of(product)
        made = build_library([signature], Target("cpu", level), folder / "k.so", cache=cache)
        assert made.library is not None, made.refused
        self.model, self.path = fused_model(signature), made.library.path

    def session(self, threads: int = 1) -> ort.InferenceSession:
        return session(self.model, self.path, threads)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("form", FORMS)
def test_results(form: str, level: str, tmp_path: Path, cache: KernelCache) -> None:
    product = FORMS[form]
    one = Kernels(product, level, tmp_path, cache).session()
    for rows in (1, 4, 15, 16, 17, 31, 32, 33, 63, 70):
        feeds = random_feeds(product, rows, rows)
        for got, want, kind in zip(
            run(one, feeds), expected(product, feeds), product.results, strict=True
        ):
            step = 2.0**-8 if kind == "bfloat16" else 2e-6
            assert np.abs(got - want).max() <= step * max(1.0, np.abs(want).max()), rows


@pytest.mark.parametrize("level", LEVELS)
def test_the_body_computes_the_same(level: str, tmp_path: Path, cache: KernelCache) -> None:
    product = FORMS["float32"]
    kernels = Kernels(product, level, tmp_path, cache)
    feeds = random_feeds(product, 40)
    (got,), (want,) = run(kernels.session(), feeds), run(session(kernels.model), feeds)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("source", ["bfloat16", "float32"])
def test_threads_do_not_change_results(
    source: str, level: str, tmp_path: Path, cache: KernelCache
) -> None:
    """Also over several blocks of rows, of which the last is short."""
    product = Product(("rows",), 1024, 200, source=source)
    kernels = Kernels(product, level, tmp_path, cache)
    feeds = random_feeds(product, 1100)
    (one,), (three,) = (run(kernels.session(threads), feeds) for threads in (1, 3))
    np.testing.assert_array_equal(one, three)
    (want,) = expected(product, feeds)
    assert np.abs(one - want).max() < 1e-4 * np.abs(want).max()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("form", ["plain", "ragged depth", "ragged float32"])
def test_a_row_leaves_others_alone(
    form: str, level: str, tmp_path: Path, cache: KernelCache
) -> None:
    """A NaN beside a ragged row would be taken for its padding."""
    product = FORMS[form]
    feeds = random_feeds(product, 40)
    feeds["a"][20] = np.nan
    feeds["a"][33, 5] = np.inf
    (got,) = run(Kernels(product, level, tmp_path, cache).session(), feeds)
    finite = np.isfinite(got).all(axis=1)
    assert [int(row) for row in np.flatnonzero(~finite)] == [20, 33]


@pytest.mark.parametrize("level", LEVELS)
def test_no_rows(level: str, tmp_path: Path, cache: KernelCache) -> None:
    one = Kernels(PLAIN, level, tmp_path, cache).session()
    (got,) = run(one, random_feeds(PLAIN, 0))
    assert got.shape == (0, 32)


@x86_64
@pytest.mark.parametrize("level", ["x86-64-v4-bf16", "x86-64-v4-amx"])
def test_sums_stay_in_registers(level: str) -> None:
    """LLVM took them apart into single numbers, 50 times as slow, of blocks of 12 rows."""
    template = template_for(signature_of(Product(("rows",), 768, 768, bias=True)))
    assert template is not None
    assert not isinstance(template, Refused)
    text = assembly(template.lower("kernel", level), level)
    assert ("tdpbf16ps" if level.endswith("amx") else "vdpbf16ps") in text
    assert "vinsertps" not in text


# ---- what is refused
def changed(product: Product, old: str, new: str) -> RegionSignature:
    signature = signature_of(product)
    assert old in signature.body
    return replace(signature, body=signature.body.replace(old, new))


@x86_64
@pytest.mark.parametrize(
    ("signature", "reason"),
    [
        (changed(PLAIN, "perm = [1, 3, 0, 2]", "perm = [0, 1, 2, 3]"), "MatMul"),
        (
            changed(replace(PLAIN, columns=20), "[0, 0]", "[0, 1]"),
            "a packed weight that is taken apart in another way",
        ),
        (
            changed(replace(PLAIN, source="float32"), "Cast <to = 16>", "Identity"),
            "something that is no input rounded to bfloat16",
        ),
        (
            changed(replace(PLAIN, bias=True), "s = Add (p, b)", "s = Softmax (p)"),
            "operator Softmax",
        ),
        (
            signature_of(replace(PLAIN, source="float32", depth=9000)),
            "rows of 9000 elements that have to be copied",
        ),
    ],
)
def test_what_is_no_such_product_is_refused(signature: RegionSignature, reason: str) -> None:
    found = refusal(signature, Target("cpu", "x86-64-v4-bf16"), "tvm")
    assert found is not None
    assert reason in found.reason


@x86_64
def test_a_gate_of_every_pixel_is_refused() -> None:
    signature = signature_of(FORMS["gate"])
    *inputs, gate = signature.inputs
    wrong = replace(signature, inputs=(*inputs, replace(gate, shape=("rows", 1, 1, 1))))
    found = refusal(wrong, Target("cpu", "x86-64-v4-amx"), "tvm")
    assert found is not None
    assert "a gate that is not one factor for each channel" in found.reason


@x86_64
@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
def test_a_level_without_the_instructions_is_refused(level: str) -> None:
    found = refusal(signature_of(PLAIN), Target("cpu", level), "tvm")
    assert found is not None
    reason = f"processors of level {level} have no instructions for bfloat16"
    assert reason in found.reason


# ---- the packed weight
def test_a_weight_is_packed_and_taken_apart() -> None:
    weight = np.random.default_rng(0).standard_normal((50, 21), np.float32)
    packed = pack_weight(weight)
    assert packed.shape == (2, 32, 16, 2)
    assert packed.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(unpack_weight(packed, 50, 21), rounded(weight))
    assert packed[1, 3, 4, 1] == weight[7, 20].astype(ml_dtypes.bfloat16)
    assert not packed[1, :, 5:].any()
    assert not packed[:, 25:].any()


def test_a_weight_of_another_rank_is_refused() -> None:
    with pytest.raises(ValueError, match="a weight of rank 3, not 2"):
        pack_weight(np.zeros((2, 3, 4), np.float32))
