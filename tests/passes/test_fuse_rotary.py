"""Every spelling of a rotation becomes RotaryEmbedding; what is nearly one stays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from ortkit.graph.check.model import check_model
from ortkit.ops.rotary.reference import pairs, rotated
from ortkit.passes.fuse_rotary import FuseRotary
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.pipeline import Pipeline, PipelineResult
from tests.passes import rotary_spellings as spell
from tests.passes.graphs import kinds, run
from tests.passes.rotary_spellings import HALF, INTERLEAVED, SPLIT_HALF, Angles, Fit, Tape

pytest.importorskip("onnxruntime")
CPU = RewriteOptions()


def fused(model: onnx.ModelProto, target: RewriteOptions = CPU) -> onnx.ModelProto:
    return _fused(model, target)[0]


def _fused(
    model: onnx.ModelProto, target: RewriteOptions
) -> tuple[onnx.ModelProto, PipelineResult]:
    result = Pipeline((FuseRotary(),)).run(ir.from_proto(model), target)
    assert result.settled
    check_model(result.model)
    return ir.to_proto(result.model), result


def assert_fused(
    model: onnx.ModelProto,
    sizes: tuple[tuple[int, int], ...] = ((2, 5), (1, 1)),
    target: RewriteOptions = CPU,
) -> onnx.ModelProto:
    """One node must be left of the rotation, and its numbers must be the original's."""
    made = fused(model, target)
    assert kinds(made).count("RotaryEmbedding") == 1
    assert not {"Sub", "Add"} & set(kinds(made)), kinds(made)
    for batch, length in sizes:
        given = spell.feeds(model, batch, length)
        for got, want in zip(run(made, given), run(model, given), strict=True):
            assert got.shape == want.shape and got.dtype == want.dtype
            bound = 8 * np.finfo(want.dtype).eps * np.abs(want).max(initial=1)
            np.testing.assert_allclose(got, want, rtol=0, atol=bound)
    return made


def rotary(model: onnx.ModelProto) -> onnx.NodeProto:
    (found,) = (node for node in model.graph.node if node.op_type == "RotaryEmbedding")
    assert isinstance(found, onnx.NodeProto)
    return found


def attributes(node: onnx.NodeProto) -> dict[str, object]:
    return {item.name: helper.get_attribute_value(item) for item in node.attribute}


# ---- spellings -------------------------------------------------------------------------


@pytest.mark.parametrize("layout", sorted(spell.LAYOUTS))
@pytest.mark.parametrize("rotation", [*SPLIT_HALF, *INTERLEAVED], ids=lambda f: f.__name__)
def test_spelling(rotation: Callable[..., str], layout: str) -> None:
    made = assert_fused(spell.build(rotation, layout=layout))
    assert attributes(rotary(made)).get("interleaved", 0) == (rotation in INTERLEAVED)


@pytest.mark.parametrize("layout", ["BHSD", "flat"])
@pytest.mark.parametrize("angles", spell.ANGLES, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "rotation",
    [spell.rotate_half, spell.two_halves, spell.rotate_every_two, spell.partial],
    ids=lambda f: f.__name__,
)
def test_angles(rotation: Callable[..., str], angles: Callable[..., Angles], layout: str) -> None:
    assert_fused(spell.build(rotation, angles, layout))


@pytest.mark.parametrize("opset", [13, 17, 20, 23])
@pytest.mark.parametrize("max_opset", [15, 23])
@pytest.mark.parametrize("angles", [spell.computed, spell.given], ids=lambda f: f.__name__)
def test_opset(angles: Callable[..., Angles], max_opset: int, opset: int) -> None:
    model = spell.build(spell.rotate_half, angles, "flat", opset=opset)
    if angles is spell.given and max(opset, max_opset) < 23 and opset < 14:
        assert "RotaryEmbedding" not in kinds(fused(model, RewriteOptions(max_opset=max_opset)))
        return
    made = assert_fused(model, target=RewriteOptions(max_opset=max_opset))
    is_standard = angles is spell.given and max(opset, max_opset) >= 23
    assert rotary(made).domain == ("" if is_standard else "com.microsoft")


