"""Input sets for guards that those of a covering design meet on one side only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import onnx_ir as ir

from ortkit.errors import ModelError
from ortkit.graph.io.parts import share_weights, write_part
from ortkit.verify.budget import Budget
from ortkit.verify.exchange import read_values, write_feeds
from ortkit.verify.inputs.covering import Level
from ortkit.verify.inputs.guard_coverage import Side, add_probes, may_have_guards, sides_met
from ortkit.verify.inputs.plans import Style, styled
from ortkit.verify.inputs.sets import InputSet, InputSets
from ortkit.verify.sessions import Setting, run_within
from ortkit.verify.steps import prune
from ortkit.verify.widening import widened, widened_feeds

#: What is tried: all elements on one side of what they are compared with, or far from it.
FAR_STYLES = (
    Style("positive", "ones", edges=True),
    Style("negative", "zeros", edges=True),
    Style("huge", "ones"),
    Style("zeros", "zeros"),
    Style("NaN", edges=True),
)
#: The number of sets that are added at most.
_MOST_SETS: dict[Level, int] = {"quick": 2, "full": 4}
#: The part of the time that is left in which all of them must run.
_PART_OF_TIME = 0.1


def with_guards_met(
    sets: InputSets,
    model: ir.Model,
    level: Level,
    budget: Budget,
    folder: Path,
    custom_ops: tuple[Path, ...] = (),
) -> InputSets:
    """Add sets on which guards are met on a side on which the others do not meet them.

    Args:
        sets: Of a covering design.
        model: The original; not changed.
        level: How much is covered.
        budget: The time that is left.
        folder: For files; made here.
        custom_ops: Libraries that the model needs to load at all.
    """
    if not may_have_guards(model):
        return sets
    probed = widened(model)
    guards = add_probes(probed, reachable_only=True)
    wanted: set[Side] = {(at, side) for at in range(len(guards)) for side in (True, False)}
    prune(probed)
    if not wanted or not probed.graph.inputs:
        return sets
    probes = Probes.of(probed, len(guards), budget, folder, custom_ops)
    known = wanted & set[Side]().union(*probes.met(probes.written(sets.first, "first")))
    if known == wanted or not known:
        return sets
    more = _more(sets)
    added: list[InputSet] = []
    for each, sides in zip(more, probes.met(probes.written(more, "more")), strict=True):
        if not sides & wanted <= known and len(added) < _MOST_SETS[level]:
            known |= sides
            added.append(each)
    return replace(sets, first=(*sets.first, *added), wanted=sets.wanted + len(added))


@dataclass(frozen=True)
class Probes:
    """A model that gives what its conditions meet; build it with `Probes.of`."""

    setting: Setting
    count: int
    budget: Budget

    @staticmethod
    def of(
        probed: ir.Model, count: int, budget: Budget, folder: Path, custom_ops: tuple[Path, ...]
    ) -> Probes:
        """Write a model.

        Args:
            probed: Widened, and changed by `give_probes`.
            count: The number of its conditions.
            budget: The time that is left.
            folder: For files; made here.
            custom_ops: Libraries that the model needs to load at all.
        """
        folder.mkdir(parents=True)
        weights = share_weights(probed, folder / "probed.onnx")
        path = write_part(probed, folder / "probes.onnx", weights)
        setting = Setting(path, folder, libraries=custom_ops, weights_folder=weights)
        return Probes(setting, count, budget)

    def written(self, sets: Sequence[InputSet], name: str) -> list[Path]:
        """Write input sets."""
        folders = [self.setting.results / name / str(number) for number in range(len(sets))]
        for folder, each in zip(folders, sets, strict=True):
            write_feeds(folder, each.feeds)
        return folders

    def met(self, feeds: Sequence[Path]) -> list[set[Side]]:
        """Return the sides that each input set meets; none of those that did not run.

        Args:
            feeds: Folders of different names in one folder.
        """
        if not feeds:
            return []
        folder = self.setting.results / f"met on {feeds[0].parent.name}"
        wide = [widened_feeds(each, folder / "feeds") for each in feeds]
        setting = replace(self.setting, results=folder / "results")
        kept = self.budget.left * (1 - _PART_OF_TIME)
        (found,) = run_within(self.budget, [setting], wide, len(wide), kept_seconds=kept)
        done = [setting.results / each.name if each.name in found.done else None for each in wide]
        return [sides_met(self.count, read_values(each) if each else {}) for each in done]


def _more(sets: InputSets) -> list[InputSet]:
    """Make sets of the sizes of the smallest one."""
    plan, maker = sets.first[0].plan, sets.maker
    found: list[InputSet] = []
    if plan is None or maker is None:
        return found
    for style, seed in zip(FAR_STYLES, count(sets.seed), strict=False):
        try:
            found.append(InputSet.of(maker, styled(replace(plan, seed=seed), style)))
        except ModelError:  # as for the first ones
            continue
    return found
