"""Signatures and one-node models to run kernels through ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

from ortkit.kernels.signature import DOMAIN, RegionSignature, TensorSpec

BIAS_GELU = '<opset_import: ["" : 20]> f (X, B) => (Y) { S = Add (X, B)  Y = Gelu (S) }'


def tensor(name: str, *shape: int | str, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name, dtype, shape)


def bias_gelu(*shape: int | str, name: str = "bias_gelu") -> RegionSignature:
    """Y = Gelu(X + B), B along the last dim of `shape`."""
    x, y = tensor("X", *shape), tensor("Y", *shape)
    return RegionSignature(name, BIAS_GELU, (x, tensor("B", *shape[-1:])), (y,))


def unary(op: str, *, opset: int = 20) -> RegionSignature:
    """Y = op(X) over one named size; `op` as in "Gelu<approximate=\"tanh\">"."""
    op_type, _, attributes = op.partition("<")
    written = f"{op_type} <{attributes}" if attributes else op_type
    body = f'<opset_import: ["" : {opset}]> f (X) => (Y) {{ Y = {written} (X) }}'
    return RegionSignature(
        f"unary_{op_type.lower()}", body, (tensor("X", "n"),), (tensor("Y", "n"),)
    )


def fused_model(signature: RegionSignature, function: onnx.FunctionProto | None = None) -> bytes:
    """A model of one fused node, with the region (or `function`) as its model-local function."""
    function = function or signature.function()
    function.domain, function.name = DOMAIN, signature.op_type
    inputs = [spec.name for spec in signature.inputs]
    outputs = [spec.name for spec in signature.outputs]
    graph = helper.make_graph(
        [helper.make_node(signature.op_type, inputs, outputs, domain=DOMAIN, name="fused")],
        "model",
        [_value(spec) for spec in signature.inputs],
        [_value(spec, is_known=False) for spec in signature.outputs],
    )
    opsets = [*function.opset_import, helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=10)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def session(
    model: bytes | str, library: Path | None = None, threads: int = 1
) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    if library is not None:
        options.register_custom_ops_library(str(library))
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def random_input(spec: TensorSpec, sizes: dict[str, int], seed: int = 0) -> np.ndarray:
    shape = [sizes[dim] if isinstance(dim, str) else dim for dim in spec.shape]
    rng = np.random.default_rng(seed + len(spec.name) + sum(map(ord, spec.name)))
    if spec.dtype == "bool":
        return rng.random(shape) < 0.5
    values = rng.standard_normal(shape) * 3
    return np.asarray(values, dtype=spec.dtype)


def _element(spec: TensorSpec) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype)))


def _value(spec: TensorSpec, *, is_known: bool = True) -> onnx.ValueInfoProto:
    shape = list(spec.shape) if is_known else [None] * len(spec.shape)
    return helper.make_tensor_value_info(spec.name, _element(spec), shape)
