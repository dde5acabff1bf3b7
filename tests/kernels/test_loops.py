"""Which loops a program has: dims that every value treats alike are one."""

from __future__ import annotations

import pytest

from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.sizes import ONE, Extent, extent_of, solvable_symbols
from ortkit.kernels.tvm.plan import plan_of
from ortkit.kernels.tvm.schedule import Schedule
from ortkit.refusal import Refused

Dims = tuple[int | str, ...]


def region(body: str, inputs: dict[str, Dims], outputs: dict[str, Dims]) -> RegionSignature:
    names = f"({', '.join(inputs)}) => ({', '.join(outputs)})"
    text = f'<opset_import: ["" : 23]> f {names} {{ {body} }}'
    specs = [TensorSpec(n, "float32", shape) for n, shape in (inputs | outputs).items()]
    return RegionSignature("r", text, tuple(specs[: len(inputs)]), tuple(specs[len(inputs) :]))


def plan(body: str, inputs: dict[str, Dims], outputs: dict[str, Dims]) -> Schedule:
    found = plan_of(region(body, inputs, outputs))
    assert isinstance(found, Schedule), found
    return found


def refusal(body: str, inputs: dict[str, Dims], outputs: dict[str, Dims]) -> str:
    found = plan_of(region(body, inputs, outputs))
    assert isinstance(found, Refused)
    return found.reason


def loops(schedule: Schedule) -> list[str]:
    """The sizes of units | inner loops | the row | the vector axis."""
    groups = [schedule.units, schedule.inner, schedule.row]
    texts = ["x".join(str(axis.extent) for axis in group) for group in groups]
    return [*texts, str(schedule.vector.extent) if schedule.vector else ""]


ADD = "Y = Add (X, B)"


@pytest.mark.parametrize(
    ("x", "b", "found"),
    [
        (("b", "s", 768), (768,), ["b*s", "", "", "768"]),
        (("b", "s", 768), ("b", "s", 768), ["768*b*s", "", "", "768*b*s"]),
        ((2, 12, 64, 64), (2, 1, 1, 64), ["2", "768", "", "64"]),
        (("b", 96, 56, 56), (96, 1, 1), ["bx96", "", "", "3136"]),
        ((4, 1, 5), (), ["20", "", "", "20"]),
        ((1, 1), (1, 1), ["", "", "", ""]),
    ],
)
def test_dims_that_go_together_are_one_loop(x: Dims, b: Dims, found: list[str]) -> None:
    assert loops(plan(ADD, {"X": x, "B": b}, {"Y": x})) == found


def test_a_row_is_reduced_in_one_loop() -> None:
    body = "A = Constant <value_ints: ints = [2, 3]> ()  Y = ReduceMean (X, A)"
    found = plan(body, {"X": ("b", 96, 56, 56)}, {"Y": ("b", 96, 1, 1)})
    assert loops(found) == ["96*b", "", "3136", "3136"]
    assert found.is_row_vector


def test_rows_across_the_innermost_dim_are_reduced_side_by_side() -> None:
    body = "A = Constant <value_ints: ints = [1]> ()  Y = ReduceMean (X, A)"
    found = plan(body, {"X": ("b", 197, 768)}, {"Y": ("b", 1, 768)})
    assert loops(found) == ["b", "", "197", "768"]
    assert not found.is_row_vector


def test_a_reshape_splits_and_a_transpose_reorders() -> None:
    body = """S = Constant <value_ints: ints = [0, 0, 12, 64]> ()
              R = Reshape (X, S)  Y = Transpose <perm = [0, 2, 1, 3]> (R)"""
    found = plan(body, {"X": ("b", "s", 768)}, {"Y": ("b", 12, "s", 64)})
    assert loops(found) == ["bx12xs", "", "", "64"]


def test_what_lies_across_is_read_in_tiles() -> None:
    found = plan(
        "Y = Transpose <perm = [0, 2, 1]> (X)", {"X": ("b", "s", 64)}, {"Y": ("b", 64, "s")}
    )
    assert loops(found) == ["b", "", "", "s"]
    assert found.across is not None
    assert str(found.across.extent) == "64"
    alone = plan("Y = Transpose (X)", {"X": ("n", 64)}, {"Y": (64, "n")})
    assert loops(alone) == ["64", "", "", "n"]
    assert alone.units == (alone.across,)


def test_tiles_in_two_directions_are_refused() -> None:
    body = """S = Transpose <perm = [0, 2, 1]> (X)  T = Transpose <perm = [2, 1, 0]> (Z)
              Y = Add (S, T)"""
    reason = refusal(body, {"X": (8, 16, 32), "Z": (16, 32, 8)}, {"Y": (8, 32, 16)})
    assert "lie far apart" in reason


