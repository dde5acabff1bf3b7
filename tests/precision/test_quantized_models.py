"""Models that came quantized keep their integer kernels, whatever the level."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.quantization import QuantType, quantize_static

import models
import ortkit
from ortkit.targets.cpu import has_signed_kernels
from tests.exact_sums import exact_in_graph
from tests.precision.helpers import off_by

#: What ONNX Runtime makes of quantized groups; each of them is a kernel on integers.
INTEGER = (
    "MatMulIntegerToFloat", "QGemm", "QLinearAdd", "QLinearAveragePool", "QLinearConcat",
    "QLinearConv", "QLinearGlobalAveragePool", "QLinearMatMul", "QLinearMul", "QLinearSigmoid",
    "QLinearSoftmax",
)  # fmt: skip


class Reader:
    """Gives one input set."""

    def __init__(self, feeds: dict[str, np.ndarray]) -> None:
        self.sets = [feeds]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self.sets.pop() if self.sets else None


def deployed(
    path: Path, feeds: dict[str, np.ndarray], library: Path | None = None
) -> tuple[Counter[str], np.ndarray]:
    """Return the integer kernels that ONNX Runtime runs, and the first output."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(path.with_suffix(".deployed.onnx"))
    if library is not None:
        options.register_custom_ops_library(str(library))
    model = exact_in_graph(onnx.load(path)).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(options.optimized_model_filepath).graph.node
    found = Counter(node.op_type for node in nodes if node.op_type in INTEGER)
    return found, session.run(None, feeds)[0]


#: What tools write: activations in uint8, or in int8, which x86 has no kernels for.
KINDS = {
    "uint8": {"per_channel": True, "activation_type": QuantType.QUInt8},
    "int8": {"per_channel": True, "activation_type": QuantType.QInt8},
    "symmetric": {
        "activation_type": QuantType.QInt8,
        "extra_options": {"ActivationSymmetric": True, "DedicatedQDQPair": True},
    },
}
QUANTIZED = [
    ("resnet50", "uint8"), ("bert", "uint8"), ("mobilenet_v2", "uint8"), ("mobilenet_v2", "int8"),
    ("bert", "symmetric"), ("resnet50", "symmetric"),
]  # fmt: skip


@pytest.fixture(scope="module", params=QUANTIZED, ids="-".join)
def quantized(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, np.ndarray]]:
    """Return a model that ONNX Runtime's own flow has quantized, and its inputs."""
    name, kind = request.param
    folder = tmp_path_factory.mktemp(name)
    model = models.build(name)
    feeds = models.feeds(model)
    onnx.save(model, folder / "float.onnx")
    quantize_static(
        folder / "float.onnx", folder / "quantized.onnx", Reader(feeds),
        weight_type=QuantType.QInt8, **KINDS[kind],
    )  # fmt: skip
    return folder / "quantized.onnx", feeds


def absorbed(model: onnx.ModelProto) -> Counter[str]:
    """What int8 kernels of ours stand for, by ONNX Runtime's operators."""
    found: Counter[str] = Counter()
    bodies = {function.name: function for function in model.functions}
    for node in model.graph.node:
        if node.op_type.startswith(("int8_conv", "int8_product")):
            is_product = node.op_type.startswith("int8_product")
            found["QLinearMatMul" if is_product else "QLinearConv"] += 1
            found += Counter(
                item.op_type for item in bodies[node.op_type].node if item.op_type == "QLinearAdd"
            )
    return found


@pytest.mark.sampled(1)
@pytest.mark.parametrize("level", [1, 2, 3])
def test_quantized_models_keep_their_kernels(
    quantized: tuple[Path, dict[str, np.ndarray]], level: int, tmp_path: Path
) -> None:
    path, feeds = quantized
    before, wanted = deployed(path, feeds)
    assert sum(before.values()) > 3
    found = ortkit.optimize(path, ortkit.OptimizeOptions(level=level, verify=False))
    found.save(tmp_path / "m.onnx")
    library = tmp_path / "m.ops.so" if found.library is not None else None
    after, got = deployed(tmp_path / "m.onnx", feeds, library)
    after += absorbed(onnx.load(tmp_path / "m.onnx"))
    before["QLinearMatMul"] += before.pop("QGemm", 0)
    after["QLinearMatMul"] += after.pop("QGemm", 0)
    assert all(after[op] >= count for op, count in before.items()), (before, after)
    assert off_by(wanted, got) < 0.02


@pytest.mark.skipif(has_signed_kernels("native"), reason="this processor has kernels for int8")
def test_residual_nets_in_int8_get_all_of_their_kernels(tmp_path: Path) -> None:
    model = models.build("mobilenet_v2")
    feeds = models.feeds(model)
    onnx.save(model, tmp_path / "float.onnx")
    quantize_static(tmp_path / "float.onnx", tmp_path / "q.onnx", Reader(feeds))
    before, _ = deployed(tmp_path / "q.onnx", feeds)
    found = ortkit.optimize(tmp_path / "q.onnx", ortkit.OptimizeOptions(kernels="off"))
    assert found.report.verification is not None
    assert found.report.verification.verdict == "yes"
    assert not found.report.rolled_back
    found.save(tmp_path / "m.onnx")
    after, _ = deployed(tmp_path / "m.onnx", feeds)
    convolutions = sum(node.op_type == "Conv" for node in model.graph.node)
    assert before["QLinearConv"] < after["QLinearConv"] == convolutions
    assert after["QLinearAdd"] > before["QLinearAdd"]


def test_products_of_quantized_models_are_left(
    quantized: tuple[Path, dict[str, np.ndarray]],
) -> None:
    path, _ = quantized
    found = ortkit.optimize(
        path, ortkit.OptimizeOptions(precision="int8", kernels="off", verify=False)
    )
    assert found.report.precision is not None
    assert found.report.precision.lowered == 0
    reasons = {miss.reason for miss in found.report.misses if miss.pass_name == "lower-precision"}
    assert "it is quantized already" in reasons
