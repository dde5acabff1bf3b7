"""What of a model multiplies bytes, what bfloat16, what float32, and why.

Operators are counted as ONNX Runtime runs the model. Bodies of fused nodes say what these compute.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from scripts.benches.cpu_turns import Engine

#: Operators that multiply matrices or filters: on bytes, and on floats.
ON_BYTES = frozenset(
    {"ConvInteger", "DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat", "QGemm",
     "QLinearConv", "QLinearMatMul"}
)  # fmt: skip
ON_FLOATS = frozenset(
    {"Attention", "Conv", "FusedConv", "FusedGemm", "FusedMatMul", "Gemm", "MatMul",
     "MultiHeadAttention"}
)  # fmt: skip
_FUSED = "ortkit.fused"
#: Operators that move numbers and change none.
_MOVES = frozenset({"Reshape", "Slice", "Transpose"})


@dataclass(frozen=True)
class Share:
    """What of a model multiplies bytes, and why the rest does not."""

    on_bytes: int
    on_bf16: int
    on_floats: int
    why: str

    @property
    def total(self) -> int:
        """Operators that multiply anything."""
        return self.on_bytes + self.on_bf16 + self.on_floats


def share_of(engine: Engine, folder: Path, reasons: Mapping[str, int]) -> Share:
    """Return what multiplies bytes in a model, as ONNX Runtime runs it.

    Args:
        engine: What runs it.
        folder: For a file.
        reasons: Of operators that were to be lowered and were not; see `reasons_of`.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "run.onnx")
    if engine.library is not None:
        options.register_custom_ops_library(str(engine.library))
    onnxruntime.InferenceSession(engine.model, options, providers=["CPUExecutionProvider"])
    run = onnx.load(folder / "run.onnx", load_external_data=False)
    given = onnx.load(engine.model, load_external_data=False)
    bodies = {function.name: list(function.node) for function in given.functions}
    return counted(run.graph, bodies, reasons)


def reasons_of(report: Path) -> dict[str, int]:
    """Return why operators were not lowered, with how many each reason has."""
    if not report.exists():
        return {}
    content = json.loads(report.read_text(encoding="utf-8"))
    nodes = (content.get("precision") or {}).get("nodes", ())
    return dict(Counter(node["reason"] for node in nodes if not node["lowered"]))


def counted(
    graph: onnx.GraphProto,
    bodies: Mapping[str, Sequence[onnx.NodeProto]],
    reasons: Mapping[str, int] | None = None,
) -> Share:
    """Count the operators that multiply bytes, and those that multiply floats by their reason.

    Args:
        graph: As it runs.
        bodies: Of fused nodes.
        reasons: Why operators were not lowered, where that was asked for.
    """
    constants = {tensor.name for tensor in graph.initializer}
    on_bytes, on_bf16, on_floats = 0, 0, Counter[str]()
    for node in graph.node:
        if node.domain == _FUSED:
            body = bodies.get(node.op_type, ())
            on_bytes += sum(item.op_type in ON_BYTES for item in body)
            is_bf16 = [_is_bf16(item, body) for item in body if item.op_type in ON_FLOATS]
            on_bf16 += sum(is_bf16)
            on_floats["float32 kernels of ortkit"] += len(is_bf16) - sum(is_bf16)
        elif node.op_type in ON_BYTES:
            on_bytes += 1
        elif node.op_type in ON_FLOATS:
            varies = len(node.input) > 1 and not constants.intersection(node.input[1:2])
            on_floats["factors that vary" if varies else "not quantized"] += 1
    causes = {"in bfloat16": on_bf16, **on_floats}
    why = [f"{count} {cause}" for cause, count in causes.items() if count]
    if reasons and on_floats.total():
        why += [f"{cause}: {count}" for cause, count in Counter(reasons).most_common()]
    return Share(on_bytes, on_bf16, on_floats.total(), ", ".join(why))


def _is_bf16(node: onnx.NodeProto, body: Sequence[onnx.NodeProto]) -> bool:
    """Say whether an operand is widened by a Cast: kernels read it in bfloat16."""
    producers = {name: other for other in body for name in other.output}
    for name in node.input[:2]:
        producer = producers.get(name)
        while producer is not None and producer.op_type in _MOVES:
            producer = producers.get(producer.input[0])
        if producer is not None and producer.op_type == "Cast":
            return True
    return False
