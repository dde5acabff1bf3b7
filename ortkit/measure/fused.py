"""The fused nodes of a model: at which sizes they run, and each as a small model of its own."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from ortkit.errors import UserError
from ortkit.kernels.signature import DOMAIN
from ortkit.measure.region_child import made_up

_EVENT = "_kernel_time"
#: Several copies in one run, so that what a run costs in addition to its nodes does not count.
_MOST_COPIES = 16
_COPIED_BYTES = 1 << 20


@dataclass(frozen=True)
class FusedCase:
    """A fused operator at given sizes."""

    op: str
    nodes: tuple[str, ...]
    """The nodes that run it at these sizes."""
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    """Element type as ONNX names it (small letters) and shape."""
    constant: tuple[bool, ...]
    """Which inputs are weights of the model."""

    @property
    def described(self) -> tuple[str, ...]:
        """The inputs as text, such as `float[1, 128]`."""
        return tuple(f"{dtype}[{', '.join(map(str, shape))}]" for dtype, shape in self.inputs)


def fused_cases(model: ir.Model, profile: Path) -> tuple[FusedCase, ...]:
    """Return the fused operators of a model at the sizes that a profile shows.

    Args:
        model: Whose function names and weights are looked at.
        profile: ONNX Runtime's, of a session with the kernel library.

    Raises:
        UserError: It is no profile.
    """
    ops = {name for domain, name, _ in model.functions if domain == DOMAIN}
    constants = {
        node.name: tuple(
            value is not None and value.const_value is not None for value in node.inputs
        )
        for node in ir.traversal.RecursiveGraphIterator(model.graph)
        if node.domain == DOMAIN
    }
    nodes: dict[tuple[Any, ...], dict[str, None]] = {}
    for name, op, inputs in _events(profile, ops):
        if name in constants:
            nodes.setdefault((op, inputs, constants[name]), {})[name] = None
    return tuple(
        FusedCase(op, tuple(names), inputs, constant)
        for (op, inputs, constant), names in nodes.items()
        if len(inputs) == len(constant)
    )


def _events(
    profile: Path, ops: Collection[str]
) -> Iterator[tuple[str, str, tuple[tuple[str, tuple[int, ...]], ...]]]:
    """Yield name, operator and inputs of each run of a node of these operators."""
    try:
        for event in json.loads(profile.read_text("utf-8")):
            name, args = str(event.get("name", "")), event.get("args", {})
            if event.get("cat") != "Node" or not name.endswith(_EVENT):
                continue
            if (op := args.get("op_name")) in ops:
                given = [
                    item
                    for argument in args.get("input_type_shape", ())
                    for item in argument.items()
                ]
                inputs = tuple((str(dtype), tuple(map(int, shape))) for dtype, shape in given)
                yield name.removesuffix(_EVENT), op, inputs
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise UserError(f"is no profile: {error}", where=str(profile)) from error


def case_model(model: ir.Model, case: FusedCase) -> onnx.ModelProto:
    """Return a model of copies of the fused node, that do not depend on each other.

    Weights are made up; what is no weight is an input of the model.

    Raises:
        ValueError: An element type that ONNX does not have.
    """
    types = [TensorProto.DataType.Value(dtype.upper()) for dtype, _ in case.inputs]
    function = model.functions[DOMAIN, case.op, ""]
    nodes, inputs, outputs, weights = [], [], [], []
    for position, (dtype, (_, shape)) in enumerate(zip(types, case.inputs, strict=True)):
        if case.constant[position]:
            content = made_up(helper.tensor_dtype_to_np_dtype(dtype), shape, position)
            weights.append(numpy_helper.from_array(content, f"w{position}"))
    for copy in range(_copies(types, case.inputs)):
        names = []
        for position, (dtype, (_, shape)) in enumerate(zip(types, case.inputs, strict=True)):
            names.append(f"w{position}" if case.constant[position] else f"x{position}_{copy}")
            if not case.constant[position]:
                inputs.append(helper.make_tensor_value_info(names[-1], dtype, shape))
        made = [f"y{position}_{copy}" for position in range(len(function.outputs))]
        outputs += [helper.make_empty_tensor_value_info(name) for name in made]
        nodes.append(helper.make_node(case.op, names, made, domain=DOMAIN))
    opsets = {**model.opset_imports, DOMAIN: 1}
    return helper.make_model(
        helper.make_graph(nodes, "region", inputs, outputs, weights),
        ir_version=model.ir_version,
        opset_imports=[helper.make_opsetid(domain, number) for domain, number in opsets.items()],
        functions=[ir.to_proto(function)],
    )


def _copies(types: Sequence[int], inputs: Sequence[tuple[str, tuple[int, ...]]]) -> int:
    sizes = (
        prod(shape) * helper.tensor_dtype_to_np_dtype(dtype).itemsize
        for dtype, (_, shape) in zip(types, inputs, strict=True)
    )
    return max(1, min(_MOST_COPIES, _COPIED_BYTES // max(1, sum(sizes))))
