"""Functions whose inlining would not end, or take too long: refused in one line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from onnx_ir.passes.common import InlinePass

import ortkit
from ortkit.errors import ModelError
from ortkit.graph.analysis.inspection import inspect_model
from ortkit.graph.check.calls import MAX_CALL_DEPTH, MAX_INLINED_NODES
from ortkit.graph.inline import inline_functions
from ortkit.graph.io.open import open_model

_OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)]


def model(functions: list[onnx.FunctionProto], calls: int = 1) -> onnx.ModelProto:
    """Return a model that calls the first function `calls` times in a row."""
    info = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n"]) for n in ("v0", f"v{calls}")
    ]
    first = functions[0].name
    nodes = [helper.make_node(first, [f"v{i}"], [f"v{i + 1}"], domain="d") for i in range(calls)]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:])
    return helper.make_model(graph, opset_imports=_OPSETS, functions=functions, ir_version=9)


def function(name: str, called: str, times: int) -> onnx.FunctionProto:
    """Return a function of `times` calls in a row; of Relu if none is named."""
    nodes = [
        helper.make_node(called or "Relu", [f"t{i}"], [f"t{i + 1}"], domain="d" if called else "")
        for i in range(times)
    ]
    return helper.make_function("d", name, ["t0"], [f"t{times}"], nodes, _OPSETS)


def chain(depth: int, times: int) -> list[onnx.FunctionProto]:
    """Return functions that each call the next `times` times."""
    last = depth - 1
    return [
        function(f"f{i}", f"f{i + 1}" if i < last else "", times if i < last else 1)
        for i in range(depth)
    ]


def within_a_branch(depth: int) -> Iterator[onnx.FunctionProto]:
    """Yield functions that each call the next in a branch of an If."""
    for i in range(depth):
        call = (
            helper.make_node(f"f{i + 1}", ["x", "c"], ["b"], domain="d")
            if i < depth - 1
            else helper.make_node("Relu", ["x"], ["b"])
        )
        branches = {
            "then_branch": helper.make_graph([call], "t", [], [onnx.ValueInfoProto(name="b")]),
            "else_branch": helper.make_graph(
                [helper.make_node("Neg", ["x"], ["e"])], "e", [], [onnx.ValueInfoProto(name="e")]
            ),
        }
        choose = helper.make_node("If", ["c"], ["y"], **branches)
        yield helper.make_function("d", f"f{i}", ["x", "c"], ["y"], [choose], _OPSETS)


REFUSED = {
    "each calls the next twice": (model(chain(17, 2)), "function 'f0' alone becomes"),
    "2^100": (model(chain(101, 2)), "some 10^30"),
    "never called": (model([function("g", "", 1), *chain(20, 2)]), "function 'f0' alone becomes"),
    "flat": (
        model([function("f", "", 1000)], calls=MAX_INLINED_NODES // 1000 + 1),
        "function 'f' alone becomes 1,000",
    ),
    "a long chain": (model(chain(MAX_CALL_DEPTH + 2, 1)), "function 'f1' nests 201 calls"),
    "itself": (model([function("f", "f", 1)]), "function 'f' of domain 'd' calls itself"),
    "nested graphs": (model(list(within_a_branch(40))), "nests 33 graphs"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_inlining_would_not_survive_is_one_line(name: str) -> None:
    proto, said = REFUSED[name]
    with pytest.raises(ModelError, match=r".") as caught:
        open_model(proto)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.fix


@pytest.mark.parametrize("name", REFUSED)
def test_sessions_refuse_it_before_onnx_runtime_sees_it(name: str, tmp_path: Path) -> None:
    proto, said = REFUSED[name]
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    for source in (proto, proto.SerializeToString(), tmp_path / "m.onnx"):
        with pytest.raises(ModelError) as caught:
            ortkit.Session(source, "cpu")
        assert said in str(caught.value)


def test_what_stays_below_the_limits_is_counted_as_inlining_makes_it() -> None:
    opened = open_model(model(chain(5, 3), calls=4))
    inline_functions(opened)
    assert sum(1 for _ in opened.graph) == 4 * 3**4
    assert inspect_model(model(chain(5, 3), calls=4)).cost.ops[0].nodes == 4 * 3**4
    assert open_model(model(chain(MAX_CALL_DEPTH, 1)))


def test_names_are_those_that_onnx_ir_gives() -> None:
    proto = model(chain(4, 3), calls=3)
    proto.functions[0].node[0].name = "node_3"
    branch = next(within_a_branch(1)).node[0]
    branch.input[0], branch.output[0] = "t3", "t4"
    branch.attribute[0].g.node[0].input[0] = branch.attribute[1].g.node[0].input[0] = "t3"
    proto.functions[1].node.append(branch)
    expected, found = open_model(proto), open_model(proto)
    InlinePass()(expected)
    inline_functions(found)
    assert ir.to_proto(found) == ir.to_proto(expected)


def test_many_calls_of_one_function_take_no_time_that_grows_by_the_square() -> None:
    opened = open_model(model([function("f", "", 3)], calls=5000))
    inline_functions(opened)  # minutes, by trying all names
    assert sum(1 for _ in opened.graph) == 15_000


@pytest.mark.parametrize("kind", ["fifo", "folder", "device", "outside"])
def test_sessions_open_no_external_data_that_is_no_file(kind: str, tmp_path: Path) -> None:
    proto = model([function("f", "", 1)])
    proto.graph.node.add(op_type="Add", input=["v1", "w"], output=["z"])
    proto.graph.output[0].name = "z"
    weight = proto.graph.initializer.add(name="w", dims=[2], data_type=TensorProto.FLOAT)
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="w.data")
    place = tmp_path / "m"
    place.mkdir()
    if kind == "fifo":
        os.mkfifo(place / "w.data")
    elif kind == "folder":
        (place / "w.data").mkdir()
    elif kind == "device":
        (place / "w.data").symlink_to("/dev/zero")
    else:
        (tmp_path / "secret").write_bytes(bytes(8))
        (place / "w.data").symlink_to(tmp_path / "secret")
    (place / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError) as caught:
        ortkit.Session(place / "m.onnx", "cpu")
    assert "'w.data' of tensor 'w'" in str(caught.value)


def test_functions_that_cannot_be_inlined_are_kept_as_they_are() -> None:
    proto = model([function("f", "", 2)], calls=2)
    proto.functions[0].opset_import[0].version = 11
    opened = open_model(proto)
    inline_functions(opened)
    assert len(opened.functions) == 1
    assert inspect_model(proto).cost.uncounted == 2


def test_a_call_may_leave_the_last_outputs_out() -> None:
    proto = model([function("f", "", 2)])
    proto.functions[0].output.append("t1")
    opened = open_model(proto)
    inline_functions(opened)
    assert [node.op_type for node in opened.graph] == ["Relu", "Relu"]


@pytest.mark.parametrize("kind", ["input", "value_info", "branch"])
def test_no_node_gets_more_sizes_than_a_tensor_has_axes(kind: str) -> None:
    """ONNX Runtime would make a list of them."""
    value = helper.make_tensor_value_info
    proto = model([function("f", "", 1)])
    sizes = value("sizes", TensorProto.INT64, [2**40])
    (proto.graph.value_info if kind == "value_info" else proto.graph.input).append(sizes)
    if kind == "value_info":
        proto.graph.node.add(op_type="Shape", input=["v0"], output=["sizes"])
    expand = helper.make_node("Expand", ["v0", "sizes"], ["z"], "n")
    if kind == "branch":
        proto.graph.input.append(value("c", TensorProto.BOOL, []))
        graphs = [
            helper.make_graph([expand], name, [], [value("z", TensorProto.FLOAT, None)])
            for name in ("t", "e")
        ]
        expand = helper.make_node(
            "If", ["c"], ["z2"], then_branch=graphs[0], else_branch=graphs[1]
        )
    proto.graph.node.append(expand)
    for load in (open_model, lambda source: ortkit.Session(source, "cpu")):
        with pytest.raises(ModelError) as caught:
            load(proto)
        assert "(Expand): input 'sizes' gives 1,099,511,627,776 sizes" in str(caught.value)
