"""Int8 matrix products: ONNX Runtime's numbers, on every level of processors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from fused_model import fused_model, session
from int8_models import MODELS, Net
from ortkit.custom_ops.tvm.gemm.int8 import ANCHOR, Int8Product, match

from ortkit.fusion.int8.products import find_product
from ortkit.fusion.regions.anchors import grown
from ortkit.fusion.regions.cost_model import cost_model_of
from ortkit.fusion.regions.duplicate import Candidate
from ortkit.fusion.regions.search import Search
from ortkit.graph.io.open import open_model
from ortkit.graph.shapes.infer import Shapes
from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library, refusal
from ortkit.kernels.tvm.build import assembly
from ortkit.rewrite.log import RewriteLog
from ortkit.rewrite.options import RewriteOptions
from ortkit.rewrite.scope import Scope, Whole
from ortkit.targets import cpu
from ortkit.targets.target import Target
from tests.exact_sums import exact

LEVELS = ("x86-64-v3", "x86-64-v4", "x86-64-v4-vnni", "x86-64-v4-bf16", "x86-64-v4-amx")
HERE = [level for level in LEVELS if cpu.runs_here(level)]
#: Ragged ends of K, of rows and of columns; several panels; a single row.
SIZES = {
    "ragged": (7, 37, 50), "whole": (16, 64, 64), "a row": (1, 130, 33), "few columns": (9, 16, 3),
    "long": (3, 1027, 16), "many rows": (70, 20, 96), "whole steps": (33, 144, 40),
    "a rest along K": (49, 68, 70),
}  # fmt: skip

pytestmark = pytest.mark.skipif(not HERE, reason="this machine has no AVX2")


@dataclass(frozen=True)
class KernelBuild:
    """Where a kernel is built, and how many threads run it."""

    folder: Path
    cache: KernelCache
    threads: int = 1


def found(proto: onnx.ModelProto, level: str) -> Candidate:
    """Return the one region of a model."""
    model = open_model(proto)
    scope = Scope(
        model, model.graph, Shapes.infer(model), RewriteLog(),
        RewriteOptions(Target("cpu", level), 2), Whole.of(model),
    )  # fmt: skip
    search = Search(
        scope, model.graph, lambda signature: refusal(signature, Target("cpu", level)),
        cost_model_of(scope),
    )  # fmt: skip
    (one,) = grown(search, ANCHOR)
    return one


def has_product(proto: onnx.ModelProto) -> bool:
    """Say whether a model has an int8 matrix product that kernels may take."""
    model = open_model(proto)
    scope = Scope(
        model, model.graph, Shapes.infer(model), RewriteLog(), RewriteOptions(), Whole.of(model)
    )
    return any(find_product(scope, node) for node in model.graph)


def computed(net: Net, proto: onnx.ModelProto, level: str, build: KernelBuild) -> np.ndarray:
    """Return what the kernel makes of a model's inputs; all of the model must be in its region."""
    one = found(proto, level)
    signature = one.signature
    assert signature is not None, one.reason
    assert one.region.outputs[0].is_graph_output()
    feeds = []
    for value in one.region.inputs:
        name, constant = value.name or "", value.const_value
        if constant is not None:
            feeds.append(constant.numpy())
        else:
            feeds.append(net.feeds[name])
    # The same value may be several inputs of a fused node, but not of a model.
    specs = tuple(replace(spec, name=f"i{number}") for number, spec in enumerate(signature.inputs))
    renamed = replace(signature, inputs=specs)
    made = build_library([renamed], Target("cpu", level), build.folder / "k.so", cache=build.cache)
    assert made.library is not None, made.refused
    names = (spec.name for spec in specs)
    run = session(fused_model(renamed), made.library.path, build.threads).run
    return run(None, dict(zip(names, feeds, strict=True)))[0]


