"""What a region takes as ONNX Runtime's nodes and as one kernel, predicted, on one thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from math import floor, prod
from typing import Self

import onnx_ir as ir

from ortkit.fusion.regions.access import RESHAPES, access_of
from ortkit.fusion.regions.bodies import is_runtime_own
from ortkit.fusion.regions.epilogue_ops import RUNTIME_APPLIES
from ortkit.fusion.regions.members import EPILOGUES, is_reshape
from ortkit.fusion.regions.ort_costs import (
    ARITHMETIC_NS,
    GENERAL_POW_NS,
    ORT_NS,
    ROW_NS,
)
from ortkit.fusion.regions.parameters import parameter_inputs
from ortkit.fusion.regions.region import FusedRegion
from ortkit.graph.constants import constant_array
from ortkit.graph.symbolic.dims import Atom, Size, replace_atoms
from ortkit.kernels.anchor import NOMINAL_SIZE
from ortkit.kernels.region.ops import POINTWISE_OPS
from ortkit.kernels.region.reader import POWERS
from ortkit.kernels.tuning.calibration import Calibration, load_calibration
from ortkit.operators import where
from ortkit.rewrite.scope import Scope
from ortkit.targets.catalog import load
from ortkit.targets.cpu import native_level

#: A region must save this share of its own time to be taken.
MINIMUM_GAIN = 0.1
#: And this much of it, since a kernel has to be made, kept and loaded.
MINIMUM_SAVED_NS = 1000
#: A region of fewer elements is left alone: its time is that of calling it.
MINIMUM_POINTS = 256
#: Simple operations for each element in a generated kernel, for what is not pointwise.
OPERATIONS = {
    "ArgMax": 3, "ArgMin": 3, "GroupNormalization": 11, "InstanceNormalization": 11,
    "LayerNormalization": 11, "LogSoftmax": 18, "RMSNormalization": 6,
    "RotaryEmbedding": 3, "SimplifiedLayerNormalization": 6, "SkipLayerNormalization": 12,
    "SkipSimplifiedLayerNormalization": 7, "Softmax": 16,
}  # fmt: skip
#: Views that leave elements out.
_CUTS = frozenset({"Gather", "Slice", "Split"})
_ROW_NORMS = where(row_norm=True)
#: The standard op that stands for one of ONNX Runtime's own.
_LIKE = {"BiasGelu": "Gelu", "FastGelu": "Gelu", "QuickGelu": "Swish"}


@dataclass(frozen=True)
class Prediction:
    """Nanoseconds of one run on one thread, sizes that are not known being `NOMINAL_SIZE`."""

    before_ns: float
    """As ONNX Runtime's own nodes."""
    after_ns: float
    """As one kernel."""

    @property
    def gain(self) -> float:
        """The share of the time before that is saved; negative if there is none."""
        return 1 - self.after_ns / self.before_ns if self.before_ns > 0 else 0.0


def gain_refusal(gain: float, least: float) -> str:
    """Say that a predicted gain, a part of the time, is less than `least`; rounded down."""
    if (slower := round(-100 * gain)) > 0:
        return f"predicted to gain nothing: {slower} % slower as one kernel"
    percent = max(0, floor(100 * gain))
    return f"predicted to gain {percent} %, less than {100 * least:.0f} %"