@pytest.mark.parametrize("max_opset", [17, 23])
@pytest.mark.parametrize(
    ("angles", "layout"),
    [(spell.computed, "BHSD"), (spell.computed, "flat"), (spell.given, "flat")],
)
def test_nothing_to_turn(angles: Callable[..., Angles], layout: str, max_opset: int) -> None:
    model = spell.build(spell.rotate_half, angles, layout)
    assert_fused(model, ((0, 3), (2, 0)), RewriteOptions(max_opset=max_opset))


def test_four_axes_by_batch_need_the_standard_operator() -> None:
    model = spell.build(spell.rotate_half, spell.given, "BHSD")
    made, result = _fused(model, RewriteOptions(max_opset=17))
    assert kinds(made) == kinds(model)
    assert any("need opset 23" in miss.reason for miss in result.log.misses)


def test_half_precision() -> None:
    made = assert_fused(spell.build(spell.rotate_half, dtype=np.float16))
    assert "Cast" in kinds(made)  # of the positions


def test_doubled_tables_are_computed_once() -> None:
    made = fused(spell.build(spell.rotate_half))
    assert not {"Concat", "Slice", "Neg"} & set(kinds(made))
    assert kinds(made).count("Cos") == kinds(made).count("Sin") == 1


def test_doubled_tables_are_halved() -> None:
    def looked_up(t: Tape, x: str, axis: int) -> Angles:
        return spell.looked_up(t, x, axis)

    def wide(t: Tape, x: str, _a: Angles, fit: Fit) -> str:
        angle = np.outer(np.arange(spell.LONGEST), np.tile(spell.FREQUENCIES, 2))
        cos, sin = (fit(t.op("Gather", t.data(f(angle)), "ids")) for f in (np.cos, np.sin))
        return t.add(t.mul(x, cos), t.mul(t.turned(x), sin))

    made = assert_fused(spell.build(wide, looked_up))
    sizes = [tensor.dims[-1] for tensor in made.graph.initializer if len(tensor.dims) == 2]
    assert sizes.count(HALF) >= 2 and "Slice" not in kinds(made)


def test_tables_of_any_function_are_halved() -> None:
    def wide(t: Tape, x: str, _a: Angles, fit: Fit) -> str:
        positions = t.unsqueeze(t.op("Cast", "ids", to=spell.kind_of(t)), 2)
        angle = t.op("Softsign", t.mul(positions, t.data(np.tile(spell.FREQUENCIES, 2))))
        cos, sin = (fit(t.op(name, angle)) for name in ("Cos", "Sin"))
        return t.add(t.mul(x, cos), t.mul(t.turned(x), sin))

    assert "Softsign" in kinds(assert_fused(spell.build(wide, spell.given)))


def test_a_view_of_a_flat_value_is_turned_there() -> None:
    made = fused(spell.build(spell.rotate_half, layout="flat"))
    node = rotary(made)
    assert node.input[0] == "x" and attributes(node)["num_heads"] == spell.HEADS
    assert kinds(made)[-3:] == ["RotaryEmbedding", "Reshape", "Transpose"]


def test_layers_share_their_tables() -> None:
    def twice(t: Tape, x: str, a: Angles, fit: Fit) -> str:
        cos, sin = (fit(spell.doubled(t, half)) for half in (a.cos, a.sin))
        for _ in range(2):
            x = t.op("Relu", t.add(t.mul(x, cos), t.mul(t.turned(x), sin)))
        return x

    made = fused(spell.build(twice))
    assert kinds(made).count("RotaryEmbedding") == 2
    assert kinds(made).count("Cos") == 1


