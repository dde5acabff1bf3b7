"""One `--measure`: drops the kernels that do not pay, and compares the whole model at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx_ir as ir

from ortkit.errors import ModelError
from ortkit.graph.io.open import open_model
from ortkit.kernels.tuning.calibration import machine
from ortkit.measure.inputs import shapes_in, write_inputs
from ortkit.measure.regions import RegionJob, time_regions
from ortkit.measure.result import (
    Ceiling,
    Measurement,
    ModelTiming,
    RegionTiming,
    compare,
)
from ortkit.measure.whole import ceiling_of, profile_whole, time_whole
from ortkit.runtime.profiling.result import Profile
from ortkit.runtime.timing.variants import NotTimed, Variant

_TIMEOUT_SECONDS = 600.0


def _silent(stage: str) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class KernelNode:
    """A region that became a node: how the node begins to be called, and how to undo it."""

    op: str
    node: str
    id: str


@dataclass
class Measurer:
    """Times one model; what it finds adds up in its `result`.

    Args:
        source: The model as it came.
        inputs: An npz file to run on, None to make inputs up.
        shapes: Numbers for named sizes.
        threads: Of a session; 0: ONNX Runtime decides.
        folder: For what is written meanwhile.
        progress: Called with the name of each stage.
    """

    source: Path
    inputs: Path | None
    shapes: Mapping[str, int]
    threads: int
    folder: Path
    progress: Callable[[str], None] = _silent
    notes: list[str] = field(default_factory=list)
    regions: tuple[RegionTiming, ...] = ()
    model: ModelTiming | None = None
    ceiling: Ceiling | None = None
    dropped: frozenset[str] = frozenset()
    started: float = field(default_factory=time.perf_counter)
    _feeds: Path | None = None
    _profile: Profile | None = None

    def __post_init__(self) -> None:
        """Find inputs that the model runs on, and see where its time goes."""
        self.progress("profile the original")
        try:
            feeds = write_inputs(open_model(self.source), self.inputs, self.shapes, self.folder)
        except ModelError as error:
            self.notes.append(f"not timed: {error}")
            return
        variant = Variant(self.source)
        found = profile_whole(variant, feeds, self.folder, threads=self.threads)
        if isinstance(found, NotTimed):
            self.notes.append(f"not timed: {found.reason}")
        else:
            self._feeds, self._profile = found

    def choose(
        self, model: ir.Model, saved: Path, library: Path, level: str, placed: Sequence[KernelNode]
    ) -> frozenset[str]:
        """Time the regions of a candidate; returns the ids of those that do not pay."""
        if self._feeds is None:
            return frozenset()
        self.progress("time regions")
        job = RegionJob(
            model, saved, library, level, self._feeds, self.threads, self.folder,
            _TIMEOUT_SECONDS,
        )  # fmt: skip
        found = time_regions(job)
        if isinstance(found, NotTimed):
            self.notes.append(f"regions are not timed: {found.reason}")
            return frozenset()
        dropped: set[str] = set()
        settled: list[RegionTiming] = []
        for region_timing in found:
            ids = {
                region.id
                for region in placed
                if region.op == region_timing.op
                and any(name.startswith(region.node) for name in region_timing.nodes)
            }
            # What goes only with its neighbours, as convolutions do, is judged with the model.
            settled.append(replace(region_timing, kept=region_timing.kept or not ids))
            dropped |= set() if region_timing.kept else ids
        self.regions, self.dropped = tuple(settled), frozenset(dropped)
        return self.dropped

    def confirm(
        self,
        result: Variant,
        plain: Callable[[], Path] | None,
        together: Collection[str] = (),
    ) -> bool:
        """Compare the result with what came in, and with itself without kernels.

        Args:
            result: The model that would be written.
            plain: Saves the same without kernels; None if there are none.
            together: Operators that were not judged one by one: they go first. Empty: all go.

        Returns:
            Whether the kernels stay; else the result must be made, and compared, again. Only
            where all go that is not needed: `model` is about the model without them.
        """
        if self._feeds is None:
            return True
        self.progress("time the whole model")
        variants = {"before": Variant(self.source), "after": result}
        if plain is not None:
            variants["plain"] = Variant(plain())
        elapsed = time_whole(variants, self._feeds, self.folder, threads=self.threads)
        if isinstance(elapsed, NotTimed):
            self.notes.append(f"the model is not timed: {elapsed.reason}")
            return True
        whole = compare(elapsed["before"], elapsed["after"])
        kernels = compare(elapsed["plain"], elapsed["after"]) if "plain" in elapsed else None
        keeps = kernels is None or not (kernels.verdict == "slower" or whole.verdict == "slower")
        if not keeps and kernels is not None:
            what = "kernels that go only together" if together else "kernels"
            self.notes.append(
                f"{what} are dropped: with them the model is {whole.ratio:.3f} times as fast as "
                f"it came, and {kernels.ratio:.3f} times as fast as without kernels"
            )
            self.regions = tuple(
                replace(region, kept=region.kept and bool(together) and region.op not in together)
                for region in self.regions
            )
            if together:
                return False
            whole, kernels = compare(elapsed["before"], elapsed["plain"]), None
        self.model = ModelTiming(
            before_ms=whole.before,
            after_ms=whole.after,
            ratio=whole.ratio,
            noise=whole.noise,
            verdict=whole.verdict,
            kernels_ratio=None if kernels is None else kernels.ratio,
            kernels_verdict=None if kernels is None else kernels.verdict,
        )
        if whole.verdict == "slower":
            self.notes.append("the rewritten model is slower than it came, beyond the noise")
        if self._profile is not None:
            self.ceiling = ceiling_of(whole.before, self._profile)
        return keeps

    def result(self) -> Measurement:
        """Return what was found so far."""
        gap = None
        if self.model is not None and self.ceiling is not None and self.ceiling.speedup > 1:
            gap = (self.model.ratio - 1) / (self.ceiling.speedup - 1)
        return Measurement(
            machine=machine(),
            threads=self.threads,
            inputs={} if self._feeds is None else shapes_in(self._feeds),
            regions=self.regions,
            model=self.model,
            ceiling=self.ceiling,
            gap_closed=gap,
            dropped=tuple(sorted(self.dropped)),
            notes=tuple(self.notes),
            seconds=round(time.perf_counter() - self.started, 2),
        )
