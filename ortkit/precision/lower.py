"""lower-precision: a float32 model computes in float16 or bfloat16 where that is safe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import constant_array, is_constant
from ortkit.graph.shapes.infer import Shapes
from ortkit.graph.walk import names_in, take_name
from ortkit.precision.rules import (
    HEAVY,
    REDUCTIONS,
    SENTINELS,
    half_inputs,
    half_outputs,
    may_be_half,
)
from ortkit.rewrite.log import RewriteLog
from ortkit.rewrite.passes import ModelPass
from ortkit.rewrite.site import describe

FLOAT = ir.DataType.FLOAT
HALF_DTYPES = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}
#: A scalar that rounding changes by more than this part is not a number but a threshold.
_SCALAR_ERROR = 2.0**-7


@dataclass(frozen=True)
class LowerPrecision(ModelPass):
    """Let nodes compute in half precision; inputs and outputs keep their types.

    Before:
        y = Exp(MatMul(x, W))                                  # float32
    After:
        y = Exp(Cast(MatMul(Cast(x, FLOAT16), W16), FLOAT))    # W16: W, rounded once

    Each node is a rewrite of its own, so that one that costs too much can be taken back.

    Skips:
        * Operators that overflow, cancel or sum up (see `rules.py`), and those of other domains.
        * Constants that half precision does not hold: beyond its range, but for the sentinels of
          masks, which become its lowest number; scalars that it rounds by more than 1/128.
        * Bodies of control flow and functions; runs of cheap nodes without a product.

    Source:
        Micikevicius et al., "Mixed Precision Training" (2018), 3.3.
    """

    name: ClassVar[str] = "lower-precision"
    to: str = "fp16"

    def run(self, model: ir.Model, log: RewriteLog) -> None:
        _Lowering(model, log, HALF_DTYPES[self.to], self.name, self.to).run()


class _Lowering:
    def __init__(
        self, model: ir.Model, log: RewriteLog, half: ir.DataType, name: str, rule: str
    ) -> None:
        self._model, self._log, self._half = model, log, half
        self._name, self._rule = name, rule
        self._shapes = Shapes.infer(model)
        self._opset = model.opset_imports.get("", 0)
        self._names = names_in(model)
        self._in_half: dict[ir.Value, ir.Value] = {}
        """What stands for a float32 value in half precision."""
        largest = ir.DataType(half).numpy()
        self._limit = float(np.finfo(largest).max) if half == HALF_DTYPES["fp16"] else 3.38e38
        # The lowest number itself is taken for -inf by attention kernels.
        self._sentinel = 65472.0 if half == HALF_DTYPES["fp16"] else 3.3e38

    def run(self) -> None:
        """Choose the nodes, then rewrite them."""
        chosen: dict[ir.Node, None] = {}
        for node in self._model.graph:
            reason = self._refusal(node, chosen)
            if reason is None:
                chosen[node] = None
            elif reason:
                outputs = tuple(value.name or "" for value in node.outputs)
                self._log.miss(self._name, describe(node), reason, outputs)
        self._drop_isolated(chosen)
        claimed = {
            node: None
            for node in chosen
            if self._log.claim(self._name, self._rule, node.outputs[0].name or "", describe(node))
        }
        for node in claimed:
            self._lower(node, claimed)

    def _refusal(self, node: ir.Node, chosen: dict[ir.Node, None]) -> str | None:
        """Return why a node stays as it is, "" where it has nothing to lower; None if it goes."""
        if not self._floats(node):
            return ""
        if not may_be_half(node):
            return "it may overflow or lose too much in half precision"
        if node.op_type in REDUCTIONS and node.domain == "":
            producer = None if node.inputs[0] is None else node.inputs[0].producer()
            if producer is not None and producer not in chosen and self._is_float(node.inputs[0]):
                return "what it sums stays in float32"
        for index in half_inputs(node, self._opset):
            value = node.inputs[index]
            if value is not None and self._is_float(value) and is_constant(value, self._model):
                array = constant_array(value)
                if array is not None and (why := self._unfit(node, array)):
                    return why
        return None

    def _unfit(self, node: ir.Node, array: np.ndarray) -> str:
        """Return why a constant cannot be rounded to half precision, empty if it can."""
        if array.size == 0:
            return ""
        lowest, highest = float(array.min()), float(array.max())
        magnitude = max(abs(lowest), abs(highest))
        is_sentinel = node.domain == "" and node.op_type in SENTINELS
        if np.isfinite(magnitude) and magnitude > self._limit and not is_sentinel:
            return f"a constant of {magnitude:.3g} is beyond half precision"
        if array.size == 1 and 0 < magnitude <= self._limit:
            rounded = float(array.reshape(()).astype(self._half.numpy()))
            if abs(rounded - float(array.reshape(()))) > _SCALAR_ERROR * magnitude:
                return f"a constant of {magnitude:.3g} is too small for half precision"
        return ""

    def _drop_isolated(self, chosen: dict[ir.Node, None]) -> None:
        """Take out runs of chosen nodes in which nothing is heavy: they would only be cast."""
        group: dict[ir.Node, ir.Node] = {node: node for node in chosen}

        def find(node: ir.Node) -> ir.Node:
            while group[node] is not node:
                group[node] = group[group[node]]
                node = group[node]
            return node

        for node in chosen:
            for value in node.inputs:
                producer = None if value is None else value.producer()
                if producer is not None and producer in chosen and self._is_float(value):
                    group[find(producer)] = find(node)
        heavy = {find(node) for node in chosen if node.op_type in HEAVY}
        for node in [node for node in chosen if find(node) not in heavy]:
            del chosen[node]

    def _lower(self, node: ir.Node, claimed: dict[ir.Node, None]) -> None:
        if node.op_type == "Cast" and node.domain == "":
            node.attributes["to"] = ir.AttrInt64("to", int(self._half))
        else:
            for index in half_inputs(node, self._opset):
                value = node.inputs[index]
                if value is not None and self._is_float(value):
                    node.replace_input_with(index, self._halved(value))
        for index in half_outputs(node):
            value = node.outputs[index]
            if not self._is_float(value):
                continue
            value.type = ir.TensorType(self._half)
            self._in_half[value] = value
            others = [
                (use.node, use.idx)
                for use in value.uses()
                if use.node not in claimed or not self._takes(use.node, use.idx)
            ]
            if others or value.is_graph_output():
                self._widen(node, value, others)

    def _takes(self, node: ir.Node, index: int) -> bool:
        return node.op_type == "Cast" or index in half_inputs(node, self._opset)

    def _widen(self, node: ir.Node, value: ir.Value, uses: list[tuple[ir.Node, int]]) -> None:
        """Give those that stay in float32 the value in float32; an output keeps its name."""
        name = value.name or "value"
        wide = self._cast(node, value, FLOAT, f"{name}/float")
        for reader, index in uses:
            reader.replace_input_with(index, wide)
        if value.is_graph_output():
            outputs = self._model.graph.outputs
            for index, output in enumerate(outputs):
                if output is value:
                    outputs[index] = wide
            value.name, wide.name = wide.name, value.name
            wide.shape, wide.doc_string = value.shape, value.doc_string

    def _halved(self, value: ir.Value) -> ir.Value:
        if (known := self._in_half.get(value)) is not None:
            return known
        name = f"{value.name}/{self._rule}"
        if is_constant(value, self._model) and (array := constant_array(value)) is not None:
            made = self._constant(array, take_name(self._names, name))
        else:
            made = self._cast(value.producer(), value, self._half, name)
        self._in_half[value] = made
        return made

    def _constant(self, array: np.ndarray, name: str) -> ir.Value:
        finite = np.isfinite(array)
        if (np.abs(array, where=finite, out=np.zeros_like(array)) > self._limit).any():
            bounded = np.clip(array, -self._sentinel, self._sentinel)
            array = np.where(finite, bounded, array)
        tensor = ir.tensor(array.astype(self._half.numpy()), name=name)
        value = ir.Value(
            name=name,
            shape=ir.Shape(array.shape),
            type=ir.TensorType(self._half),
            const_value=tensor,
        )
        self._model.graph.register_initializer(value)
        return value

    def _cast(
        self, after: ir.Node | None, value: ir.Value, dtype: ir.DataType, name: str
    ) -> ir.Value:
        """Insert a Cast of `value` behind the node that makes it, or first of all."""
        node = ir.node("Cast", [value], {"to": int(dtype)})
        graph = self._model.graph
        (made,) = node.outputs
        made.name = take_name(self._names, name)
        node.name = take_name(self._names, f"{made.name}/Cast")
        made.type = ir.TensorType(dtype)
        made.shape = value.shape
        if after is not None:
            graph.insert_after(after, node)
        else:
            graph.insert_before(graph[0], node)
        return made

    def _floats(self, node: ir.Node) -> bool:
        """Say whether any output is float32 and computed from something that is not constant."""
        if node.op_type in ("Constant", "ConstantOfShape"):
            return False
        return any(map(self._is_float, node.outputs))

    def _is_float(self, value: ir.Value | None) -> bool:
        return value is not None and self._shapes.dtype(value) == FLOAT
