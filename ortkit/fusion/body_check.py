"""Bodies of fused nodes are valid ONNX at the opset that the model imports.

A body that is not may crash ONNX Runtime where the kernel library is not registered: it is refused
before a kernel is built for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.refusal import Refused


def invalid_body(signature: RegionSignature, opsets: Mapping[str, int]) -> Refused | None:
    """Say why a region's body is not valid at these opsets; None if it is.

    Args:
        signature: The region's; types and ranks are checked, sizes are not.
        opsets: What the model imports, by domain.
    """
    reason = _problem(signature, opsets.get("", 1))
    return Refused(f"its body is not valid: {reason}") if reason else None


@lru_cache(maxsize=4096)
def _problem(signature: RegionSignature, opset: int) -> str:
    function = signature.function()
    graph = helper.make_graph(
        function.node,
        "body",
        [_info(name, spec) for name, spec in zip(function.input, signature.inputs, strict=True)],
        [_info(name, spec) for name, spec in zip(function.output, signature.outputs, strict=True)],
    )
    others = [item for item in function.opset_import if item.domain not in ("", "ai.onnx")]
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), *others])
    try:
        # Operators, the number of their inputs and outputs, attributes; then types.
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return str(error).strip().partition("\n")[0]
    return ""


def _info(name: str, spec: TensorSpec) -> onnx.ValueInfoProto:
    dtype = ir.DataType.from_numpy(np.dtype(spec.dtype))
    return helper.make_tensor_value_info(name, int(dtype), [None] * len(spec.shape))