class CostModel:
    """Predictions for the regions of one scope."""

    def __init__(self, scope: Scope, calibration: Calibration) -> None:
        self._scope = scope
        self._calibration = calibration
        self._batch = NOMINAL_SIZE

    def of_one_sample(self) -> Self:
        """Return the same where a first size that is not known is taken for 1.

        Many samples of known size are bound by memory, which says nothing of one that fits into
        the cache.
        """
        model = copy(self)
        model._batch = 1
        return model

    def corrected(self, kind: str, predicted: tuple[float, float]) -> tuple[float, float]:
        """Return what a heavy operator takes on this machine; as predicted for other levels."""
        target = self._scope.target
        if not self._scope.traits.is_host or target.level not in ("native", native_level()):
            return predicted
        return self._calibration.corrected(kind, predicted)

    def predict(self, region: FusedRegion) -> Prediction:
        """Return what the region takes before and after."""
        values = {value: None for node in region.nodes for value in (*node.inputs, *node.outputs)}
        size = self._bytes(value for value in values if value is not None)
        # One rate for both, that of all that the region touches.
        rate = size / self._calibration.move_ns(size) if size else 1.0
        before = sum(self._node_ns(node, rate) for node in region.nodes)
        return Prediction(before, self._kernel_ns(region, rate))

    def around(
        self,
        operator: tuple[float, float],
        prologue: Sequence[ir.Node],
        epilogue: Sequence[ir.Node],
        batch: int = NOMINAL_SIZE,
    ) -> Prediction:
        """Return the times of a heavy operator and what its kernel computes with it.

        ONNX Runtime's products and convolutions apply an activation that follows them.

        Args:
            operator: What it takes alone, by ONNX Runtime's kernel and by ours.
            prologue: Nodes in front, which a kernel computes as it reads.
            epilogue: Pointwise nodes after it, in order.
            batch: What a first size that is not known is taken for.
        """
        calibration = self._calibration
        before, after = calibration.node_ns + operator[0], calibration.kernel_ns + operator[1]
        for node in (*prologue, *epilogue):
            elements = sum(self.elements(value, batch) for value in node.outputs)
            if node not in epilogue[:1] or node.op_type not in RUNTIME_APPLIES:
                each = ORT_NS.get(node.op_type, ARITHMETIC_NS)
                before += calibration.node_ns + elements * each
            if node in epilogue:
                after += elements * self.operations(node) * calibration.operation_ns
        return Prediction(before, after)

    def refusal(self, region: FusedRegion, prediction: Prediction) -> str | None:
        """Say why the region does not pay; None if it does."""
        points = max(self.elements(value) for value in (*region.inputs, *region.outputs))
        if points < self._minimum_points():
            return f"{points} elements are too few for a kernel"
        if prediction.gain < MINIMUM_GAIN:
            return gain_refusal(prediction.gain, MINIMUM_GAIN)
        saved = prediction.before_ns - prediction.after_ns
        if saved < MINIMUM_SAVED_NS:
            return f"predicted to save {saved:.0f} ns, less than {MINIMUM_SAVED_NS} ns"
        return None

    def _minimum_points(self) -> int:
        return MINIMUM_POINTS

    def elements(self, value: ir.Value, batch: int | None = None) -> int:
        """Return the number of elements, nominal where it is not known; 0 if the rank is not.

        A first size that is not known is taken for `batch`, if it is given.
        """
        batch = self._batch if batch is None else batch
        shape = self._scope.shapes.shape(value)
        if shape and not isinstance(shape[0], int) and batch != NOMINAL_SIZE:
            shape = (batch, *shape[1:])
        return 0 if shape is None else prod(nominal(size) for size in shape)

    @staticmethod
    def operations(node: ir.Node) -> int:
        """Return the simple operations for each element in a generated kernel."""
        name = _LIKE.get(node.op_type, node.op_type) if is_runtime_own(node) else node.op_type
        if name in RESHAPES or name in _CUTS:
            return 0
        if name == "Pow" and (exponent := node.inputs[1]) is not None:
            array = constant_array(exponent, 1)
            written = () if array is None or array.size == 0 else POWERS.get(array.item(), ())
            if written:
                return sum(POINTWISE_OPS[each].flops for each in written)
        if (op := POINTWISE_OPS.get(name)) is not None:
            return op.flops
        return OPERATIONS.get(name, 1)

    def _bytes(self, values: Iterable[ir.Value]) -> float:
        total = 0.0
        for value in values:
            dtype = self._scope.shapes.dtype(value)
            total += self.elements(value) * (4 if dtype is None else dtype.itemsize)
        return total

    def _kernel_ns(self, region: FusedRegion, rate: float) -> float:
        operations = sum(self._work(node) * self.operations(node) for node in region.nodes)
        computing = operations * self._calibration.operation_ns
        read = sum(self._read_bytes(region, value) for value in region.inputs)
        moving = (read + self._bytes(region.outputs)) / rate
        return self._calibration.kernel_ns + max(computing, moving)

    def _read_bytes(self, region: FusedRegion, value: ir.Value) -> float:
        """Return what the region reads of an input: of one that is cut, only what is used."""
        inside = set(region.nodes)
        readers = {use.node for use in value.uses()} & inside
        whole = self._bytes([value])
        if not all(node.op_type in _CUTS for node in readers):
            return whole
        parts = {part for node in readers for part in node.outputs}
        used = [part for part in parts if part in region.outputs or _is_read(part, inside)]
        return min(whole, self._bytes(used))

    def _node_ns(self, node: ir.Node, rate: float) -> float:
        """Return what the node takes in ONNX Runtime, which fuses some into their neighbours."""
        if is_reshape(node):
            return self._calibration.node_ns
        if self._is_free(node):
            return 0.0
        data = [
            value
            for index, value in enumerate(node.inputs)
            if value is not None and index not in parameter_inputs(node)
        ]
        moved = self._bytes([*data, *node.outputs])
        if self.is_gemm_bias(node):
            return self._bytes(node.outputs) / rate
        computing = self._work(node) * self._element_ns(node) + self._rows_ns(node)
        return self._calibration.node_ns + max(computing, moved / rate)

    def _rows_ns(self, node: ir.Node) -> float:
        """Return what ONNX Runtime's kernel takes for rows, beside their elements."""
        each = ROW_NS.get(node.op_type, 0.0)
        return each * self._work(node) / max(self._row_length(node), 1) if each else 0.0

    def _row_length(self, node: ir.Node) -> int:
        """Return how many elements a norm or a softmax computes together, nominal."""
        value = node.inputs[0]
        shape = None if value is None else self._scope.shapes.shape(value)
        if not shape:
            return 1
        axis = node.attributes.get_int("axis", -1)
        sizes = shape[axis:] if node.op_type in _ROW_NORMS else shape[axis : axis + 1 or None]
        return prod(nominal(size) for size in sizes)

    def _element_ns(self, node: ir.Node) -> float:
        if node.op_type == "Pow":
            exponent = self._scope.array(node.inputs[1], 1)
            is_product = exponent is not None and exponent.size == 1 and exponent.item() in (2, 3)
            return ORT_NS["Pow"] if is_product else GENERAL_POW_NS
        return ORT_NS.get(node.op_type, ARITHMETIC_NS)

    def _work(self, node: ir.Node) -> int:
        """Return how many elements the node computes, or reads if it reduces."""
        values: Sequence[ir.Value | None] = node.outputs
        if access_of(node) == "reduction":
            values = node.inputs[:1]
        return sum(self.elements(value) for value in values if value is not None and value.name)

    def is_gemm_bias(self, node: ir.Node) -> bool:
        """Say whether ONNX Runtime adds this bias in a Gemm that it makes of the MatMul before."""
        if node.op_type != "Add" or node.domain:
            return False
        for product, bias in (node.inputs, node.inputs[::-1]):
            producer = None if product is None else product.producer()
            if product is None or producer is None or producer.op_type not in ("MatMul", "Gemm"):
                continue
            shape = None if bias is None else self._scope.shapes.shape(bias)
            rows = self._scope.shapes.shape(product)
            if shape is None or rows is None or len(shape) != 1 or len(product.uses()) > 1:
                continue
            return len(rows) == 2 or all(isinstance(size, int) for size in rows)
        return False

    def _is_free(self, node: ir.Node) -> bool:
        """Say whether ONNX Runtime makes the node a part of a matrix product beside it."""
        value = node.inputs[0] if node.inputs else None
        producer = None if value is None else value.producer()
        if node.op_type in EPILOGUES and producer is not None:
            return producer.op_type == "Gemm" or self.is_gemm_bias(producer)
        if node.op_type == "Transpose":
            return _swaps_last(node) and all(
                use.node.op_type == "MatMul" for use in node.outputs[0].uses()
            )
        return False


def nominal(size: Size) -> int:
    """Return a size as a number, what is not known being `NOMINAL_SIZE`."""
    if isinstance(size, int):
        return size
    try:
        found = replace_atoms(size, _nominal_atom)
    except (ValueError, ZeroDivisionError):
        return NOMINAL_SIZE
    return max(found, 0) if isinstance(found, int) else NOMINAL_SIZE


def _nominal_atom(atom: Atom) -> int | None:
    return None if atom.args else NOMINAL_SIZE


def _is_read(value: ir.Value, inside: set[ir.Node]) -> bool:
    return any(use.node in inside for use in value.uses())


def _swaps_last(node: ir.Node) -> bool:
    attribute = node.attributes.get("perm")
    if attribute is None:
        return len(node.outputs[0].shape or ()) == 2
    perm = list(attribute.as_ints())
    rank = len(perm)
    return rank >= 2 and perm == [*range(rank - 2), rank - 1, rank - 2]


def cost_model_of(scope: Scope) -> CostModel:
    """Return the cost model of a scope's target, for this machine."""
    model = load(scope.traits.cost_model)(scope, load_calibration())
    assert isinstance(model, CostModel)
    return model
