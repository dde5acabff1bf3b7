"""Regions for CUDA: what differs from those for CPUs. No GPU is needed, and none is used."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from region_models import kinds

import models
import ortkit
from ortkit.errors import UserError
from ortkit.fusion.regions.cuda_cost_model import CudaCostModel
from ortkit.kernels.signature import DOMAIN
from ortkit.optimization.options import KernelChoice

CONV = """<ir_version: 10, opset_import: ["" : 20]>
g (float[1, 64, 112, 112] x, float[64, 64, 3, 3] w) => (float[1, 64, 112, 112] y) {
  c = Conv<pads = [1, 1, 1, 1]>(x, w)  a = Sigmoid(c)  y = Mul(c, a)
}"""
RELU = CONV.replace("a = Sigmoid(c)  y = Mul(c, a)", "y = Relu(c)")
TYPES = {"tensor(float16)": np.float16, "tensor(float)": np.float32}
#: Convolutions of groups of several channels stay with ONNX Runtime in float16 too.
ACTIVATED = "c = Conv<group = 2>(x, w, b)  a = Sigmoid(c)  y = Mul(c, a)"


RESIDUAL = "c = Conv<group = 2>(x, w, b)  s = Add(c, r)  y = Relu(s)"
CUDA = ortkit.OptimizeOptions(target="cuda", arch="sm_90", verify=False, check_load=False)


def net(nodes: str, dtype: str = "float16") -> onnx.ModelProto:
    """Return a model around `nodes`: 1x1 convolutions by w, biases b, of 2 times 32 channels."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 20]>
        g ({dtype}[1, 64, 28, 28] x, {dtype}[1, 64, 28, 28] r) => ({dtype}[1, 64, 28, 28] y)
        {{ {nodes} }}"""
    )
    rng = np.random.default_rng(0)
    for name, shape in (("w", (64, 32, 1, 1)), ("b", (64,))):
        array = (0.1 * rng.standard_normal(shape)).astype("float32" if dtype == "float" else dtype)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def without_kernels(model: onnx.ModelProto | ir.Model) -> np.ndarray:
    """Return what the model gives on the CPU with no library: by the bodies of its functions."""
    proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    feeds = {
        item.name: rng.standard_normal(item.shape).astype(TYPES[item.type])
        for item in session.get_inputs()
    }
    (found,) = session.run(None, feeds)
    return np.asarray(found, np.float64)


def emitted(source: onnx.ModelProto | ir.Model, **options: object) -> list[str]:
    """Return the kinds of regions that became kernels for CUDA."""
    made = ortkit.optimize(
        source,
        ortkit.OptimizeOptions(
            target="cuda", arch="sm_90", verify=False, check_load=False, **options
        ),  # type: ignore[arg-type]
    )
    found = [each.kind for each in made.report.regions if each.emitted_as]
    nodes = [node for node in made.model.graph if node.domain == DOMAIN]
    assert len(nodes) == len(found)
    assert (made.library is not None) == bool(found)
    return found


def test_activations_of_convolutions_are_fused_as_there_is_no_blocked_layout() -> None:
    assert emitted(onnx.parser.parse_model(CONV)) == ["quick_gelu"]


def test_what_cudnn_takes_is_left_to_it() -> None:
    assert emitted(onnx.parser.parse_model(RELU)) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_transformer_in_each_precision(precision: str) -> None:
    found = emitted(models.build("bert", "tiny", "ts"), precision=precision)
    assert "bias_gelu" in found
    assert any(kind.startswith("add_layer_norm") for kind in found)


def test_kernels_of_the_other_kind_are_refused() -> None:
    wrong: list[tuple[str, KernelChoice]] = [("cpu", "triton"), ("cuda", "tvm")]
    for target, kernels in wrong:
        with pytest.raises(UserError, match=f"{kernels} makes no kernels for {target}"):
            ortkit.OptimizeOptions(target=target, kernels=kernels)  # type: ignore[arg-type]


def test_unknown_architectures_are_named() -> None:
    with pytest.raises(UserError, match="sm_12"):
        ortkit.OptimizeOptions(target="cuda", arch="sm_12")


def test_a_bias_of_a_convolution_goes_into_the_region_behind_it() -> None:
    source = net(ACTIVATED)
    made = ortkit.optimize(source, CUDA)
    assert [each.kind for each in made.report.regions if each.emitted_as] == ["add_quick_gelu"]
    (conv,) = [node for node in made.model.graph if node.op_type == "Conv"]
    assert len(conv.inputs) == 2
    expected = without_kernels(source)
    np.testing.assert_allclose(without_kernels(made.model), expected, atol=4e-3)


@pytest.mark.parametrize(
    "nodes",
    [
        "y = Conv<group = 2>(x, w, b)",
        "c = Conv<group = 2>(x, w, b)  d = Conv<group = 2>(c, w)  y = Add(c, d)",
        "c = Conv<group = 2>(x, w, b)  y = MaxPool<kernel_shape = [1, 1]>(c)",
    ],
    ids=["an output", "read by another convolution", "read by what is in no region"],
)
def test_a_bias_stays_where_nothing_would_take_it(nodes: str) -> None:
    assert_biases_stay(net(nodes), CUDA)


def test_a_bias_goes_back_where_its_region_is_denied() -> None:
    (region,) = ortkit.optimize(net(ACTIVATED), CUDA).report.regions
    denied = frozenset({f"fuse-regions:{region.kind}:{region.at}"})
    assert_biases_stay(net(ACTIVATED), replace(CUDA, denied=denied))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "nodes", ["c = Conv<group = 2>(x, w, b)  y = Relu(c)", RESIDUAL], ids=["", "sum"]
)
def test_float32_has_a_kernel_of_convolution_bias_and_relu(nodes: str) -> None:
    assert_biases_stay(net(nodes, "float"), CUDA)
    assert len(ortkit.optimize(net(nodes), CUDA).report.regions) == 1


def test_what_is_small_is_computed_again_for_each_point() -> None:
    gate = (
        "p = ReduceMean<keepdims = 1>(x, axes)  c = Conv<group = 2>(p, w, b)"
        "  s = Sigmoid(c)  y = Mul(r, s)"
    )
    source = net(gate)
    source.graph.initializer.append(numpy_helper.from_array(np.array([2, 3]), "axes"))
    made = ortkit.optimize(source, CUDA)
    assert "add_sigmoid_mul" in {each.kind for each in made.report.regions if each.emitted_as}
    expected = without_kernels(source)
    np.testing.assert_allclose(without_kernels(made.model), expected, atol=4e-3)


def assert_biases_stay(source: onnx.ModelProto, options: ortkit.OptimizeOptions) -> None:
    """Optimize; convolutions must have their biases, and nothing may be left of moving them."""
    made = ortkit.optimize(source, options)
    graph = ir.to_proto(made.model).graph
    before, after = (
        [(list(node.input), list(node.output)) for node in each.node if node.op_type == "Conv"]
        for each in (source.graph, graph)
    )
    assert after == before
    assert {each.name for each in graph.initializer} == {"w", "b"}


@pytest.mark.parametrize(
    ("shape", "found"), [("1, 512, 16, 128", ["rms_norm"]), ("1, 512, 2048", [])]
)
def test_norms_of_many_narrow_rows_are_predicted_to_be_slow(shape: str, found: list[str]) -> None:
    """As of heads of queries: ONNX Runtime has a block of threads for each row."""
    width = shape.split()[-1]
    text = f"g (float16[{shape}] x, float16[{width}] r) => (float16[{shape}] y)"
    assert kinds(f"{text} {{ y = RMSNormalization (x, r) }}", cost=CudaCostModel) == found
