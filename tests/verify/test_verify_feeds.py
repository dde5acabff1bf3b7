"""make_feeds: numbers that a model can take."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from small_models import model, random_weights

from ortkit.errors import ModelError, UserError
from ortkit.verify.inputs.feeds import make_feeds

TABLE = random_weights(11, 4)


def both(built: ir.Model, name: str, **shapes: int) -> list[np.ndarray]:
    made = [feeds[name] for feeds in make_feeds(built, 2, shapes)]
    assert all(isinstance(each, np.ndarray) for each in made)
    return [each for each in made if isinstance(each, np.ndarray)]


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ("y = Gather(table, ids)", 11),
        ("y = Gather <axis = 1> (table, ids)", 4),
        ("t = Cast <to = 7> (ids) u = Unsqueeze(t, one) y = Gather(table, u)", 11),
        ("t = Add(ids, two) y = Gather(table, t)", 9),
        ("f = Identity(table) y = Gather(f, ids)", 11),
        ("t = Reshape(ids, flat) y = GatherElements(column, t)", 11),
    ],
)
def test_ids_stay_inside_the_axis_they_index(body: str, limit: int) -> None:
    built = model(
        f"g (int32[batch, seq] ids) => (float[] y) {{ {body} }}",
        {
            "table": TABLE,
            "column": TABLE[:, 0].copy(),
            "one": np.array([1]),
            "two": np.array(2, np.int32),
            "flat": np.array([-1]),
        },
    )
    values = np.concatenate([each.ravel() for each in both(built, "ids", seq=200)])
    assert values.min() == 0
    assert values.max() == limit - 1


def test_ids_are_followed_into_branches_and_functions() -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 21, "own" : 1]>
        g (int64[n] a, int64[n] b, bool c) => (float[] y, float[] z)
        <float[3, 2] small = {1, 2, 3, 4, 5, 6}> {
            y = If (c) <
                then_branch = t () => (float[] p) { p = Gather(small, a) },
                else_branch = e () => (float[] q) { q = Identity(small) }
            >
            z = own.lookup(small, b)
        }
        <domain: "own", opset_import: ["" : 21]>
        lookup (data, where) => (found) { found = Gather(data, where) }
    """
    built = ir.from_onnx_text(text)
    for name in ("a", "b"):
        values = np.concatenate([each.ravel() for each in both(built, name, n=100)])
        assert values.max() == 2


def test_ids_are_followed_into_the_body_of_a_loop() -> None:
    built = model(
        """g (int64[n] ids, float[n, 4] start) => (float[n, 4] y) {
            count = Constant <value_int = 2> ()
            y, last = Loop (count, , start, ids) <
                body = b (int64 i, bool go, float[n, 4] sum, int64[n] where)
                    => (bool again, float[n, 4] next, int64[n] same) {
                    again = Identity(go) row = Gather(table, where)
                    next = Add(sum, row) same = Identity(where)
                }
            >
        }""",
        {"table": TABLE},
    )
    values = np.concatenate([each.ravel() for each in both(built, "ids", n=200)])
    assert values.max() == 10


def test_dynamic_sizes_take_two_values_and_names_agree() -> None:
    built = model(
        """g (float[batch, seq] x, float[batch, seq] m, float[batch, "seq + 2"] p, float[?, 5] q)
        => (float[] y) { y = Identity(x) }"""
    )
    first, second = make_feeds(built, 2)
    for feeds in (first, second):
        batch, seq = np.shape(feeds["x"])
        assert np.shape(feeds["m"]) == (batch, seq)
        assert np.shape(feeds["p"]) == (batch, seq + 2)
        assert np.shape(feeds["q"])[1] == 5
    assert all(a != b for a, b in zip(np.shape(first["x"]), np.shape(second["x"]), strict=True))
    assert np.shape(first["q"]) != np.shape(second["q"])


def test_a_total_length_is_the_past_and_the_new_one() -> None:
    built = model(
        """g (int64[batch, sequence_length] input_ids, int64[batch, total_sequence_length] m,
              float[batch, 2, past_sequence_length, 8] past)
        => (float[] y) { y = Identity(past) }"""
    )
    for feeds in make_feeds(built, 2):
        new, past = np.shape(feeds["input_ids"])[1], np.shape(feeds["past"])[2]
        assert np.shape(feeds["m"])[1] == new + past


@pytest.mark.parametrize(
    ("op", "width", "inputs", "heads"),
    [
        ("com.microsoft.GroupQueryAttention", 84, 'x, "", "", k, v, last, total', 2),
        ("com.microsoft.GroupQueryAttention", 36, "x, z, z, k, v, last, total", 2),
        ("com.microsoft.MultiHeadAttention", 36, 'x, x, x, "", "", "", k, v', 3),
        ("Attention", 36, 'x, z, z, "", k, v', 2),
    ],
)
def test_a_cache_is_as_attention_wants_it(op: str, width: int, inputs: str, heads: int) -> None:
    """A name for the size of a head says nothing: the weights have decided it."""
    built = model(
        f"""g (float[batch, seq, {width}] x, float[batch, kv_heads, past, head_dim] k,
               float[batch, kv_heads, past, head_dim] v, int32[batch] last, int32 total,
               float[batch, seq, 24] z)
        => (float[] y) {{
          y = {op} <num_heads = 3, q_num_heads = 3, kv_num_heads = 2> ({inputs})
        }}"""
    )
    for feeds in make_feeds(built, 2):
        assert np.shape(feeds["k"])[1::2] == np.shape(feeds["v"])[1::2] == (heads, 12)
    assert np.shape(make_feeds(built, 1, {"head_dim": 5})[0]["k"])[3] == 5