def test_pairs_of_two_values() -> None:
    """Even channels are turned against odd ones, and come out as halves."""

    def split_pairs(t: Tape, x: str, a: Angles, fit: Fit) -> str:
        cos, sin = fit(a.cos), fit(a.sin)
        first, second = t.cut(x, 0, spell.END, step=2), t.cut(x, 1, spell.END, step=2)
        upper = t.sub(t.mul(first, cos), t.mul(second, sin))
        return t.join(upper, t.add(t.mul(second, cos), t.mul(first, sin)))

    made = assert_fused(spell.build(split_pairs))
    assert "interleaved" not in attributes(rotary(made))


def test_turned_behind_what_passes() -> None:
    def behind(t: Tape, x: str, a: Angles, fit: Fit) -> str:
        cos, sin = fit(a.cos), fit(a.sin)
        first, second = t.halves(x)
        upper = t.sub(t.mul(first, cos), t.mul(second, sin))
        lower = t.add(t.mul(second, cos), t.mul(first, sin))
        return t.join(t.op("Relu", x), upper, lower)

    assert kinds(assert_fused(spell.build(behind)))[-1] == "Concat"


def test_sequence_first() -> None:
    """x [s, n, H, D]: positions are the first axis, and are the same for each of the second."""
    t = Tape()
    x = t.input("s", "n", spell.HEADS, spell.WIDTH)
    a = spell.computed(t, x, 0)
    column = Angles(*(t.op("Transpose", item, perm=(1, 0, 2)) for item in (a.cos, a.sin)))
    y = spell.rotate_half(t, x, column, lambda table: t.unsqueeze(table, 1))
    assert_fused(t.model(y))


@pytest.mark.parametrize("shape", [("s", 3, 8), ("n", "s", 8), ("s", 8)])
def test_fewer_axes(shape: tuple[int | str, ...]) -> None:
    t = Tape()
    x = t.input(*shape)
    a = spell.computed(t, x, shape.index("s"))
    rows = Angles(*(t.squeeze(item, 0) for item in (a.cos, a.sin)))
    y = spell.rotate_half(t, x, rows, lambda table: t.unsqueeze(table, 1) if 3 in shape else table)
    assert_fused(t.model(y))


def test_more_axes() -> None:
    t = Tape()
    x = t.input("n", "s", 2, 3, 8)
    a = spell.computed(t, x, 1)
    cos, sin = (t.unsqueeze(spell.doubled(t, item), 2, 3) for item in (a.cos, a.sin))
    assert_fused(t.model(t.add(t.mul(x, cos), t.mul(t.turned(x), sin))))


def test_what_is_returned_stays() -> None:
    """An inner value that the graph returns is computed as before."""
    t = Tape()
    x = t.input("n", 3, "s", 8)
    a = spell.computed(t, x, 2)
    cos, sin = (t.unsqueeze(spell.doubled(t, half), 1) for half in (a.cos, a.sin))
    turned = t.turned(x)
    y = t.add(t.mul(x, cos), t.mul(turned, sin))
    assert_fused(t.model(y, turned))


@pytest.mark.parametrize("layout", ["static", "static heads first"])
@pytest.mark.parametrize("rotation", [spell.rotate_half, spell.rotate_every_two])
def test_positions_that_may_be_one(rotation: Callable[..., str], layout: str) -> None:
    """Tables whose sizes are not known are expanded to those of x."""
    model = spell.build(rotation, spell.given, layout)
    made = assert_fused(model, ((2, 5), (1, 5), (2, 1), (1, 1)))
    assert "Expand" in kinds(made)


def test_a_batch_of_another_name_may_widen_x() -> None:
    """Positions of a batch of their own may be more than x has: this is left alone."""
    t = Tape()
    x = t.input("k", spell.HEADS, "s", spell.WIDTH)
    y = spell.rotate_half(t, x, spell.given(t, x, 2), lambda table: t.unsqueeze(table, 1))
    _, result = _fused(t.model(y), CPU)
    assert not result.modified


