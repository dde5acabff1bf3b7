"""Quantized models keep their groups DequantizeLinear -> op -> QuantizeLinear at every level.

ONNX Runtime makes one integer op of such a group when it loads the model; whatever stands
between the parts, or a part that is folded away, costs the whole int8 kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from models.catalog import build
from ortkit import OptimizeOptions, optimize
from ortkit.verify.inputs.feeds import Feeds, make_feeds
from tests.e2e.judge import interface

ort = pytest.importorskip("onnxruntime")
quantization = pytest.importorskip("onnxruntime.quantization")
QDQ = ("DequantizeLinear", "QuantizeLinear")
MODELS = ("resnet50", "bert")


class _Reader(quantization.CalibrationDataReader):
    def __init__(self, feeds: tuple[Feeds, ...]) -> None:
        self._rest: Iterator[Feeds] = iter(feeds)

    def get_next(self) -> Feeds | None:
        return next(self._rest, None)


@pytest.fixture(scope="module", params=MODELS)
def quantized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny model as ONNX Runtime's quantizer writes it."""
    folder = tmp_path_factory.mktemp(request.param)
    source, target = folder / "float.onnx", folder / "int8.onnx"
    proto = build(request.param, "tiny")
    onnx.save(proto, source)
    quantization.quantize_static(
        source,
        target,
        _Reader(make_feeds(ir.from_proto(proto), 2)),
        quant_format=quantization.QuantFormat.QDQ,
        # For signed activations ONNX Runtime has few integer kernels on x86.
        activation_type=quantization.QuantType.QUInt8,
        per_channel=request.param == "resnet50",
    )
    return target


def groups(model: onnx.ModelProto) -> Counter[tuple[str, int, bool]]:
    """Count ops by how many inputs are dequantized, and by whether the result is quantized."""
    makers = {name: node for node in model.graph.node for name in node.output}
    quantized = {node.input[0] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    found: Counter[tuple[str, int, bool]] = Counter()
    for node in model.graph.node:
        read = sum(
            name in makers and makers[name].op_type == "DequantizeLinear" for name in node.input
        )
        if node.op_type not in QDQ and read:
            found[node.op_type, read, node.output[0] in quantized] += 1
    return found


def integer_ops(path: Path, folder: Path) -> Counter[str]:
    """Count the ops that ONNX Runtime has for integers alone, after its own optimizations."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(folder / "loaded.onnx")
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    nodes = onnx.load(folder / "loaded.onnx").graph.node
    return Counter(
        node.op_type
        for node in nodes
        if node.op_type.startswith(("QLinear", "QGemm", "QAttention"))
        or "Integer" in node.op_type
        or node.op_type in QDQ
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", range(4))
def test_groups_stay_whole(quantized: Path, level: int, tmp_path: Path) -> None:
    before = onnx.load(quantized)
    result = optimize(quantized, OptimizeOptions(level=level, samples=1, kernels="off"))
    assert result.report.verification is not None
    assert result.report.verification.verdict == "yes", result.report.verification.reason
    assert result.report.rolled_back == ()
    result.save(tmp_path / "after.onnx")
    after = onnx.load(tmp_path / "after.onnx")
    assert interface(after) == interface(before)
    assert whole(groups(after)) == whole(groups(before)) != {}
    wanted, found = (integer_ops(path, tmp_path) for path in (quantized, tmp_path / "after.onnx"))
    assert {op: wanted[op] for op in wanted if op not in QDQ} != {}
    for op in {*wanted, *found} - {*QDQ}:
        assert found[op] == wanted[op], op
    for op in QDQ:
        assert found[op] <= wanted[op], op


def test_kernels_take_whole_groups(quantized: Path, tmp_path: Path) -> None:
    before = groups(onnx.load(quantized))
    result = optimize(quantized, OptimizeOptions(samples=1))
    assert result.report.verification is not None
    assert result.report.verification.verdict == "yes", result.report.verification.reason
    result.save(tmp_path / "after.onnx")
    after = groups(onnx.load(tmp_path / "after.onnx"))
    # What a kernel leaves of a group would be an operator with fewer dequantized inputs.
    for key in after:
        if onnx.defs.has(key[0]):
            assert after[key] <= before[key], key


def whole(found: Counter[tuple[str, int, bool]]) -> dict[tuple[str, int, bool], int]:
    """Return the groups that end in a QuantizeLinear."""
    return {key: count for key, count in found.items() if key[2]}
