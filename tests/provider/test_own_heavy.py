"""Groups of OrtkitExecutionProvider that take convolutions, products or written-out attention."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from ortkit.custom_ops.tvm.gemm.fp32 import ANCHOR

from ortkit.fusion.regions.anchors import grown
from ortkit.fusion.regions.cost_model import CostModel, Prediction
from ortkit.fusion.regions.search import Search
from ortkit.graph.shapes.infer import Shapes
from ortkit.kernels.build.library import missing_toolchain
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.tuning.calibration import load_calibration
from ortkit.provider.own import planning
from ortkit.provider.own.assembly import Assembler, Known
from ortkit.provider.own.building import build
from ortkit.provider.own.claims import Claimer
from ortkit.provider.own.original_cost import OriginalCost
from ortkit.provider.own.planning import Plan, plan
from ortkit.provider.own.program import Program, Step
from ortkit.provider.own.scratch import Slots
from ortkit.provider.own.subgraph_cut import Cuts
from ortkit.provider.own.weights import ALIGNMENT, aligned
from ortkit.refusal import Refused
from ortkit.targets.target import Target
from tests.provider.own_programs import ProgramError, run_program, worst_error

pytestmark = pytest.mark.skipif(missing_toolchain() is not None, reason="no kernel toolchain")
EPSILON = 2.0**-23
#: Whose products are tested.
LEVEL = "x86-64-v4"
WIDE = Target("cpu", LEVEL)
runs_wide = pytest.mark.skipif(
    missing_toolchain() is None and not Target().resolved().level.startswith(LEVEL),
    reason="products are for processors with AVX-512",
)


def product(
    nodes: str, inputs: str = "float[48, 128] x", matrix: tuple[int, ...] = (128, 192), **more: int
) -> ir.Model:
    """Return a model with a matrix `w`, and rows of numbers by the names and sizes of `more`."""
    head = f'<ir_version: 10, opset_import: ["" : 20]> g ({inputs}) => (float[a, b] y)'
    text = f"{head} {{ {nodes} }}"
    model = onnx.parser.parse_model(text)
    random = np.random.default_rng(3)
    arrays = {"w": random.standard_normal(matrix, np.float32) / 8}
    arrays |= {name: random.standard_normal(size, np.float32) for name, size in more.items()}
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in arrays.items()
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return ir.from_proto(model)


def names(found: Plan) -> list[str]:
    return [claim.program.name for claim in found.claims]


@pytest.mark.sampled(3)
@runs_wide
@pytest.mark.parametrize(
    ("nodes", "matrix", "bias", "name"),
    [
        ("y = Gemm (x, w, b)", (128, 192), 192, "product"),
        ("y = Gemm <transB = 1> (x, w, b)", (200, 128), 200, "product"),
        ("y = Gemm <alpha = 0.5, beta = 2.0> (x, w, b)", (128, 192), 192, "product"),
        ("g = Gemm (x, w, b)  y = Gelu (g)", (128, 100), 100, "product_gelu"),
        ("m = MatMul (x, w)  s = Add (b, m)  y = Relu (s)", (128, 192), 192, "product_relu"),
        ("m = MatMul (x, w)  y = Add (m, b)", (128, 320), 320, "product"),
    ],
)
def test_products_compute_what_their_nodes_compute(
    nodes: str, matrix: tuple[int, int], bias: int, name: str, tmp_path: Path
) -> None:
    model = product(nodes, matrix=matrix, b=bias)
    found = build(plan(model, Target(), 2), Target(), "auto", tmp_path)
    assert names(found.plan) == [name], found.plan.declined
    assert found.plan.claims, found.plan.declined
    (claim,) = found.plan.claims
    assert len(claim.nodes) == len(model.graph)
    assert len(claim.weights) == 2
    assert all(array.ctypes.data % ALIGNMENT == 0 for array in claim.weights)
    assert found.library is not None
    x = np.random.default_rng(0).standard_normal((48, 128), np.float32)
    errors = worst_error(model, found.plan, found.library, {"x": x})
    assert max(errors.values()) < 16 * EPSILON, errors


@pytest.mark.sampled(2)
@runs_wide
@pytest.mark.parametrize(
    ("inputs", "shapes"),
    [
        ("float[n, 128] x", [(n, 128) for n in (0, 1, 48, 131)]),
        ("float[batch, seq, 128] x", [(1, 1, 128), (2, 7, 128), (3, 50, 128), (0, 4, 128)]),
        ("float[4, ?, 128] x", [(4, 1, 128), (4, 9, 128)]),
        ("float[1500, 128] x", [(1500, 128)]),
    ],
)
def test_any_number_of_rows(inputs: str, shapes: list[tuple[int, ...]], tmp_path: Path) -> None:
    model = product("m = MatMul (x, w)  s = Add (m, b)  y = Gelu (s)", inputs, b=192)
    found = build(plan(model, Target(), 2), Target(), "auto", tmp_path)
    assert names(found.plan) == ["product_gelu"], found.plan.declined
    assert found.library is not None
    for shape in shapes:
        x = np.random.default_rng(0).standard_normal(shape, np.float32)
        errors = worst_error(model, found.plan, found.library, {"x": x})
        assert max(errors.values()) < 16 * EPSILON, (shape, errors)


@runs_wide
def test_equal_programs_of_other_weights_share_a_library(tmp_path: Path) -> None:
    def built(scale: float) -> tuple[object, np.ndarray]:
        model = product("y = Gemm (x, w, b)", b=192)
        tensor = model.graph.initializers["w"].const_value
        assert tensor is not None
        model.graph.initializers["w"].const_value = ir.tensor(tensor.numpy() * scale, name="w")
        found = build(plan(model, Target(), 2), Target(), "auto", tmp_path)
        assert found.library is not None
        (claim,) = found.plan.claims
        x = np.ones((48, 128), np.float32)
        (y,) = run_program(found.library, claim.program, [x], claim.weights)
        return found.library, y

    (first, one), (second, other) = built(1.0), built(2.0)
    assert first == second
    assert not np.allclose(one, other)


@pytest.mark.parametrize(
    ("nodes", "inputs", "matrix"),
    [
        ("y = Gemm <transA = 1> (x, w, b)", "float[128, 48] x", (128, 192)),
        ("y = Gemm (x, w, b)", "float[8, 128] x", (128, 192)),
        ("y = Gemm (x, w, b)", "float[1500, 3072] x", (3072, 192)),
        ("t = Relu (w)  y = Gemm (x, v, b)", "float[48, 128] x, float[128, 192] v", (128, 192)),
        ("y = Gemm (x, w, b)", "float[48, 16] x", (16, 192)),
    ],
)
def test_products_that_are_left_to_the_runtime(
    nodes: str, inputs: str, matrix: tuple[int, ...]
) -> None:
    assert "product" not in names(plan(product(nodes, inputs, matrix, b=192), WIDE, 2))


@runs_wide
@pytest.mark.parametrize("nodes", ["y = Gemm (x, w, c)", "m = MatMul (x, w)  y = Add (m, c)"])
def test_a_column_is_no_bias(nodes: str, tmp_path: Path) -> None:
    model = product(nodes, "float[64, 128] x", (128, 64))
    column = ir.tensor(np.linspace(-9, 9, 64, dtype=np.float32).reshape(64, 1), name="c")
    model.graph.initializers.add(
        value := next(
            each for node in model.graph for each in node.inputs if each and each.name == "c"
        )
    )
    value.const_value = column
    value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape((64, 1))
    found = build(plan(model, Target(), 3), Target(), "auto", tmp_path)
    assert found.plan.claims == () or found.library is not None
    if found.library is not None:
        x = np.random.default_rng(0).standard_normal((64, 128), np.float32)
        errors = worst_error(model, found.plan, found.library, {"x": x})
        assert max(errors.values()) < 16 * EPSILON, errors


def test_products_are_for_processors_they_were_measured_on_and_not_for_files() -> None:
    model = product("y = Gemm (x, w, b)", b=192)
    assert names(plan(model, WIDE, 2)) == ["product"]
    assert names(plan(model, Target("cpu", "x86-64-v2"), 2)) == []
    assert names(plan(model, WIDE, 2, is_ahead=True)) == []


def test_products_end_where_others_read() -> None:
    nodes = "g = Gemm (x, w, b)  e = Gelu (g)  r = CumSum (g, axis)  y = Sum (e, r)"
    model = product(nodes, "float[48, 128] x, int64 axis", b=192)
    assert "product" in names(plan(model, WIDE, 2))
    (claim,) = (item for item in plan(model, WIDE, 2).claims if item.program.name == "product")
    assert claim.outputs == ("g",)


def test_equal_reshapes_are_one_in_the_copy_only() -> None:
    rows = "shape = Constant <value_ints = [48, 128]> ()"
    nodes = f"{rows}  p = Reshape (x, shape)  q = Reshape (x, shape)"
    nodes += "  g = Gemm (p, w, b)  h = Gemm (q, w, c)  y = CumSum (g, axis)  z = CumSum (h, axis)"
    model = product(nodes, "float[1, 48, 128] x, int64 axis", b=192, c=192)
    values = {value.name: value for node in model.graph for value in node.outputs}
    model.graph.outputs.append(values["z"])
    found = [claim for claim in plan(model, WIDE, 2).claims if claim.program.name == "product"]
    assert [one.inputs for one in found] == [("x",), ("x",)]
    ops = [sorted(node.op_type for node in item.nodes) for item in found]
    assert ops == [["Gemm", "Reshape"], ["Gemm", "Reshape"]]


@runs_wide
def test_element_types_are_checked(tmp_path: Path) -> None:
    model = product("y = Gemm (x, w, b)", b=192)
    found = build(plan(model, Target(), 2), Target(), "auto", tmp_path)
    assert found.plan.claims, found.plan.declined
    (claim,) = found.plan.claims
    assert found.library is not None
    x = np.ones((48, 128), np.float32)
    with pytest.raises(ProgramError, match="2: 'x' is not of float32"):
        run_program(found.library, claim.program, [x.astype(np.int32)], claim.weights)
    with pytest.raises(ProgramError, match="2: 'y' is not of float32"):
        run_program(found.library, claim.program, [x], claim.weights, {0: onnx.TensorProto.INT32})


# ---- attention that is written out

ATTENTION = """<ir_version: 10, opset_import: ["" : 23]>
g (float[1, 12, 197, 64] q, float[1, 12, 197, 64] k, float[1, 12, 197, 64] v)
=> (float[1, 12, 197, 64] y) <float scale = {0.125}, float zero = {0.0}> {
  t = Transpose <perm = [0, 1, 3, 2]> (k)  s = MatMul (q, t)  m = Mul (s, scale)
  p = Softmax <axis = -1> (m)  n = IsNaN (p)  o = Where (n, zero, p)  y = MatMul (o, v)
}"""


def test_attention_is_measured_against_the_form_that_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = ir.from_proto(onnx.parser.parse_model(ATTENTION))
    (claim,) = plan(model, WIDE, 2).claims
    assert len(claim.nodes) == len(model.graph)
    assert claim.prediction.gain > 0.1
    monkeypatch.setattr(OriginalCost, "predict", lambda *_: "no gain here")
    found = plan(model, WIDE, 2)
    assert not any(len(item.nodes) == len(model.graph) for item in found.claims)


def test_what_nodes_take_are_their_products_and_the_rest() -> None:
    model = ir.from_proto(onnx.parser.parse_model(ATTENTION))
    worth = OriginalCost(model, Shapes.infer(model), load_calibration())
    nodes = list(model.graph)
    products = [node for node in nodes if node.op_type == "MatMul"]
    whole, part = worth.predict(nodes, 1000.0), worth.predict(products, 1000.0)
    assert isinstance(whole, Prediction)
    assert isinstance(part, Prediction)
    multiplies = 2 * 12 * 197 * 197 * 64
    assert multiplies / 85 < part.before_ns < 1.5 * multiplies / 85 < whole.before_ns
    assert (whole.after_ns, part.after_ns) == (1000.0, 1000.0)
    assert "less than 10 %" in str(worth.predict(nodes, whole.before_ns))


def test_no_node_is_in_two_groups() -> None:
    model = product("y = Gemm (x, w, b)", b=192)
    scope = planning._rewritten(model, WIDE, frozenset())
    cost = CostModel(scope, load_calibration())
    assembler = Assembler(scope, Known(model.graph, scope), lambda _: None, cost)
    claimer = Claimer(model, Cuts(model), assembler)
    search = Search(scope, scope.root, lambda _: None, cost, in_place=False)
    (one,) = grown(search, ANCHOR)
    assert claimer.claim(assembler.held(one)) is None
    assert claimer.claim(assembler.held(one)) == Refused("nodes of it belong to another group")
    assert len(claimer.run().claims) == 1


@runs_wide
def test_rows_whose_factors_no_input_tells(tmp_path: Path) -> None:
    """`x` has batch * sequence rows: the kernel needs their number alone."""
    shape = "s = Shape <end = 2> (ids)  d = Constant <value_ints = [128]> ()"
    nodes = f"{shape}  t = Concat <axis = 0> (s, d)  e = Expand (x, t)"
    nodes += "  f = Flatten <axis = 2> (e)  g = Relu (f)  m = MatMul (g, w)  y = Add (m, b)"
    model = product(nodes, "float[128] x, float[batch, sequence, 1] ids", b=192)
    found = build(plan(model, Target(), 2), Target(), "auto", tmp_path)
    assert "product" in names(found.plan), found.plan.declined
    assert found.library is not None
    random = np.random.default_rng(0)
    feeds = {"x": random.standard_normal(128, np.float32), "ids": np.ones((3, 7, 1), np.float32)}
    errors = worst_error(model, found.plan, found.library, feeds)
    assert max(errors.values()) < 16 * EPSILON, errors


# ---- parts


def tensor(*shape: int | str) -> TensorSpec:
    return TensorSpec("t", "float32", shape)


def chain(*shapes: tuple[int | str, ...]) -> Program:
    """Return a program of steps in a row, each reading what the one before has made."""
    step = RegionSignature("copy", "", (), ())
    steps = tuple(Step(step, (i,), (i + 1,)) for i in range(len(shapes) - 1))
    specs = tuple(tensor(*shape) for shape in shapes)
    return Program("chain", specs, (0,), {}, {}, (len(shapes) - 1,), steps)


def test_memory_between_kernels_is_used_again_but_not_by_who_reads_it() -> None:
    slots = Slots.of(chain((8,), (8,), (16,), (4,), (12,), (8,)))
    assert slots.slot_of == {1: 0, 2: 1, 3: 0, 4: 1}
    assert [size.static for size in slots.sizes] == [32, 64]


def test_memory_of_unknown_sizes_is_used_again_for_equal_ones() -> None:
    slots = Slots.of(chain(("n",), ("n",), ("m",), ("n",), ("m", 2), ("n",)))
    assert slots.slot_of == {1: 0, 2: 1, 3: 0, 4: 2}
    assert [str(size) for size in slots.sizes] == ["4*n", "4*m", "8*m"]


def test_what_nobody_reads_has_memory_while_it_is_made() -> None:
    step = RegionSignature("two", "", (), ())
    specs = tuple(tensor(8) for _ in range(4))
    steps = (Step(step, (0,), (1, 2)), Step(step, (1,), (3,)))
    slots = Slots.of(Program("two", specs, (0,), {}, {}, (3,), steps))
    assert slots.slot_of == {1: 0, 2: 1}


def test_weights_are_copies_that_begin_where_vectors_do() -> None:
    array = np.arange(30, dtype=np.float32).reshape(5, 6)
    copy = aligned(array.T)
    np.testing.assert_array_equal(copy, array.T)
    assert copy.flags.c_contiguous
    assert copy.ctypes.data % ALIGNMENT == 0
    assert not np.shares_memory(copy, array)


class Recording(Claimer):
    """Keeps what would be taken together."""

    def __init__(self) -> None:
        self.taken: list[list[object]] = []
        self.left: list[object] = []

    def _take(self, claims: object, root: object) -> None:  # type: ignore[override]
        self.taken.append(list(claims))  # type: ignore[call-overload]

    def _reading(self, user: object) -> object:  # type: ignore[override]
        return user

    def _decline(self, root: object, reason: str) -> None:
        self.left.append(root)


def test_users_of_two_results_of_one_group_are_taken_together() -> None:
    a, b, c = (ir.Value(name=name) for name in "abc")
    both, other = SimpleNamespace(name="both"), SimpleNamespace(name="other")
    users = [SimpleNamespace(carried={v: None}, root=v.name) for v in (a, b, c)]
    claimer = Recording()
    claimer._take_together(users, {a: both, b: both, c: other}, {})  # type: ignore[arg-type, dict-item]
    assert [len(item) for item in claimer.taken] == [3, 2]
    assert {id(each) for each in claimer.taken[0]} == {id(both), id(users[0]), id(users[1])}
    claimer = Recording()
    greedy = SimpleNamespace(carried={b: None, c: None}, root="greedy")
    claimer._take_together([*users[:2], greedy], {a: both, b: both}, {c: "no room"})  # type: ignore[arg-type, dict-item, list-item]
    assert claimer.taken == []
    assert sorted(map(str, claimer.left)) == ["a", "b", "greedy"]