def test_inside_a_branch() -> None:
    """x and the tables are values of the graph around the branch."""
    t = Tape()
    x = t.input("n", 3, "s", 8)
    a = spell.computed(t, x, 2)
    cos, sin = (t.unsqueeze(spell.doubled(t, half), 1) for half in (a.cos, a.sin))
    outside = len(t.nodes)
    y = t.add(t.mul(x, cos), t.mul(t.turned(x), sin))
    bodies = [
        helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(out, 1, None)])
        for nodes, name, out in (
            (t.nodes[outside:], "then", y),
            ([helper.make_node("Relu", [x], ["other"])], "else", "other"),
        )
    ]
    del t.nodes[outside:]
    t.inputs.append(helper.make_tensor_value_info("which", TensorProto.BOOL, []))
    t.nodes.append(
        helper.make_node("If", ["which"], ["z"], then_branch=bodies[0], else_branch=bodies[1])
    )
    model = t.model("z")
    made = fused(model)
    inner = next(one for one in made.graph.node if one.op_type == "If").attribute
    assert any(n.op_type == "RotaryEmbedding" for item in inner for n in item.g.node)
    random = np.random.default_rng(0)
    given = {"x": random.standard_normal((2, 3, 5, 8)).astype(np.float32)}
    for which in (True, False):
        both = {**given, "which": np.array(which)}
        np.testing.assert_allclose(run(made, both)[0], run(model, both)[0], atol=1e-6)


# ---- what is nearly a rotation ---------------------------------------------------------


