"""Regions' Triton kernels, interpreted, against ONNX Runtime's own operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from fused_model import fused_model, random_input, session
from interpreter import Interpreter, chosen, numpy_dtype
from test_region_kernels import CASES, Case, axes, signature_of

from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.launches import fitting, sizes_of
from ortkit.refusal import Refused

#: The interpreter takes some milliseconds a block of threads.
_MOST_POINTS = 20_000
WIDE = {
    "a norm of rows in a loop": Case(
        "S = Add (X, R)  Y = LayerNormalization <axis = -1> (S, G)",
        {"X": (3, 17000), "R": (3, 17000), "G": (17000,)}, {"Y": (3, 17000), "S": (3, 17000)},
        epsilons=64,
    ),
    "a softmax of rows in a loop": Case(
        "Y = Softmax <axis = -1> (X)", {"X": (2, 40001)}, {"Y": (2, 40001)}, epsilons=32,
    ),
    "a mean across long columns": Case(
        axes("A", 0) + "M = ReduceMean (X, A)  Y = Sub (X, M)", {"X": (900, 20)},
        {"Y": (900, 20), "M": (1, 20)}, epsilons=64,
    ),
    "a number without inputs of its size": Case(
        axes("E", 2, 700) + "Z = Expand (X, E)  Y = ReduceSum <keepdims = 0> (Z)", {"X": (2, 1)},
        {"Y": ()}, epsilons=2000,
    ),
    "a long vector": Case(
        "S = ReduceSumSquare <keepdims = 0> (X)  M = ReduceMax <keepdims = 0> (X)",
        {"X": (3, 20011)}, {"S": (), "M": ()}, epsilons=200,
    ),
    "a norm of one long row": Case(
        "Y = LayerNormalization <axis = 0> (X, G)", {"X": (50021,), "G": (50021,)},
        {"Y": (50021,)}, epsilons=64,
    ),
    "a softmax of few long rows": Case(
        "Y = Softmax <axis = -1> (X)", {"X": ("n", "m")}, {"Y": ("n", "m")},
        ({"n": 2, "m": 9}, {"n": 1, "m": 28673}, {"n": 1, "m": 28688}), epsilons=32,
    ),
    "a norm of rows of any number": Case(
        "S = Add (X, R)  Y = LayerNormalization <axis = -1> (S, G)",
        {"X": ("n", 30001), "R": ("n", 30001), "G": (30001,)},
        {"Y": ("n", 30001), "S": ("n", 30001)}, ({"n": 1},), epsilons=64,
    ),
    "the largest of long rows": Case(
        axes("A", 1) + "Y = ReduceMax (X, A)", {"X": (2, "m")}, {"Y": (2, 1)},
        ({"m": 3}, {"m": 30_000}),
    ),
    "heads of keys": Case(
        axes("SH", 0, 0, 2, 16) + "R = Reshape (X, SH)  Y = Transpose <perm = [0, 2, 3, 1]> (R)",
        {"X": ("b", "s", 32)}, {"Y": ("b", 2, 16, "s")}, ({"b": 2, "s": 40}, {"b": 1, "s": 64}),
    ),
    "a transposed sum": Case(
        "T = Transpose <perm = [0, 2, 1]> (X)  Z = Add (T, R)  Y = Gelu (Z)",
        {"X": ("b", "s", 33), "R": (33, "s")}, {"Y": ("b", 33, "s")}, ({"b": 2, "s": 70},),
    ),
    "a softmax of what lies across": Case(
        "T = Transpose <perm = [1, 0]> (X)  Y = Softmax <axis = -1> (T)", {"X": (40, "n")},
        {"Y": ("n", 40)}, ({"n": 3}, {"n": 70}), epsilons=32,
    ),
}  # fmt: skip
ALL = {**CASES, **WIDE}
#: Regions whose inputs and outputs may be of any floating type.
NARROW = [
    "residual layer norm", "rms norm", "masked softmax", "rotary", "heads", "gated",
    "transposed", "sums across rows", "a transposed sum", "norms of rows", "group norm",
]  # fmt: skip


def points(signature: RegionSignature, sizes: dict[str, int]) -> int:
    """The largest tensor's elements."""
    shapes = [[sizes.get(str(dim), dim) for dim in spec.shape] for spec in signature.inputs]
    return max(int(np.prod([int(size) for size in shape])) for shape in shapes)


def runs(name: str) -> Iterator[tuple[dict[str, int], list[int | None]]]:
    """Sizes of a case, and the variants to run: all that fit, where that is not for long."""
    case, signature = ALL[name], signature_of(name, ALL[name])
    sources = sources_of(signature)
    assert not isinstance(sources, Refused), sources.reason
    variants = [source.variant([0] * len(source.steps)) for source in sources]
    for turn, sizes in enumerate(case.sizes):
        if points(signature, sizes) > _MOST_POINTS and len(case.sizes) > 1:
            continue
        feeds = [random_input(spec, sizes) for spec in signature.inputs]
        all_of_them = fitting(variants, sizes_of(signature, [x.shape for x in feeds]))
        yield sizes, list(all_of_them) if turn == 1 or len(case.sizes) == 1 else [None]


