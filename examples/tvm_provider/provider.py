"""A provider that has TVM compile all nodes in a row that TVM knows, MatMul among them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar

import onnx
import onnx_ir as ir

import ortkit
from ortkit.provider import GraphView

#: What it takes; TVM's importer knows more.
OPS = frozenset(
    {
        "Add", "Div", "Erf", "Exp", "Gemm", "MatMul", "Mul", "Neg", "Pow", "Relu", "Sigmoid",
        "Softmax", "Sqrt", "Sub", "Tanh", "Transpose",
    }
)  # fmt: skip
#: What TVM's kernels expect of memory that they share; other memory is copied.
_ALIGNMENT = 64
Array = Any


class TvmProvider(ortkit.ExecutionProvider):
    """Compiles each group once for the sizes that it meets, and keeps the last of them.

    The session's option `target` is TVM's target, "llvm" by default.
    """

    name: ClassVar[str] = "TvmExecutionProvider"
    drop_constants = True
    #: TVM's virtual machine runs one call at a time.
    concurrent_kernels = False
    #: So many combinations of sizes are kept.
    most = 8

    def get_capability(self, graph: GraphView) -> list[list[ir.Node]]:
        return graph.groups(takes)

    def compile(self, subgraph: GraphView) -> Callable[..., Any]:
        proto = ir.to_proto(subgraph.to_model())
        target = self.session.options.get("target", "llvm")
        compiled: dict[tuple[tuple[int, ...], ...], Callable[..., Any]] = {}

        def kernel(*arrays: Array) -> Any:
            shapes = tuple(array.shape for array in arrays)
            if shapes not in compiled:
                if len(compiled) >= self.most:
                    compiled.clear()
                compiled[shapes] = build(proto, shapes, target)
            return compiled[shapes](*arrays)

        if all(value.shape is not None and value.shape.is_static() for value in subgraph.inputs):
            fixed = tuple(
                tuple(value.shape.numpy()) for value in subgraph.inputs if value.shape is not None
            )
            compiled[fixed] = build(proto, fixed, target)
        return kernel


def takes(node: ir.Node) -> bool:
    """Say whether TVM computes a node: an operator that it knows, on float32."""
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    return (
        not node.domain
        and node.op_type in OPS
        and all(value.dtype == ir.DataType.FLOAT and value.shape is not None for value in values)
    )


def build(
    proto: onnx.ModelProto, shapes: tuple[tuple[int, ...], ...], target: str
) -> Callable[..., Any]:
    """Compile a model for inputs of these shapes; returns a function of arrays."""
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    names = [value.name for value in proto.graph.input]
    module = from_onnx(proto, shape_dict=dict(zip(names, map(list, shapes), strict=True)))
    executable = relax.build(module, target=tvm.target.Target(target))
    run = relax.VirtualMachine(executable, tvm.cpu())["main"]
    is_single = len(proto.graph.output) == 1

    def shared(array: Array) -> Any:
        view = array.view()  # TVM takes no read-only arrays; it does not write to inputs
        with suppress(ValueError):  # one that cannot be is copied
            view.flags.writeable = True
        if array.ctypes.data % _ALIGNMENT or not view.flags.writeable:
            return tvm.runtime.tensor(array)
        return tvm.runtime.from_dlpack(view)

    def call(*arrays: Array) -> Any:
        results = run(*map(shared, arrays))
        return results if is_single else tuple(results)

    return call
