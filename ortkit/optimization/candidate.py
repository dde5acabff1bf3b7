"""One result of rewriting and fusing: `optimize` may make several, and returns the best."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from ortkit.fusion.regions.report import RegionReport
from ortkit.rewrite.log import RewriteLog
from ortkit.rewrite.pipeline import PipelineResult

if TYPE_CHECKING:
    from ortkit.fusion.conv.cuda_layout import LayoutAdvice
    from ortkit.measure.measurer import KernelNode


@dataclass(frozen=True)
class Candidate:
    """A rewritten model, its library, and what there is to say of it."""

    model: ir.Model
    result: PipelineResult
    regions: tuple[RegionReport, ...]
    library: Path | None
    kernel_note: str
    layout: LayoutAdvice | None = None
    """Options that sessions should get on CUDA."""
    sources: Path | None = None
    """The folder with the kernels' code, if it was to be kept and there are some."""
    left: frozenset[str] = frozenset()
    """Fused op types of the source of which something runs without a kernel now."""

    @property
    def log(self) -> RewriteLog:
        """What was rewritten."""
        return self.result.log

    def placed(self) -> list[KernelNode]:
        """Return the regions that became nodes."""
        from ortkit.measure.measurer import KernelNode

        ids = {(hit.rule, hit.id.partition(f":{hit.rule}:")[2]): hit.id for hit in self.log.hits}
        return [
            KernelNode(region.emitted_as, f"{region.at}/fused", ids[region.kind, region.at])
            for region in self.regions
            if region.emitted_as is not None and (region.kind, region.at) in ids
        ]

    def rewrites_of(self, ops: Collection[str]) -> frozenset[str]:
        """Return the ids of what has to be denied so that fused operators are not made.

        A chain of convolutions is put back as one: its last block names it.
        """
        from ortkit.fusion.conv.chains import RULE
        from ortkit.fusion.kept import KEPT

        ids = {(hit.rule, hit.id.partition(f":{hit.rule}:")[2]): hit.id for hit in self.log.hits}
        found: set[str] = set()
        in_chain = False
        for region in self.regions:
            is_meant = region.emitted_as in ops
            own = ids.get((region.kind, region.at)) or ids.get((KEPT, region.kept_from))
            chain = ids.get((RULE, region.at))
            if is_meant and own is not None:
                found.add(own)
            elif (is_meant or in_chain) and chain is not None:
                found.add(chain)
            in_chain = (is_meant or in_chain) and own is None and chain is None
        return frozenset(found)

    def joint(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return the ids of what puts several regions back at once, and their operators."""
        from ortkit.fusion.conv import finder
        from ortkit.fusion.regions import region as regions

        alone = self.placed()
        passes = {regions.PASS, finder.PASS}
        ids = {hit.id for hit in self.log.hits if hit.pass_name in passes}
        ids -= {placed.id for placed in alone}
        if not ids:
            return frozenset(), frozenset()
        ops = {region.emitted_as for region in self.regions if region.emitted_as is not None}
        return frozenset(ids), frozenset(ops - {item.op for item in alone})