def test_long_rows_of_few_are_cut() -> None:
    found = plan(ADD, {"X": (4, 65536), "B": (4, 1)}, {"Y": (4, 65536)})
    assert loops(found) == ["4x16", "", "", "4096"]


def test_parts_of_a_concat_are_loops_of_their_own() -> None:
    body = """I0 = Constant <value_ints: ints = [0]> ()  I1 = Constant <value_ints: ints = [32]> ()
              I2 = Constant <value_ints: ints = [64]> ()  A = Constant <value_ints: ints = [-1]> ()
              L = Slice (X, I0, I1, A)  H = Slice (X, I1, I2, A)  N = Neg (H)
              Y = Concat <axis = -1> (N, L)"""
    found = plan(body, {"X": ("n", 64)}, {"Y": ("n", 64)})
    assert found.vector is not None
    assert found.trace.breaks == {found.vector: (32,)}
    assert found.launch.inplace == ()


def test_what_a_later_pass_needs_again_is_kept_and_inputs_are_not() -> None:
    softmax = "S = Add (X, M)  Y = Softmax <axis = -1> (S)"
    found = plan(softmax, {"X": ("n", 128), "M": (128,)}, {"Y": ("n", 128)})
    kept = {
        found.program.values[value].node.op_type: number for value, number in found.kept.items()
    }  # type: ignore[union-attr]
    assert kept == {"Add": 0, "exp_nonpositive": 1}
    plain = plan("Y = RMSNormalization (X, G)", {"X": ("n", 64), "G": (64,)}, {"Y": ("n", 64)})
    assert plain.kept == {}


@pytest.mark.parametrize(
    ("body", "x", "y", "pairs"),
    [
        ("Y = Relu (X)", ("n", 64), ("n", 64), ((0, 0),)),
        ("Y = Relu (X)", ("n", 30), ("n", 30), ((0, 0),)),
        ("Y = Softmax <axis = -1> (X)", ("n", 64), ("n", 64), ()),
        ("Y = Transpose <perm = [1, 0, 2]> (X)", (8, 8, 64), (8, 8, 64), ()),
        ("Y = Cast <to = 7> (X)  ", ("n",), ("n",), ()),
    ],
)
def test_only_what_is_read_in_its_place_may_share_memory(
    body: str, x: Dims, y: Dims, pairs: tuple[tuple[int, int], ...]
) -> None:
    signature = region(body, {"X": x}, {"Y": y})
    if "Cast" in body:
        outputs = (TensorSpec("Y", "int64", y),)
        signature = RegionSignature("r", signature.body, signature.inputs, outputs)
    found = plan_of(signature)
    assert isinstance(found, Schedule)
    assert found.launch.inplace == pairs


def test_a_row_whose_last_vector_overlaps_shares_no_memory() -> None:
    assert plan(ADD, {"X": ("n", 30), "B": (30,)}, {"Y": ("n", 30)}).launch.inplace == ()
    assert plan(ADD, {"X": ("n", 32), "B": (32,)}, {"Y": ("n", 32)}).launch.inplace == ((0, 0),)


REFUSED = {
    "its own transpose": (
        "T = Transpose <perm = [1, 0]> (X)  Y = Add (X, T)", (64, 64), "meets itself transposed",
    ),
    "two kinds of rows": (
        """A = Constant <value_ints: ints = [0]> ()  B = Constant <value_ints: ints = [1]> ()
           M = ReduceMean (X, A)  N = ReduceMean (X, B)  Z = Add (M, N)  Y = Add (Z, X)""",
        (64, 64), "reductions over different dims",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_what_has_no_such_loops_is_refused_with_the_reason(case: str) -> None:
    body, shape, reason = REFUSED[case]
    assert reason in refusal(body, {"X": shape}, {"Y": shape})


def test_sizes_are_products() -> None:
    assert extent_of("2*batch*seq") == Extent(2, ("batch", "seq"))
    assert extent_of("past + seq") == Extent(1, ("past + seq",))
    assert extent_of("seq**2") == Extent(1, ("seq**2",))
    assert extent_of("6*a").divided_by(extent_of("2*a")) == Extent(3)
    assert extent_of("a*b").divided_by(extent_of("c")) is None
    assert extent_of(6).divided_by(Extent(4)) is None
    assert (ONE.static, extent_of("a").static, Extent(0, ("a",)).static) == (1, None, 0)


def test_a_size_is_told_by_a_dim_that_lacks_no_other() -> None:
    assert solvable_symbols([TensorSpec("x", "float32", ("a", "a*b", "4*c"))]) == {"a", "b", "c"}
    assert solvable_symbols([TensorSpec("x", "float32", ("a*b",))]) == set()
    assert "no input tells the size 'm'" in refusal(
        "S = Constant <value_ints: ints = [4]> ()  Y = Expand (X, S)", {"X": (1,)}, {"Y": ("m",)}
    )
