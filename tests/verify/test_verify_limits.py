"""Made-up inputs, loops, time and memory of a verification are bounded, each with one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortkit.comparison.single_run import run_once
from ortkit.errors import ModelError, UserError
from ortkit.graph.io.open import open_model
from ortkit.measure.inputs import usual_feeds
from ortkit.verify import sessions
from ortkit.verify.inputs.feeds import make_feeds
from ortkit.verify.inputs.sizes import AIMED_ELEMENTS, size_plans, sizes_of
from ortkit.verify.limits import MAX_TRIPS, long_loop, memory_limit, time_limit
from ortkit.verify.pair import verify_models
from ortkit.verify.verifier import Verifier


def relu(*shape: int | str) -> onnx.ModelProto:
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", infos[:1], infos[1:])
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.sampled(8)
@pytest.mark.parametrize("rank", [1, 4, 9, 20])
@pytest.mark.parametrize("name", ["a{}", "time_{}", "batch{}", "height{}"])
def test_free_sizes_get_smaller_as_there_are_more_of_them(rank: int, name: str) -> None:
    opened = open_model(relu(*(name.format(i) for i in range(rank))))
    made = [*make_feeds(opened, 2), *usual_feeds(opened, {})]
    sizes = [np.asarray(feeds["x"]).size for feeds in made]
    assert max(sizes) <= (AIMED_ELEMENTS if rank < 9 else 1 << 18)
    assert len({np.asarray(feeds["x"]).shape for feeds in made[:2]}) == 2


def test_sizes_that_the_user_gave_are_kept() -> None:
    opened = open_model(relu(*"abcdefghi"))
    (found,) = make_feeds(opened, 1, {"a": 100, "b": 50})
    assert np.asarray(found["x"]).shape[:2] == (100, 50)
    assert np.asarray(found["x"]).size <= AIMED_ELEMENTS


def test_a_large_fixed_input_leaves_the_others_their_sizes() -> None:
    shapes = [(1, AIMED_ELEMENTS), sizes_of(open_model(relu("batch", "seq")).graph.inputs[0])]
    assert size_plans(shapes, 2, {})[0] == ({"batch": 2, "seq": 7}, {"batch": 1, "seq": 16})


def test_usual_sizes_are_as_before() -> None:
    shapes = [sizes_of(value) for value in open_model(relu("batch", "seq", 768)).graph.inputs]
    assert size_plans(shapes, 2, {})[0] == ({"batch": 2, "seq": 7}, {"batch": 1, "seq": 16})


@pytest.mark.parametrize(
    "shape", [(4, 2**31, 2**10), (2**62, 2**62), (4, 2**33), ("n", 2**40), (0, 2**62, 8)]
)
def test_an_input_that_is_too_large_is_one_line_that_names_it(
    shape: tuple[int | str, ...], tmp_path: Path
) -> None:
    found = verify_models(open_model(relu(*shape)), open_model(relu(*shape)))
    assert found.verdict == "not possible"
    assert found.reason.startswith("input 'x' of shape [")
    (tmp_path / "m.onnx").write_bytes(relu(*shape).SerializeToString())
    with pytest.raises(ModelError, match=r"input 'x' of shape .* give inputs"):
        run_once(tmp_path / "m.onnx")


def loop(trips: int, *, ends: bool = False, inner: int = 0) -> onnx.ModelProto:
    """Return a model with a loop; its condition is what it was, or is computed if it `ends`."""
    value = helper.make_tensor_value_info
    condition = helper.make_node(
        "Less" if ends else "Identity", ["i", "m"] if ends else ["c"], ["k"]
    )
    nodes = [condition, helper.make_node("Neg", ["s"], ["t"])]
    if inner:
        nodes[1] = helper.make_node(
            "Loop", ["n", "yes", "s"], ["t"], "inner", body=body_of("j", "d", "u", "v", "w")
        )
    body = helper.make_graph(
        nodes, "body",
        [value("i", TensorProto.INT64, []), value("c", TensorProto.BOOL, []),
         value("s", TensorProto.FLOAT, ["n"])],
        [value("k", TensorProto.BOOL, []), value("t", TensorProto.FLOAT, ["n"])],
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("Loop", ["m", "yes", "x"], ["y"], "outer", body=body)], "g",
        [value("x", TensorProto.FLOAT, ["n"])], [value("y", TensorProto.FLOAT, ["n"])],
        [numpy_helper.from_array(np.array(number), name)
         for name, number in (("m", trips), ("yes", True), ("n", inner))],
    )  # fmt: skip
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])


def body_of(count: str, condition: str, state: str, kept: str, result: str) -> onnx.GraphProto:
    value = helper.make_tensor_value_info
    return helper.make_graph(
        [helper.make_node("Identity", [condition], [kept]),
         helper.make_node("Neg", [state], [result])],
        "inner",
        [value(count, TensorProto.INT64, []), value(condition, TensorProto.BOOL, []),
         value(state, TensorProto.FLOAT, ["n"])],
        [value(kept, TensorProto.BOOL, []), value(result, TensorProto.FLOAT, ["n"])],
    )  # fmt: skip


def test_loops_that_run_for_ever_are_named_and_not_run(tmp_path: Path) -> None:
    endless = open_model(loop(2**40))
    assert long_loop(endless) == (f"Loop 'outer' makes {2**40:,} trips, more than {MAX_TRIPS:,}")
    found = verify_models(endless, endless)
    assert (found.verdict, found.reason) == ("not possible", long_loop(endless))
    (tmp_path / "m.onnx").write_bytes(loop(2**40).SerializeToString())
    with pytest.raises(UserError, match="Loop 'outer' makes"):
        run_once(tmp_path / "m.onnx")


def test_trips_of_loops_inside_each_other_are_multiplied() -> None:
    assert "Loop 'inner' makes" in long_loop(open_model(loop(2**12, inner=2**12)))
    assert not long_loop(open_model(loop(2**10, inner=2**12)))


@pytest.mark.parametrize("model", [loop(100), loop(2**62, ends=True)])
def test_loops_that_end_are_verified(model: onnx.ModelProto) -> None:
    """While loops are exported with the largest trip count and a condition."""
    assert not long_loop(open_model(model))


def test_the_time_limit_grows_with_the_model_and_its_inputs(
    verify_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ortkit.verify.limits.SECONDS", verify_seconds)
    small, large = open_model(relu("n")), open_model(relu("n"))
    for i in range(1000):
        large.graph.append(ir.Node("", "Neg", [large.graph.inputs[0]], name=f"more{i}"))
    few, many = {"x": np.zeros(4)}, {"x": np.zeros(10**7)}
    monkeypatch.setattr("os.getloadavg", lambda: (0.5, 9.0, 9.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert 60 <= time_limit(small, few) < 61
    assert time_limit(large, few) > time_limit(small, few) + 5
    assert time_limit(small, many) > time_limit(small, few) + 5
    for load, least in ((2.0, 60), (5.0, 150), (99.0, 240)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert least <= time_limit(small, few) < least + 4


def test_memory_is_limited_in_the_process_that_runs_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert memory_limit() > 0
    monkeypatch.setattr(sessions, "memory_limit", lambda _: 2 << 30)
    proto = relu("n")
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1 << 30]), "size"))
    del proto.graph.node[:]
    proto.graph.node.extend(
        [
            helper.make_node("ConstantOfShape", ["size"], ["large"]),  # 4 GiB
            helper.make_node("ReduceSum", ["large"], ["sum"], keepdims=0),
            helper.make_node("Add", ["x", "sum"], ["y"]),
        ]
    )
    with Verifier(open_model(proto)) as verifier:
        assert "memory" in verifier.refusal