def expected(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """Return what ONNX Runtime's own kernels make of it, with exact sums."""
    made = ort.InferenceSession(
        exact(proto).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return made.run(None, feeds)[0]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("level", HERE)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", MODELS)
def test_same_numbers_as_onnx_runtime(
    kind: str, size: str, level: str, tmp_path: Path, cache: KernelCache
) -> None:
    rows, depth, columns = SIZES[size]
    net = Net(rows, depth, columns, per_tensor=size == "whole")
    proto = MODELS[kind](net)
    got = computed(net, proto, level, KernelBuild(tmp_path, cache))
    np.testing.assert_array_equal(got, expected(proto, net.feeds))


@pytest.mark.parametrize("zero", [0, 255])
@pytest.mark.parametrize("level", HERE)
def test_extreme_operands_saturate_nothing(
    level: str, zero: int, tmp_path: Path, cache: KernelCache
) -> None:
    """255 times -128: sums of two such products do not fit 16 bits."""
    net = Net(4, 64, 32, extreme=True, zero=zero)
    net.held["xs"], net.held["ws"] = np.float32(1.0), np.ones(32, np.float32)
    net.held |= {"one": np.float32(1.0)}
    net.add("MatMulIntegerToFloat", ["x", "w", "one", "ws", "xz"], "o")
    got = computed(net, net.model(), level, KernelBuild(tmp_path, cache))
    np.testing.assert_array_equal(got, np.full((4, 32), (255 - zero) * -128.0 * 64))


@pytest.mark.skipif(cpu.machine() != "x86-64", reason="levels are of x86-64")
@pytest.mark.parametrize(("level", "is_used"), [("x86-64-v4", False), ("x86-64-v4-vnni", True)])
def test_vnni_is_used_without_bfloat16(level: str, is_used: bool) -> None:
    signature = found(MODELS["qdq"](Net(16, 64, 64)), level).signature
    assert signature is not None
    product = match(signature)
    assert isinstance(product, Int8Product)
    assert ("vpdpbusd" in assembly(product.lower("kernel", level), level)) == is_used


def test_threads_change_nothing(tmp_path: Path, cache: KernelCache) -> None:
    net = Net(70, 20, 96)
    proto = MODELS["qdq_sums"](net)
    one, three = (
        computed(net, proto, HERE[-1], KernelBuild(tmp_path, cache, threads)) for threads in (1, 3)
    )
    np.testing.assert_array_equal(one, three)


def test_layers_with_other_numbers_share_a_kernel() -> None:
    """Scales and zero points are inputs."""
    one, two = Net(zero=3), Net(zero=250)
    two.held["ws"] = two.held["ws"] * np.float32(1.7)
    keys = set()
    for net in (one, two):
        found_here = found(MODELS["qdq_sums"](net), HERE[-1]).signature
        assert found_here is not None
        keys.add(found_here.key)
    assert len(keys) == 1


def test_scales_are_merged_only_where_onnx_runtime_merges_them() -> None:
    """Sums of halves are ties; MatMulIntegerToFloat rounds once more before QuantizeLinear."""
    net, step = Net(64, 4, 16), np.float32(1.2345678)
    net.feeds["x"] //= np.uint8(6)
    net.held |= {
        "w": np.clip(net.held["w"], -2, 3), "xs": step, "ws": np.full(16, 0.5, np.float32),
    }  # fmt: skip
    product = net.add("MatMulIntegerToFloat", ["x", "w", "xs", "ws", "xz"], "m")
    net.rounded(product, "y", float(step), 131)
    proto = net.model()
    one = found(proto, HERE[-1])
    assert one.signature is not None
    assert one.region.nodes[-1].op_type == "QuantizeLinear"
    constants = [value.const_value for value in one.region.inputs]
    feeds = [net.feeds["x"] if each is None else each.numpy() for each in constants]
    names = [spec.name for spec in one.signature.inputs]
    got = session(fused_model(one.signature)).run(None, dict(zip(names, feeds, strict=True)))[0]
    np.testing.assert_array_equal(got, expected(proto, net.feeds))


@pytest.mark.parametrize(
    ("change", "is_region"),
    [
        ({}, True),
        ({"wz": np.full(50, 3, np.int8)}, False),
        ({"ws": np.full((37, 50), 0.5, np.float32)}, False),
        ({"xz": np.asarray(3, np.int8)}, False),
        ({"w": np.zeros((1, 37, 50), np.int8)}, False),
        ({"ys": np.float32(0)}, False),
        ({"ys": np.float32(-0.5)}, False),
        ({"xs": np.float32(1e-40)}, False),
        ({"ys": np.float32(1e-30), "xs": np.float32(1e30)}, False),
    ],
)
def test_what_is_a_product_of_bytes(change: dict[str, np.ndarray], is_region: bool) -> None:
    net = Net()
    proto = MODELS["operators"](net)
    for tensor in proto.graph.initializer:
        if tensor.name in change:
            tensor.CopyFrom(onnx.numpy_helper.from_array(change[tensor.name], tensor.name))
    assert has_product(proto) == is_region


def test_float16_is_left() -> None:
    """DequantizeLinear of opset 23 makes it of bytes with a scale in float32."""
    half = onnx.TensorProto.FLOAT16
    net = Net()
    net.rounded(net.add("MatMul", net.widened(), "m"), "y", net.reach, 131)
    net.add("DequantizeLinear", ["yq", "ys", "yz"], "yf", output_dtype=half)
    net.rounded(net.add("Relu", ["yf"], "r"), "u", net.reach, 131)
    assert found(net.model(23), HERE[-1]).region.nodes[-1].outputs[0].name == "yq"
    for node in net.nodes[:2]:
        node.attribute.append(onnx.helper.make_attribute("output_dtype", half))
    assert not has_product(net.model(23))


@pytest.mark.parametrize("kind", ["qdq", "dynamic"])
def test_no_run_adds_up_the_weights(kind: str) -> None:
    """Sums of columns are constants, whether zero points are or not."""
    signature = found(MODELS[kind](Net(1, 768, 768)), HERE[-1]).signature
    assert signature is not None
    one = match(signature)
    assert isinstance(one, Int8Product)
    assert not one.form.adds_up_weights
    assert (one.form.column_sums is None) == (one.form.zero is None) == (kind == "qdq")


@pytest.mark.parametrize("is_read_twice", [False, True])
def test_scales_of_dynamic_quantization_are_multiplied_by_the_kernel(is_read_twice: bool) -> None:
    net = Net()
    proto = MODELS["dynamic"](net)
    if is_read_twice:
        proto.graph.output.append(onnx.ValueInfoProto(name="s"))
    region = found(proto, HERE[-1]).region
    assert ("fs" in {value.name for value in region.inputs}) != is_read_twice
    assert ("s" in {value.name for value in region.inputs}) == is_read_twice
