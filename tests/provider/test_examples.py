"""The examples of providers do what their pages say."""

from __future__ import annotations

import json
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from python_providers import model, options, placement, registered, session

import models.catalog
from examples.forward_provider.provider import ForwardProvider
from examples.npu_sim.__main__ import main
from examples.npu_sim.machine import Machine, Timeline
from examples.npu_sim.memory import NpuMemory
from examples.npu_sim.net import NET, with_weights
from examples.npu_sim.provider import NpuProvider
from examples.npu_sim.schedule import Tiling, Work, choose, cycles, run

BLOCK = """<ir_version: 10, opset_import: ["" : 18]>
g (float[n, 8, 16] x) => (float[n, 8, 16] y)
{
  q = MatMul (x, w)  k = Transpose <perm = [0, 2, 1]> (x)  s = MatMul (q, k)
  p = Softmax <axis = -1> (s)  v = MatMul (p, x)  e = Erf (v)  r = Add (e, b)
  f = Floor (r)
  t = Tanh (f)  y = Mul (t, x)
}
"""


def block() -> bytes:
    """Return an attention of sorts, with a node that no example takes."""
    proto = onnx.parser.parse_model(BLOCK)
    random = np.random.default_rng(4)
    for name, shape in {"w": (16, 16), "b": (16,)}.items():
        array = random.standard_normal(shape).astype(np.float32) / 4
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    serialized: bytes = proto.SerializeToString()
    return serialized


def compare(made: ort.InferenceSession, source: bytes, feeds: dict[str, Any]) -> None:
    plain = ort.InferenceSession(source, options(), providers=["CPUExecutionProvider"])
    for found, wanted in zip(made.run(None, feeds), plain.run(None, feeds), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)


def conv_net() -> bytes:
    """Return the example's net up to its last sums: a softmax would hide differences."""
    proto = with_weights(onnx.parser.parse_model(NET))
    proto.graph.node.pop()
    proto.graph.output[0].name = "g"
    serialized: bytes = proto.SerializeToString()
    return serialized


def test_npu_sim_runs_a_convolution_net() -> None:
    provider = NpuProvider()
    random = np.random.default_rng(2)
    with registered(provider) as name:
        source = conv_net()
        made = session(source, name)
        assert placement(made, "CPUExecutionProvider") == []
        for rows in (1, 3, 1):
            x = random.standard_normal((rows, 3, 32, 32), dtype=np.float32)
            compare(made, source, {"x": x})
        weights = sum(array.nbytes for array in _constants(source))
        assert provider.memory.used >= weights
        del made
    assert provider.memory.used == 0
    assert provider.memory.peak > weights
    units = {step.unit for step in provider.timeline.steps}
    assert units == {"host link", "load", "array", "store", "vector"}
    assert provider.timeline.now > 0


def _constants(source: bytes) -> list[Any]:
    graph = onnx.load_from_string(source).graph
    return [numpy_helper.to_array(item) for item in graph.initializer]


def test_npu_sim_leaves_the_rest_to_the_cpu() -> None:
    with registered(NpuProvider()) as name:
        source = with_weights(onnx.parser.parse_model(NET)).SerializeToString()
        made = session(source, name)
        assert placement(made, "CPUExecutionProvider") == ["Softmax"]
        compare(made, source, {"x": np.ones((2, 3, 32, 32), np.float32)})


GEOMETRIES = [
    {},
    {"strides": [2, 1]},
    {"pads": [1, 2, 0, 3]},
    {"dilations": [2, 3], "pads": [2, 3, 2, 3]},
    {"group": 3},
    {"group": 3, "strides": [3, 2], "pads": [1, 1, 1, 1], "dilations": [1, 2]},
]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("local_bytes", [6144, 1 << 20])
def test_npu_sim_convolves_in_tiles_of_any_size(geometry: Any, local_bytes: int) -> None:
    random = np.random.default_rng(3)
    group = geometry.get("group", 1)
    weight = random.standard_normal((12, 6 // group, 3, 3)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3], **geometry)
    relu = helper.make_node("Relu", ["c"], ["y"])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4) for name in "xy")
    graph = helper.make_graph([node, relu], "g", [x], [y], [numpy_helper.from_array(weight, "w")])
    opsets = [helper.make_opsetid("", 20)]
    source = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    provider = NpuProvider(Machine(local_bytes=local_bytes))
    with registered(provider) as name:
        made = session(source, name)
        assert placement(made, name) == ["Conv", "Relu"]
        compare(made, source, {"x": random.standard_normal((2, 6, 13, 11), dtype=np.float32)})
    tiles = sum(step.unit == "array" for step in provider.timeline.steps)
    assert tiles >= 2 * group  # one at least for each of two images
    if local_bytes < 1 << 20 and group == 1:
        assert tiles > 2


