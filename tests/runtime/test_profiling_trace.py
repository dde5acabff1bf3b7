"""Reading traces: a real one, and events as onnxruntime 1.31.1 writes them with made-up times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from ortkit.errors import UserError
from ortkit.graph.walk import CONTROL_FLOW
from ortkit.runtime.profiling.trace.devices import attach_kernels, busy_us
from ortkit.runtime.profiling.trace.events import HOLDERS, DeviceEvent, NodeEvent
from ortkit.runtime.profiling.trace.read import read_trace
from tests.runtime.traces import MEMORY, SCHEDULING, event, node, run, traced, written


def test_a_real_trace_is_read_without_loss(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[n, 3] x) => (float[n, 4] z)
        <float[3, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> {
            y = MatMul (x, w)
            z = Relu (y)
        }"""
    )
    # Names that JSON has to escape, and one that looks like the field after it.
    model.graph.node[0].name = 'a"b\\c\nd'
    model.graph.node[1].name = 'x_kernel_time","args" : {'
    found = traced(model, {"x": np.ones((2, 3), np.float32)}, 3, tmp_path)

    assert len(found.runs) == 3
    assert found.load_us is not None and found.initialize_us is not None
    assert [item.run for item in found.nodes] == [0, 0, 1, 1, 2, 2]
    assert [one.name for one in found.nodes[:2]] == [one.name for one in model.graph.node]
    first = found.nodes[0]
    assert isinstance(first, NodeEvent)
    assert (first.op, first.provider, first.index) == ("MatMul", "CPUExecutionProvider", 0)
    # The weights are packed anew when the session is made, and are then no input.
    assert first.inputs == (("float32", (2, 3)),)
    assert first.outputs == (("float32", (2, 4)),)
    assert (first.parameter_bytes, first.activation_bytes, first.output_bytes) == (0, 24, 32)
    assert first.memory is not None and first.memory.held > 0
    assert first.scheduling is not None and first.scheduling.pool.startswith("session")


@pytest.mark.parametrize("order", [("inputs", "rest"), ("rest", "inputs")])
def test_columns_say_what_the_json_says(order: tuple[str, str], tmp_path: Path) -> None:
    shapes = {"input_type_shape": [{"double": [2, 3]}, {"float16": []}], "output_type_shape": []}
    rest = {
        "op_name": "Foo", "provider": "P", "node_index": "5", "parameter_size": "1",
        "activation_size": "2", "output_size": "3", "thread_scheduling_stats": SCHEDULING,
        **MEMORY,
    }  # fmt: skip
    args = {**shapes, **rest} if order[0] == "inputs" else {**rest, **shapes}
    path = written(tmp_path, event("Node", "n_kernel_time", 110, 30, 7, args), run(100, 50))
    one = read_trace(path).nodes[0]
    assert (one.name, one.op, one.provider, one.index) == ("n", "Foo", "P", 5)
    assert one.inputs == (("float64", (2, 3)), ("float16", ())) and one.outputs == ()
    assert (one.start_us, one.duration_us, one.thread, one.run) == (110, 30, 7, 0)
    assert one.memory is not None and one.memory.requested_delta == -12
    assert one.scheduling is not None
    assert one.scheduling.block_sizes == (1, 4) and one.scheduling.tasks == ((140, 12),)
    assert (one.scheduling.wait_us, one.scheduling.run_us) == (7, 30)


def test_calls_with_other_shapes_are_told_apart(tmp_path: Path) -> None:
    shapes = ([{"float": [1, 2]}], [{"float": [1, 3]}], [{"float": [1, 2]}])
    calls = [node("Relu", 110 + 10 * i, 5, inputs=shape) for i, shape in enumerate(shapes)]
    found = read_trace(written(tmp_path, *calls, run(100, 100))).nodes
    assert [item.inputs[0][1] for item in found] == [(1, 2), (1, 3), (1, 2)]
    assert len(found.signatures) == 2


def test_nodes_of_one_name_in_two_bodies_are_told_apart(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        node("Add", 111, 5, name="same", index=1), node("Mul", 121, 5, name="same", index=1),
        node("If", 110, 30, index=0), run(100, 100),
    )  # fmt: skip
    assert [item.op for item in read_trace(path).nodes] == ["Add", "Mul", "If"]
    assert HOLDERS == CONTROL_FLOW


