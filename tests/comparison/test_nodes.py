"""`compare --nodes`: the node that was broken is the one that is named."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

from models.catalog import build
from ortkit.comparison.node_result import NodeReport
from ortkit.comparison.nodes import compare_nodes
from ortkit.comparison.optimized_graph import optimized_side
from ortkit.comparison.sides import NodeSide
from ortkit.errors import RunError, UserError
from ortkit.graph.io.open import open_model
from ortkit.kernels.metadata import library_path
from ortkit.optimization.call import OptimizeOptions, optimize
from ortkit.verify.inputs.feeds import Feeds, make_feeds

HEAD = '<ir_version: 10, opset_import: ["" : 21, "f" : 1]>'


def compared(
    a: Path, b: Path, feeds: Feeds | None = None, repro: Path | None = None
) -> NodeReport:
    given = feeds or make_feeds(open_model(a), 1)[0]
    return compare_nodes(NodeSide(a), NodeSide(b), given, repro=repro)


def saved(text: str, path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(f"{HEAD} {text}"), path)
    return path


def broken_weight(model: onnx.ModelProto, seed: int) -> tuple[onnx.ModelProto, str]:
    """Change the weight of one product somewhere; return what makes the first wrong value."""
    random = np.random.default_rng(seed)
    weights = {item.name: item for item in model.graph.initializer if len(item.dims) >= 2}
    readers = [node for node in model.graph.node if node.op_type in ("MatMul", "Gemm", "Conv")]
    readers = [node for node in readers if node.input[1] in weights]
    chosen = readers[random.integers(len(readers))]
    made = onnx.ModelProto()
    made.CopyFrom(model)
    tensor = next(one for one in made.graph.initializer if one.name == chosen.input[1])
    array = onnx.numpy_helper.to_array(tensor).copy()
    array.reshape(-1)[random.integers(array.size)] += 3 * np.abs(array).max()
    tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    first = next(node for node in model.graph.node if chosen.input[1] in node.input)
    return made, first.output[0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("family", "spelling", "seed"),
    [("bert", "ts", 1), ("llama", "dynamo", 2), ("resnet50", "unfused", 3),
     ("efficientnet_b0", "ts", 4), ("whisper_encoder", "dynamo", 5)],
)  # fmt: skip
def test_a_changed_weight_is_found(family: str, spelling: str, seed: int, tmp_path: Path) -> None:
    model = build(family, "tiny", spelling)
    other, value = broken_weight(model, seed)
    onnx.save(model, tmp_path / "a.onnx")
    onnx.save(other, tmp_path / "b.onnx")
    found = compared(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert found.first is not None
    assert found.first.row.value == value
    assert len(found.first.row.before) == 1
    assert found.first.row.before == found.first.row.after
    assert [row.value for row in found.rows if row.state == "diverges"] == [value]
    assert not found.is_good


CHAIN = """g (float[2, 8] x) => (float[2, 8] y) {
a = Sin(x) b = Exp(a) m = ReduceMean <keepdims = 1>(b) d = Sub(b, m) q = Mul(d, d)
v = ReduceMean <keepdims = 1>(q) e = Constant <value_float = EPSILON>() s = Add(v, e)
r = Sqrt(s) n = Div(d, r) y = Tanh(n) }"""


def test_a_wrong_epsilon_is_found_and_what_follows_is_carried(tmp_path: Path) -> None:
    a = saved(CHAIN.replace("EPSILON", "1e-5"), tmp_path / "a.onnx")
    b = saved(CHAIN.replace("EPSILON", "1e-1"), tmp_path / "b.onnx")
    found = compared(a, b)
    states = {row.value: row.state for row in found.rows}
    assert states == {
        **dict.fromkeys("abmdqv", "same"), "e": "diverges", **dict.fromkeys("srny", "carried"),
    }  # fmt: skip
    assert found.first is not None
    assert found.first.row.before == ("Constant(e)",)
    assert found.outputs == ("y",)


FUSED = """g (float[2, 8] x) => (float[2, 8] y) {
a = Sin(x) g = f.norm(a) y = Tanh(g) }
<domain: "f", opset_import: ["" : 21]> norm (b) => (n) {
m = ReduceMean <keepdims = 1>(b) d = Sub(b, m) q = Mul(d, d) v = ReduceMean <keepdims = 1>(q)
e = Constant <value_float = 1e-1>() s = Add(v, e) r = Sqrt(s) n = Div(d, r) }"""


NORM = """g (float[2, 8] x) => (float[2, 8] y) { a = Sin(x) n = f.norm(a) y = Tanh(n) }
<domain: "f", opset_import: ["" : 21]> norm (x) => (z) {
c = ReduceMean <keepdims = 1>(x) o = Sub(x, c) p = Mul(o, o) w = ReduceMean <keepdims = 1>(p)
f = Constant <value_float = 1e-1>() g = Add(w, f) h = Sqrt(g) z = Div(o, h) }"""


def test_a_wrong_fusion_is_named_with_the_nodes_that_it_stands_for(tmp_path: Path) -> None:
    text = CHAIN.replace("EPSILON", "1e-5").replace("b = Exp(a)", "b = Identity(a)")
    a, b = saved(text, tmp_path / "a.onnx"), saved(NORM, tmp_path / "b.onnx")
    repro = tmp_path / "repro"
    found = compared(a, b, repro=repro)
    assert found.first is not None
    assert found.first.row.value == "n"
    assert found.first.row.op_before == "Div"
    assert len(found.first.row.before) == 9
    assert len(found.first.row.after) == 8, "the function's nodes"
    assert found.first.inputs == ("a",)
    made = found.first.reproducer
    assert made is not None
    assert made.command.split()[:2] == ["ortkit", "verify"]
    done = run_cli(*made.command.split()[1:])
    assert done.returncode == 1, done.stdout + done.stderr
    assert "output 'n'" in done.stdout
    assert run_cli("verify", str(made.original), str(made.original)).returncode == 0


def run_cli(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ortkit", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_two_functions_are_looked_into(tmp_path: Path) -> None:
    a = saved(FUSED, tmp_path / "a.onnx")
    b = saved(FUSED.replace("Sqrt(s)", "Cos(s)"), tmp_path / "b.onnx")
    found = compared(a, b)
    assert found.first is not None
    assert (found.first.row.op_before, found.first.row.op_after) == ("Sqrt", "Cos")
    assert len(found.first.row.before) == len(found.first.row.after) == 1


def test_cancellation_is_no_divergence(tmp_path: Path) -> None:
    text = "g (float[2, 8] x) => (float[2, 8] y) { BODY y = Tanh(b) }"
    far = "c = Constant <value_float = 1e4>() a = Add(x, c) b = Sub(a, c)"
    a = saved(text.replace("BODY", far), tmp_path / "a.onnx")
    b = saved(text.replace("BODY", "b = Identity(x)"), tmp_path / "b.onnx")
    found = compared(a, b)
    assert {row.value: row.state for row in found.rows}["b"] == "sensitive"
    assert found.first is None
    # The other way round A is exact, and nothing excuses B.
    found = compared(b, a)
    assert found.first is not None
    assert found.first.row.value == "b"


BRANCHES = """g (float[2, 8] x, bool c) => (float[2, 8] y) {
a = Sin(x) i = If (c) <
then_branch = t () => (float[2, 8] p) { k = Cos(a) l = Exp(k) p = Neg(l) },
else_branch = e () => (float[2, 8] q) { q = Abs(a) }> y = Tanh(i) }"""


def test_inside_a_branch(tmp_path: Path) -> None:
    a = saved(BRANCHES, tmp_path / "a.onnx")
    b = saved(BRANCHES.replace("l = Exp(k)", "l = Sin(k)"), tmp_path / "b.onnx")
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
    found = compared(a, b, {"x": x, "c": np.array(True)})
    assert found.first is not None
    assert found.first.row.value == "i"
    assert found.first.inside.startswith("Exp(l) in then_branch of If(i)")
    assert compared(a, b, {"x": x, "c": np.array(False)}).is_good


LOOP = """g (float[2, 8] x, int64 n) => (float[2, 8] y) {
go = Constant <value = bool {1}>() z = Loop (n, go, x) <
body = b (int64 i, bool on, float[2, 8] h) => (bool more, float[2, 8] out) {
more = Identity(on) k = Cos(h) l = If (on) <
then_branch = t () => (float[2, 8] p) { p = Sin(k) },
else_branch = e () => (float[2, 8] q) { q = Abs(k) }> out = Add(l, h) }> y = Tanh(z) }"""


def test_inside_a_branch_in_a_loop(tmp_path: Path) -> None:
    a = saved(LOOP, tmp_path / "a.onnx")
    b = saved(LOOP.replace("p = Sin(k)", "p = Exp(k)"), tmp_path / "b.onnx")
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
    found = compared(a, b, {"x": x, "n": np.array(3)})
    assert found.first is not None
    assert found.first.row.value == "z"
    assert found.first.inside.startswith("Sin(p) in then_branch of If(l)")


def test_a_node_that_does_not_run_is_named(tmp_path: Path) -> None:
    text = """g (float[2, 8] x, int64[2] s) => (float[4, 4] y) {
    a = Sin(x) t = Cast <to = 7>(s) b = Reshape(a, t) y = Tanh(b) }"""
    feeds = {"x": np.ones((2, 8), np.float32), "s": np.array([4, 4])}
    a = saved(text, tmp_path / "a.onnx")
    b = saved(text.replace("t = Cast <to = 7>(s)", "t = Add(s, s)"), tmp_path / "b.onnx")
    found = compared(a, b, feeds)
    assert found.first is not None
    assert found.first.row.value == "t"
    assert {row.value: row.state for row in found.rows}["b"] == "same"
    assert any("does not run" in note for note in found.notes)
    with pytest.raises(RunError, match=r"does not run it.*Reshape"):
        compared(b, a, feeds)


def test_batches_do_not_change_the_result(tmp_path: Path) -> None:
    a = saved(CHAIN.replace("EPSILON", "1e-5"), tmp_path / "a.onnx")
    b = saved(CHAIN.replace("EPSILON", "1e-1"), tmp_path / "b.onnx")
    feeds = make_feeds(open_model(a), 1)[0]
    whole = compare_nodes(NodeSide(a), NodeSide(b), feeds)
    parts = compare_nodes(NodeSide(a), NodeSide(b), feeds, limit_bytes=250)
    assert whole.rows == parts.rows
    assert whole.first == parts.first


def test_random_numbers_are_not_compared(tmp_path: Path) -> None:
    text = """g (float[2, 8] x) => (float[2, 8] y) {
    a = Sin(x) r = RandomNormalLike(a) s = Add(a, r) y = Neg(x) }"""
    a = saved(text, tmp_path / "a.onnx")
    found = compared(a, a)
    states = Counter(row.state for row in found.rows)
    assert states == {"same": 2, "not compared": 2}
    assert found.is_good


def test_half_precision_is_judged_as_such(tmp_path: Path) -> None:
    text = "g (float[4, 64] x) => (float[4, 64] y) { PART y = Tanh(c) }"
    a = saved(text.replace("PART", "a = Sin(x) b = Exp(a) c = Sqrt(b)"), tmp_path / "a.onnx")
    part = "h = Cast<to = 10>(x) a = Sin(h) b = Exp(a) d = Sqrt(b) c = Cast<to = 1>(d)"
    b = saved(text.replace("PART", part), tmp_path / "b.onnx")
    found = compared(a, b)
    assert found.first is None
    assert {row.value: row.state for row in found.rows}["b"] == "rounding"


def test_nothing_in_common(tmp_path: Path) -> None:
    a = saved("g (float[2] x) => (float[2] y) { y = Neg(x) }", tmp_path / "a.onnx")
    b = saved("g (float[2] x) => (float[2] z) { z = Neg(x) }", tmp_path / "b.onnx")
    with pytest.raises(UserError, match="no computed value has the same name"):
        compared(a, b)


def test_values_with_their_channels_innermost(tmp_path: Path) -> None:
    a = saved(
        "g (float[1, 3, 4, 5] x) => (float[1, 3, 4, 5] y) { a = Sin(x) c = Exp(a) y = Tanh(c) }",
        tmp_path / "a.onnx",
    )
    text = """g (float[1, 3, 4, 5] x) => (float[1, 3, 4, 5] y) {
    t = Transpose <perm = [0, 2, 3, 1]>(x) "a/nhwc" = Sin(t) "c/nhwc" = Exp("a/nhwc")
    d = Tanh("c/nhwc") y = Transpose <perm = [0, 3, 1, 2]>(d) }"""
    good = compared(a, saved(text, tmp_path / "b.onnx"))
    assert {row.value: row.state for row in good.rows} == dict.fromkeys("acy", "same")
    assert [row.after for row in good.rows][1] == ("Exp(c/nhwc)",)
    assert good.nodes_after == 5
    found = compared(a, saved(text.replace("= Exp", "= Cos"), tmp_path / "b.onnx"))
    assert found.first is not None
    assert found.first.row.value == "c"
    assert (found.first.row.op_before, found.first.row.op_after) == ("Exp", "Cos")


def with_epsilon(path: Path, *, functions: bool) -> None:
    """Make the epsilon of the first norm wrong, in the graph or in the functions."""
    model = onnx.load(path)
    nodes = [n for f in model.functions for n in f.node] if functions else model.graph.node
    norms = [node for node in nodes if node.op_type == "LayerNormalization"]
    for norm in norms if functions else norms[:1]:
        next(item for item in norm.attribute if item.name == "epsilon").f = 0.5
    onnx.save(model, path)


def test_a_kernel_and_its_function_are_told_apart(tmp_path: Path) -> None:
    a, b = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(build("bert", "tiny", "ts"), a)
    optimize(a, OptimizeOptions(verify=False)).save(b)
    library = library_path(b)
    feeds = make_feeds(open_model(a), 1)[0]
    assert compare_nodes(NodeSide(a), NodeSide(b, library=library), feeds).is_good
    with_epsilon(a, functions=False)
    found = compare_nodes(NodeSide(a), NodeSide(b, library=library), feeds)
    assert found.first is not None
    assert found.first.row.op_before == "LayerNormalization"
    assert found.first.blame.startswith("the function of ortkit.fused::add_layer_norm")
    with_epsilon(b, functions=True)  # now it computes what A does, and only the kernel does not
    found = compare_nodes(NodeSide(a), NodeSide(b, library=library), feeds)
    assert found.first is not None
    assert found.first.blame.startswith("the kernel of ortkit.fused::add_layer_norm")


def test_onnx_runtimes_own_graph(tmp_path: Path) -> None:
    a = tmp_path / "a.onnx"
    onnx.save(build("bert", "tiny", "ts"), a)
    side = optimized_side(NodeSide(a), "all", tmp_path / "optimized")
    found = compare_nodes(NodeSide(a), side, make_feeds(open_model(a), 1)[0])
    assert found.is_good
    assert "com.microsoft::BiasGelu" in {row.op_after for row in found.rows}
    with pytest.raises(UserError, match="no such level: most"):
        optimized_side(NodeSide(a), "most", tmp_path)


def test_the_command_line(tmp_path: Path) -> None:
    a = saved(CHAIN.replace("EPSILON", "1e-5"), tmp_path / "a.onnx")
    b = saved(CHAIN.replace("EPSILON", "1e-1"), tmp_path / "b.onnx")
    done = run_cli("compare", str(a), str(b), "--nodes", "--json", "--repro", str(tmp_path / "r"))
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "ortkit.compare-nodes/1"
    assert document["first"]["value"]["value"] == "e"
    assert Path(document["first"]["reproducer"]["original"]).is_file()
    text = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(
        encoding="utf-8"
    )
    section = text.partition("\n### compare --nodes\n")[2].partition("\n### ")[0]
    known = {line.split("`")[1] for line in section.splitlines() if line.startswith("| `")}
    assert {item.split(".")[0].rstrip("[]{}") for item in known} == document.keys()
    assert {f"values[].{name}" for name in document["values"][0]} == {
        one.removesuffix("[]") for one in known if one.startswith("values[]")
    }
    done = run_cli("compare", str(a), str(b), str(a), "--nodes")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