def assert_close(
    found: Sequence[np.ndarray], expected: Sequence[np.ndarray], epsilons: float, where: str
) -> None:
    """Within so many float32 epsilons of the larger of the largest element and 1."""
    for got, want in zip(found, expected, strict=True):
        assert got.shape == want.shape
        if want.dtype.kind != "f":
            np.testing.assert_array_equal(got, want, err_msg=where)
            continue
        scale = max(1.0, float(np.abs(want).max(initial=0.0)))
        np.testing.assert_allclose(
            got.astype(np.float64), want, rtol=0, atol=epsilons * 2**-23 * scale, err_msg=where
        )


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", ALL)
def test_regions(name: str, interpreter: Interpreter) -> None:
    signature = signature_of(name, ALL[name])
    theirs = session(fused_model(signature))
    for sizes, variants in runs(name):
        feeds = [random_input(spec, sizes) for spec in signature.inputs]
        names = [spec.name for spec in signature.inputs]
        expected = theirs.run(None, dict(zip(names, feeds, strict=True)))
        for variant in variants:
            found = interpreter.run(signature, feeds, variant)
            assert_close(found, expected, ALL[name].epsilons, f"{sizes}, variant {variant}")


@pytest.mark.parametrize("name", ["residual layer norm", "heads", "rotary", "channels last"])
def test_tensors_that_are_not_aligned(name: str, interpreter: Interpreter) -> None:
    signature, sizes = signature_of(name, CASES[name]), {"b": 2, "s": 16}
    feeds = [random_input(spec, sizes) for spec in signature.inputs]
    sources = sources_of(signature)
    assert not isinstance(sources, Refused)
    variants = [source.variant([0] * len(source.steps)) for source in sources]
    config = sources[
        chosen(variants, sizes_of(signature, [x.shape for x in feeds]), is_aligned=False)
    ].config
    assert not config.is_wide
    assert not config.is_aligned
    aligned = interpreter.run(signature, feeds)
    for found, expected in zip(interpreter.run(signature, feeds, shift=4), aligned, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=2**-20)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", NARROW)
def test_narrow_types_are_rounded_once(name: str, dtype: str, interpreter: Interpreter) -> None:
    """Their kernel is that of float32, but for the rounding of its results."""
    wide = signature_of(name, ALL[name])
    inputs = tuple(replace(spec, dtype=dtype) for spec in wide.inputs)
    outputs = tuple(replace(spec, dtype=dtype) for spec in wide.outputs)
    narrow = replace(wide, inputs=inputs, outputs=outputs)
    sizes = {"b": 2, "s": 9, "n": 12}
    kind = numpy_dtype(dtype)
    feeds = [random_input(spec, sizes).astype(kind) for spec in wide.inputs]
    expected = interpreter.run(wide, [feed.astype(np.float32) for feed in feeds])
    for found, exact in zip(interpreter.run(narrow, feeds), expected, strict=True):
        assert found.dtype == kind
        # Half a unit, and a little for a float32 that is itself off.
        spacing = np.maximum(np.abs(exact), float(np.finfo(np.float16).tiny))
        bound = (0.5 + 2**-8) * float(2.0 ** (-10 if dtype == "float16" else -7)) * spacing
        assert (np.abs(found.astype(np.float64) - exact) <= bound + 1e-6).all()


@pytest.mark.parametrize("name", ["masked softmax", "residual layer norm", "everything"])
def test_a_nan_spoils_its_own_row_only(name: str, interpreter: Interpreter) -> None:
    signature = signature_of(name, CASES[name])
    feeds = [random_input(spec, {"b": 2, "s": 4, "n": 40}) for spec in signature.inputs]
    feeds[0].reshape(-1)[3] = np.nan
    (found, *_) = interpreter.run(signature, feeds)
    rows = found.reshape(-1, found.shape[-1]) if found.ndim else found.reshape(1, 1)
    assert np.isnan(rows[0]).all()
    assert not np.isnan(rows[1:]).any()


def test_kernels_read_and_write_nothing_beside_their_tensors(interpreter: Interpreter) -> None:
    """The harness that says so sees a kernel that does."""
    signature = signature_of("heads", CASES["heads"])
    feeds = [random_input(spec, {"b": 1, "s": 3}) for spec in signature.inputs]
    sources = sources_of(signature)
    assert not isinstance(sources, Refused)
    (step,) = sources[0].steps
    beyond = replace(step, text=step.text.replace("tl.store(y0 +", "tl.store(y0 + 16 +"))
    assert beyond.text != step.text
    with pytest.raises(AssertionError, match="written behind a tensor"):
        interpreter.run(signature, feeds, 0, sources=[replace(sources[0], steps=(beyond,))])


@pytest.mark.parametrize("parts", [2, 128])
def test_a_reduction_is_not_done_again_for_each_point(parts: int) -> None:
    """Halves that change places behind a norm would make each column a row of its own."""
    case = Case(
        f"{axes('H', parts // 2, parts // 2)} N = RMSNormalization <axis = -1> (X, G)  "
        "A, B = Split <axis = 1> (N, H)  Y = Concat <axis = 1> (B, A)",
        {"X": (64, parts), "G": (parts,)}, {"Y": (64, parts)},
    )  # fmt: skip
    found = sources_of(signature_of("again", case))
    if parts == 2:
        assert not isinstance(found, Refused)
    else:
        assert isinstance(found, Refused)
        assert found.reason == "a reduction that many points would do again"
