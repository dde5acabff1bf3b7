"""NonMaxSuppression of float32 boxes, in C: the file beside this one.

A unit is one class of one image. Its rows go into memory of its own, as nobody knows their number
before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ortkit.kernels.anchor import NOMINAL_SIZE, Anchor
from ortkit.kernels.backend import Launch
from ortkit.kernels.counted_sizes import counted_size
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.sizes import Extent, extent_of, symbols_of
from ortkit.refusal import Refused

from ...forms.body import Body, integer

_SOURCE = Path(__file__).with_suffix(".c")
_BOXES, _SCORES, _MOST, _IOU, _THRESHOLD = range(5)
_DTYPES = ("float32", "float32", "int64", "float32", "float32")
# Floats of a vector. ONNX Runtime for x86-64 contracts nothing, which is not known of others.
_LANES = {
    "x86-64-v3": 8,
    "x86-64-v4": 16,
    "x86-64-v4-vnni": 16,
    "x86-64-v4-bf16": 16,
    "x86-64-v4-amx": 16,
}
# A box of a class, where most are above the threshold: ONNX Runtime's and ours on one thread of a
# Xeon with AVX-512 (onnxruntime 1.31.1, 2026-11-29), for 80 boxes.
_RUNTIME_NS, _OURS_NS = 730.0, 51.0
_PICOSECONDS_PER_BOX = 5000


@dataclass(frozen=True)
class NonMaxSuppression:
    """One selection of boxes.

    Args:
        signature: The region's.
        operands: By the operator's input the number of the region's, a constant, or None.
        is_center: Whether boxes are centers and extents.
    """

    signature: RegionSignature
    operands: tuple[int | np.ndarray | None, ...]
    is_center: bool

    def estimate(self, level: str) -> tuple[float, float]:
        """Return nanoseconds of a selection, ONNX Runtime's and ours."""
        del level
        images, classes, boxes = (extent_of(size).at(NOMINAL_SIZE) for size in self._scores.shape)
        images = 1 if extent_of(self._scores.shape[0]).symbols else images
        return images * classes * boxes * _RUNTIME_NS, images * classes * boxes * _OURS_NS

    def refuses(self, level: str) -> Refused | None:
        """Say why there is no kernel for a level."""
        return None if level in _LANES else Refused(f"no selection of boxes for {level}")

    def launch(self, level: str) -> Launch:
        """A point is a box of a class."""
        del level
        images, classes, boxes = map(extent_of, self._scores.shape)
        return Launch((images, classes), boxes, _PICOSECONDS_PER_BOX)

    def c_source(self, symbol: str, level: str) -> str:
        """Return the kernel's code; see `CTemplate`."""
        tensors = (*self.signature.inputs, *self.signature.outputs)
        names = symbols_of(tensors)
        parameters = [f"void* t{number}" for number in range(len(tensors))]
        parameters += [f"int64_t s{number}" for number in range(len(names))]
        unread = [parameter.split()[1] for parameter in parameters]
        head = f"#define LANES {_LANES[level]}\n#define IS_CENTER {int(self.is_center)}\n"
        lines = [
            f"int32_t {symbol}({', '.join(parameters)}, int64_t begin, int64_t end);",
            f"int32_t {symbol}({', '.join(parameters)}, int64_t begin, int64_t end) {{",
            f"  {' '.join(f'(void){name};' for name in unread)}",
            f"  if ({' || '.join(self._differences(names))}) return SIZES_DIFFER;",
            "  Task task = {0};",
            *(f"  task.{member} = {value};" for member, value in self._members(names)),
            f"  return Select(&task, (Rows*)t{len(tensors) - 1}, begin, end);",
            "}",
        ]
        return head + _SOURCE.read_text("utf-8") + "\n" + "\n".join(lines) + "\n"

    @property
    def _scores(self) -> TensorSpec:
        return self._spec(_SCORES)

    def _spec(self, operand: int) -> TensorSpec:
        number = self.operands[operand]
        assert isinstance(number, int)
        return self.signature.inputs[number]

    def _differences(self, names: tuple[str, ...]) -> Iterator[str]:
        """Yield conditions of sizes that do not fit each other."""
        boxes, scores = self._spec(_BOXES).shape, self._scores.shape
        for one, other in ((boxes[0], scores[0]), (boxes[1], scores[2]), (boxes[2], 4)):
            yield f"{_size(one, names)} != {_size(other, names)}"

    def _members(self, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        """Yield what is assigned to the members of the task."""
        _, classes, count = self._scores.shape
        yield "boxes", f"t{self.operands[_BOXES]}"
        yield "scores", f"t{self.operands[_SCORES]}"
        yield "classes", _size(classes, names)
        yield "count", _size(count, names)
        yield "most", _value(self.operands[_MOST], "int64_t")
        yield "iou_threshold", _value(self.operands[_IOU], "float")
        yield "has_score_threshold", str(int(self.operands[_THRESHOLD] is not None))
        yield "score_threshold", _value(self.operands[_THRESHOLD], "float")


def _size(size: int | str, names: tuple[str, ...]) -> str:
    extent: Extent = extent_of(size)
    return " * ".join([str(extent.factor), *(f"s{names.index(name)}" for name in extent.symbols)])


def _value(operand: int | np.ndarray | None, c_type: str) -> str:
    """Return a number as C: read from an input, or a constant with all of its bits."""
    if operand is None:
        return "0"
    if isinstance(operand, int):
        return f"*(const {c_type}*)t{operand}"
    if c_type == "float":
        return f"FloatOf({int(operand.view(np.uint32).reshape(())):#x}u)"
    return f"(int64_t){int(operand.view(np.uint64).reshape(())):#x}u"


def match(signature: RegionSignature) -> NonMaxSuppression | Refused | None:
    """Return the region as a selection of boxes; None if it is something else."""
    if "NonMaxSuppression" not in signature.body:
        return None
    body = Body(signature)
    nodes = [node for node in body.function.node if node.op_type != "Constant"]
    if len(nodes) != 1 or (nodes[0].domain, nodes[0].op_type) != ("", "NonMaxSuppression"):
        return None
    (node,) = nodes
    operands: list[int | np.ndarray | None] = []
    for name in (*node.input, *[""] * 5)[:5]:
        constant = body.constant(name) if name else None
        operands.append(body.inputs.get(name) if constant is None else constant)
    problem = _problem(signature, operands)
    if problem:
        return Refused(problem)
    is_center = integer(node, "center_point_box", 0)
    if is_center not in (0, 1):
        return Refused(f"center_point_box = {is_center}")
    return NonMaxSuppression(signature, tuple(operands), bool(is_center))


def _problem(signature: RegionSignature, operands: list[int | np.ndarray | None]) -> str:
    """Say which operands the kernel does not read; empty if it reads all."""
    for number, (operand, dtype) in enumerate(zip(operands, _DTYPES, strict=True)):
        if operand is None:
            continue
        if isinstance(operand, np.ndarray):
            if number <= _SCORES or operand.size != 1 or operand.dtype != dtype:
                return f"operand {number} is a constant of {operand.size} {operand.dtype}"
            continue
        spec = signature.inputs[operand]
        if spec.dtype != dtype:
            return f"operand {number} is {spec.dtype}"
        if number > _SCORES and spec.shape not in ((), (1,)):
            return f"operand {number} has the shape {list(spec.shape)}"
        if number <= _SCORES and len(spec.shape) != 3:
            return f"operand {number} has {len(spec.shape)} dims"
    if operands[_BOXES] is None or operands[_SCORES] is None:
        return "no boxes or no scores"
    return "" if counted_size(signature) else "rows of a number that is known before"


ANCHOR = Anchor(
    "non_max_suppression", match, (("", "NonMaxSuppression"),), epilogue=frozenset(), batch=1,
    in_place=True,
)  # fmt: skip