def test_nodes_belong_to_the_run_around_them_and_not_to_the_line_before(tmp_path: Path) -> None:
    # A run's nodes stand before its own model_run in the file.
    path = written(
        tmp_path,
        node("MatMul", 110, 900), run(100, 1000),
        node("Cast", 2050, 20),  # between two runs: in neither
        node("MatMul", 2110, 30), node("Add", 2150, 10), run(2100, 100),
        node("Add", 2200, 1), node("MatMul", 3110, 50), run(3100, 120),
    )  # fmt: skip
    found = read_trace(path).nodes
    assert found.run.tolist() == [0, -1, 1, 1, 1, 2]


def test_runs_on_two_threads_at_once_keep_their_nodes(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        node("A", 110, 50, thread=7), node("A", 120, 50, thread=8),
        node("B", 170, 20, thread=7), node("B", 175, 20, thread=8),
        run(100, 100, thread=7), run(105, 100, thread=8),
        # A session that runs nodes in parallel: threads that never call `run`.
        node("A", 310, 10, thread=7), node("B", 312, 10, thread=9), run(300, 50, thread=7),
        node("C", 150, 5, thread=9),  # within two runs: of which of them is not known
    )  # fmt: skip
    found = read_trace(path).nodes
    assert found.run.tolist() == [0, 1, 0, 1, 2, 2, -1]


def test_what_older_versions_leave_out_is_empty(tmp_path: Path) -> None:
    args = {"op_name": "Relu", "provider": "CPUExecutionProvider"}
    fence = event("Node", "r_fence_before", 109, 0, 7, args)
    path = written(tmp_path, fence, event("Node", "r_kernel_time", 110, 3, 7, args), run(100, 20))
    (one,) = read_trace(path).nodes
    assert (one.op, one.inputs, one.index) == ("Relu", (), None)
    assert one.memory is None and one.scheduling is None


def test_kernels_of_a_device_belong_to_the_run_that_launched_them(tmp_path: Path) -> None:
    args = {"stream": "7", "grid_x": "4", "op_name": "MatMul", "parent_name": "m_kernel_time"}
    path = written(
        tmp_path,
        node("MatMul", 110, 5, name="m"), run(100, 20),
        event("Kernel", "void gemm<float, 128>(float*)", 112, 40, -1, args),
        event("Kernel", "MemcpyHostToDevice", 101, 2, -1, {"stream": "7", "bytes": "64"}),
    )  # fmt: skip
    found = read_trace(path)
    copy, kernel = found.kernels
    assert (copy.kind, copy.node, copy.details) == ("copy", -1, {"bytes": "64"})
    assert (kernel.kind, kernel.node, kernel.run, kernel.stream) == ("kernel", 0, 0, "7")
    assert kernel.details["grid_x"] == "4"


def test_a_kernel_is_put_under_the_innermost_call_that_launched_it(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        node("Add", 112, 5), node("If", 110, 20), node("Mul", 140, 5), run(100, 60),
        node("Add", 212, 5), run(200, 60),
    )  # fmt: skip

    def launch(at: float, thread: int = 7) -> DeviceEvent:
        return DeviceEvent("kernel", "k", at + 30, 9, "7", launch_us=at, thread=thread)

    found = attach_kernels(
        read_trace(path),
        [launch(at) for at in (105, 114, 120, 141, 170, 213)] + [launch(113, thread=8)],
    )
    placed = {
        kernel.launch_us: (kernel.node, kernel.run)
        for kernel in found.kernels
        if kernel.thread == 7
    }
    assert placed == {
        105: (-1, 0), 114: (0, 0), 120: (1, 0), 141: (2, 0), 170: (-1, -1), 213: (3, 1)
    }  # fmt: skip
    assert [item.node for item in found.kernels if item.thread == 8] == [-1]
    assert busy_us(found.kernels[:4]) == 159 - 135


GOOD = node("Relu", 110, 5)


@pytest.mark.parametrize(
    "text, problem",
    [
        ("", "does not begin with a list"),
        ("{}", "does not begin with a list"),
        ('{"traceEvents": []}\n', "does not begin with a list"),
        ("[\n]\n", "holds no run"),
        ("[\n1\n]\n", "line 2 holds no whole event"),
        ('[\n{"cat" : "Node"}\n]\n', "line 2 holds no whole event"),
        (f"[\n{GOOD},\n", "cut off after line 2"),
        (f"[\n{GOOD},\n{GOOD[:200]}", "line 3 holds no whole event"),
        (f"[\n{GOOD[:200]}\n]\n", "line 2 holds no whole event"),
        (f"[\n{GOOD.replace('CPU', chr(0x80))[:-1]}\n]\n", "line 2 holds no whole event"),
    ],
)
def test_what_is_no_whole_profile_is_refused_in_a_line(
    text: str, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=problem) as caught:
        read_trace(path)
    assert "trace.json" in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the profile: No such file"):
        read_trace(tmp_path / "none.json")
