"""Which kernels to try next: what looks best from what was tried, and some that do not."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

Parameters = Mapping[str, tuple[int, ...]]
Point = tuple[int, ...]

#: One of so many is taken without regard to what was found.
_EXPLORE_EVERY = 4
#: A regularization: as if each value had been seen that often without effect.
_PRIOR = 0.3


def next_choices(
    parameters: Parameters, tried: Mapping[str, float | None], count: int
) -> list[str]:
    """Return up to `count` choices that were not tried yet, the most promising first.

    At first each parameter is changed alone. Then the logarithms of the ratios are taken for sums
    of one effect for each parameter's value (ridge regression), and the largest sums go first.
    Equal knowledge gives equal choices.

    Args:
        parameters: The values of each, the default first.
        tried: Choices -> how many times as fast as the default they are, None if they failed.
        count: How many are wanted.
    """
    alone = [one for point in _alone(parameters) if (one := _text(parameters, point)) not in tried]
    if len(alone) >= count:
        return alone[:count]
    known = {"", *tried, *alone}
    points = {
        text: point
        for point in itertools.product(*parameters.values())
        if (text := _text(parameters, point)) not in known
    }
    predicted = _predicted(parameters, tried, list(points.values()))
    texts = list(points)
    best = [texts[place] for place in np.argsort(-predicted, kind="stable")]
    # By their hashes: an order that has nothing to do with the parameters.
    mixed = sorted(best, key=lambda one: hashlib.sha256(one.encode()).digest())
    found = dict.fromkeys(alone)
    while len(found) < count and len(found) < len(alone) + len(best):
        source = mixed if len(found) % _EXPLORE_EVERY == _EXPLORE_EVERY - 1 else best
        found[next(one for one in source if one not in found)] = None
    return list(found)


def space_size(parameters: Parameters) -> int:
    """Return how many kernels there are besides the default."""
    size = 1
    for values in parameters.values():
        size *= len(values)
    return size - 1


def _alone(parameters: Parameters) -> Iterator[Point]:
    default = tuple(values[0] for values in parameters.values())
    for place, values in enumerate(parameters.values()):
        for value in values[1:]:
            yield (*default[:place], value, *default[place + 1 :])


def _text(parameters: Parameters, point: Point) -> str:
    """Return what differs from the defaults."""
    return ",".join(
        f"{name}={value}"
        for (name, values), value in zip(parameters.items(), point, strict=True)
        if value != values[0]
    )


def _predicted(
    parameters: Parameters, tried: Mapping[str, float | None], points: Sequence[Point]
) -> np.ndarray:
    """Return for each point the logarithm of its ratio, as the model has it."""
    known = [(text, ratio) for text, ratio in tried.items() if ratio is not None]
    rows = [row for text, _ in known if (row := _row(parameters, _read(text))) is not None]
    ratios = [r for text, r in known if _row(parameters, _read(text)) is not None]
    if not rows or not points:
        return np.zeros(len(points))
    seen = np.asarray(rows, float)
    gram = seen.T @ seen + _PRIOR * np.eye(seen.shape[1])
    effects = np.linalg.solve(gram, seen.T @ np.log(np.asarray(ratios, float)))
    names = list(parameters)
    asked = [_row(parameters, dict(zip(names, point, strict=True))) for point in points]
    return np.asarray(asked, float) @ effects


def _row(parameters: Parameters, values: Mapping[str, int]) -> list[float] | None:
    """Return which values other than defaults a point has; None if it is not in the space."""
    if not values.keys() <= parameters.keys():
        return None
    row: list[float] = []
    for name, possible in parameters.items():
        chosen = values.get(name, possible[0])
        if chosen not in possible:
            return None
        row += [float(chosen == value) for value in possible[1:]]
    return row


def _read(text: str) -> dict[str, int]:
    parts = (part.partition("=") for part in text.split(",") if part)
    return {name: int(value) for name, _, value in parts}
