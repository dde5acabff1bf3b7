"""Originals in half precision: what their own roundings move is allowed, what is wrong is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper

import ortkit
from ortkit.verify.compare import compare_outputs
from ortkit.verify.rounded import write_rounded
from ortkit.verify.verifier import Verifier

Weights = dict[str, np.ndarray]
BLOCKS, CHANNELS, WIDE, SIDE = 6, 16, 192, 7


def weights(dtype: type = np.float16) -> Weights:
    """Of a residual net; most of its last channels are next to nothing but 0 behind the Relu."""
    rng = np.random.default_rng(3)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))

    made: Weights = {}
    for block in range(BLOCKS):
        made[f"a{block}"] = normal(CHANNELS, CHANNELS, 3, 3)
        made[f"b{block}"] = normal(CHANNELS)
        made[f"c{block}"] = normal(CHANNELS, CHANNELS, 1, 1)
    made["last"] = normal(WIDE, CHANNELS, 1, 1)
    made["shift"] = np.linspace(-6, 0.5, WIDE)
    return {name: array.astype(dtype) for name, array in made.items()}


def net(
    given: Weights, *, rounds: Callable[[int], bool] = lambda _: False, spare: str = ""
) -> onnx.ModelProto:
    """The net; values behind blocks that it `rounds` are rounded; without the bias `spare`."""
    kind = helper.np_dtype_to_tensor_dtype(given["last"].dtype)
    nodes: list[onnx.NodeProto] = []

    def op(name: str, *inputs: str, **attributes: object) -> str:
        nodes.append(helper.make_node(name, inputs, [f"v{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    def conv(x: str, weight: str, bias: str, **attributes: object) -> str:
        return op("Conv", x, weight, *([] if bias == spare else [bias]), **attributes)

    x = "x"
    for block in range(BLOCKS):
        inner = op("Relu", conv(x, f"a{block}", f"b{block}", pads=[1] * 4))
        x = op("Add", op("Conv", inner, f"c{block}"), x)
        for _ in range(2 * rounds(block)):
            x = op("Identity", x)
    nodes.append(helper.make_node("Relu", [conv(x, "last", "shift")], ["y"]))
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", kind, [1, CHANNELS, SIDE, SIDE])],
        [helper.make_tensor_value_info("y", kind, [1, WIDE, SIDE, SIDE])],
        [numpy_helper.from_array(array, name) for name, array in given.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def saved(model: onnx.ModelProto, path: Path) -> Path:
    onnx.save(model, path)
    return path


def check(verifier: Verifier, wrong: Path) -> None:
    """A fault is found, and by its size."""
    found = verifier.check(wrong)
    assert found.verdict == "no"
    assert "epsilons of float16" in found.reason


def test_roundings_elsewhere_are_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    candidate = saved(net(weights(), rounds=lambda block: block % 2 == 1), tmp_path / "c.onnx")
    with Verifier(saved(net(weights()), tmp_path / "m.onnx")) as verifier:
        found = verifier.check(candidate)
        assert found.verdict == "yes"
        assert "roundings in half precision" in found.reason
        monkeypatch.setattr(verifier, "_rounded", lambda _: None)
        assert verifier.check(candidate).verdict == "no"  # without that it would be one


@pytest.mark.parametrize("block", [0, BLOCKS - 1])
@pytest.mark.parametrize("fault", ["tap", "bias", "channel"])
def test_a_fault_is_found(block: int, fault: str, tmp_path: Path) -> None:
    wrong, spare = weights(), ""
    if fault == "tap":  # one of the nine, of one filter, reads its neighbour's pixel
        filter_ = wrong[f"a{block}"][5]
        filter_[:, 1, 1], filter_[:, 1, 2] = filter_[:, 1, 2].copy(), filter_[:, 1, 1].copy()
    elif fault == "bias":
        spare = f"b{block}"
    else:
        wrong[f"c{block}"][:, [2, 3]] = wrong[f"c{block}"][:, [3, 2]]
    candidate = saved(net(wrong, rounds=lambda _: True, spare=spare), tmp_path / "c.onnx")
    with Verifier(saved(net(weights()), tmp_path / "m.onnx")) as verifier:
        check(verifier, candidate)


@pytest.mark.parametrize("block", [0, BLOCKS - 1])
def test_a_float32_net_may_be_lowered_and_not_be_wrong(block: int, tmp_path: Path) -> None:
    original = saved(net(weights(np.float32)), tmp_path / "m.onnx")
    options = ortkit.OptimizeOptions(target="cuda", precision="fp16", kernels="off")
    lowered = ortkit.optimize(original, options)
    assert lowered.report.verification is not None
    assert (lowered.report.verification.verdict, lowered.report.rolled_back) == ("yes", ())
    assert "roundings in half precision" in lowered.report.verification.reason
    wrong = weights(np.float32)
    filter_ = wrong[f"a{block}"][5]
    filter_[:, 1, 1], filter_[:, 1, 2] = filter_[:, 1, 2].copy(), filter_[:, 1, 1].copy()
    candidate = ortkit.optimize(saved(net(wrong), tmp_path / "w.onnx"), options).model
    with Verifier(original) as verifier:
        assert verifier.check(lowered.model, computed_in="float16").verdict == "yes"
        found = verifier.check(candidate, computed_in="float16")
    assert found.verdict == "no"


def test_a_missing_bias_of_channels_that_are_cut_off_is_found(tmp_path: Path) -> None:
    candidate = saved(net(weights(), rounds=lambda _: True, spare="shift"), tmp_path / "c.onnx")
    with Verifier(saved(net(weights()), tmp_path / "m.onnx")) as verifier:
        check(verifier, candidate)


def test_float32_is_as_it_was(tmp_path: Path) -> None:
    original = saved(net(weights(np.float32)), tmp_path / "m.onnx")
    assert write_rounded(original, tmp_path / "rounded") is None
    assert not (tmp_path / "rounded").exists()
    wrong = weights(np.float32)
    wrong["shift"] = wrong["shift"] + np.float32(2**-10)
    with Verifier(original) as verifier:
        found = verifier.check(saved(net(wrong), tmp_path / "c.onnx"))
    assert found.verdict == "no"
    assert "epsilons of float32" in found.reason


def test_values_in_bodies_and_functions_are_rounded(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 19, "own" : 1]>
    g (bool c, float16[8] x) => (float16[8] y) {
      a = own.twice(x)
      b = If (c) <
        then_branch = t () => (float16[8] p) { q = Exp(a)  p = Sqrt(q) },
        else_branch = e () => (float16[8] r) { r = Neg(a) }
      >
      w = Cast<to = 1>(b)
      v = Exp(w)
      y = Cast<to = 10>(v)
    }
    <domain: "own", opset_import: ["" : 19]>
    twice (x) => (y) { s = Add(x, x)  y = Sin(s) }"""
    original = saved(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    path = write_rounded(original, tmp_path / "rounded")
    assert path is not None
    made = onnx.load(path)
    onnx.checker.check_model(made, full_check=True)
    (branch,) = (node for node in made.graph.node if node.op_type == "If")
    bodies = [attribute.g for attribute in branch.attribute]
    count = [sum(node.op_type == "Identity" for node in body.node) for body in bodies]
    assert sorted(count) == [0, 2]  # what a body gives is rounded outside
    # Behind both nodes of the function, and behind the If; float32 is not rounded.
    assert sum(node.op_type == "Identity" for node in made.graph.node) == 6


def test_each_row_may_be_off_by_what_moves_it() -> None:
    expected = np.ones((4, 16), np.float16)
    expected[:2] /= 64
    rounded, actual = expected.copy(), expected.copy()
    rounded[0] += np.float16(2**-11)
    actual[0] += np.float16(2**-10)
    assert not compare_outputs("y", expected, actual).equal
    assert compare_outputs("y", expected, actual, rounded=rounded).equal
    actual[0] += np.float16(2**-9)  # more than four times
    assert not compare_outputs("y", expected, actual, rounded=rounded).equal
    actual[0], actual[1] = expected[0], expected[1] + np.float16(2**-10)
    found = compare_outputs("y", expected, actual, rounded=rounded)
    assert not found.equal  # the other small row does not move
    assert found.worst_row == (1,)


def test_a_row_that_is_cut_off_moves_as_the_others() -> None:
    expected = np.ones((4, 16), np.float16)
    expected[0] = 0
    rounded, actual = expected.copy(), expected.copy()
    rounded[1:] += np.float16(2**-10)
    for off, is_equal in ((2**-10, True), (2**-7, False)):
        actual[0, 3] = off
        assert compare_outputs("y", expected, actual, rounded=rounded).equal == is_equal
        assert not compare_outputs("y", expected, actual).equal


def test_roundings_excuse_no_more_than_a_part() -> None:
    expected = np.ones((4, 16), np.float16)
    rounded, actual = expected.copy(), expected.copy()
    rounded[0], rounded[1] = 3, np.inf
    actual[0] = 1.05
    assert compare_outputs("y", expected, actual, rounded=rounded).equal
    actual[0] = 1.07
    assert not compare_outputs("y", expected, actual, rounded=rounded).equal
    actual[0], actual[1] = 1, 1.05
    assert not compare_outputs("y", expected, actual, rounded=rounded).equal


def test_a_rounded_result_of_another_shape_says_nothing() -> None:
    expected = np.ones((4, 16), np.float16)
    actual = expected * np.float16(1.1)
    found = compare_outputs("y", expected, actual, rounded=np.zeros((5, 16), np.float16))
    assert not found.equal
    parts = compare_outputs("y", [expected], [actual], rounded=[expected, expected])
    assert not parts.equal
