"""The function body of a kernel in working precision: what a kernel's error is measured by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from ortkit.graph.shapes.infer import Shapes
from ortkit.kernels.accuracy import is_number_for_nan
from ortkit.verify.kernels.blocks import Operand
from ortkit.verify.kernels.inputs import is_floating, numpy_type
from ortkit.verify.kernels.job import KernelJob, NotRunError, one_line
from ortkit.verify.kernels.library import CPU, Kernels
from ortkit.verify.kernels.reference import Reference
from ortkit.verify.kernels.runs import Runner

Types = Mapping[str, np.dtype[np.generic]]

#: Types that ONNX Runtime computes in on CPUs without going through another one.
_OWN = frozenset(map(np.dtype, (np.float32, np.float64)))


@dataclass(frozen=True)
class Body:
    """A body in working precision.

    Args:
        run: Computes its outputs.
        types: The types that its values are rounded to; empty if ONNX Runtime decides.
        is_number_for_nan: Whether its kernel gives numbers where the body gives NaN.
        special_values_differ: Whether its kernel answers NaN and infinities otherwise, for the
            device that it is for.
    """

    run: Callable[[Sequence[Operand]], list[np.ndarray]]
    types: Types = field(default_factory=dict)
    is_number_for_nan: bool = False
    special_values_differ: bool = False


def session_body(ort: ModuleType, kernel: KernelJob, custom_ops: Sequence[Path]) -> Body:
    """Return the body as ONNX Runtime runs it on the CPU.

    Raises:
        NotRunError: ONNX Runtime does not load it.
    """
    try:
        session = Runner(ort, kernel.plain, custom_ops, Kernels("", [CPU], []), threads=1)
    except Exception as error:
        raise NotRunError(f"ONNX Runtime does not load its body: {one_line(error)}") from error
    return Body(lambda operands: session.run([each.array for each in operands]))


def device_body(ort: ModuleType, kernel: KernelJob, custom_ops: Sequence[Path]) -> Body:
    """Return the body of a kernel for CUDA.

    ONNX Runtime's CPU provider computes float16 in float32, and has next to no bfloat16. A body
    with narrow types is evaluated in float64, and each result is rounded to its own type.

    Raises:
        NotRunError: ONNX Runtime does not load it, or the types of its results are not known.
    """
    function = onnx.FunctionProto.FromString(kernel.function.read_bytes())
    types = value_types(function, [spec.type for spec in kernel.inputs])
    if not any(is_floating(dtype) and dtype not in _OWN for dtype in types.values()):
        body = session_body(ort, kernel, custom_ops)
        return _for_device(body, kernel.op, function)
    reference = Reference(function, types)
    if missing := [name for name in function.output if name not in types]:
        raise NotRunError(f"the type of its result {missing[0]!r} is not known")
    outputs = [types[name] for name in function.output]

    def rounded(operands: Sequence[Operand]) -> list[np.ndarray]:
        found = reference.rounded([each.wide for each in operands])
        with np.errstate(all="ignore"):
            return [x.astype(dtype) for x, dtype in zip(found, outputs, strict=True)]

    return _for_device(Body(rounded, types), kernel.op, function)


def _for_device(body: Body, op_type: str, function: onnx.FunctionProto) -> Body:
    return replace(
        body,
        is_number_for_nan=is_number_for_nan(op_type),
        special_values_differ=pads_windows(function),
    )


def pads_windows(function: onnx.FunctionProto) -> bool:
    """Return whether a body has a convolution whose windows a kernel for CUDA may pad with zeros.

    Space-to-depth by the strides makes windows whole multiples of them: 7 x 7 with strides of 2
    becomes 8 x 8, with weights of 0. NaN and infinities there reach a result that they are not of.
    """
    for node in function.node:
        if node.op_type != "Conv":
            continue
        given = {each.name: list(each.ints) for each in node.attribute}
        kernel, strides = given.get("kernel_shape", []), given.get("strides", [])
        dilations = given.get("dilations", [1] * len(kernel))
        reaches = [(size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True)]
        if any(reach % stride for reach, stride in zip(reaches, strides, strict=False)):
            return True
    return False


def value_types(function: onnx.FunctionProto, inputs: Sequence[int]) -> Types:
    """Return the types of a body's values by name, as far as they are inferred.

    ONNX does not know ONNX Runtime's own operators.

    Args:
        function: The body.
        inputs: Element types of its inputs.
    """
    typed = [
        helper.make_tensor_value_info(name, code, None)
        for name, code in zip(function.input, inputs, strict=True)
    ]
    results = [onnx.ValueInfoProto(name=name) for name in function.output]
    graph = helper.make_graph(list(function.node), "body", typed, results)
    proto = helper.make_model(graph, opset_imports=list(function.opset_import))
    inferred = onnx.shape_inference.infer_shapes(proto).graph
    values = (*inferred.input, *inferred.value_info, *inferred.output)
    codes = {value.name: value.type.tensor_type.elem_type for value in values}
    if any(node.domain and not all(map(codes.get, node.output)) for node in function.node):
        model = ir.from_proto(proto)
        shapes = Shapes.infer(model)
        for value in (output for node in model.graph for output in node.outputs):
            name, dtype = value.name or "", shapes.dtype(value)
            codes[name] = codes.get(name) or (0 if dtype is None else int(dtype))
    return {name: numpy_type(code) for name, code in codes.items() if code}
