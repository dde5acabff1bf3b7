"""Whether the channels of a value are a rotation of another's, pair by pair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import TypeAlias

import numpy as np

from ortkit.ops.rotary.channels import LabeledValue, Term
from ortkit.ops.rotary.steps import CHANNEL

#: One channel as a sum: (atom, atom or 0) -> coefficient.
Sum: TypeAlias = dict[tuple[int, int], int]


@dataclass(frozen=True, eq=False)
class Rotation:
    """A result that is a rotation; its angles by the atoms of their cosines and sines."""

    homes: tuple[LabeledValue, ...]
    """Values that hold the rotated channels, nearest to the result first.

    Where no value holds them all: the two that hold the first and the second half.
    """
    cos: np.ndarray
    """Signed atoms, [width / 2]."""
    sin: np.ndarray
    width: int
    """Number of rotated channels, from the first on."""
    count: int
    """How many channels there are."""
    interleaved: bool

    @property
    def is_joined(self) -> bool:
        """Whether `homes` are two halves."""
        return self.homes[0].flat.size < self.count

    @property
    def is_partial(self) -> bool:
        """Whether some channels stay as they are."""
        return self.width < self.count

    @property
    def negatives(self) -> int:
        """How many channels, cosines and sines are the negative of an atom."""
        return sum(int((array < 0).sum()) for array in (self.homes[0].flat, self.cos, self.sin))


def match_rotation(
    sums: Sequence[Sum], candidates: Sequence[LabeledValue], outer: int
) -> Rotation | str | None:
    """Say what the channels `sums` are a rotation of.

    Args:
        sums: The channels in a row.
        candidates: Values that may be rotated.
        outer: How many more axes the value has.

    Returns:
        A rotation, the reason why it is almost one, or None.
    """
    width = sum(is_product(sum_) for sum_ in sums)
    if width < 2 or width % 2 or not all(is_product(item) for item in sums[:width]):
        return None
    whole = [candidate for candidate in candidates if is_whole(candidate, len(sums), outer)]
    reason: str | None = None
    best: Rotation | None = None
    for candidate in whole:
        for interleaved in (False, True):
            found = _angles(sums, candidate.flat, width, interleaved=interleaved)
            if isinstance(found, str):
                reason = found
            elif found is not None:
                same = tuple(o for o in whole if np.array_equal(o.flat, candidate.flat))
                made = Rotation(same, *found, width, len(sums), interleaved)
                # The rotated half of x is x rotated by a right angle: a rotation, too.
                best = made if best is None or made.negatives < best.negatives else best
                if not best.negatives:
                    return best
    return best or reason or _match_halves(sums, candidates, outer, width)


def _match_halves(
    sums: Sequence[Sum], candidates: Sequence[LabeledValue], outer: int, width: int
) -> Rotation | None:
    """Return a rotation of two values that are no parts of a third."""
    if width < len(sums):
        return None
    halves = [candidate for candidate in candidates if is_whole(candidate, width // 2, outer)]
    for first, second in permutations(halves, 2):
        if first.labels != second.labels or len(first.labels) != outer + 1:
            continue
        x = np.concatenate([first.flat, second.flat])
        found = _angles(sums, x, width, interleaved=False)
        if found is not None and not isinstance(found, str):
            made = Rotation((first, second), *found, width, width, interleaved=False)
            if not made.negatives:
                return made
    return None


def is_product(one: Sum) -> bool:
    """Say whether a channel is a sum that has products in it."""
    return any(second for _, second in one)


def is_whole(candidate: LabeledValue, channels: int, outer: int) -> bool:
    """Say whether a value has all axes of the result, each once, and its channels last."""
    rest = sorted(label for label in candidate.labels[:outer] if isinstance(label, int))
    return (
        rest == list(range(outer))
        and all(label == CHANNEL for label in candidate.labels[outer:])
        and candidate.flat.size == channels
    )


def as_sums(terms: Sequence[Term]) -> list[Sum]:
    """Collect the terms channel by channel; what cancels is gone."""
    count = terms[0][0].size
    sums: list[Counter[tuple[int, int]]] = [Counter() for _ in range(count)]
    for first, second in terms:
        rows = zip(first.reshape(-1).tolist(), second.reshape(-1).tolist(), strict=True)
        for total, (one, other) in zip(sums, rows, strict=True):
            if one:
                low, high = sorted((abs(one), other)) if other else (abs(one), 0)
                total[low, high] += 1 if one > 0 else -1
    return [{key: value for key, value in total.items() if value} for total in sums]


def _angles(
    sums: Sequence[Sum], x: np.ndarray, width: int, *, interleaved: bool
) -> tuple[np.ndarray, np.ndarray] | str | None:
    """Return cosines and sines if the sums are the rotation of `x`, or why they are not."""
    atoms = [int(atom) for atom in x.tolist()]
    if len({abs(atom) for atom in atoms}) != len(atoms):
        return None
    half, cosines, sines = width // 2, [], []
    if width % 2:
        return None
    for i in range(half):
        first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        upper = _factors(sums[first], atoms[first], atoms[second])
        lower = _factors(sums[second], atoms[second], atoms[first])
        if upper is None or lower is None:
            return None
        if upper[0] != lower[0]:
            return "the two of a pair are multiplied by different cosines"
        if abs(upper[1]) != abs(lower[1]):
            return "the two of a pair are multiplied by different sines"
        if upper[1] == lower[1]:
            return "both sines of a pair have one sign: this is no rotation"
        cosines.append(lower[0])
        sines.append(lower[1])
    if any(sums[i] != {(abs(atoms[i]), 0): _sign(atoms[i])} for i in range(width, len(sums))):
        return "channels that are not rotated are not those of the rotated value"
    return np.array(cosines, np.int64), np.array(sines, np.int64)


def _factors(total: Sum, own: int, other: int) -> tuple[int, int] | None:
    """Return what a channel and its partner are multiplied by in a sum of the two."""
    if len(total) != 2:
        return None
    found: list[int] = []
    for atom, excluded in ((own, other), (other, own)):
        keys = [key for key in total if abs(atom) in key]
        if len(keys) != 1 or not keys[0][1] or abs(total[keys[0]]) != 1:
            return None
        low, high = keys[0]
        factor = high if low == abs(atom) else low
        if factor in (abs(own), abs(excluded)):
            return None  # x multiplied by x is linear in nothing
        found.append(_sign(atom) * total[keys[0]] * factor)
    return found[0], found[1]


def _sign(atom: int) -> int:
    return -1 if atom < 0 else 1
