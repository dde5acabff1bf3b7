"""The input sets of a verification, and those that replace what the original refuses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from ortkit.errors import ModelError
from ortkit.verify.inputs.feeds import FeedMaker, Feeds
from ortkit.verify.inputs.given import Given
from ortkit.verify.inputs.input_semantics import is_float
from ortkit.verify.inputs.plans import Plan
from ortkit.verify.limits import elements_of_feeds

#: Sets of a covering design that are enough, where its others do not run.
LEAST_SETS = 2


@dataclass(frozen=True, eq=False)
class InputSet:
    """Values for all inputs of a model."""

    feeds: Feeds
    text: str
    """Sizes and kinds of values, for reports."""
    plan: Plan | None = None
    """How it was made; None if it was given."""
    expected: Feeds = field(default_factory=dict)
    """Outputs that came with it."""

    @staticmethod
    def of(maker: FeedMaker, plan: Plan) -> InputSet:
        """Make the set of a plan.

        Raises:
            ModelError: A size cannot be worked out, or the inputs are too large.
        """
        full = maker.completed(plan)
        return InputSet(maker.make(plan), _text(maker, full), full)

    @property
    def is_extreme(self) -> bool:
        """Whether it is used only where the original is well conditioned on it."""
        return self.plan is not None and self.plan.is_extreme


@dataclass(frozen=True)
class InputSets:
    """What to run the original on."""

    first: tuple[InputSet, ...]
    wanted: int
    """Number of sets that are to be compared on."""
    maker: FeedMaker | None = None
    """Makes other sets; None if all were given."""
    seed: int = 0
    notes: tuple[str, ...] = ()
    """What is odd about given ones."""
    dropped: tuple[str, ...] = ()
    """Planned sets that cannot be made, with the reasons."""

    @staticmethod
    def given(given: Sequence[Given]) -> InputSets:
        """Take the user's sets."""
        sets = tuple(InputSet(each.feeds, each.where, expected=each.expected) for each in given)
        return InputSets(sets, len(sets), notes=tuple(each.note for each in given if each.note))

    @staticmethod
    def of_feeds(feeds: Sequence[Feeds | InputSet]) -> InputSets:
        """Take sets that the caller made."""
        sets = tuple(
            each if isinstance(each, InputSet) else InputSet(each, f"given set {i}")
            for i, each in enumerate(feeds)
        )
        return InputSets(sets, len(sets))

    @staticmethod
    def made(
        maker: FeedMaker, samples: int | Sequence[Plan], seed: int, most: int | None = None
    ) -> InputSets:
        """Make random sets, or those of a covering design, the smallest first.

        Args:
            maker: Makes them.
            samples: The number of random sets, or the design.
            seed: Decides the numbers of random sets, and of others that take their place.
            most: The number of sets of a covering design at most.

        Raises:
            ModelError: Not one can be made.
        """
        if not maker.inputs:
            plans: tuple[Plan, ...] = (Plan({}, seed),)
        elif isinstance(samples, int):
            plans = maker.plans(samples, seed)
        else:
            plans = tuple(samples)[:most]
        sets: list[InputSet] = []
        failed: dict[str, ModelError] = {}
        for plan in plans:
            try:
                sets.append(InputSet.of(maker, plan))
            except ModelError as error:  # too large, or a size such as `n - 8` is negative
                text = _text(maker, maker.completed(plan))
                failed[f"{text}: {error.problem}"] = error
        if failed and not sets:
            raise next(iter(failed.values()))
        if not isinstance(samples, int):
            # Where time runs out, it is the large ones that are lost.
            sets.sort(key=lambda each: elements_of_feeds(each.feeds))
        last = seed + len(plans)
        return InputSets(tuple(sets), len(plans), maker, last, dropped=tuple(failed))

    def instead_of(self, lost: Sequence[InputSet], *, found: int) -> Iterator[InputSet]:
        """Make other sets in the place of some that the original refuses.

        Args:
            lost: Those.
            found: How many are left.
        """
        if self.maker is None:
            return
        maker = self.maker
        seen = {each.text for each in self.first}
        tamed = [maker.tamed(each.plan) for each in lost if each.plan is not None]
        for row in zip_longest(*tamed):
            for plan in row:
                if plan is None:
                    continue
                try:
                    made = InputSet.of(maker, plan)
                except ModelError:  # as above
                    continue
                if made.text not in seen:
                    seen.add(made.text)
                    yield made
        if found >= LEAST_SETS:
            return
        for plan in maker.fallback_plans(self.seed):
            try:
                yield InputSet.of(maker, plan)
            except ModelError:  # as above
                continue


def _text(maker: FeedMaker, plan: Plan) -> str:
    uses = list(zip(maker.inputs, maker.uses, strict=True))
    return plan.text(
        has_floats=any(use.meaning == "free" and is_float(value) for value, use in uses),
        has_masks=any(use.meaning in ("mask", "additive mask") for _, use in uses),
    )
