"""Making candidates: a fresh copy of the source is rewritten, lowered and fused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from ortkit.env import ends_on_pass_error
from ortkit.errors import KernelError, MissingDependencyError
from ortkit.fusion.regions.report import RegionReport
from ortkit.graph.analysis.summary import Summary
from ortkit.graph.io.convert import paused_collector
from ortkit.kernels.metadata import LIBRARY_SUFFIX, TOKENS_KEY
from ortkit.optimization.candidate import Candidate
from ortkit.optimization.fused_source import FusedSource, keeping, mark_calls, take_marks
from ortkit.optimization.kernels import compile_kernels
from ortkit.optimization.padding import SKIPPED_KEY
from ortkit.optimization.passes import (
    lowering_of,
    padding_pipeline,
    pipeline_of,
    rewrite_options,
    tidied,
)
from ortkit.optimization.workspace import Workspace
from ortkit.passes.skip_padding import SkipPadding
from ortkit.rewrite.failures import FailedPass, PassError, blamed
from ortkit.rewrite.pipeline import PipelineResult

if TYPE_CHECKING:
    from ortkit.fusion.conv.cuda_layout import LayoutAdvice
    from ortkit.precision.lowering import CpuLowering

#: Stages that are left out as a pass is if they raise.
KERNELS, LAYOUT, LOWERING = "kernels", "layout", "precision"


class Candidates:
    """Makes the candidates of one call, each without what the stages have found against it."""

    def __init__(self, work: Workspace) -> None:
        """Open the source.

        Raises:
            ModelError: It is not a valid model.
        """
        self.work = work
        self.rolled_back: tuple[str, ...] = ()
        """Rewrites that change what the model computes."""
        self.not_loading: tuple[str, ...] = ()
        """Rewrites that keep a result from loading."""
        self.dropped: frozenset[str] = frozenset()
        """Regions whose kernels do not pay."""
        self.wrong_kernels: dict[str, str] = {}
        """By id, rewrites whose kernels do not give what their bodies do, and how."""
        self.slow_kernels = ""
        """Why there are to be no kernels at all, empty if there may be."""
        self.failed: dict[str, FailedPass] = {}
        """By name, the passes and stages that raised: they are left out of every candidate."""
        self.lowering: CpuLowering | None = None
        """What lowers the precision within a budget, if that was asked for."""
        self._libraries = 0
        self._pipeline = pipeline_of(work.options)
        with work.stage("open"):
            self._opened: ir.Model | None = work.open()
            self.before = Summary.of(self._opened)
            self.names = _names(self._opened)
            self.fused = FusedSource.of(self._opened, work.options)

    def first(self) -> Candidate:
        """Return the candidate in which no fused node of the source has lost its kernel, if any.

        Those that are not formed again are kept, as far as there are kernels for them.
        """
        candidate = self.make()
        while self.fused.keep_more(candidate):
            candidate = self.make()
        return candidate

    def make(
        self,
        denied: frozenset[str] = frozenset(),
        *,
        everything: frozenset[str] | None = None,
        kernels: bool = True,
        lowered: bool = True,
    ) -> Candidate:
        """Rewrite, fuse and compile a fresh copy of the source, but for the denied rewrites.

        A pass that raises is left out. It may have left half of an edit, so that the next attempt
        starts from another copy; each attempt has a pass less.

        Args:
            denied: Ids of rewrites, beside those that are denied for good.
            everything: The ids of all rewrites. If all are denied nothing at all is rewritten:
                denied rewrites make room for others, which have ids of their own.
            kernels: Whether there are to be kernels.
            lowered: Whether the precision is lowered within its budget.
        """
        is_plain = everything is not None and denied >= everything
        fuel = 0 if is_plain else self.work.options.fuel
        while True:
            try:
                return self._candidate(denied, fuel, kernels=kernels, lowered=lowered)
            except PassError as error:
                self.leave_out(error)

    def leave_out(self, error: PassError) -> None:
        """Let no further attempt have the pass or stage that raised.

        Raises:
            PassError: It raised before, or the environment asks for an end.
        """
        if error.failed.name in self.failed or ends_on_pass_error():
            raise error
        self.failed[error.failed.name] = error.failed
        if error.failed.name == LOWERING and self.lowering is not None:
            self.lowering.give_up(f"{error.failed.exception}: {error.failed.message}")

    def _denied(self) -> frozenset[str]:
        """Return the ids of rewrites that no candidate may have."""
        found = self.work.options.denied | self.dropped | self.wrong_kernels.keys()
        return found.union(self.rolled_back, self.not_loading)

    def _candidate(
        self, denied: frozenset[str], fuel: int | None, *, kernels: bool, lowered: bool
    ) -> Candidate:
        options, stage = self.work.options, self.work.stage
        model = self._opened or self.work.open()
        self._opened = None
        passes = rewrite_options(options)
        denied = denied | self._denied()
        bodies = self.fused.kept_but(denied) if kernels and not self.slow_kernels else {}
        mark_calls(model)
        with stage("rewrite"), paused_collector():
            result = keeping(self._pipeline.without(self.failed), bodies.keys()).run(
                model, passes, denied=denied, fuel=fuel, instruments=options.instruments
            )
            if options.precision != "fp32" and not options.lowers_products:
                # Once everything is recognized: casts would stand in the way.
                lower = lowering_of(options).without(self.failed)
                result = lower.run(model, passes, instruments=options.instruments, after=result)
        if self.lowering is not None and lowered and LOWERING not in self.failed:
            with stage("precision"), blamed(LOWERING):
                self.lowering.lower(model, result.log)
                result = tidied(result, passes, self.failed)
        if options.skips_padding:
            with stage("padding"):
                skip = padding_pipeline().without(self.failed)
                found_before = set(_nonzero(model))
                result = skip.run(model, passes, instruments=options.instruments, after=result)
                if any(hit.pass_name == SkipPadding.name for hit in result.log.hits):
                    model.metadata_props[SKIPPED_KEY] = "yes"
                    tokens = [name for name in _nonzero(model) if name not in found_before]
                    model.metadata_props[TOKENS_KEY] = json.dumps(tokens)
        with stage("kernels"):
            regions, library, note = self._regions(result, bodies) if kernels else ((), None, "")
        emitted = frozenset(
            region.emitted_as for region in regions if region.emitted_as is not None
        )
        if not emitted:
            library = None
        left = take_marks(model, emitted)
        sources = self._sources() if library is not None and options.keep_source else None
        explained = tuple(map(self._explained, regions))
        layout = self._layout(model, result)
        return Candidate(model, result, explained, library, note, layout, sources, left)

    def _layout(self, model: ir.Model, result: PipelineResult) -> LayoutAdvice | None:
        """Let the model say how its convolutions run best where a session has an option for it."""
        if not self.work.options.machine.traits.has_nhwc_option or LAYOUT in self.failed:
            return None
        from ortkit.fusion.conv.cuda_layout import advise, record_advice

        with blamed(LAYOUT):
            advice = advise(result.scopes)
            record_advice(model, advice)
        return advice

    def _sources(self) -> Path:
        """Return where the code of the latest library's kernels is kept."""
        return self.work.folder / f"sources{self._libraries}"

    def _explained(self, region: RegionReport) -> RegionReport:
        """Return the report of a region, with the reason if its kernel is slow or wrong."""
        is_dropped = any(item.endswith(f":{region.kind}:{region.at}") for item in self.dropped)
        if wrong := self._wrong_kernel(region):
            return replace(region, reason=f"its kernel is wrong: {wrong}")
        if region.emitted_as is None and is_dropped:
            return replace(region, reason="its kernel does not pay, as measured")
        return region

    def _wrong_kernel(self, region: RegionReport) -> str:
        """Return how the kernel of a region that was put back is wrong, empty if it is not."""
        ends = f":{region.kind}:{region.at}"
        found = (why for item, why in self.wrong_kernels.items() if item.endswith(ends))
        return next(found, "") if region.emitted_as is None else ""

    def _regions(
        self, result: PipelineResult, bodies: Mapping[str, onnx.FunctionProto]
    ) -> tuple[tuple[RegionReport, ...], Path | None, str]:
        options = self.work.options
        if not options.has_regions:
            return (), None, ""
        if self.slow_kernels:
            return (), None, self.slow_kernels
        if (failed := self.failed.get(KERNELS)) is not None:
            return (), None, f"making them failed: {failed.exception}: {failed.message}"
        # Each candidate has a library of its own: any of them may be the one that is written.
        self._libraries += 1
        library = self.work.folder / f"kernels{self._libraries}{LIBRARY_SUFFIX}"
        with blamed(KERNELS, (MissingDependencyError, KernelError)):
            return compile_kernels(result, options, library, self._sources(), bodies)


def _names(model: ir.Model) -> frozenset[str]:
    """Return what nodes and their outputs are called."""
    inner = (node for function in model.functions.values() for node in function.all_nodes())
    nodes = chain(model.graph.all_nodes(), inner)
    found = {name for node in nodes for name in (node.name, *(v.name for v in node.outputs))}
    return frozenset(filter(None, found))


def _nonzero(model: ir.Model) -> list[str]:
    """Return what finds the indices of tokens: the outputs of each NonZero."""
    return [node.outputs[0].name or "" for node in model.graph if node.op_type == "NonZero"]
