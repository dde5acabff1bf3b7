"""fuse-norm: LayerNorm, RMSNorm and InstanceNorm that are written out, however that is done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.analysis.float64_eval import FLOATS
from ortkit.analysis.norm_probe import Probe
from ortkit.analysis.norm_weights import Operand, Weight, operand, read_weight, runs_along
from ortkit.analysis.row_functions import Frame, Region, frame_of, roots_of
from ortkit.ops.norms import LADDER, NormFit, fit_norm, ladder_rows
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

LAYER_NORM_SINCE, RMS_NORM_SINCE = 17, 23
HALF_DTYPES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
#: What a norm divides by is made with one of these.
ROOTS = frozenset({"Pow", "ReduceL2", "Sqrt"})
#: The reason that any other says more than.
VAGUE = "its scale or shift is none of its weights"


@dataclass(frozen=True)
class Norm:
    """A norm found: what it reads, what it stands for, and what to emit."""

    rule: str
    region: Region
    end: ir.Value
    epsilon: float
    scale: Operand
    shift: Operand | None
    nodes: int


@dataclass(frozen=True)
class FuseNorm(NodePass):
    """Recognize norms by what they make of the rows of a value.

    Before:
        d = Sub(x, ReduceMean(x));  v = ReduceMean(Mul(d, d))
        y = Add(Mul(Div(d, Sqrt(Add(v, 1e-5))), w), b)
    After:
        y = LayerNormalization(x, w, b)       # RMSNormalization, InstanceNormalization

    From a reduction the nodes are collected that depend on one value and on numbers or weights
    beside it. They are evaluated in float64 on rows of many magnitudes and compared with the
    norm; scale, shift and epsilon are solved from the results and found among the weights.
    RMSNorm below opset 23, where that cannot be raised, is ONNX Runtime's
    SimplifiedLayerNormalization. Float16 rows that are normalized in float32 and cast back are
    what these ops do.

    Skips:
        * Rows along axes that are not the last ones, but for InstanceNorm.
        * A mean, variance or unscaled result that others read, or that a graph returns.
        * Epsilon outside of the root, variances over n - 1, scales that are no weights.
        * Weights that would be rounded to a type narrower than the one they were written in.

    Source:
        Ba, Kiros and Hinton, "Layer Normalization" (2016); Zhang and Sennrich, "Root Mean Square
        Layer Normalization" (2019); Ulyanov et al., "Instance Normalization" (2016).
    """

    name: ClassVar[str] = "fuse-norm"
    ops: ClassVar[Sequence[str]] = ("ReduceL2", "ReduceMean", "ReduceSum", "ReduceSumSquare")

    def rewrite(self, site: Site) -> None:
        frame = frame_of(site.scope, site.node)
        if frame is None or site.output.is_graph_output():
            return
        search = _Search(site, frame)
        best = max(search.found(), key=lambda norm: norm.nodes, default=None)
        if best is None:
            if search.reasons:
                site.miss(min(search.reasons, key=lambda reason: reason == VAGUE))
            return
        since = {"layer-norm": LAYER_NORM_SINCE, "rms-norm": RMS_NORM_SINCE}.get(best.rule, 6)
        if site.opset < since:
            if site.scope.require_opset(since):
                # Nodes were converted, and the region may hold others now.
                if site.node.graph is not None:
                    self.rewrite(site)
                return
            if best.rule != "rms-norm":
                site.miss(f"it needs opset {since}")
                return
        self._emit(site, best)

    def _emit(self, site: Site, norm: Norm) -> None:
        node = norm.end.producer()
        assert node is not None
        last = Site(site.scope, node, self.name)
        if not last.claim(norm.rule):
            return
        scale = norm.scale.emit(last, "scale")
        shift = [] if norm.shift is None else [norm.shift.emit(last, "shift")]
        attributes: dict[str, int | float] = {"epsilon": norm.epsilon}
        kind = "InstanceNormalization"
        if norm.rule != "instance-norm":
            attributes["axis"] = -len(norm.region.frame.axes)
            kind = "LayerNormalization"
        if norm.rule == "rms-norm":
            plain = site.has_kernel("RMSNormalization", site.dtype(norm.end))
            since = site.opset >= RMS_NORM_SINCE
            kind = "RMSNormalization" if since and plain else "SimplifiedLayerNormalization"
        last.replace(last.op(kind, [norm.region.root, scale, *shift], attributes))


class _Search:
    """All roots and ends of one reduction, and why they are no norms."""

    def __init__(self, site: Site, frame: Frame) -> None:
        self.site, self.frame = site, frame
        self.reasons: dict[str, None] = {}

    def found(self) -> Iterator[Norm]:
        """Yield the largest norm of each root."""
        for root in roots_of(self.site.scope, self.site.node, self.frame):
            if self.site.dtype(root) not in FLOATS:
                return
            region = Region(self.site.scope, self.site.node, self.frame, root)
            kinds = {node.op_type for node in region.inside.values()}
            if not region.ends or not kinds & ROOTS:
                continue
            rows = _Rows(region)
            for end in reversed(region.ends):
                norm = self._at(region, end, rows)
                if isinstance(norm, Norm):
                    yield norm
                    break
                if norm:
                    self.reasons[norm] = None

    def _at(self, region: Region, end: ir.Value, rows: _Rows) -> Norm | str:
        """Return the norm that `end` is, else why not; an empty text where nothing is alike."""
        cone = region.cone(end)
        if not any(node.op_type in ROOTS for node in cone.values()):
            return ""
        fit = rows.fit(end)
        if isinstance(fit, str):
            return fit
        dtype = _type_of(self.site, region, end)
        reason = self._why_not(region, end, fit[0], dtype)
        if reason or dtype is None:
            return reason
        return self._weighted(region, end, dtype, len(cone), *fit)

    def _why_not(
        self, region: Region, end: ir.Value, fit: NormFit, dtype: ir.DataType | None
    ) -> str:
        if dtype is None:
            return "its element types differ from those that a norm of its data computes in"
        if (read := region.read_elsewhere(end)) is not None:
            return f"{read.name!r} within it is read elsewhere, or returned"
        if dtype == ir.DataType.DOUBLE and float(np.float32(fit.epsilon)) != fit.epsilon:
            return "its epsilon is a double, and the attribute is a float"
        return ""

    def _weighted(
        self,
        region: Region,
        end: ir.Value,
        dtype: ir.DataType,
        nodes: int,
        fit: NormFit,
        scale: Weight,
        shift: Weight,
    ) -> Norm | str:
        """Choose the op by the axes of rows and weights."""
        rank, axes = len(self.frame.shape), self.frame.axes
        along = [w for w in (scale, shift) if not runs_along(self.site, w, self.frame, axes)]
        rules = []
        if fit.kind == "rms":
            if not shift.is_number:
                return "something is added to it"
            rules = ["rms-norm"] if self.frame.is_trailing and not along else []
        else:
            if self.frame.is_trailing and not along:
                rules.append("layer-norm")
            weights = (scale, shift)
            if axes == tuple(range(2, rank)) and all(
                runs_along(self.site, weight, self.frame, (1,)) for weight in weights
            ):
                is_group = scale.is_number and shift.is_number and self._is_group(region, end)
                rules.insert(0 if is_group or rank > 3 else len(rules), "instance-norm")
        if not rules:
            return "its rows or its weights do not run along the last axes"
        reason = ""
        for rule in rules:
            made = self._made(rule, region, end, dtype, nodes, fit, scale, shift)
            if isinstance(made, Norm):
                return made
            reason = reason or made
        return reason

    def _is_group(self, region: Region, end: ir.Value) -> bool:
        """Say whether the rows are groups of channels, reshaped for the norm only."""
        readers = list(end.consumers())
        return (
            self.site.producer(region.root, "Reshape") is not None
            and len(readers) > 0
            and all(node.op_type == "Reshape" for node in readers)
        )

    def _made(
        self,
        rule: str,
        region: Region,
        end: ir.Value,
        dtype: ir.DataType,
        nodes: int,
        fit: NormFit,
        scale: Weight,
        shift: Weight,
    ) -> Norm | str:
        is_instance = rule == "instance-norm"
        if is_instance and not self.site.has_kernel("InstanceNormalization", dtype):
            return "only float32 has an InstanceNormalization kernel"
        axes = (1,) if is_instance else self.frame.axes
        factor = operand(self.site, scale, self.frame, axes, dtype)
        if isinstance(factor, str):
            return factor
        added: Operand | str | None = None
        if is_instance or not shift.is_number:
            added = operand(self.site, shift, self.frame, axes, dtype)
        if isinstance(added, str):
            return added
        return Norm(rule, region, end, fit.epsilon, factor, added, nodes)


def _type_of(site: Site, region: Region, end: ir.Value) -> ir.DataType | None:
    """Return the type that root and end have, None where an op would compute in a lower one."""
    dtype = site.dtype(region.root)
    inner = {site.dtype(value) for value in region.cone(end)} - {dtype}
    if dtype is None or site.dtype(end) != dtype:
        return None
    return dtype if not inner or (dtype in HALF_DTYPES and inner == {ir.DataType.FLOAT}) else None


class _Rows:
    """A region evaluated on rows of many magnitudes."""

    def __init__(self, region: Region) -> None:
        random = np.random.default_rng(len(LADDER))
        self.axes, self.probe = region.frame.axes, Probe(region, len(LADDER), random)
        self.rows = ladder_rows(self.probe.sizes, self.axes, self.probe.axis, random)
        self.values = self.probe.run(self.rows)

    def fit(self, end: ir.Value) -> tuple[NormFit, Weight, Weight] | str:
        """Read `end` as a norm with scale and shift; a text says why it is none."""
        result, leaves = self.values.get(end), self.probe.leaves
        if result is None:
            return "a number in it is not known"
        fit = fit_norm(self.rows, result, self.axes, self.probe.axis)
        if isinstance(fit, str):
            return fit
        scale = read_weight(fit.scale, leaves, shifts=False)
        shift = read_weight(fit.shift, leaves, shifts=True)
        if scale is None or shift is None:
            return _why_no_weight(fit.scale, [self.probe.sizes[axis] for axis in self.axes])
        epsilon = _as_written(fit.epsilon, [each for each in leaves.values() if each.size == 1])
        return NormFit(fit.kind, epsilon, fit.scale, fit.shift), scale, shift


def _why_no_weight(scale: np.ndarray, row: Sequence[int]) -> str:
    """Say what is known of a scale that is none of the weights."""
    size = int(np.prod(row))
    known = {
        1 / np.sqrt(size): "it scales rows to length one, not to root mean square one",
        np.sqrt((size - 1) / size): "its variance is divided by n - 1",
    }
    for number, reason in known.items():
        if bool((np.abs(scale - number) <= 1e-5 * number).all()):
            return reason
    return VAGUE


def _as_written(epsilon: float, numbers: Sequence[np.ndarray]) -> float:
    """Return the number of the graph that was solved for, as exactly as it is written."""
    for number in numbers:
        written = float(number.reshape(-1)[0])
        if abs(written - epsilon) <= 1e-4 * epsilon:
            return written
    return epsilon
