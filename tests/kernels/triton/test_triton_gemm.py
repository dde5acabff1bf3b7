"""Products of many rows on CUDA, in numpy and by Triton's interpreter, against their bodies."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from fused_model import fused_model, session
from interpreter import Interpreter, numpy_dtype
from ortkit.custom_ops.triton.gemm.gemm import TiledProduct
from ortkit.custom_ops.triton.gemm.gemm_tiles import Tile, tiles_of
from test_triton_attention import stack_bytes
from test_triton_products import GATED, Case

from ortkit.errors import KernelError
from ortkit.kernels.cuda import SHARED_BYTES
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent
from ortkit.kernels.triton import build
from ortkit.kernels.triton.backend import TritonBackend
from ortkit.kernels.triton.build import Compiled, compile_step
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.source import StepSource, VariantSource
from ortkit.kernels.triton.templates import template_for
from ortkit.refusal import Refused
from ortkit.targets.target import Target

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

PLAIN = Case("y = MatMul (x, W)", "xw", rows=(70,), depth=136, columns=152)
GELU = "u = MatMul (x, W)  v = Add (b, u)  t = Gelu (v)  y = Add (r, t)"
CASES = {
    "nothing else": PLAIN,
    "a matrix as it lies": replace(PLAIN, body="y = MatMul (x, a)", inputs="xa"),
    "several axes": replace(PLAIN, rows=(3, 1, 41)),
    "rows that are not known": replace(
        PLAIN, rows=("n", 7), body="y = MatMul (x, a)", inputs="xa"
    ),
    "narrow": replace(PLAIN, columns=8, depth=8),
    "bias, GELU and a residual": replace(PLAIN, body=GELU, inputs="xwbr"),
    "GELU by tanh": replace(
        PLAIN, body='u = MatMul (x, a)  y = Gelu <approximate = "tanh"> (u)', inputs="xa"
    ),
    "four operands": replace(
        PLAIN,
        body="u = MatMul (x, W)  v = Add (u, b)  s = Mul (v, c)  t = Add (s, r)  y = Sub (q, t)",
        inputs="xwbcrq",
    ),
    "a Gemm with its bias": replace(
        PLAIN, body="u = Gemm<transB = 1> (x, w, b)  y = Sigmoid (u)", inputs="xwb"
    ),
    "a Gemm of a matrix as it lies": replace(
        PLAIN, body="u = Gemm (x, a)  y = HardSwish (u)", inputs="xa"
    ),
    "gated": replace(PLAIN, body=GATED.replace("n,", "x,"), inputs="xwz"),
    "gated, as they lie": replace(
        PLAIN, body=GATED.replace("n,", "x,").replace("W", "a").replace("Z", "d"), inputs="xad"
    ),
}
#: Two blocks with several tiles each; groups with tiles of their own; one tile a block.
TILES = (
    Tile(64, 64, 64, 3, blocks=2, band=2),
    Tile(128, 32, 64, 2, 2, blocks=2),
    Tile(64, 32, 64, 3, 2, is_separate=True, blocks=2),
    Tile(128, 64, 64, 4, 2),
)


def feeds_of(signature: RegionSignature, rows: int = 11) -> list[np.ndarray]:
    rng = np.random.default_rng(4)
    shapes = [
        [rows if isinstance(size, str) else size for size in spec.shape]
        for spec in signature.inputs
    ]
    return [
        (rng.standard_normal(shape) / 4).astype(numpy_dtype(spec.dtype))
        for spec, shape in zip(signature.inputs, shapes, strict=True)
    ]


def expected(signature: RegionSignature, feeds: list[np.ndarray]) -> np.ndarray:
    names = [spec.name for spec in signature.inputs]
    (want,) = session(fused_model(signature)).run(None, dict(zip(names, feeds, strict=True)))
    return want


def assert_close(got: np.ndarray, want: np.ndarray) -> None:
    largest = max(np.abs(want.astype(np.float64)).max(), 1)
    assert np.abs(got.astype(np.float64) - want).max() <= 4 * 2**-11 * largest


def template_of(signature: RegionSignature) -> TiledProduct:
    found = template_for(signature)
    assert isinstance(found, TiledProduct)
    return found


def hopper_sources(signature: RegionSignature) -> list[VariantSource]:
    return [variant for variant in template_of(signature).variants() if variant.steps[0].is_gluon]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_all_variants_compute_what_the_body_does(name: str, interpreter: Interpreter) -> None:
    signature = CASES[name].signature()
    feeds = feeds_of(signature)
    want = expected(signature, feeds)
    sources = sources_of(signature)
    assert not isinstance(sources, Refused), sources.reason
    assert [item.is_aligned for item in sources[-2:]] == [True, False]
    for number, source in enumerate(sources):
        (got,) = interpreter.run(signature, feeds, number, shift=0 if source.is_aligned else 2)
        assert_close(got, want)


@pytest.mark.parametrize("tile", TILES, ids=range(len(TILES)))
@pytest.mark.parametrize("name", ["bias, GELU and a residual", "gated", "a matrix as it lies"])
def test_tiles_of_every_kind(name: str, tile: Tile, interpreter: Interpreter) -> None:
    signature = replace(CASES[name], rows=(300,), depth=264).signature()
    feeds = feeds_of(signature)
    source = template_of(signature).hopper(tile)
    (got,) = interpreter.run(signature, feeds, 0, sources=[source])
    assert_close(got, expected(signature, feeds))


def test_numbers_that_have_no_end(interpreter: Interpreter) -> None:
    """GELU's own exponential and quotient leave infinities and NaN as they are."""
    signature = replace(PLAIN, body="u = MatMul (x, W)  y = Gelu (u)", rows=(16,)).signature()
    feeds = feeds_of(signature)
    feeds[0][:] = 0
    feeds[0][:4, 0] = [np.inf, np.nan, 6e4, -6e4]
    feeds[1][:] = 1
    for source in hopper_sources(signature):
        (got,) = interpreter.run(signature, feeds, 0, sources=[source])
        assert np.isposinf(got[0]).all()
        assert np.isnan(got[1]).all()
        np.testing.assert_array_equal(got[2:4, 0], np.float16([6e4, 0]))


