"""Which nodes of a graph make certain values from others: closed, without a way back."""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir
import pytest

from ortkit.provider.own.acyclic import in_cycles
from ortkit.provider.own.subgraph_cut import Cut, Cuts
from ortkit.refusal import Refused


def cuts(body: str, outputs: str = "float[4] y") -> Cuts:
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
    g (float[4] x, bool c) => ({outputs}) <float[4] w = {{1, 2, 3, 4}}> {{ {body} }}"""
    return Cuts(ir.from_proto(onnx.parser.parse_model(text)))


def ops(found: Cut | Refused) -> list[str]:
    assert isinstance(found, Cut), found
    return [node.op_type for node in found.nodes]


def reason(found: Cut | Refused) -> str:
    assert isinstance(found, Refused), found
    return found.reason


def test_the_nodes_between_values_are_found() -> None:
    found = cuts("a = Relu (x)  b = Neg (a)  d = Add (b, w)  y = Exp (d)").find(["a"], ["d"])
    assert ops(found) == ["Neg", "Add"]
    assert [value.name for value in found.inputs] == ["a"]  # and not the constant
    assert [value.name for value in found.outputs] == ["d"]


def test_what_others_read_is_left_outside_and_read_from_there() -> None:
    graph = cuts("a = Relu (x)  s = Neg (x)  b = Add (a, s)  y = Sub (b, s)")
    found = graph.find(["a"], ["b"])
    assert ops(found) == ["Add"]
    assert [value.name for value in found.inputs] == ["a", "s"]


def test_a_graph_output_is_left_outside() -> None:
    graph = cuts("a = Relu (x)  z = Neg (a)  y = Exp (z)", "float[4] y, float[4] z")
    assert ops(graph.find(["z"], ["y"])) == ["Exp"]
    assert "is read by no node" in reason(graph.find(["a"], ["y"]))


def test_a_result_that_is_read_inside_too_may_leave() -> None:
    graph = cuts("a = Relu (x)  b = Exp (a)  y = Add (a, b)", "float[4] y, float[4] a")
    assert ops(graph.find(["x"], ["a", "y"])) == ["Relu", "Exp", "Add"]
    graph = cuts("a = Relu (x)  b = Exp (a)  y = Add (a, b)")
    assert ops(graph.find(["x"], ["y"])) == ["Relu", "Exp", "Add"]


def test_a_result_that_only_the_region_reads_is_refused() -> None:
    graph = cuts("a = Relu (x)  b = Exp (a)  y = Add (a, b)")
    # ONNX Runtime would not have it among the results of the group.
    assert reason(graph.find(["x"], ["a", "y"])) == "'a' is read by none but this region"


def test_a_way_back_is_refused() -> None:
    graph = cuts("a = Relu (x)  m = MatMul (a, a)  y = Add (a, m)", "float[4] y, float[4] a")
    # As one node Relu and Add would wait for the MatMul, which waits for them.
    assert "is made from a result of the region" in reason(graph.find(["x", "m"], ["a", "y"]))


def test_unknown_and_unread_values_are_refused() -> None:
    graph = cuts("a = Relu (x)  y = Exp (a)")
    assert "'nothing' is no value" in reason(graph.find(["nothing"], ["y"]))
    assert "'nothing' is no value" in reason(graph.find(["a"], ["nothing"]))
    assert "'x' is read by no node" in reason(graph.find(["a", "x"], ["y"]))


def test_an_input_that_the_region_would_make_is_refused() -> None:
    graph = cuts("a, b = Split <axis = 0, num_outputs = 2> (x)  y = Concat <axis = 0> (a, b)")
    # The Split makes `a`, which the region reads: only `b` may not be made by it again.
    assert ops(graph.find(["a", "b"], ["y"])) == ["Concat"]
    found = graph.find(["a"], ["y"])
    assert ops(found) == ["Concat"]
    assert [value.name for value in found.inputs] == ["a", "b"]


def test_nodes_with_graphs_stay_outside() -> None:
    branch = "{graph} = g () => (float[4] r) {{ r = Identity (x) }}"
    then, other = branch.format(graph="then_branch"), branch.format(graph="else_branch")
    graph = cuts(f"a = If (c) <{then}, {other}>  y = Exp (a)".replace("graph =", "graph: graph ="))
    assert ops(graph.find(["a"], ["y"])) == ["Exp"]
    assert "with a graph of its own" in reason(graph.find(["x"], ["a"]))


def test_what_a_body_reads_counts_as_read() -> None:
    then = "then_branch = g () => (float[4] r) { r = Identity (b) }"
    other = "else_branch = h () => (float[4] r2) { r2 = Identity (x) }"
    graph = cuts(f"a = Relu (x)  b = Neg (a)  d = Exp (b)  i = If (c) <{then}, {other}>  "
                 "y = Add (d, i)")  # fmt: skip
    assert ops(graph.find(["b"], ["d"])) == ["Exp"]
    assert "is read by no node" in reason(graph.find(["x"], ["d"]))


@pytest.mark.parametrize(
    ("groups", "stuck"),
    [
        ([[0, 2], [3]], []),
        ([[0, 3], [1, 2]], [0, 1]),  # 0 -> 1 and 2 -> 3
        ([[0, 3], [1, 2], [4]], [0, 1]),
        ([], []),
    ],
)
def test_groups_that_wait_for_each_other(groups: list[list[int]], stuck: list[int]) -> None:
    feeders = {0: [], 1: [0], 2: [], 3: [2], 4: [3]}
    assert in_cycles(groups, feeders) == stuck