WORK = Work(channels=48, depth=72, rows=20, columns=30, row_bytes=2000, halo_bytes=4000)


def test_the_scheduler_takes_the_fastest_tiles_that_fit() -> None:
    machine = Machine(local_bytes=40_000)
    best = choose(machine, WORK)
    assert WORK.local_bytes(best.channels, best.rows) <= machine.local_bytes
    for channels in (1, 2, 3, 6, 12, 16, 24, 48):
        for rows in (1, 2, 3, 5, 10, 20):
            other = Tiling(channels, rows)
            if WORK.local_bytes(channels, rows) <= machine.local_bytes:
                assert cycles(machine, WORK, best) <= cycles(machine, WORK, other)
    with pytest.raises(ValueError, match="no tile of"):
        choose(Machine(local_bytes=100), WORK)


@pytest.mark.parametrize("tiling", [Tiling(48, 20), Tiling(16, 3), Tiling(7, 20), Tiling(1, 1)])
def test_tiles_cover_the_output_once(tiling: Tiling) -> None:
    count = np.zeros((WORK.channels, WORK.rows), int)
    for channels, rows in tiling.tiles(WORK):
        count[channels, rows] += 1
    assert (count == 1).all()


def test_a_tile_and_the_next_are_there_at_the_same_time() -> None:
    floats = 3 * 72 + 3 * 2 * 30
    assert WORK.local_bytes(3, 2) == 2 * (4 * floats + 2 * 2000 + 4000)


UNITS = ("load", "array", "store")


def test_a_unit_does_one_thing_at_a_time() -> None:
    timeline = Timeline(Machine())
    run(timeline, WORK, Tiling(16, 4), name="it")
    for unit in UNITS:
        steps = [step for step in timeline.steps if step.unit == unit]
        assert len(steps) == 15
        for one, following in pairwise(steps):
            assert one.begin + one.cycles <= following.begin
    work = {unit: [step for step in timeline.steps if step.unit == unit] for unit in UNITS}
    for load, array, store in zip(*work.values(), strict=True):
        assert load.begin + load.cycles <= array.begin
        assert array.begin + array.cycles <= store.begin
    # While one tile is computed the next is on its way: shorter than one after the other.
    assert timeline.now < sum(step.cycles for step in timeline.steps)
    assert timeline.now >= timeline.busy("array")


def test_the_devices_memory_is_used_again() -> None:
    memory = NpuMemory(Timeline(Machine()), 1024)
    first, second, third = (memory.allocate(0, size, None) for size in (100, 300, 1))
    assert len({first, second, third}) == 3
    assert all(address % 64 == 0 for address in (first, second, third))
    assert memory.used == 128 + 320 + 64
    assert memory.allocate(0, 1024, None) == 0
    memory.free(0, second)
    assert memory.allocate(0, 320, None) == second
    for address in (second, first, third):
        memory.free(0, address)
    assert memory.allocate(0, 1024, None) == first
    assert memory.peak == 1024


def test_a_device_that_is_too_small_says_so() -> None:
    with registered(NpuProvider(memory_bytes=4096)) as name, pytest.raises(Exception) as caught:
        session(conv_net(), name)
    assert "there is no room for" in str(caught.value) or "no memory for" in str(caught.value)