def test_bfloat16(interpreter: Interpreter) -> None:
    half = CASES["bias, GELU and a residual"].signature()
    brain = CASES["bias, GELU and a residual"].signature("bfloat16")
    feeds = feeds_of(brain)
    want = expected(half, [feed.astype(np.float16) for feed in feeds])
    for number in range(len(template_of(brain).variants()) - 1):
        (got,) = interpreter.run(brain, feeds, number)
        error = np.abs(got.astype(np.float64) - want).max()
        assert error <= 2**-8 * np.abs(want.astype(np.float64)).max()


def test_a_norm_before_many_rows_is_refused() -> None:
    body = "n = RMSNormalization<axis = -1> (x, g)  y = MatMul (n, W)"
    found = template_for(replace(PLAIN, body=body, inputs="xgw").signature())
    assert isinstance(found, Refused)
    assert "norm" in found.reason


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("bias, GELU and a residual", 512),
        pytest.param("bias, GELU and a residual", 4096, marks=pytest.mark.slow),
        pytest.param("four operands", 4096, marks=pytest.mark.slow),
        pytest.param("gated, as they lie", "n", marks=pytest.mark.slow),
    ],
)
def test_it_compiles_for_hopper_without_spills(name: str, rows: int | str, tmp_path: Path) -> None:
    case = replace(CASES[name], depth=768, columns=3072, rows=(rows,))
    for source in hopper_sources(case.signature()):
        assert source.architectures == (90,)
        assert not source.is_optional
        (step,) = source.steps
        made = compile_step(step, 90, tmp_path)
        assert stack_bytes(made.cubin, tmp_path) == 0
        assert made.shared_bytes <= SHARED_BYTES[90]
        for instruction in ("wgmma.mma_async", "cp.async.bulk.tensor", "setmaxnreg"):
            assert instruction in made.ptx


