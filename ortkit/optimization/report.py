"""What an optimization did, refused and cost: the content of `--report` and `--json`."""

from __future__ import annotations

import difflib
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from ortkit.fusion.regions.report import RegionReport
from ortkit.graph.analysis.summary import Summary

if TYPE_CHECKING:
    from ortkit.measure.result import Measurement
    from ortkit.measure.short_timing import ShortTiming
    from ortkit.precision.result import PrecisionReport
    from ortkit.rewrite.failures import FailedPass
    from ortkit.rewrite.log import Hit, Miss
    from ortkit.rewrite.pipeline import Step
    from ortkit.verify.kernels.check import KernelReport
    from ortkit.verify.verification import Verification

SCHEMA = "ortkit.optimize/"


@dataclass(frozen=True)
class MissGroup:
    """Rewrites that were considered and not done, alike but for where."""

    pass_name: str
    node: str
    """The first place."""
    reason: str
    times: int


@dataclass(frozen=True)
class Report:
    """Everything that `ortkit optimize` has to say."""

    source: str
    target: str
    level: int
    before: Summary
    after: Summary
    steps: tuple[Step, ...]
    settled: bool
    hits: tuple[Hit, ...]
    misses: tuple[Miss, ...]
    regions: tuple[RegionReport, ...]
    rolled_back: tuple[str, ...]
    """Ids of rewrites that changed results beyond the tolerance, and were undone."""
    denied_in_vain: tuple[str, ...]
    """Ids that were to be denied, and that no rewrite had."""
    verification: Verification | None
    """None if it was not asked for."""
    measurement: Measurement | None
    """None if it was not asked for."""
    kernel_note: str
    """Why no kernels were made, or are not kept for the next time; empty if all is well."""
    seconds: dict[str, float]
    """Wall time of each stage."""
    source_kernels: str = ""
    """What became of the fused nodes that the source had; empty if it had none."""
    provider_options: dict[str, str] = field(default_factory=dict)
    """What sessions should tell the CUDA provider, as the model's metadata say it too."""
    failed_passes: tuple[FailedPass, ...] = ()
    """Passes and stages that raised an exception and were left out: bugs, to be reported."""
    load_check: str = ""
    """`yes` if ONNX Runtime loads the result, or why that was not checked; empty if it was not
    asked for."""
    padding: str = ""
    """Whether padding of batches is computed, and which outputs hold zeros there; empty if none is
    known."""
    sizes_note: str = ""
    """Which sizes should be given so that more kernels can be made; empty if there are none."""
    layout_note: str = ""
    """What decided that; empty for other targets."""
    precision: PrecisionReport | None = None
    """What a lower precision cost and gained on a CPU; None if they were not asked for."""
    calibration: str = ""
    """File of what `ortkit calibrate` measured, which decided on kernels; empty: the defaults."""
    timing: ShortTiming | None = None
    """A run before and after; None if it was not asked for, or `measurement` has it."""
    kernel_check: KernelReport | None = None
    """Each kernel beside its function body; None if there are none or it was not asked for."""

    names: frozenset[str] = field(default=frozenset(), repr=False)
    """What nodes of the source and their outputs are called."""

    def rewrites_by_pass(self) -> dict[str, int]:
        """Count the rewrites of each pass, most first."""
        return dict(Counter(hit.pass_name for hit in self.hits).most_common())

    def missed(self, what: str) -> tuple[Miss, ...]:
        """Return the refusals that `what` names, in the order in which they came.

        It names a refusal if the name of the pass, of its rule or the operator contains it, in
        small or capital letters, or if it is the name of the node or of one of its outputs.
        """
        return tuple(miss for miss in self.misses if _names(what, miss))

    def done(self, what: str) -> tuple[Hit, ...]:
        """Return the rewrites that `what` names, as it does refusals."""
        return tuple(
            hit
            for hit in self.hits
            if _is_in(what, hit.pass_name, hit.rule, _kind(hit.node))
            or hit.id.endswith(f":{what}")
            or hit.node == f"{_kind(hit.node)} {what!r}"
        )

    def regions_of(self, what: str) -> tuple[RegionReport, ...]:
        """Return the regions of which `what` names the kind, an operator in it or the result."""
        return tuple(
            region
            for region in self.regions
            if what == region.at or _is_in(what, region.kind, *region.ops)
        )

    def unknown(self, what: str) -> str | None:
        """Return what `what` may be a slip of, empty if that cannot be said; None if it is known.

        Known are passes that ran, operators, nodes and outputs before and after, and regions.
        """
        known = {name for step in self.steps for name in step.passes}
        known |= {op.rpartition("::")[2] for op in (*self.before.ops, *self.after.ops)}
        known |= {word for region in self.regions for word in (region.kind, *region.ops)}
        if _is_in(what, *known) or what in self.names or self.missed(what) or self.done(what):
            return None
        by_small = {name.lower(): name for name in (*self.names, *known)}
        near = difflib.get_close_matches(what.lower(), list(by_small), n=1)
        return by_small[near[0]] if near else ""

    def why(self, what: str) -> tuple[MissGroup, ...]:
        """Return what `missed` does and the kernels that were not made, alike ones as one."""
        found = [(miss.pass_name, miss.node, miss.reason) for miss in self.missed(what)]
        found.extend(
            (f"kernel of {region.kind}", region.at, region.reason)
            for region in self.regions_of(what)
            if region.emitted_as is None
        )
        alike: dict[tuple[str, str, str], list[str]] = {}
        for pass_name, node, reason in found:
            alike.setdefault((pass_name, _kind(node), reason), []).append(node)
        return tuple(
            MissGroup(pass_name, nodes[0], reason, len(nodes))
            for (pass_name, _, reason), nodes in alike.items()
        )

    def to_json(self, why: str | None = None, schema: int = 2) -> dict[str, object]:
        """Return the report as JSON types; docs/reference/cli.md describes the keys.

        Args:
            why: Keep only the refusals that this names; see `missed`.
            schema: As for `Verification.to_json`.
        """
        checked = self.verification
        return {
            "schema": f"{SCHEMA}{schema}",
            "source": self.source,
            "target": self.target,
            "level": self.level,
            "before": asdict(self.before),
            "after": asdict(self.after),
            "rewrites_by_pass": self.rewrites_by_pass(),
            "rewrites": [asdict(hit) for hit in self.hits],
            "why": why,
            "refused": [
                asdict(miss) for miss in (self.misses if why is None else self.missed(why))
            ],
            "regions": [asdict(region) for region in self.regions],
            "rolled_back": list(self.rolled_back),
            "denied_in_vain": list(self.denied_in_vain),
            "load_check": self.load_check,
            "failed_passes": [asdict(failed) for failed in self.failed_passes],
            "verification": None if checked is None else checked.to_json(schema),
            "measurement": None if self.measurement is None else self.measurement.to_json(),
            "timing": None if self.timing is None else self.timing.to_json(),
            "precision": None if self.precision is None else self.precision.to_json(),
            "kernel_note": self.kernel_note,
            "sizes_note": self.sizes_note,
            "kernel_check": None if self.kernel_check is None else self.kernel_check.to_json(),
            "calibration": self.calibration,
            "source_kernels": self.source_kernels,
            "provider_options": self.provider_options,
            "layout_note": self.layout_note,
            "padding": self.padding,
            "settled": self.settled,
            "steps": [asdict(step) for step in self.steps],
            "seconds": self.seconds,
        }


def _kind(node: str) -> str:
    """Return the operator of a node as reports name it: `Op 'name'`."""
    return node.partition(" ")[0]


def _is_in(what: str, *names: str) -> bool:
    return any(what.lower() in name.lower() for name in names)


def _names(what: str, miss: Miss) -> bool:
    kind = _kind(miss.node)
    if _is_in(what, miss.pass_name, miss.rule, kind):
        return True
    return what in miss.outputs or miss.node == f"{kind} {what!r}"