def test_npu_sim_runs_in_threads() -> None:
    failed: list[BaseException] = []
    source = conv_net()
    with registered(NpuProvider()) as name:
        made = session(source, name)

        def work(seed: int) -> None:
            try:
                random = np.random.default_rng(seed)
                x = random.standard_normal((1, 3, 32, 32), dtype=np.float32)
                for _ in range(3):
                    compare(made, source, {"x": x})
            except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
                failed.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads)
    assert not failed, failed


def test_npu_sim_has_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ortkit.provider import unregister_provider

    trace = tmp_path / "trace.json"
    try:
        assert main(["--trace", str(trace)]) == 0
    finally:
        unregister_provider(NpuProvider.name)
    said = capsys.readouterr().out
    assert "largest difference from the CPU" in said
    assert "cycles" in said
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {"host link", "load", "array", "store", "vector"}
    assert all(event["dur"] > 0 for event in events if event["ph"] == "X")


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_nodes_are_forwarded(library: str) -> None:
    pytest.importorskip(library)
    with registered(ForwardProvider()) as name:
        made = session(block(), name, settings={"library": library})
        assert placement(made, "CPUExecutionProvider") == ["Floor"]
        for rows in (2, 1, 3, 2):
            x = np.random.default_rng(rows).standard_normal((rows, 8, 16), dtype=np.float32)
            compare(made, block(), {"x": x})


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("family", ["bert", "resnet50"])
def test_models_are_forwarded(library: str, family: str) -> None:
    pytest.importorskip(library)
    spelling = models.catalog.spellings(family)[0]
    proto = models.catalog.build(family, "tiny", spelling, 0)
    source = proto.SerializeToString()
    with registered(ForwardProvider()) as name:
        made = session(source, name, settings={"library": library})
        taken = len(placement(made, name))
        assert taken > (0.4 if library == "torch" or family == "bert" else 0.1) * len(
            proto.graph.node
        )
        compare(made, source, feeds_of(made))


def feeds_of(made: ort.InferenceSession) -> dict[str, Any]:
    random = np.random.default_rng(5)
    feeds: dict[str, Any] = {}
    for one in made.get_inputs():
        shape = [size if isinstance(size, int) else 2 for size in one.shape]
        if one.type == "tensor(float)":
            feeds[one.name] = random.standard_normal(shape, dtype=np.float32)
        else:
            feeds[one.name] = random.integers(0, 2, shape).astype(np.int64)
    return feeds


def test_a_library_that_is_not_there_is_named() -> None:
    with registered(ForwardProvider()) as name:
        if name not in ort.get_available_providers():
            pytest.skip("needs providers by name")
        chosen = [(name, {"library": "abacus"}), "CPUExecutionProvider"]
        with pytest.raises(Exception, match="no library is called 'abacus'; use numpy, torch"):
            ort.InferenceSession(block(), options(), chosen, enable_fallback=0)


def test_tvm_compiles_whole_subgraphs() -> None:
    pytest.importorskip("tvm")
    from examples.tvm_provider.provider import TvmProvider

    with registered(TvmProvider()) as name:
        made = session(block(), name)
        assert placement(made, "CPUExecutionProvider") == ["Floor"]
        assert placement(made, name).count("MatMul") == 3
        for rows in (2, 1, 2):
            x = np.random.default_rng(rows).standard_normal((rows, 8, 16), dtype=np.float32)
            compare(made, block(), {"x": x})


def test_tvm_compiles_fixed_sizes_at_once() -> None:
    pytest.importorskip("tvm")
    from examples.tvm_provider.provider import TvmProvider

    text = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[4, 6] a, float[6, 5] b, float s) => (float[4, 5] y, float[4, 5] z)
    { m = MatMul (a, b)  y = Relu (m)  n = Neg (m)  z = Mul (n, s) }"""
    random = np.random.default_rng(6)
    feeds = {
        "a": random.standard_normal((4, 6), dtype=np.float32),
        "b": random.standard_normal((6, 5), dtype=np.float32),
        "s": np.array(3, np.float32),
    }
    with registered(TvmProvider()) as name:
        made = session(model(text), name)
        assert placement(made, name) == ["MatMul", "Mul", "Neg", "Relu"]
        compare(made, model(text), feeds)