def other_sign(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    cos, sin = (fit(spell.doubled(t, half)) for half in (a.cos, a.sin))
    first, second = t.halves(x)
    return t.add(t.mul(x, cos), t.mul(t.join(second, first), sin))


def both_negative(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    cos, sin = (fit(spell.doubled(t, half)) for half in (a.cos, a.sin))
    return t.add(t.mul(x, cos), t.mul(t.op("Neg", t.join(*t.halves(x)[::-1])), sin))


def cos_of_other_angle(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    cos = fit(t.join(a.cos, t.op("Cos", a.sin)))
    return t.add(t.mul(x, cos), t.mul(t.turned(x), fit(spell.doubled(t, a.sin))))


def sin_of_other_angle(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    sin = fit(t.join(a.sin, t.op("Sin", a.cos)))
    return t.add(t.mul(x, fit(spell.doubled(t, a.cos))), t.mul(t.turned(x), sin))


def reversed_halves(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    cos = fit(t.join(a.cos, t.cut(a.cos, -1, -HALF - 1, step=-1)))
    return t.add(t.mul(x, cos), t.mul(t.turned(x), fit(spell.doubled(t, a.sin))))


def other_value(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    cos, sin = (fit(spell.doubled(t, half)) for half in (a.cos, a.sin))
    return t.add(t.mul(x, cos), t.mul(t.turned(t.op("Tanh", x)), sin))


def half_of_other_value(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    cos, sin = (fit(spell.doubled(t, half)) for half in (a.cos, a.sin))
    other = t.op("Tanh", x)
    turned = t.join(t.op("Neg", t.cut(x, HALF, spell.END)), t.cut(other, 0, HALF))
    return t.add(t.mul(x, cos), t.mul(turned, sin))


def not_swapped(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    cos, sin = (fit(spell.doubled(t, half)) for half in (a.cos, a.sin))
    first, second = t.halves(x)
    return t.add(t.mul(x, cos), t.mul(t.join(t.op("Neg", first), second), sin))


def mixed_pairing(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    """Tables are laid out for interleaved pairs, and halves are swapped."""
    cos, sin = (fit(spell.repeated(t, half, 3)) for half in (a.cos, a.sin))
    return t.add(t.mul(x, cos), t.mul(t.turned(x), sin))


def mixed_tables(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    cos, sin = fit(spell.doubled(t, a.cos)), fit(spell.repeated(t, a.sin, 3))
    return t.add(t.mul(x, cos), t.mul(t.turned(x), sin))


def shifted_cut(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    """The halves do not begin in the middle."""
    cos, sin = (fit(spell.doubled(t, half)) for half in (a.cos, a.sin))
    turned = t.join(t.op("Neg", t.cut(x, 3, spell.END)), t.cut(x, 0, 3))
    return t.add(t.mul(x, cos), t.mul(turned, sin))


def sum_of_three(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    cos, sin = (fit(spell.doubled(t, half)) for half in (a.cos, a.sin))
    return t.add(t.add(t.mul(x, cos), t.mul(t.turned(x), sin)), t.mul(x, sin))


def squared(t: Tape, x: str, _a: Angles, _fit: Fit) -> str:
    """What x is multiplied by is x."""
    return t.add(t.mul(x, x), t.mul(t.turned(x), x))


def doubled_term(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    cos, sin = (fit(spell.doubled(t, half)) for half in (a.cos, a.sin))
    kept = t.mul(x, cos)
    return t.op("Sum", kept, kept, t.mul(t.turned(x), sin))


def passing_changed(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    """Half of what would be turned is not, and is negated."""
    cos, sin = fit(a.cos), fit(a.sin)
    first, second = t.halves(x)
    upper = t.sub(t.mul(first, cos), t.mul(second, sin))
    return t.join(upper, t.op("Neg", second))


def one_channel_off(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    cos, sin = (fit(spell.doubled(t, half)) for half in (a.cos, a.sin))
    order = t.ints(4, 5, 7, 6, 0, 1, 2, 3)
    signs = t.data([-1.0] * HALF + [1.0] * HALF)
    turned = t.mul(t.op("Gather", x, order, axis=3), signs)
    return t.add(t.mul(x, cos), t.mul(turned, sin))


def heads_turned(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    """The second half comes from another head."""
    cos, sin = (fit(spell.doubled(t, half)) for half in (a.cos, a.sin))
    rolled = t.join(t.cut(x, 1, spell.END, axis=1), t.cut(x, 0, 1, axis=1), axis=1)
    return t.add(t.mul(x, cos), t.mul(t.turned(rolled), sin))


def angles_per_head(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    rate = t.data(np.linspace(0.5, 1, spell.HEADS).reshape(1, spell.HEADS, 1, 1))
    cos, sin = (t.mul(fit(spell.doubled(t, half)), rate) for half in (a.cos, a.sin))
    return t.add(t.mul(x, cos), t.mul(t.turned(x), sin))


def not_linear(t: Tape, x: str, a: Angles, fit: Fit) -> str:
    cos, sin = (fit(spell.doubled(t, half)) for half in (a.cos, a.sin))
    return t.add(t.op("Div", x, cos), t.mul(t.turned(x), sin))


NEARLY = {
    other_sign: "one sign",
    both_negative: "one sign",
    cos_of_other_angle: "different cosines",
    sin_of_other_angle: "different sines",
    reversed_halves: "different cosines",
    other_value: "",
    half_of_other_value: "",
    not_swapped: "",
    mixed_pairing: "different cosines",
    mixed_tables: "different sines",
    shifted_cut: "",
    sum_of_three: "",
    squared: "",
    doubled_term: "",
    passing_changed: "",
    one_channel_off: "",
    heads_turned: "",
    angles_per_head: "vary along heads",
    not_linear: "",
}


@pytest.mark.parametrize("layout", ["BHSD", "one batch", "flat"])
@pytest.mark.parametrize("rotation", NEARLY, ids=lambda f: f.__name__)
def test_nearly(rotation: Callable[..., str], layout: str) -> None:
    model = spell.build(rotation, layout=layout)
    made, result = _fused(model, RewriteOptions(level=3))
    if rotation is sum_of_three:  # two of the three are a rotation
        given = spell.feeds(model, 1, 5)
        np.testing.assert_allclose(run(made, given)[0], run(model, given)[0], atol=1e-5)
        return
    assert not result.modified, kinds(made)
    reason = NEARLY[rotation]
    assert not reason or any(reason in miss.reason for miss in result.log.misses)


def test_no_kernel_for_double() -> None:
    model = spell.build(spell.rotate_half, dtype=np.float64)
    made, result = _fused(model, RewriteOptions())
    assert "RotaryEmbedding" not in kinds(made)
    assert any("no kernel" in miss.reason for miss in result.log.misses)


@pytest.mark.parametrize("width", [5, 7])
def test_an_odd_number_of_channels(width: int) -> None:
    t = Tape()
    x, cos, sin = (t.input("n", 3, "s", width, name=name) for name in ("x", "cos", "sin"))
    middle = width // 2
    turned = t.join(t.op("Neg", t.cut(x, middle, spell.END)), t.cut(x, 0, middle))
    made, result = _fused(t.model(t.add(t.mul(x, cos), t.mul(turned, sin))), RewriteOptions())
    assert not result.modified, kinds(made)


def test_an_unknown_number_of_channels() -> None:
    t = Tape()
    x, cos, sin = (t.input("n", 3, "s", "d", name=name) for name in ("x", "cos", "sin"))
    _, result = _fused(t.model(t.add(t.mul(x, cos), t.mul(t.turned(x), sin))), RewriteOptions())
    assert not result.modified


# ---- any permutation, any signs --------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_numbers_stay(seed: int) -> None:
    """Terms, permutations, signs and tables at random: most are no rotation."""
    random = np.random.default_rng(seed)

    def shuffled(t: Tape, x: str, a: Angles, fit: Fit) -> str:
        def table(half: str) -> str:
            made = [spell.doubled(t, half), spell.repeated(t, half, 3)][random.integers(2)]
            return fit(signed(made) if random.random() < 0.3 else made)

        def signed(value: str) -> str:
            signs = [[-1] * HALF + [1] * HALF, [1] * HALF + [-1] * HALF, [-1, 1] * HALF]
            return t.mul(value, t.data(signs[random.integers(3)]))

        def permuted(value: str) -> str:
            orders = (np.roll(np.arange(8), HALF), np.arange(8).reshape(-1, 2)[:, ::-1].ravel())
            order = orders[random.integers(2)]
            return t.op("Gather", value, t.ints(*order.tolist()), axis=3)

        first = t.mul(x, table(a.cos))
        other = permuted(x)
        second = t.mul(signed(other) if random.random() < 0.8 else other, table(a.sin))
        kind = ("Add", "Add", "Sub")[random.integers(3)]
        return t.op(kind, *((first, second) if random.random() < 0.5 else (second, first)))

    model = spell.build(shuffled, layout=("BHSD", "flat", "BSHD")[seed % 3])
    made = fused(model)
    given = spell.feeds(model, 2, 5)
    np.testing.assert_allclose(run(made, given)[0], run(model, given)[0], atol=1e-5)


def test_turned_backward() -> None:
    """Sines of the other sign are those of the opposite angle."""

    def backward(t: Tape, x: str, a: Angles, fit: Fit) -> str:
        cos, sin = (fit(spell.doubled(t, half)) for half in (a.cos, a.sin))
        return t.sub(t.mul(x, cos), t.mul(t.turned(x), sin))

    made = assert_fused(spell.build(backward))
    assert kinds(made).count("Neg") == 1  # of the sines


# ---- the reference ---------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("width", [2, 4, 8])
def test_reference_is_the_operator(width: int, interleaved: bool) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 3, 5, 8)).astype(np.float32)
    cos, sin = random.standard_normal((2, 2, 5, width // 2)).astype(np.float32)
    names = ("x", "cos", "sin")
    values = [helper.make_tensor_value_info(name, 1, None) for name in names]
    node = helper.make_node(
        "RotaryEmbedding", names, ["y"], rotary_embedding_dim=width % 8,
        interleaved=int(interleaved), num_heads=3,
    )  # fmt: skip
    graph = helper.make_graph([node], "g", values, [helper.make_tensor_value_info("y", 1, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    feeds = dict(zip(names, (x, cos, sin), strict=True))
    got = rotated(x, cos[:, None], sin[:, None], interleaved=interleaved, width=width)
    np.testing.assert_allclose(run(model, feeds)[0], got, atol=1e-6)
    first, second = pairs(width, interleaved=interleaved)
    assert sorted([*range(8)[first], *range(8)[second]]) == list(range(width))
