"""fuse-softmax: Softmax and LogSoftmax that are written out, however that is done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortkit.analysis.float64_eval import FLOATS
from ortkit.analysis.norm_probe import Probe
from ortkit.analysis.row_functions import Frame, Region, frame_of, roots_of
from ortkit.ops.softmax import OPS, SPREADS, fit_softmax, spread_rows
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site

#: Before it Softmax took all axes from `axis` on as one.
ONE_AXIS_SINCE = 13


@dataclass(frozen=True)
class FuseSoftmax(NodePass):
    """Recognize softmax by what it makes of the rows of a value.

    Before:
        e = Exp(Sub(x, ReduceMax(x)));  y = Div(e, ReduceSum(e))
        y = Sub(x, ReduceLogSumExp(x))
        y = Log(Softmax(x))
    After:
        y = Softmax(x)
        y = LogSoftmax(x)

    The nodes around the sum are evaluated in float64 and compared with the op. Without the
    maximum the written form overflows where the op does not.

    Skips:
        * Sums with something added, masks multiplied in, several axes at once.
        * Exponentials or sums that others read, or that a graph returns.
        * With `keeps_infinities`, what gives numbers for a row with an infinity: forms without
          the maximum.
        * Casts: they stay around the op, which is as precise as what was written.
        * Other axes than the last, on the CPU below level 3: ONNX Runtime 1.31.1 transposes
          before and after the op there, and takes up to four times as long as what is written.

    Source:
        ONNX Softmax-13, LogSoftmax-13.
    """

    keeps_infinities: bool = False
    """Leave forms that answer rows with infinities otherwise than the op, which says NaN."""

    name: ClassVar[str] = "fuse-softmax"
    ops: ClassVar[Sequence[str]] = ("Log", "ReduceLogSumExp", "ReduceSum")

    def rewrite(self, site: Site) -> None:
        if site.node.op_type == "Log":
            self._rewrite_log(site)
            return
        frame = frame_of(site.scope, site.node)
        if frame is None or len(frame.axes) != 1 or site.output.is_graph_output():
            return
        axis, is_last = frame.axes[0], frame.is_trailing
        reasons: dict[str, None] = {}
        best = max(self._found(site, frame, reasons), key=lambda match: match.nodes, default=None)
        if best is None:
            for reason in list(reasons)[:1]:
                site.miss(reason)
            return
        if site.opset < ONE_AXIS_SINCE and not is_last:
            site.miss(f"before opset {ONE_AXIS_SINCE} the op takes the last axis only")
            return
        if not is_last and not site.traits.has_inner_softmax and site.scope.options.level < 3:
            site.miss("its axis is not the last one: ONNX Runtime would transpose for the op")
            return
        node = best.end.producer()
        assert node is not None
        last = Site(site.scope, node, self.name)
        if not last.claim("log-softmax" if best.op_type == "LogSoftmax" else "softmax"):
            return
        # Older ones want it counted from the front.
        at = -1 if is_last and site.opset >= ONE_AXIS_SINCE else axis
        last.replace(last.op(best.op_type, [best.root], {"axis": at}))

    def _rewrite_log(self, site: Site) -> None:
        node = site.producer(site.input(0), "Softmax")
        if node is None or node.graph is not site.node.graph:
            return
        axis = node.attributes.get("axis")
        if axis is not None and axis.is_ref():
            return
        if not site.only_use(node.outputs[0]):
            site.miss("its softmax is read elsewhere, or returned")
            return
        if not site.claim("log-of-softmax"):
            return
        default = -1 if site.opset >= ONE_AXIS_SINCE else 1
        attributes = {"axis": default if axis is None else axis.as_int()}
        site.replace(site.op("LogSoftmax", [node.inputs[0]], attributes))

    def _found(self, site: Site, frame: Frame, reasons: dict[str, None]) -> Iterator[_Match]:
        """Yield the largest match of each root; leave reasons for what is almost one."""
        for root in roots_of(site.scope, site.node, frame):
            dtype = site.dtype(root)
            if dtype not in FLOATS:
                return
            region = Region(site.scope, site.node, frame, root)
            kinds = {node.op_type for node in region.inside.values()}
            if not region.ends or not kinds & {"Exp", "ReduceLogSumExp"}:
                continue
            values, rows = _evaluated(region)
            for end in reversed(region.ends):
                cone = region.cone(end)
                if end not in values:
                    continue
                op_type = fit_softmax(rows, values[end], frame.axes[0])
                if not op_type:
                    reasons["it is no softmax of any value before it"] = None
                    continue
                if self.keeps_infinities and not _has_infinities_of(op_type, region, end):
                    reasons["it gives numbers for a row with an infinity, and the op NaN"] = None
                    continue
                if {site.dtype(value) for value in cone} != {dtype}:
                    reasons["casts within it would be lost"] = None
                    continue
                if (read := region.read_elsewhere(end)) is not None:
                    reasons[f"{read.name!r} within it is read elsewhere, or returned"] = None
                    continue
                yield _Match(op_type, root, end, len(cone))
                break


@dataclass(frozen=True)
class _Match:
    op_type: str
    root: ir.Value
    end: ir.Value
    nodes: int


def _evaluated(region: Region) -> tuple[dict[ir.Value, np.ndarray], np.ndarray]:
    """Return what the region makes of rows of several ranges, and these rows."""
    random = np.random.default_rng(len(SPREADS))
    probe = Probe(region, len(SPREADS), random)
    rows = spread_rows(probe.sizes, probe.axis, random)
    return probe.run(rows), rows


def _has_infinities_of(op_type: str, region: Region, end: ir.Value) -> bool:
    """Say whether a region makes of rows with an infinity what the op makes of them."""
    random = np.random.default_rng(len(SPREADS))
    probe = Probe(region, len(SPREADS), random)
    rows = spread_rows(probe.sizes, probe.axis, random)
    np.moveaxis(rows, region.frame.axes[0], 0)[0] = np.inf
    with np.errstate(all="ignore"):
        found = probe.run(rows).get(end)
        expected = OPS[op_type](rows, region.frame.axes[0])
    return found is not None and np.array_equal(np.isnan(found), np.isnan(expected))
