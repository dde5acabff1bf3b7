"""Grids of CUDA: a variant is launched only where its blocks are as many as CUDA takes."""

from __future__ import annotations

import grouped_attention
import packed_attention
import pytest
from ortkit.custom_ops.triton.gemm.gemm_tiles import PLAIN
from test_triton_convolutions import NETS, Net, signatures_of
from triton_attention import CASES, Case

from ortkit.kernels.cuda import MAX_GRID, Condition, grid_bounds
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.sizes import Extent, symbols_of
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.launches import blocks_of, fitting
from ortkit.refusal import Refused

MANY = 70_000
ATTENTION = [name for name, case in CASES.items() if case.batch == "b"]


def largest(signature: RegionSignature, **sizes: int) -> list[tuple[int, ...]]:
    """Return the largest grid along y and z of each variant that may be launched."""
    sources = sources_of(signature)
    assert not isinstance(sources, Refused)
    variants = [source.variant([0] * len(source.steps)) for source in sources]
    symbols = symbols_of((*signature.inputs, *signature.outputs))
    given = [sizes.get(symbol, 3) for symbol in symbols]
    grids = [
        [tuple(blocks_of(each, given) for each in step.grid[1:]) for step in variants[i].steps]
        for i in fitting(variants, given)
    ]
    return [tuple(map(max, zip(*steps, strict=True))) for steps in grids]


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_of_many_samples(name: str) -> None:
    signature = CASES[name].signature()
    assert largest(signature, b=5)
    assert all(max(grid) <= MAX_GRID[1] for grid in largest(signature, b=MANY))


def test_attention_of_a_known_number_of_many_samples() -> None:
    few, many = (Case(CASES["plain"].body, batch=batch) for batch in (5, MANY))
    assert largest(few.signature())
    assert isinstance(sources_of(many.signature()), Refused)


def test_attention_over_caches_of_many_samples() -> None:
    signature = grouped_attention.Form().signature()
    assert largest(signature, b=5, w=32)
    assert not largest(signature, b=MANY, w=32)


def test_packed_attention_of_many_samples() -> None:
    signature = packed_attention.signature_of(packed_attention.CASES["one tensor"])
    assert largest(signature, b=5)
    assert all(max(grid) <= MAX_GRID[1] for grid in largest(signature, b=MANY))


@pytest.mark.parametrize("name", NETS)
def test_blocks_of_many_images(name: str) -> None:
    build, channels, _ = NETS[name]
    net = Net()
    for _, signature in signatures_of(net.model(("n", channels, 11, 13), [build(net, "x")])):
        assert largest(signature, n=5)
        assert all(max(grid) <= MAX_GRID[1] for grid in largest(signature, n=MANY))


@pytest.mark.parametrize("is_beyond", [False, True])
def test_steps_along_transposed_rows_have_32_bits(is_beyond: bool) -> None:
    """A step along the depth of [136, m] is as many rows as a tile has depth."""
    m = 2**31 // PLAIN.depth - (0 if is_beyond else 8)
    x, w, y = (
        TensorSpec(name, "float16", shape)
        for name, shape in (("x", (136, m)), ("w", (136, 40)), ("y", (m, 40)))
    )
    body = "X = Transpose <perm = [1, 0]> (x) u = MatMul (X, w) y = Relu (u)"
    text = f'<opset_import: ["" : 23]> f (x, w) => (y) {{ {body} }}'
    sources = sources_of(RegionSignature("product", text, (x, w), (y,)))
    assert not isinstance(sources, Refused)
    plain = [source for source in sources if not source.steps[0].is_gluon]
    assert plain
    variants = [source.variant([0] * len(source.steps)) for source in plain]
    assert len(fitting(variants, [])) == (0 if is_beyond else len(variants))


def test_bounds_of_a_grid() -> None:
    few, many, n = Extent(5), Extent(MANY), Extent(2, ("n",))
    assert grid_bounds(((many, 1), (few, 1), (few, 1))) == ()
    assert grid_bounds(((n, 1), (n, 4), (many, 2))) == (Condition(n, at_most=4 * 65535),)
    assert grid_bounds(((n, 1), (few, 1), (many, 1))) == (Condition(many, at_most=65535),)
