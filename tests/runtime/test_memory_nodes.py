"""Which tensors are there when an arena is fullest: replayed, and against real runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from ortkit.runtime.arenas import Unavailable
from ortkit.runtime.memory.buffers import Replay, Step, last_uses
from ortkit.runtime.memory.node_table import NodeMemory, Peak
from ortkit.runtime.memory.nodes import _reads, read_node_memory
from ortkit.runtime.memory.point import PointPlan, measure_point
from ortkit.runtime.tensor_files import of_plain, write_manifest

GRAIN = 256
HEAD = '<ir_version: 8, opset_import: ["" : 17]>'


def step(name: str, inputs: str, outputs: dict[str, int], dying: str, allocated: int,
         freed: int = 0, op: str = "Op") -> Step:  # fmt: skip
    return Step(name, op, tuple(inputs), tuple(outputs.items()), frozenset(dying), allocated,
                allocated, freed)  # fmt: skip


def names(replay: Replay) -> list[list[str]]:
    return [[name for name, _ in buffer.tensors] for buffer in replay.buffers]


def test_last_uses() -> None:
    order = [(["x"], ["a"]), (["a"], ["b", "unused"]), (["a", "b"], ["c"]), (["x"], ["y"])]
    assert last_uses(order, {"c", "y"}) == [set(), {"unused"}, {"a", "b"}, {"x"}]
    assert last_uses([], set()) == []


def test_what_takes_no_new_bytes_is_where_its_dying_input_was() -> None:
    replay = Replay()
    first = step("1", "x", {"a": 512}, "", 512)
    replay.begin(first)
    replay.end(first)
    replay.begin(step("2", "a", {"b": 512}, "a", 0))
    assert names(replay) == [["a", "b"]]
    assert [buffer.bytes for buffer in replay.buffers] == [512]


def test_a_view_shares_although_its_input_lives_on() -> None:
    replay = Replay()
    first = step("1", "x", {"a": 512}, "", 512)
    replay.begin(first)
    replay.end(first)
    view = step("2", "a", {"b": 512}, "", 0, op="Reshape")
    replay.begin(view)
    replay.end(view)
    last = step("3", "a", {}, "a", 0)
    replay.begin(last)
    replay.end(last)
    assert [buffer.live for buffer in replay.buffers] == [{"b"}]


def test_what_is_dead_and_was_not_freed_is_kept_and_used_again() -> None:
    replay = Replay()
    for one in (step("1", "x", {"a": 512}, "", 512), step("2", "a", {"b": 256}, "a", 256)):
        replay.begin(one)
        replay.end(one)
    assert [(buffer.bytes, bool(buffer.live)) for buffer in replay.buffers] == [
        (512, False),
        (256, True),
    ]
    replay.begin(step("3", "b", {"c": 500}, "", 0))
    assert names(replay) == [["a", "c"], ["b"]]


def test_memory_is_used_again_by_what_is_of_the_same_size() -> None:
    replay = Replay()
    steps = [
        Step("1", "Op", ("x",), (("a", 300),), frozenset(), 768, 300, 0),  # 768 bytes, for 300
        Step("2", "Op", ("x",), (("b", 700),), frozenset("ab"), 768, 700, 0),
    ]
    for one in steps:
        replay.begin(one)
        replay.end(one)
    replay.begin(step("3", "x", {"c": 700}, "", 0))
    assert names(replay) == [["a"], ["b", "c"]]


def test_a_body_reads_what_lies_outside() -> None:
    text = (
        HEAD
        + """g (float[n] x, bool c) => (float[n] y) {
        a = Exp (x)
        y = If (c) <then_branch = t () => (float[n] p) { p = Neg (a) },
                    else_branch = e () => (float[n] q) { q = Identity (x) }> }"""
    )
    model = ir.from_proto(onnx.parser.parse_model(text))
    (branch,) = (node for node in model.graph if node.op_type == "If")
    assert {"c", "a", "x"} <= set(_reads(branch))


def test_those_are_freed_that_make_up_what_was_freed() -> None:
    replay = Replay()
    steps = [
        step("1", "x", {"a": 1024}, "", 1024),
        step("2", "a", {"b": 512}, "a", 512),  # `a` is kept
        step("3", "b", {"c": 512}, "", 512),
        step("4", "bc", {"d": 256}, "bc", 256, freed=1024),
    ]
    for one in steps:
        replay.begin(one)
        replay.end(one)
    assert names(replay) == [["a"], ["d"]], "b and c died with the node, and are 1024 together"


def test_an_output_is_moved_where_the_arena_shows_that_it_was() -> None:
    """`c` may be written over `b`, or into the block of `a`; that `b`'s is freed decides."""
    replay = Replay()
    steps = [
        step("1", "x", {"a": 512}, "", 512),
        # `a` is kept, and `b` gets a block that is larger than it asked for.
        Step("2", "Op", ("a",), (("b", 512),), frozenset("a"), 768, 512, 0),
        step("3", "b", {"c": 512}, "b", 0, freed=768),
    ]
    for one in steps:
        replay.begin(one)
        replay.end(one)
    assert names(replay) == [["a", "c"]]
    assert replay.buffers[0].live == {"c"}


def test_a_block_that_is_too_large_counts_whole() -> None:
    replay = Replay()
    replay.begin(Step("1", "Op", (), (("a", 300),), frozenset(), 1024, 300, 0))
    assert [buffer.bytes for buffer in replay.buffers] == [1024]
    kept = Replay()
    kept.begin(Step("1", "Op", (), (("a", 300),), frozenset(), 1024, 812, 0))
    assert [buffer.bytes for buffer in kept.buffers] == [512], "the kernel asked for more"


