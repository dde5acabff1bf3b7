"""What get_capability may return, checked before ONNX Runtime sees it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from ortkit.errors import UserError
from ortkit.provider.graph_view import GraphView
from ortkit.provider.groups import Group, check_claims, label
from ortkit.provider.tensors import Lease

DIAMOND = """<ir_version: 10, opset_import: ["" : 20]>
g (float[4] x) => (float[4] y, float[4] w)
{ a = Relu(x)  b = Exp(a)  c = Tanh(a)  y = Add(b, c)  d = Neg(x)  w = Abs(d) }
"""
BRANCHES = """<ir_version: 10, opset_import: ["" : 20]>
g (float[4] x, bool k) => (float[4] y)
{
  a = Relu(x)
  b = If (k) <
    then_branch = t () => (float[4] p) { p = Exp(a) },
    else_branch = e () => (float[4] q) { q = Neg(a) }
  >
  y = Add(a, b)
}
"""


def view(text: str) -> GraphView:
    """Return a view of a graph that no ONNX Runtime stands behind."""
    graph = ir.from_proto(onnx.parser.parse_model(text)).graph
    slots: Any = None
    return GraphView(
        graph=graph, outer_values=(), parent_op=None, name="g", ir_version=10, model_path="",
        handles={node: index + 1 for index, node in enumerate(graph)}, lease=Lease(),
        _slots=slots, _address=0,
    )  # fmt: skip


def named(graph: GraphView) -> dict[str, ir.Node]:
    return {node.outputs[0].name or "": node for node in graph}


def test_nodes_and_lists_of_them_are_taken() -> None:
    graph = view(DIAMOND)
    node = named(graph)
    found = check_claims(graph, [node["a"], [node["b"], node["c"]], (node["y"],)])
    assert found == [node["a"], Group((node["b"], node["c"])), Group((node["y"],))]


def test_nothing_is_taken() -> None:
    assert check_claims(view(DIAMOND), []) == []


def test_groups_apart_in_the_graph_may_be_one() -> None:
    graph = view(DIAMOND)
    node = named(graph)
    assert len(check_claims(graph, [[node["a"], node["w"], node["d"]]])) == 1


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        (None, "get_capability returned None"),
        ("nodes", "get_capability returned a value of type str"),
        ([None], "a list that holds None"),
        (["a"], "a list that holds a value of type str"),
        ([["a"]], "a group that holds a value of type str, not a node"),
        ([[]], "a group without nodes"),
        ([7], "a list that holds a value of type int"),
    ],
)
def test_what_is_no_node_is_refused(claims: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_claims(view(DIAMOND), claims)


def test_a_single_node_is_no_list() -> None:
    graph = view(DIAMOND)
    with pytest.raises(UserError, match="returned a value of type Node"):
        check_claims(graph, next(iter(graph)))  # type: ignore[arg-type]


def test_a_node_in_two_groups_is_refused() -> None:
    graph = view(DIAMOND)
    node = named(graph)
    with pytest.raises(UserError, match=r"the Relu that makes 'a' in two groups"):
        check_claims(graph, [[node["a"], node["b"]], [node["a"]]])
    with pytest.raises(UserError, match=r"the Relu that makes 'a' twice in a group"):
        check_claims(graph, [[node["a"], node["a"]]])


def test_a_node_of_another_graph_is_refused() -> None:
    graph, other = view(DIAMOND), view(DIAMOND)
    with pytest.raises(UserError, match=r"is not a node of graph 'g'.*not of a copy"):
        check_claims(graph, [next(iter(other))])


def test_a_group_that_waits_for_itself_is_refused() -> None:
    graph = view(DIAMOND)
    node = named(graph)
    with pytest.raises(UserError) as caught:
        check_claims(graph, [[node["a"], node["y"], node["b"]]])
    assert "comes back through the Tanh that makes 'c' (the group: the Relu" in str(caught.value)


def test_two_groups_that_wait_for_each_other_are_refused() -> None:
    graph = view(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[4] x) => (float[4] u, float[4] v)
        { a = Relu(x)  b = Exp(x)  u = Neg(b)  v = Neg(a) }"""
    )
    node = named(graph)
    with pytest.raises(UserError, match="comes back through the Exp that makes 'b'"):
        check_claims(graph, [[node["a"], node["u"]], [node["b"], node["v"]]])


def test_what_a_branch_reads_counts() -> None:
    graph = view(BRANCHES)
    node = named(graph)
    with pytest.raises(UserError, match="comes back through the If that makes 'b'"):
        check_claims(graph, [[node["a"], node["y"]]])
    assert check_claims(graph, [[node["a"], node["b"], node["y"]]])


def test_nodes_are_called_by_name_where_they_have_one() -> None:
    graph = view(DIAMOND)
    node = next(iter(graph))
    node.name = "first"
    assert label(node) == "Relu 'first'"


def test_a_long_chain_is_checked_in_linear_time() -> None:
    count = 4000
    body = "\n".join(f"v{i + 1} = Relu(v{i})" for i in range(count))
    graph = view(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        g (float[4] v0) => (float[4] v{count}) {{ {body} }}"""
    )
    pairs = list(graph)
    claims = [pairs[index : index + 2] for index in range(0, count, 2)]
    assert len(check_claims(graph, claims)) == count // 2


def outputs_of(groups: list[list[ir.Node]]) -> list[list[str | None]]:
    return [[node.outputs[0].name for node in group] for group in groups]


def test_nodes_are_put_together_where_they_hang_together() -> None:
    graph = view(DIAMOND)
    assert outputs_of(graph.groups(lambda node: True)) == [["a", "b", "c", "y"], ["d", "w"]]
    assert graph.groups(lambda node: False) == []


def test_no_group_waits_for_itself() -> None:
    graph = view(DIAMOND)
    found = graph.groups(lambda node: node.op_type != "Tanh")
    assert outputs_of(found) == [["a", "b"], ["y"], ["d", "w"]]
    assert check_claims(graph, found)
    branches = view(BRANCHES)
    found = branches.groups(lambda node: node.op_type != "If")
    assert outputs_of(found) == [["a"], ["y"]]


@pytest.mark.parametrize("seed", range(20))
def test_groups_of_any_graph_are_claims_that_are_right(seed: int) -> None:
    random = np.random.default_rng(seed)
    lines = ["v1 = Relu(v0)"]
    for index in range(2, 40):
        left, right = random.integers(max(0, index - 6), index, 2)
        op = ("Add", "Mul")[int(random.integers(2))]
        lines.append(f"v{index} = {op}(v{left}, v{right})")
    graph = view(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        g (float[4] v0) => (float[4] v39) {{ {" ".join(lines)} }}"""
    )
    found = graph.groups(lambda node: node.op_type == "Add")
    assert sum(map(len, found)) == sum(node.op_type == "Add" for node in graph)
    assert len(check_claims(graph, found)) == len(found)
