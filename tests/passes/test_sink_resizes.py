"""sink-resizes and fold-matmul-into-conv beside ONNX Runtime: spellings, odd sizes, halves."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortkit.passes.select import select_passes
from tests.passes.graphs import kinds
from tests.passes.graphs import rewritten as apply

CHANNELS, FILTERS = (5, 7, 3), 4
PIXELS = ((3, 5), (13, 11), (7, 11))


def tensor(name: str, data: np.ndarray) -> onnx.TensorProto:
    return numpy_helper.from_array(data, name)


def head(opset: int, dtype: type, *, by_sizes: bool, **rule: str) -> onnx.ModelProto:
    """Three images, of which the first and last are resized to the middle's size, then a Conv."""
    random = np.random.default_rng(0)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    weight = random.standard_normal((FILTERS, sum(CHANNELS), 1, 1)).astype(dtype)
    kept = [tensor("w", weight), tensor("b", random.standard_normal(FILTERS).astype(dtype))]
    nodes, parts = [], []
    height, width = PIXELS[1]
    roi = "roi" if opset < 13 else ""
    if rule.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        roi = "roi"
        kept.append(tensor(roi, np.array([0, 0, 0, 0, 1, 1, 1.5, 1.5], np.float32)))
    elif roi:
        kept.append(tensor(roi, np.zeros(0, np.float32)))
    for i, (channels, pixels) in enumerate(zip(CHANNELS, PIXELS, strict=True)):
        if i == 1:
            parts.append(f"x{i}")
            continue
        if by_sizes:
            kept.append(tensor(f"tail{i}", np.array([channels, height, width], np.int64)))
            nodes.append(helper.make_node("Shape", [f"x{i}"], [f"shape{i}"]))
            nodes.append(helper.make_node("Gather", [f"shape{i}", "zero"], [f"n{i}"]))
            nodes.append(helper.make_node("Concat", [f"n{i}", f"tail{i}"], [f"to{i}"], axis=0))
            kept += [tensor("zero", np.array([0], np.int64))] if i == 0 else []
            kept += [tensor("none", np.zeros(0, np.float32))] if roi and i == 0 else []
            inputs = [f"x{i}", roi, "none" if roi else "", f"to{i}"]
        else:
            factors = [1, 1, height / pixels[0] + 1e-3, width / pixels[1] + 1e-3]
            kept.append(tensor(f"s{i}", np.array(factors, np.float32)))
            inputs = [f"x{i}", roi, f"s{i}"]
        nodes.append(helper.make_node("Resize", inputs, [f"r{i}"], **rule))
        parts.append(f"r{i}")
    nodes.append(helper.make_node("Concat", parts, ["j"], axis=-3))
    nodes.append(helper.make_node("Conv", ["j", "w", "b"], ["y"]))
    inputs = [
        helper.make_tensor_value_info(f"x{i}", kind, ["n", channels, *pixels])
        for i, (channels, pixels) in enumerate(zip(CHANNELS, PIXELS, strict=True))
    ]
    output = helper.make_tensor_value_info("y", kind, ["n", FILTERS, height, width])
    inner = [
        helper.make_tensor_value_info(f"r{i}", kind, ["n", CHANNELS[i], height, width])
        for i in (0, 2)
    ]
    graph = helper.make_graph(nodes, "g", inputs, [output], kept, value_info=inner)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def run(model: onnx.ModelProto, batch: int) -> np.ndarray:
    random = np.random.default_rng(batch)
    dtypes = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16}
    feeds = {
        value.name: random.standard_normal(
            [batch, *(dim.dim_value for dim in value.type.tensor_type.shape.dim[1:])]
        ).astype(dtypes[value.type.tensor_type.elem_type])
        for value in model.graph.input
    }
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    return ort.InferenceSession(model.SerializeToString(), options).run(None, feeds)[0]


def rewritten(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    return apply(model, select_passes(name, 2))[0]


def assert_sunk(model: onnx.ModelProto, tolerance: float) -> None:
    after = rewritten(model, "sink-resizes,fold-sizes,drop-unused")
    assert kinds(after).count("Conv") == 3
    assert kinds(after).index("Conv") < kinds(after).index("Resize")
    for batch in (1, 2):
        before = run(model, batch).astype(np.float64)
        np.testing.assert_allclose(run(after, batch), before, atol=tolerance * abs(before).max())


LINEAR = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")


@pytest.mark.parametrize("by_sizes", [False, True])
@pytest.mark.parametrize("opset", [11, 13, 17, 18, 19, 22])
def test_opsets(opset: int, by_sizes: bool) -> None:
    rule = {"mode": "linear", "coordinate_transformation_mode": LINEAR[opset % 4]}
    assert_sunk(head(opset, np.float32, by_sizes=by_sizes, **rule), 2e-6)


@pytest.mark.parametrize("coordinates", LINEAR)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_modes(mode: str, coordinates: str) -> None:
    rule = {"mode": mode, "coordinate_transformation_mode": coordinates}
    assert_sunk(head(17, np.float32, by_sizes=True, **rule), 2e-6)


def test_halves() -> None:
    assert_sunk(head(17, np.float16, by_sizes=True, mode="linear"), 4e-3)


@pytest.mark.parametrize(
    "rule",
    [
        {"mode": "cubic"},
        {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"},
    ],
)
def test_what_does_not_average_stays(rule: dict[str, str]) -> None:
    model = head(17, np.float32, by_sizes=True, **rule)
    after = rewritten(model, "sink-resizes")
    assert kinds(after).count("Conv") == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("opset", [11, 14, 22])
def test_tokens_of_odd_sizes(opset: int, dtype: type) -> None:
    random = np.random.default_rng(0)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    sizes = {"v": (5, 13), "c": (13,), "w": (11, 13, 1, 1), "b": (11,)}
    kept = [tensor(k, random.standard_normal(s).astype(dtype)) for k, s in sizes.items()]
    kept.append(tensor("to", np.array([-1, 13, 7, 3], np.int64)))
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["p"]),
        helper.make_node("Add", ["p", "c"], ["t"]),
        helper.make_node("Transpose", ["t"], ["u"], perm=[0, 2, 1]),
        helper.make_node("Reshape", ["u", "to"], ["i"]),
        helper.make_node("Conv", ["i", "w", "b"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", kind, ["n", 21, 5])],
        [helper.make_tensor_value_info("y", kind, ["n", 11, 7, 3])],
        kept,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    after = rewritten(model, "fold-matmul-into-conv,drop-unused")
    assert "MatMul" not in kinds(after)
    for batch in (1, 2):
        before = run(model, batch).astype(np.float64)
        tolerance = 2e-6 if dtype == np.float32 else 4e-3
        np.testing.assert_allclose(run(after, batch), before, atol=tolerance * abs(before).max())