@pytest.mark.parametrize(
    ("rows", "columns", "matrices", "whole", "found"),
    [
        (128, 3072, 1, 0, [(64, 64)]),
        (197, 3072, 1, 0, [(64, 128)]),
        (512, 3072, 1, 0, [(64, 128)]),
        (704, 3072, 1, 0, [(64, 128)]),
        (705, 3072, 1, 0, [(128, 128)]),
        (705, 3072, 1, 1, [(128, 256)]),
        (None, 768, 1, 2, [(64, 64), (64, 128), (64, 128), (128, 128)]),
        # So wide that all multiprocessors have work from the first rows on.
        (None, 128256, 1, 0, [(128, 128)]),
        (512, 5632, 2, 0, [(128, 64)]),
        (None, 5632, 2, 0, [(128, 64), (128, 128)]),
    ],
)
def test_tiles_by_rows_and_columns(
    rows: int | None, columns: int, matrices: int, whole: int, found: list[tuple[int, int]]
) -> None:
    tiles = tiles_of(rows, columns, matrices, whole)
    assert [(tile.rows, tile.columns) for tile in tiles] == found
    assert tiles[-1].most_rows is None or (rows is not None and rows <= tiles[-1].most_rows)
    assert not any(item.is_separate for item in tiles if whole)


def test_tiles_of_deep_products_and_of_many() -> None:
    def sizes(*given: int | None) -> list[tuple[int, int]]:
        return [(tile.rows, tile.width) for tile in tiles_of(*given)]

    assert sizes(512, 3072, 1, 0, 2048) == [(64, 192)]
    assert sizes(512, 2048, 1, 0, 5632) == [(64, 128)]
    assert sizes(512, 3072, 1, 0, 768) == [(64, 128)]
    assert sizes(None, 3072, 1, 0, 2048) == sizes(None, 3072, 1, 0)
    assert sizes(128, 3072, 1, 0, 768, 8) == [(128, 128)]
    assert sizes(64, 3072, 1, 0, 768, 32) == [(64, 128)]
    assert sizes(None, 768, 1, 0, 768, None) == [(64, 128), (128, 128)]
    assert sizes(None, 768, 1, 0, 768, 4) == [(64, 64), (64, 128), (64, 128), (128, 128)]
    assert sizes(None, 3072, 1, 0, 768, 32) == [(64, 128), (128, 128)]
    assert sizes(2048, 14336, 2, 0, 4096) == [(128, 128)]
    assert sizes(1536, 14336, 2, 0, 4096) == sizes(2048, 8192, 2, 0, 2048) == [(128, 64)]


def test_other_gpus_have_no_code_and_targets_without_hopper_no_kernel() -> None:
    signature = PLAIN.signature()
    sources = sources_of(signature)
    assert not isinstance(sources, Refused)
    assert {source.architectures for source in sources} == {(90,)}
    backend = TritonBackend()
    assert backend.accepts(signature, Target("cuda")) is None
    assert backend.accepts(signature, Target("cuda", "sm_80,sm_90")) is None
    found = backend.accepts(signature, Target("cuda", "sm_80"))
    assert found is not None
    assert "sm_90" in found.reason


@pytest.mark.parametrize("has_ptx", [True, False])
def test_without_its_code_there_is_no_kernel(
    has_ptx: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older Triton has no Gluon; the plain kernel alone is slower than cuBLAS."""
    sources = sources_of(PLAIN.signature())
    assert not isinstance(sources, Refused)

    def no_gluon(step: StepSource, *_: object) -> Compiled:
        if step.is_gluon:
            raise KernelError("there is no Gluon")
        return Compiled(b"", "", 0)

    monkeypatch.setattr(build, "compile_step", no_gluon)
    with pytest.raises(KernelError, match="no Gluon"):
        build.write_images(sources, (80, 90), tmp_path, has_ptx=has_ptx)


def test_no_rows_are_none_of_the_maps() -> None:
    """Without rows there is nothing to copy boxes of, and the kernel for any GPU is left."""
    signature = CASES["rows that are not known"].signature()
    last = template_of(signature).variants()[-1]
    assert not last.is_aligned
    assert last.steps[0].grid[0] == (Extent(7, ("n",)), 64)
