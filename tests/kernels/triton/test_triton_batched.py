"""Many products on CUDA, in numpy and by Triton's interpreter, against their bodies."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from interpreter import Interpreter
from ortkit.custom_ops.forms.gemm_batch import stride_of
from ortkit.custom_ops.triton.gemm.gemm_tiles import Tile
from test_triton_attention import stack_bytes
from test_triton_gemm import assert_close, expected, feeds_of, hopper_sources, template_of

from ortkit.kernels.cuda import MAX_GRID, SHARED_BYTES
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.triton.build import compile_step
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.templates import template_for
from ortkit.refusal import Refused

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class Case:
    """A region by its body, of opset 23, which makes y of inputs of these shapes."""

    body: str
    y: Shape
    inputs: dict[str, Shape] = field(default_factory=dict)

    def signature(self, dtype: str = "float16") -> RegionSignature:
        """Return the region."""
        specs = tuple(TensorSpec(name, dtype, shape) for name, shape in self.inputs.items())
        text = f'<opset_import: ["" : 23]> f ({", ".join(self.inputs)}) => (y) {{ {self.body} }}'
        return RegionSignature("product", text, specs, (TensorSpec("y", dtype, self.y),))


ACTED = "u = MatMul (x, w)  v = Add (u, b)  y = Gelu (v)"
GATED = "u = MatMul (x, w)  t = MatMul (x, z)  s = Sigmoid (u)  v = Mul (u, s)  y = Mul (v, t)"
TURNED = "W = Transpose<perm = [0, 2, 1]> (w)  u = MatMul (x, W)  y = Relu (u)"
FLIPPED = "X = Transpose<perm = [0, 2, 1]> (x)  u = MatMul (X, w)  y = Relu (u)"
EXPERTS = Case(ACTED, (3, 70, 152), {"x": (3, 70, 136), "w": (3, 136, 152), "b": (3, 1, 152)})
CASES = {
    "experts of rows of their own": EXPERTS,
    "experts of the same rows": replace(EXPERTS, inputs={**EXPERTS.inputs, "x": (1, 70, 136)}),
    "rows without a dim in front": replace(EXPERTS, inputs={**EXPERTS.inputs, "x": (70, 136)}),
    "rows that are not known": replace(
        EXPERTS, y=(3, "n", 152), inputs={**EXPERTS.inputs, "x": (3, "n", 136)}
    ),
    "a number that is not known": Case(
        "u = MatMul (x, w)  v = Add (u, b)  y = Relu (v)", ("n", 40, 72),
        {"x": ("n", 40, 64), "w": ("n", 64, 72), "b": (72,)},
    ),
    "gated": Case(
        GATED, (2, 70, 72), {"x": (1, 70, 136), "w": (2, 136, 72), "z": (2, 136, 72)}
    ),
    "with its rows": Case(
        TURNED, (3, 70, 40), {"x": (3, 70, 136), "w": (3, 40, 136)}
    ),
    "of columns": Case(FLIPPED, (3, 72, 40), {"x": (3, 136, 72), "w": (3, 136, 40)}),
    "one product of columns": Case(
        "X = Transpose<perm = [1, 0]> (x)  u = MatMul (X, w)  y = Relu (u)", (72, 40),
        {"x": (136, 72), "w": (136, 40)},
    ),
    "heads with matrices of theirs": Case(
        "u = MatMul (x, w)  v = Add (u, r)  t = Mul (v, b)  y = Add (t, q)", ("n", 3, 40, 72),
        {"x": ("n", 3, 40, 64), "w": (3, 64, 72), "r": (3, 1, 72), "b": ("n", 1, 1, 72),
         "q": (40, 72)},
    ),
    "of samples, for all heads": Case(
        "u = MatMul (x, w)  v = Add (u, r)  y = Relu (v)", (2, 3, 40, 72),
        {"x": (2, 3, 40, 64), "w": (2, 1, 64, 72), "r": (2, 3, 40, 72)},
    ),
    "masks": Case(
        "u = MatMul (x, w)  y = Sigmoid (u)", ("n", 5, 200),
        {"x": ("n", 5, 64), "w": ("n", 64, 200)},
    ),
}  # fmt: skip
TILES = (
    Tile(64, 64, 64, 3, blocks=2, band=2),
    Tile(64, 32, 64, 3, rest=16),
    Tile(64, 32, 64, 3, 2, is_separate=True, blocks=2),
    Tile(128, 64, 64, 4, 2, is_early=True),
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_all_variants_compute_what_the_body_does(name: str, interpreter: Interpreter) -> None:
    signature = CASES[name].signature()
    feeds = feeds_of(signature, rows=4)
    want = expected(signature, feeds)
    sources = sources_of(signature)
    assert not isinstance(sources, Refused), sources.reason
    assert [item.is_aligned for item in sources[-2:]] == [True, False]
    for number, source in enumerate(sources):
        (got,) = interpreter.run(signature, feeds, number, shift=0 if source.is_aligned else 2)
        assert_close(got, want)


@pytest.mark.parametrize("tile", TILES, ids=range(len(TILES)))
@pytest.mark.parametrize("name", ["experts of the same rows", "heads with matrices of theirs"])
def test_tiles_of_every_kind(name: str, tile: Tile, interpreter: Interpreter) -> None:
    signature = CASES[name].signature()
    feeds = feeds_of(signature, rows=2)
    source = template_of(signature).hopper(tile)
    (got,) = interpreter.run(signature, feeds, 0, sources=[source])
    assert_close(got, expected(signature, feeds))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "name", ["experts of the same rows", "gated", "of columns", "with its rows"]
)
def test_it_compiles_for_hopper_without_spills(name: str, tmp_path: Path) -> None:
    for source in hopper_sources(CASES[name].signature())[:1]:
        made = compile_step(source.steps[0], 90, tmp_path)
        assert stack_bytes(made.cubin, tmp_path) == 0
        assert made.shared_bytes <= SHARED_BYTES[90]


@pytest.mark.parametrize(
    ("shape", "whole", "is_read", "place"),
    [
        ((3, 8, 8), (3, 5, 8), False, (1, 0)),
        ((8, 8), (3, 5, 8), False, (1, 1)),
        ((1, 8, 8), ("n", 5, 8), False, (1, 1)),
        (("n", 8, 8), ("n", 5, 8), False, (1, 0)),
        ((3, 8, 8), ("n", 3, 5, 8), False, (1, 3)),
        (("n", 1, 8, 8), ("n", 3, 5, 8), False, (3, 0)),
        ((4, 1, 8, 8), (2, 4, 3, 5, 8), False, (3, 4)),
        ((2, 1, 3, 8, 8), (2, 4, 3, 5, 8), False, None),
        (("n", 1, 8, 8), ("n", "m", 5, 8), False, None),
        (("m", 8, 8), ("n", "m", 5, 8), False, None),
        ((2, 8, 8), (3, 5, 8), False, None),
        ((8,), (3, 5, 8), True, (1, 1)),
        ((3, 1, 8), (3, 5, 8), True, (1, 0)),
        ((3, 5, 1), (3, 5, 8), True, None),
        ((3, 4, 8), (3, 5, 8), True, None),
    ],
)
def test_which_tensor_a_product_has(
    shape: Shape, whole: Shape, is_read: bool, place: tuple[int, int] | None
) -> None:
    assert stride_of(shape, whole, is_read=is_read) == place


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (replace(EXPERTS, y=(3, 70, 150), inputs={**EXPERTS.inputs, "w": (3, 136, 150),
                                                  "b": (3, 1, 150)}), "multiples of 8"),
        (replace(CASES["of columns"], y=(3, 70, 40),
                 inputs={"x": (3, 136, 70), "w": (3, 136, 40)}), "multiples of 8"),
        (replace(CASES["of columns"], y=(3, "n", 40),
                 inputs={"x": (3, 136, "n"), "w": (3, 136, 40)}), "multiples of 8"),
        (replace(CASES["with its rows"], y=(3, 70, "n"),
                 inputs={"x": (3, 70, 136), "w": (3, "n", 136)}), "known sizes"),
        (Case(ACTED, (2, 3, 4, 5, 8), {"x": (2, 3, 4, 5, 8), "w": (2, 1, 4, 8, 8), "b": (8,)}),
         "regular"),
        (replace(EXPERTS, inputs={**EXPERTS.inputs, "b": (70, 1)}), "another shape"),
        (Case(ACTED, (MAX_GRID[2] + 1, 5, 8),
              {"x": (1, 5, 8), "w": (MAX_GRID[2] + 1, 8, 8), "b": (8,)}), "too many products"),
        (Case("X = Relu (x)  u = MatMul (X, w)  y = Neg (u)", (3, 5, 8),
              {"x": (3, 5, 8), "w": (3, 8, 8)}), "computed"),
    ],
    ids=range(8),
)  # fmt: skip
def test_what_is_refused(case: Case, reason: str) -> None:
    found = template_for(case.signature())
    assert isinstance(found, Refused)
    assert reason in found.reason
