"""Layouts and types: which nodes are looked at, what is measured, what follows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

from ortkit.measure import layout
from ortkit.measure.layout import measure_layouts
from ortkit.measure.layout_cases import LayoutCase, written_padding
from ortkit.measure.layout_child import WARM_UP, Ran
from ortkit.measure.layout_kernels import own_kernel
from ortkit.measure.layout_models import (
    feeds_of,
    float_variants,
    int8_variant,
    kernel_variant,
)
from ortkit.measure.layout_result import LayoutTime, NodeLayouts
from ortkit.runtime.memory.point import PointPlan
from ortkit.runtime.tensor_files import of_plain, write_manifest

#: Two equal convolutions, another one, a product with a weight, one without, and a Gemm.
MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 16, 14, 14] x) => (float[n, 5] y)
<int64[2] flat = {0, -1}, int64[3] three = {0, 16, 196}, int64[2] back = {-1, 3136}> {
    a = Conv <kernel_shape = [3, 3], auto_pad = "SAME_UPPER"> (x, w)
    b = Conv <kernel_shape = [3, 3], auto_pad = "SAME_UPPER"> (a, w)
    c = Reshape (b, three)
    d = Transpose <perm = [0, 2, 1]> (c)
    e = MatMul (c, d)
    f = Reshape (e, flat)
    y = Gemm <transB = 1> (f, v, u)
}"""


def times(**by_name: tuple[float, float]) -> NodeLayouts:
    """Kernel and conversion by layout and type, its own first."""
    made = []
    for name, (kernel, conversion) in by_name.items():
        layout, dtype = name.split("_")
        made.append(LayoutTime(layout, dtype, "onnxruntime", kernel, conversion, 0.01, ""))
    return NodeLayouts("Conv", ("n",), "", 0.5, tuple(made))


def test_the_advice_counts_conversions() -> None:
    better = times(NCHW_float32=(100, 0), NCHWc_float32=(40, 20), NCHW_int8=(10, 10))
    assert better.wanted is better.times[1]
    assert better.best is better.times[1]
    assert "1.67 times as fast" in better.advice
    assert better.narrower == (better.times[2],), "other numbers are no advice"
    costly = times(NCHW_float32=(100, 0), NCHWc_float32=(40, 80))
    assert costly.best is costly.times[0]
    assert "only if its neighbours have it too" in costly.advice
    equal = times(NCHW_float32=(100, 0), NCHWc_float32=(99.5, 0))
    assert equal.advice == "as it is"


def test_without_its_own_layout_nothing_follows() -> None:
    missing = LayoutTime("NCHW", "float32", "onnxruntime", None, None, 0.0, "crashed")
    other = LayoutTime("NCHWc", "float32", "onnxruntime", 1.0, 0.0, 0.0, "")
    found = NodeLayouts("Conv", ("n",), "", 0.5, (missing, other))
    assert found.advice.startswith("not known")
    assert NodeLayouts("Conv", ("n",), "", 0.5, (missing,)).wanted is None


@pytest.mark.parametrize("size", [1, 7, 8, 224])
@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(1, 1, 1), (3, 2, 1), (5, 3, 1)])
@pytest.mark.parametrize("rule", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_padding_by_a_rule_is_what_onnxruntime_makes_of_it(
    size: int, kernel: int, stride: int, dilation: int, rule: str
) -> None:
    if rule == "VALID" and dilation * (kernel - 1) >= size:
        return
    shapes = [("float32", (1, 2, size, size)), ("float32", (3, 2, kernel, kernel))]
    attributes = {
        "auto_pad": rule, "strides": (stride, stride), "dilations": (dilation, dilation),
    }  # fmt: skip
    written = written_padding(attributes, shapes)
    assert "auto_pad" not in written
    rng = np.random.default_rng(0)
    feeds = {
        name: rng.random(dims, np.float32) for name, (_, dims) in zip("xw", shapes, strict=True)
    }
    results = []
    for given in (attributes, written):
        node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], **given)
        graph = onnx.helper.make_graph(
            [node], "g",
            [
                onnx.helper.make_tensor_value_info(key, 1, feed.shape)
                for key, feed in feeds.items()
            ],
            [onnx.helper.make_empty_tensor_value_info("y")],
        )  # fmt: skip
        opsets = [onnx.helper.make_opsetid("", 17)]
        model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
        session = ort.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        results.append(session.run(None, feeds)[0])
    np.testing.assert_array_equal(*results)


def conv(
    x: tuple[int, ...], w: tuple[int, ...], **attributes: int | tuple[int, ...]
) -> LayoutCase:
    inputs = (("float32", x), ("float32", w), ("float32", w[:1]))
    given = tuple(sorted(attributes.items()))
    return LayoutCase("Conv", ("n",), inputs, (False, True, True), given, 1.0)


def product(op: str, x: tuple[int, ...], w: tuple[int, ...], **attributes: int) -> LayoutCase:
    given = tuple(sorted(attributes.items()))
    inputs = (("float32", x), ("float32", w))
    return LayoutCase(op, ("n",), inputs, (False, True), given, 1.0)