def measured(text: str, folder: Path, **arrays: np.ndarray) -> Peak:
    onnx.save(onnx.parser.parse_model(HEAD + text), folder / "m.onnx")
    pairs = enumerate(arrays.items())
    write_manifest(folder, [of_plain(name, index, item, folder) for index, (name, item) in pairs])
    point = measure_point(
        PointPlan(folder / "m.onnx", folder, {"target": "cpu"}, seconds=0.0, nodes=True)
    )
    assert isinstance(point.nodes, NodeMemory)
    arena = point.first.arena("Cpu")
    (peak,) = point.nodes.peaks
    assert arena is not None and arena.peak == peak.bytes, "the C API and the trace agree"
    total = peak.tensor_bytes + (peak.workspace or 0) + peak.before_run + peak.unexplained
    assert total == peak.bytes
    return peak


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rows", [1, 7, 64, 1000])
def test_the_peak_of_a_fork_is_the_tensors_that_are_alive(rows: int, tmp_path: Path) -> None:
    """a (4 columns wide), b (8), c (16) are alive when c is made; a and d when y is."""
    text = """g (float[n, 4] x) => (float[n, 4] y)
        <int64[2] wide = {1, 2}, int64[2] twice = {1, 2}> {
        a = Exp (x)  b = Tile (a, wide)  c = Tile (b, twice)
        d = ReduceMax <axes = [1]> (c)  y = Mul (a, d) }"""
    peak = measured(text, tmp_path, x=np.ones((rows, 4), np.float32))
    sizes = {name: 4 * rows * wide for name, wide in (("a", 4), ("b", 8), ("c", 16))}
    assert peak.op == "Tile"
    assert {tensor.name: tensor.bytes for tensor in peak.tensors} == {
        name: -(-size // GRAIN) * GRAIN for name, size in sizes.items()
    }
    assert peak.unexplained == 0


def test_workspace_is_apart_from_tensors(tmp_path: Path) -> None:
    """Softmax along the first axis is transposed around: two copies besides its output."""
    text = """g (float[n, m] x) => (float[n, m] y) {
        a = Exp (x)  b = Softmax <axis = 0> (a)  y = Neg (b) }"""
    x = np.ones((128, 512), np.float32)
    peak = measured(text, tmp_path, x=x)
    assert peak.op == "Softmax"
    assert peak.workspace == pytest.approx(2 * x.nbytes, rel=0.05)
    assert peak.unexplained == 0


def test_a_body_s_reads_keep_a_tensor(tmp_path: Path) -> None:
    text = """g (float[n] x, bool c) => (float[n] y) {
        a = Exp (x)
        b = If (c) <then_branch = t () => (float[n] p) { p = Neg (a) },
                    else_branch = e () => (float[n] q) { q = Abs (a) }>
        y = Mul (a, b) }"""
    peak = measured(text, tmp_path, x=np.ones(1 << 16, np.float32), c=np.array(True))
    assert peak.op == "Mul"
    assert {"a", "b", "y"} >= {tensor.name for tensor in peak.tensors} >= {"a", "y"}


def test_a_trace_that_cannot_be_read_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_text('[\n{"cat" : "Session"')
    traced = {
        "trace": str(tmp_path / "cut.json"),
        "graph": "",
        "problem": "",
        "peaks": {},
        "version": "1",
    }
    found = read_node_memory(traced)
    assert isinstance(found, Unavailable)
    assert found.reason


def test_without_an_arena_there_are_no_nodes(tmp_path: Path) -> None:
    onnx.save(
        onnx.parser.parse_model(HEAD + "g (float[n] x) => (float[n] y) { y = Exp (x) }"),
        tmp_path / "m.onnx",
    )
    write_manifest(tmp_path, [of_plain("x", 0, np.ones(4, np.float32), tmp_path)])
    settings = {"target": "cpu", "memory_arena": False}
    point = measure_point(
        PointPlan(tmp_path / "m.onnx", tmp_path, settings, seconds=0.0, nodes=True)
    )
    assert isinstance(point.nodes, Unavailable)
    assert "arena is turned off" in point.nodes.reason


def test_an_older_runtime_s_trace_is_said_to_have_no_counters(tmp_path: Path) -> None:
    """As onnxruntime 1.27 writes it: 1.28 is the first with counters."""
    lines = [
        '{"cat" : "Node","pid" :1,"tid" :1,"dur" :3,"ts" :12,"ph" : "X",'
        '"name" :"n_kernel_time","args" : {"op_name" : "Exp","provider" : "CPUExecutionProvider",'
        '"node_index" : "0","input_type_shape" : [{"float":[4]}],'
        '"output_type_shape" : [{"float":[4]}],"parameter_size" : "0","activation_size" : "16",'
        '"output_size" : "16"}},',
        '{"cat" : "Session","pid" :1,"tid" :1,"dur" :9,"ts" :10,"ph" : "X","name" :"model_run",'
        '"args" : {}},',
    ]
    (tmp_path / "t.json").write_text("\n".join(["[", *lines, "]", ""]))
    traced = {"trace": str(tmp_path / "t.json"), "graph": "", "problem": "",
              "peaks": {"CPUExecutionProvider": 0}, "version": "1.27.0"}  # fmt: skip
    found = read_node_memory(traced)
    assert isinstance(found, Unavailable)
    assert found.reason == "onnxruntime 1.27.0 does not write them into its trace"
