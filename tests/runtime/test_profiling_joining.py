"""A trace joined with its graph: which input is which, which node it was, what goes together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnx_ir as ir
import pytest

from ortkit.runtime.profiling.body_flops import BodyFlops
from ortkit.runtime.profiling.build import profile_of
from ortkit.runtime.profiling.call_work import CallWork
from ortkit.runtime.profiling.context import Context, Joined
from ortkit.runtime.profiling.executed import executed_nodes
from ortkit.runtime.profiling.peaks import Peaks
from ortkit.runtime.profiling.regions import regions_of
from ortkit.runtime.profiling.trace.events import NodeSignature, TensorShape
from ortkit.runtime.profiling.trace.read import read_trace
from ortkit.runtime.profiling.work import call_work, matched_inputs
from tests.runtime.traces import node, run, written


def parsed(text: str, **weights: tuple[int, ...]) -> ir.Model:
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {text}')
    for name, shape in weights.items():
        values = np.zeros(shape, np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return ir.from_proto(proto)


def floats(*dims: int) -> TensorShape:
    return "float32", dims


def signature(
    name: str, op: str, inputs: tuple[TensorShape, ...], *outputs: TensorShape, index: int = 0
) -> NodeSignature:
    return NodeSignature(name, op, "CPUExecutionProvider", index, inputs, outputs, 0, 0, 0)


@pytest.mark.parametrize(
    "shown, found",
    [
        ((floats(1, 4), floats(4, 8), floats(8)), ("x", "w", "b")),
        ((floats(1, 4), floats(8)), ("x", "b")),  # w was packed
        ((floats(1, 4), floats(4, 8)), ("x", "w")),  # b was
        ((floats(1, 4),), ("x",)),
    ],
)
def test_packed_weights_are_filled_in_where_they_belong(
    shown: tuple[TensorShape, ...], found: tuple[str, ...]
) -> None:
    model = parsed("g (float[n, 4] x) => (float[n, 8] y) { y = Gemm (x, w, b) }", w=(4, 8), b=(8,))
    (gemm,) = model.graph
    matched = matched_inputs(gemm, shown)
    assert matched is not None
    assert {value.name: tensor for value, tensor in matched.items()} == {
        "x": floats(1, 4), "w": floats(4, 8), "b": floats(8)
    }  # fmt: skip
    work = call_work(signature("", "Gemm", shown, floats(1, 8)), gemm)
    assert work is not None and work.flops == 2 * 4 * 8 + 8
    assert work.weight_bytes == 4 * (4 * 8 + 8)


FUSED = """<ir_version: 10, opset_import: ["" : 20, "f" : 1]>
g (float[n, 4] x, float[4, 8] w) => (float[n, 8] y) { y = f.product (x, w, ) }
<domain: "f", opset_import: ["" : 20]> product (x, w, b) => (y) { s = MatMul (x, w)  y = Relu (s) }
"""


def test_the_arithmetic_of_a_fused_node_is_that_of_its_body() -> None:
    model = ir.from_proto(onnx.parser.parse_model(FUSED))
    (product,) = model.graph
    bodies = BodyFlops(model.functions)
    for rows in (1, 3, 1):  # what was counted is remembered
        ran = signature("", "product", (floats(rows, 4), floats(4, 8)), floats(rows, 8))
        work = call_work(ran, product, bodies)
        assert work is not None and work.flops == rows * (2 * 4 * 8 + 8)
    assert [item.op_type for item in next(iter(model.functions.values()))] == ["MatMul", "Relu"]
    alone = call_work(ran, product)
    assert alone is not None and alone.flops is None


def test_a_body_that_cannot_be_counted_is_not_known() -> None:
    model = ir.from_proto(onnx.parser.parse_model(FUSED.replace("Relu (s)", "Unique (s)")))
    (product,) = model.graph
    ran = signature("", "product", (floats(1, 4), floats(4, 8)), floats(1, 8))
    work = call_work(ran, product, BodyFlops(model.functions))
    assert work is not None and work.flops is None


def test_what_does_not_go_together_is_not_joined() -> None:
    model = parsed("g (float[n, 4] x) => (float[n, 8] y) { y = Gemm (x, w, b) }", w=(4, 8), b=(8,))
    (gemm,) = model.graph
    four = (floats(1, 4), floats(4, 8), floats(8), floats(8))
    for shown in ((), four, (floats(1, 4), floats(9))):
        assert matched_inputs(gemm, shown) is None
        assert call_work(signature("", "Gemm", shown, floats(1, 8)), gemm) is None


def test_absent_inputs_take_no_place() -> None:
    model = parsed("g (float[4] x, float m) => (float[4] y) { y = Clip (x, , m) }")
    (clip,) = model.graph
    matched = matched_inputs(clip, (floats(4), floats()))
    assert matched is not None
    assert [value.name for value in matched] == ["x", "m"]


def test_nodes_without_names_are_found_by_their_order_if_all_ran() -> None:
    model = parsed(
        "g (float[4] x) => (float[4] y) { a = Exp (x)  b = Neg (a)  [n] c = Exp (b)  y = Exp (c) }"
    )
    nodes = list(model.graph)
    ran = [
        signature("Exp_7", "Exp", (floats(4),), floats(4), index=7),
        signature("Neg_3", "Neg", (floats(4),), floats(4), index=3),
        signature("n", "Exp", (floats(4),), floats(4), index=1),
        signature("Exp_2", "Exp", (floats(4),), floats(4), index=2),
    ]
    assert executed_nodes(ran, model, None).nodes == nodes
    # One that did not run: which of them did is not known, but for those with names.
    assert executed_nodes(ran[:3], model, None).nodes == [None, nodes[1], nodes[2]]


def test_the_same_node_with_other_shapes_is_one_node() -> None:
    model = parsed("g (float[n] x) => (float[n] y) { y = Exp (x) }")
    ran = [signature("Exp_0", "Exp", (floats(size),), floats(size), index=0) for size in (3, 4, 5)]
    assert executed_nodes(ran, model, None).nodes == list(model.graph) * 3


def test_a_name_in_two_bodies_is_nobody_in_particular() -> None:
    model = parsed(
        """g (bool c, float[4] x) => (float[4] y) {
            y = If (c) <
                then_branch = t () => (float[4] p) { [same] p = Exp (x) },
                else_branch = e () => (float[4] q) { [same] q = Exp (x) }
            >
        }"""
    )
    ran = [signature("same", "Exp", (floats(4),), floats(4))]
    assert executed_nodes(ran, model, None).nodes == [None]


def test_constants_are_no_origins() -> None:
    before = parsed(
        """g (float[4] x) => (float[4] y) {
            [two] t = Constant <value = float {2}> ()
            [times] a = Mul (x, t)
            [plus] y = Add (a, x)
        }"""
    )
    after = parsed("g (float[4] x) => (float[4] y) { [fused] y = Sum (x, x, x) }")
    ran = [signature("fused", "Sum", (floats(4),) * 3, floats(4))]
    assert executed_nodes(ran, after, before).origins == [("times", "plus")]


def test_a_region_moves_what_goes_in_and_out() -> None:
    model = parsed(
        """g (float[4, 4] x, float[4] s) => (float[4, 4] y, float[4, 4] a) {
            [a] a = Add (x, s)
            [n] n = Neg (a)
            [e] e = Exp (n)
            [m] y = MatMul (e, e)
            [t] t = Tanh (y)
        }"""
    )
    square = floats(4, 4)
    ran = [
        signature("a", "Add", (square, floats(4)), square),
        signature("n", "Neg", (square,), square),
        signature("e", "Exp", (square,), square),
        signature("m", "MatMul", (square, square), square),
        signature("t", "Tanh", (square,), square),
    ]
    nodes = dict(enumerate(executed_nodes(ran, model, None).nodes))
    regions, sizes = regions_of(ran, nodes)
    # Tanh has no neighbour: the product is none.
    assert regions == [0, 0, 0, None, None]
    # x and s go in; a is an output of the model, e goes to the product; n stays inside.
    assert sizes == {0: 64 + 16 + 64 + 64}


def test_a_node_is_held_against_the_peaks_of_its_own_provider(tmp_path: Path) -> None:
    other = {"provider": "XnnpackExecutionProvider"}
    path = written(
        tmp_path, node("MatMul", 110, 40), node("Gemm", 155, 20, **other), run(100, 100)
    )
    work = [CallWork(10**6, 10, 0, "float32", ())] * 2
    context = Context(
        peaks=Peaks("CPUExecutionProvider", 2, "here", {"float32": 100.0}, ((10**9, 10.0),)),
        joined=Joined(work, ["", ""], [(), ()], [None, None], {}),
    )
    found = profile_of(read_trace(path), context, warmup=0)
    assert [row.work.attained for row in found.rows] == [pytest.approx(0.25), None]
    assert found.rows[1].work.gflops == pytest.approx(50)