CASES = [
    conv((1, 16, 9, 9), (8, 16, 3, 3), kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
    conv((2, 6, 7), (4, 6, 3), kernel_shape=(3,)),
    conv((1, 8, 5, 6), (8, 1, 3, 3), group=8, pads=(0, 1, 2, 1)),
    product("MatMul", (2, 5, 7), (7, 3)),
    product("Gemm", (5, 7), (3, 7), transB=1),
]


@pytest.mark.parametrize("case", CASES, ids=lambda one: f"{one.op} {one.described}")
def test_all_variants_of_a_node_give_what_it_gives(case: LayoutCase) -> None:
    """In shape and type; those with the node's own numbers give them, too."""
    feeds = feeds_of(case)
    int8 = int8_variant(case)
    assert int8 is not None
    shapes, numbers = [], []
    for variant in (*float_variants(case, on_cuda=False), int8):
        try:
            session = ort.InferenceSession(
                variant.model.SerializeToString(), providers=["CPUExecutionProvider"]
            )
        except Exception:  # noqa: BLE001  onnxruntime's classes share no base
            assert variant.dtype == "bfloat16"
            continue
        (result,) = session.run(None, feeds)
        shapes.append((result.shape, result.dtype))
        if variant.dtype in ("float32", "float16"):
            numbers.append(result)
    assert len(set(shapes)) == 1
    for other in numbers[1:]:
        np.testing.assert_allclose(other, numbers[0], rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        (conv((1, 3, 20, 20), (24, 3, 3, 3), strides=(2, 2), pads=(1, 1, 1, 1)), "stem_conv"),
        (conv((1, 20, 6, 5), (24, 20, 1, 1)), "pointwise_conv"),
        (conv((1, 32, 9, 8), (32, 1, 3, 3), group=32, pads=(1, 1, 1, 1)), "depthwise_conv"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_our_kernels_are_reached(case: LayoutCase, kind: str, tmp_path: Path) -> None:
    own = own_kernel(case, tmp_path / "own.so")
    assert not isinstance(own, str), own
    assert own.signature.name == kind
    variant = kernel_variant(case, own.signature, own.weights, is_planar=own.is_planar)
    feeds = feeds_of(case)
    results = []
    for library in (None, own.library):
        options = ort.SessionOptions()
        options.log_severity_level = 4
        if library is not None:
            options.register_custom_ops_library(str(library))
        session = ort.InferenceSession(
            variant.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        results.append(session.run(None, feeds)[0])
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-4)
    plain = next(iter(float_variants(case, on_cuda=False)))
    session = ort.InferenceSession(
        plain.model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    assert session.run(None, feeds)[0].shape == results[0].shape


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (conv((1, 8, 5, 5), (8, 8, 3, 3)), "neither 1x1 nor depthwise nor of few channels"),
        (conv((1, 8, 5, 5), (8, 4, 1, 1), group=2), "groups of several channels"),
        (conv((1, 8, 5), (8, 8, 1)), "only for convolutions of float32 images"),
        (product("MatMul", (2, 3), (3, 4)), "only for convolutions of float32 images"),
    ],
)
def test_what_we_have_no_kernel_for_is_said(case: LayoutCase, reason: str, tmp_path: Path) -> None:
    assert own_kernel(case, tmp_path / "own.so") == f"no kernel: {reason}"


def test_a_model_s_nodes_at_their_sizes(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(MODEL)
    rng = np.random.default_rng(0)
    for name, array in (
        ("w", rng.random((16, 16, 3, 3), np.float32)),
        ("v", rng.random((5, 256), np.float32)),
        ("u", rng.random(5, np.float32)),
    ):
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, tmp_path / "m.onnx")
    (tmp_path / "f").mkdir()
    x = rng.random((2, 16, 14, 14), np.float32)
    write_manifest(tmp_path / "f", [of_plain("x", 0, x, tmp_path / "f")])
    plan = PointPlan(tmp_path / "m.onnx", tmp_path / "f", {"target": "cpu", "threads": 1})
    found = measure_layouts(plan, tmp_path)
    assert found.left_out == 0
    by_op = {node.op: node for node in found.nodes}
    assert set(by_op) == {"Conv", "MatMul", "Gemm"}
    assert len(by_op["Conv"].nodes) == 2, "equal ones are measured once"
    assert by_op["Conv"].described == "[2, 16, 14, 14] x [16, 16, 3, 3]"
    assert by_op["Gemm"].described == "[2, 256] x [5, 256]"
    names = {(time.layout, time.dtype, time.by): time for time in by_op["Conv"].times}
    blocked = names["NCHWc", "float32", "onnxruntime"]
    assert blocked.kernel_us is not None and blocked.conversion_us is not None
    assert blocked.conversion_us > 0, "reorders cost something"
    assert names["NCHW", "float32", "onnxruntime"].conversion_us == 0
    assert "no implementation" in names["NHWC", "float32", "onnxruntime"].problem
    assert by_op["MatMul"].times[0].kernel_us
    assert not [item for item in by_op["MatMul"].times if item.dtype == "int8"], "it has no weight"
    json.dumps(found.to_json(), allow_nan=False)
    assert len(measure_layouts(plan, tmp_path, most=1).nodes) == 1


def test_on_a_gpu_only_the_times_of_the_device_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the trace has of CUDA nodes is the time to launch them."""
    case = CASES[0]
    variant = next(iter(float_variants(case, on_cuda=True)))
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "trace")
    session = ort.InferenceSession(
        variant.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    for _ in range(WARM_UP + 4):
        session.run(None, feeds_of(case))
    trace = session.end_profiling()
    ran = Ran(Path(trace), no_device="no CUPTI")
    found = layout._time(variant, ran, on_cuda=True)
    assert found.problem == "no kernel on CUDA: it runs on the CPU"
    monkeypatch.setattr(layout, "_absence", lambda *_: "")
    found = layout._time(variant, ran, on_cuda=True)
    assert (found.kernel_us, found.problem) == (None, "times of the device: no CUPTI")
    runs, kernels = range(WARM_UP + 4), (("Conv", 9.0), ("Cast", 2.0))
    parts = [(run, op, taken) for run in runs for op, taken in kernels]
    found = layout._time(variant, replace(ran, device=tuple(parts)), on_cuda=True)
    assert (found.kernel_us, found.conversion_us, found.total_us) == (9.0, 2.0, 11.0)
