"""The originals that faults are planted in, and the candidates that optimization makes of them."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

import ortkit
from models.catalog import build
from mutants.architectures import convs, mixed
from mutants.inputs import Arrays, input_sets
from mutants.weights import in_type, rounding, trained_like
from ortkit.optimization.call import OptimizeOptions
from ortkit.temporary import TemporaryFolder

#: How the number types are told in the table; a model of each is run by ONNX Runtime on CPUs.
TYPES = ("float32", "float16", "bfloat16", "quantized")


@dataclass(frozen=True)
class Subject:
    """One original.

    Args:
        architecture: "mixed", "convs" or a name of `models.catalog`.
        type: One of `TYPES`.
        weights: "random" or "trained".
    """

    architecture: str
    type: str = "float32"
    weights: str = "random"

    @property
    def name(self) -> str:
        """A readable name."""
        return f"{self.architecture}/{self.type}/{self.weights}"

    @property
    def seed(self) -> int:
        """A number that the name decides."""
        return zlib.crc32(self.name.encode())


ARCHITECTURES = (
    "mixed", "convs", "bert", "llama", "gpt2", "vit", "mobilenet_v2", "resnet50",
    "efficientnet_b0",
)  # fmt: skip


@cache
def original(subject: Subject) -> onnx.ModelProto:
    """Build an original."""
    rng = np.random.default_rng(subject.seed)
    own = {"mixed": mixed, "convs": convs}.get(subject.architecture)
    model = build(subject.architecture) if own is None else own(rng)
    if subject.weights == "trained":
        model = trained_like(model, rng)
    if subject.type == "float16":
        return in_type(model, TensorProto.FLOAT16)
    if subject.type == "bfloat16":
        return rounding(model, TensorProto.BFLOAT16)
    if subject.type == "quantized":
        is_qdq = subject.weights == "random"
        return _quantized(model, QuantFormat.QDQ if is_qdq else QuantFormat.QOperator)
    return model


@cache
def candidates(subject: Subject) -> Mapping[str, onnx.ModelProto]:
    """Return candidates without faults: as it is, rewritten, and with fused functions."""
    model = original(subject)
    found = {"as it is": model}
    found["rewritten"] = optimized(model, kernels="off")
    if subject.type == "float32":
        found["fused"] = optimized(model)
    return found


def optimized(model: onnx.ModelProto, *, kernels: str = "auto") -> onnx.ModelProto:
    """Optimize without verification; the kernels themselves are not kept."""
    options = OptimizeOptions(kernels=kernels, verify=False, check_load=False)
    return ir.to_proto(ortkit.optimize(model, options).model)


class _Reader(CalibrationDataReader):
    def __init__(self, sets: Iterator[Arrays]) -> None:
        self._sets = sets

    def get_next(self) -> Arrays | None:
        return next(self._sets, None)


def _quantized(model: onnx.ModelProto, form: QuantFormat) -> onnx.ModelProto:
    with TemporaryFolder("mutants") as folder:
        source, result = folder / "model.onnx", folder / "quantized.onnx"
        onnx.save(model, source)
        reader = _Reader(sets.arrays for sets in input_sets(model) if sets.is_usual)
        logging.disable(logging.WARNING)
        try:
            quantize_static(
                str(source), str(result), reader, quant_format=form,
                op_types_to_quantize=["Conv", "MatMul", "Gemm", "Add", "Relu"],
                per_channel=_has_filters(model),
            )  # fmt: skip
        finally:
            logging.disable(logging.NOTSET)
        return onnx.load(result)


def _has_filters(model: onnx.ModelProto) -> bool:
    """Say whether weights are quantized by channel."""
    return any(node.op_type == "Conv" for node in model.graph.node)