def test_shapes_set_by_the_user_hold_in_every_sample() -> None:
    built = model("g (float[batch, seq] x) => (float[] y) { y = Identity(x) }")
    for feeds in make_feeds(built, 3, {"seq": 13}):
        assert np.shape(feeds["x"])[1] == 13
    with pytest.raises(UserError, match="did you mean batch"):
        make_feeds(built, 1, {"bacth": 2})
    with pytest.raises(UserError, match="negative"):
        make_feeds(built, 1, {"seq": -1})


@pytest.mark.parametrize(
    ("declared", "body"),
    [
        ("int64[4, seq] attention_mask", "y = Identity(attention_mask)"),
        ("int64[4, seq] m", "y = Cast <to = 9> (m)"),
        ("float[4, seq] m", "y = Sub(one, m)"),
        ("bool[4, seq] m", "y = Where(m, one, two)"),
        ("int64[4, seq] m", "y = Equal(m, zero)"),
    ],
)
def test_masks_are_ones_and_zeros_with_a_one_in_each_row(declared: str, body: str) -> None:
    weights = {
        "one": np.array(1, np.float32),
        "two": np.array(2, np.float32),
        "zero": np.array(0),
    }
    built = model(f"g ({declared}) => (float[] y) {{ {body} }}", weights)
    made = both(built, declared.split()[-1])
    for each in made:
        assert set(np.unique(each).tolist()) <= {0, 1}
        assert (each[:, 0] == 1).all()
    assert any((each == 0).any() for each in made)


def test_every_row_of_a_mask_sees_its_first_element() -> None:
    built = model("g (int64[1000, 5] attention_mask) => (float[] y) { y = Not(attention_mask) }")
    for each in both(built, "attention_mask"):
        assert (each[:, 0] == 1).all()
        assert {int(row.sum()) for row in each} == {1, 2, 3, 4, 5}


def test_a_mask_that_is_added_is_zero_or_very_negative() -> None:
    built = model(
        "g (float[2, 1, 1, n] attention_mask, float[2, 1, 1, n] s) => (float[] y)"
        " { y = Add(s, attention_mask) }"
    )
    for each in both(built, "attention_mask"):
        assert set(np.unique(each).tolist()) <= {0.0, -1e4}


def test_positions_count_on_from_the_past() -> None:
    built = model(
        """g (int64[batch, seq] position_ids, float[batch, past_seq] past) => (float[] y)
        { y = Gather(table, position_ids) }""",
        {"table": random_weights(64, 4)},
    )
    for feeds in make_feeds(built, 2):
        start = np.shape(feeds["past"])[1]
        (row, *_) = np.asarray(feeds["position_ids"])
        assert row.tolist() == list(range(start, start + len(row)))


def test_lengths_stay_within_the_time_axis() -> None:
    built = model(
        "g (float[5, 2, 3] x, int32[2] lens) => (float[] y) { y, h, c = LSTM(x, w, r, , lens) }",
        {},
    )
    for each in both(built, "lens"):
        assert each.min() >= 1
        assert each.max() <= 5


def test_a_single_flag_takes_both_values() -> None:
    built = model("g (bool c) => (bool y) { y = Not(c) }")
    assert {bool(each) for each in both(built, "c")} == {True, False}


ALL_TYPES = sorted(
    {t for t in ir.DataType if t not in (ir.DataType.UNDEFINED,)}, key=lambda t: t.value
)


@pytest.mark.parametrize("dtype", ALL_TYPES, ids=lambda t: t.name)
def test_every_type_can_be_made_and_varies(dtype: ir.DataType) -> None:
    value = ir.Value(name="x", type=ir.TensorType(dtype), shape=ir.Shape([4, 8]))
    graph = ir.Graph([value], [value], nodes=[], opset_imports={"": 21})
    (feeds,) = make_feeds(ir.Model(graph, ir_version=10), 1)
    made = feeds["x"]
    assert isinstance(made, np.ndarray)
    assert made.shape == (4, 8)
    assert made.dtype == (np.dtype(object) if dtype == ir.DataType.STRING else dtype.numpy())
    assert len({str(each) for each in made.ravel()}) > 1


def test_sequences_and_optionals() -> None:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [2, "n"])
    inputs = [
        helper.make_value_info("s", helper.make_sequence_type_proto(tensor)),
        helper.make_value_info("o", helper.make_optional_type_proto(tensor)),
    ]
    graph = helper.make_graph([], "g", inputs, [])
    first, second = make_feeds(ir.from_proto(helper.make_model(graph)), 2)
    assert isinstance(first["s"], list)
    assert [each.shape[0] for each in first["s"]] == [2, 2, 2]
    assert isinstance(first["o"], np.ndarray)
    assert second["o"] is None


def test_what_cannot_be_fed_is_refused_with_its_name() -> None:
    graph = onnx.GraphProto(name="g")
    graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, None))
    with pytest.raises(ModelError, match="rank of input 'x'"):
        make_feeds(ir.from_proto(helper.make_model(graph)), 1)


def test_feeds_are_the_same_for_the_same_seed() -> None:
    built = model("g (float[n, 3] x) => (float[] y) { y = Identity(x) }")
    one, same, other = (make_feeds(built, 1, seed=seed)[0]["x"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(np.asarray(one), np.asarray(same))
    assert not np.array_equal(np.asarray(one), np.asarray(other))
