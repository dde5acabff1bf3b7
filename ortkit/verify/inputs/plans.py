"""What one made-up input set is like: its sizes, its numbers and its masks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

Floats: TypeAlias = Literal[
    "normal", "large", "sparse", "zeros", "special", "NaN", "positive", "negative", "huge"
]
"""Floats of unknown meaning: N(0, 1); scaled by 100; by 1/100, with zero rows; all zero. `special`
has infinities, NaN, the largest and the smallest numbers of the type, `NaN` only that. The others
are scaled by 100 and of one sign; huge ones by 10,000."""
Masks: TypeAlias = Literal["right", "left", "holes", "mixed", "ones", "zeros"]
"""Where the zeros of a mask are: at the end, at the start, anywhere but in front; `mixed` takes
in turn left padding, a row of zeros, holes and a row of ones; nowhere; everywhere."""


@dataclass(frozen=True)
class Plan:
    """How one input set is made."""

    sizes: Mapping[str, int]
    seed: int
    int_bound: int = 10
    """Integers of unknown meaning stay below this."""
    floats: Floats = "normal"
    mask: Masks = "right"
    edges: bool = False
    """Whether indices take the first and the last value, numbers meet the guards, and the mean of
    some rows of normal numbers is large beside what they differ by."""
    backwards: bool = False
    """Whether some indices count from the end, as negative ones."""
    past: int | None = None
    """Tokens in the caches; None if that is only known from the sizes' names."""
    new: int | None = None
    """Tokens that are added to the caches."""

    @property
    def is_extreme(self) -> bool:
        """Whether its numbers may be out of the range that the model computes well in."""
        return self.floats not in ("normal", "sparse") or self.mask in ("mixed", "zeros")

    def text(self, *, has_floats: bool, has_masks: bool) -> str:
        """Describe the set, e.g. `batch 3, sequence 131; large values`.

        Args:
            has_floats: Whether the model has float inputs of unknown meaning.
            has_masks: Whether it has masks.
        """
        sizes = ", ".join(f"{_readable(name)} {size}" for name, size in self.sizes.items())
        floats = _FLOATS[self.floats] if has_floats else ""
        masks = _MASKS[self.mask] if has_masks else ""
        return "; ".join(filter(None, (sizes or "fixed sizes", floats, masks)))


_FLOATS: dict[Floats, str] = {
    "normal": "", "large": "large values", "sparse": "small values and zero rows",
    "zeros": "zeros", "special": "infinities and NaN", "NaN": "NaN",
    "positive": "large positive values", "negative": "large negative values",
    "huge": "huge positive values",
}  # fmt: skip
_MASKS: dict[Masks, str] = {
    "right": "", "left": "masks padded on the left", "holes": "masks with holes",
    "mixed": "masks of all kinds", "ones": "masks of ones", "zeros": "masks of zeros",
}  # fmt: skip


@dataclass(frozen=True)
class Style:
    """The part of a plan that says nothing of sizes."""

    floats: Floats = "normal"
    mask: Masks = "right"
    edges: bool = False
    backwards: bool = False


#: The styles of the sets of a covering design in turn.
STYLES = (
    Style(),
    Style("large", "mixed", edges=True),
    Style("normal", "holes", edges=True, backwards=True),
    Style("sparse", "left"),
    Style("zeros", "right"),
    Style("normal", "mixed", edges=True),
    Style("large", "left"),
    Style("normal", "holes"),
)
SPECIAL = Style("special", edges=True)
#: The styles for models in lower precision.
USUAL_STYLES = (Style(), Style(mask="left"), Style(mask="holes"), Style())

#: Lengths that most tables of positions have room for, tried where longer ones do not run.
_SHORTER = (127, 61, 16)
_WINDOW = 32


def styled(plan: Plan, style: Style) -> Plan:
    """Return a plan for the same sizes in another style."""
    plan = replace(plan, floats=style.floats, mask=style.mask)
    return replace(plan, edges=style.edges, backwards=style.backwards)


@dataclass(frozen=True)
class _Tamer:
    """Makes plans for a model that refuses one."""

    plan: Plan
    batches: frozenset[str]
    seen: list[Plan] = field(default_factory=list)

    def all(self) -> Iterator[Plan]:
        for each in self._tried():
            if each not in (self.plan, *self.seen):
                self.seen.append(each)
                yield each

    def _tried(self) -> Iterator[Plan]:
        plan = self.plan
        if plan.backwards:
            plan = replace(plan, backwards=False)
            yield plan
        yield replace(plan, floats="normal", mask="left" if plan.mask == "mixed" else plan.mask)
        tame = replace(plan, floats="normal", mask="right", edges=False)
        yield tame
        windowed = {name: _windowed(size) for name, size in plan.sizes.items()}
        yield self._resized(plan, windowed)
        yield self._resized(tame, windowed)
        for most in _SHORTER:
            yield self._resized(tame, {n: min(size, most) for n, size in plan.sizes.items()})
        others = [size for name, size in plan.sizes.items() if name not in self.batches]
        yield self._resized(tame, dict.fromkeys(plan.sizes, max(others, default=1)))
        yield self._resized(tame, {n: max(size, 7) for n, size in plan.sizes.items()})
        yield replace(tame, sizes={**plan.sizes, **dict.fromkeys(self.batches, 1)})
        yield replace(tame, seed=plan.seed + 1)  # other trips of a Loop

    def _resized(self, plan: Plan, sizes: Mapping[str, int]) -> Plan:
        """Return the plan with other sizes, but for those of a batch."""
        kept = {name: plan.sizes[name] for name in self.batches}
        return replace(plan, sizes={**sizes, **kept})


def tamer(plan: Plan, batches: frozenset[str]) -> Iterator[Plan]:
    """Yield plans in place of one that a model refuses, the most similar first.

    They have usual numbers, multiples of 32, fewer elements, equal sizes, no size of 1, a batch of
    1, and at last other numbers.

    Args:
        plan: What was refused.
        batches: The sizes of batches.
    """
    return _Tamer(plan, batches & plan.sizes.keys()).all()


def _windowed(size: int) -> int:
    return max(_WINDOW, size // _WINDOW * _WINDOW)


def _readable(name: str) -> str:
    """Return a size's name; those that nobody named are described."""
    if not name.startswith("?"):
        return name
    axis = re.fullmatch(r"\?axis(\d+)of(\d+)", name)
    return f"axis {axis[1]} of {axis[2]}" if axis else name[1:]
