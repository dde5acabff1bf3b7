"""A Pad goes into Conv and pooling only where the windows see the same numbers."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortkit.graph.check.model import check_model
from ortkit.passes.fold_pad import FoldPad
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.pipeline import Pipeline

PADS = (0, 0, 1, 0, 0, 0, 2, 1)


def model(
    reader: str,
    pads: tuple[int, ...] = PADS,
    *,
    value: float | None = None,
    before: str = "Relu",
    axes: tuple[int, ...] | None = None,
    opset: int = 18,
    mode: str = "constant",
    outputs: tuple[str, ...] = ("y",),
    **attributes: object,
) -> onnx.ModelProto:
    """Build `reader(Pad(before(x)))`; x: [1, 3, 6, 7]."""
    constants = {"W": np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)}
    inputs = ["t"]
    if opset >= 11:
        inputs.append("pads")
        constants["pads"] = np.array(pads, np.int64)
        inputs.append("value" if value is not None else "")
        if value is not None:
            constants["value"] = np.array(value, np.float32)
        if axes is not None:
            inputs.append("axes")
            constants["axes"] = np.array(axes, np.int64)
        pad = helper.make_node("Pad", inputs, ["p"], mode=mode)
    else:
        pad = helper.make_node("Pad", inputs, ["p"], mode=mode, pads=pads, value=value or 0.0)
    if reader == "Conv":
        end = helper.make_node("Conv", ["p", "W"], ["y"], **attributes)
    else:
        end = helper.make_node(reader, ["p"], list(outputs), kernel_shape=[3, 3], **attributes)
    nodes = [helper.make_node(before, ["x"], ["t"]), pad, end]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 6, 7])],
        [helper.make_tensor_value_info(outputs[0], TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    for name in outputs[1:]:
        graph.output.append(helper.make_tensor_value_info(name, TensorProto.INT64, None))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def run(proto: onnx.ModelProto) -> list[np.ndarray]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options)
    x = np.random.default_rng(1).standard_normal((1, 3, 6, 7)).astype(np.float32) - 1
    return list(session.run(None, {"x": x}))


def fold(proto: onnx.ModelProto) -> tuple[bool, set[str]]:
    """Run the pass; return whether the Pad is gone, and the reasons if not."""
    result = Pipeline((FoldPad(),)).run(ir.from_proto(proto), RewriteOptions())
    check_model(result.model)
    made = ir.to_proto(result.model)
    for got, want in zip(run(made), run(proto), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    folded = all(node.op_type != "Pad" for node in made.graph.node)
    assert folded == result.modified
    return folded, {miss.reason for miss in result.log.misses}


FOLDS = {
    "conv": model("Conv"),
    "conv with pads": model("Conv", pads=PADS, value=0.0, auto_pad="NOTSET"),
    "conv that pads too": model("Conv", strides=[2, 2], dilations=[2, 2], group=1),
    "conv, valid": model("Conv", auto_pad="VALID"),
    "conv, axes": model("Conv", (1, 2, 3, 0), axes=(-1, 2)),
    "conv, opset 10": model("Conv", opset=10),
    "average": model("AveragePool"),
    "average that counts": model("AveragePool", (0, 0, 1, 0, 0, 0, 1, 1), count_include_pad=1),
    "average, strides": model("AveragePool", strides=[2, 2]),
    "max of relu": model("MaxPool"),
    "max of relu, strides": model("MaxPool", strides=[2, 3]),
    "max, minus infinity": model("MaxPool", value=-np.inf, before="Neg"),
}


@pytest.mark.parametrize("case", FOLDS)
def test_folds(case: str) -> None:
    assert fold(FOLDS[case]) == (True, set())


def test_pads_add_up() -> None:
    for reader in ("Conv", "MaxPool"):
        proto = model(reader, (0, 0, 1, 0, 0, 0, 0, 1))
        proto.graph.node[2].attribute.append(helper.make_attribute("pads", [1, 1, 2, 0]))
        assert fold(proto)[0]


STAYS = {
    "conv, other number": (model("Conv", value=1.0), "pads with zero"),
    "conv, same": (model("Conv", auto_pad="SAME_UPPER"), "auto_pad"),
    "channels": (model("MaxPool", (0, 1, 1, 0, 0, 0, 1, 1)), "spatial"),
    "batch": (model("Conv", (1, 0, 1, 0, 0, 0, 1, 1)), "spatial"),
    "negative": (model("Conv", (0, 0, -1, 0, 0, 0, 1, 1)), "spatial"),
    "reflect": (model("Conv", mode="reflect"), "constant"),
    "edge": (model("MaxPool", mode="edge"), "constant"),
    "max of negatives": (model("MaxPool", before="Neg"), "lowest"),
    "max, minus one": (model("MaxPool", value=-1.0), "lowest"),
    "max, ceil": (model("MaxPool", ceil_mode=1), "ceil_mode"),
    "max, dilations": (model("MaxPool", dilations=[2, 2]), "dilations"),
    "max, indices": (model("MaxPool", outputs=("y", "i")), "indices"),
    "max, wide": (model("MaxPool", (0, 0, 3, 0, 0, 0, 0, 0)), "as much as its kernel"),
    "average, other number": (model("AveragePool", value=1.0), "zero"),
    "average, ceil": (model("AveragePool", ceil_mode=1), "ceil_mode"),
}


@pytest.mark.parametrize("case", STAYS)
def test_stays(case: str) -> None:
    proto, reason = STAYS[case]
    folded, reasons = fold(proto)
    assert not folded
    assert any(reason in item for item in reasons), reasons


def test_an_average_that_does_not_count_its_padding_stays() -> None:
    proto = model("AveragePool", (0, 0, 1, 0, 0, 0, 0, 0))
    proto.graph.node[2].attribute.append(helper.make_attribute("pads", [1, 0, 0, 0]))
    assert not fold(proto)[0]
    proto.graph.node[2].attribute.append(helper.make_attribute("count_include_pad", 1))
    assert fold(proto)[0]


@pytest.mark.parametrize("shared", [True, False])
def test_a_padded_value_that_is_needed_stays(shared: bool) -> None:
    proto = model("Conv")
    if shared:
        proto.graph.node.append(helper.make_node("Neg", ["p"], ["n"]))
    name = "n" if shared else "p"
    proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    assert not fold(proto)[0]


def test_amounts_that_vary_stay() -> None:
    proto = model("Conv")
    del proto.graph.initializer[1]
    proto.graph.input.append(helper.make_tensor_value_info("pads", TensorProto.INT64, [8]))
    result = Pipeline((FoldPad(),)).run(ir.from_proto(proto), RewriteOptions())
    assert not result.modified
