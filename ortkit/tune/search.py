"""Which kernels to try next: what looks best from what was tried, and some that do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

Parameters = Mapping[str, tuple[int, ...]]
Point = tuple[int, ...]

#: One of this many is taken without regard to what was found.
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
    known, found = {"", *tried}, dict.fromkeys(alone)
    predicted = _predicted(parameters, tried)
    best = _choices(parameters, np.argsort(-predicted, kind="stable"))
    # An order that has nothing to do with the parameters.
    order = np.random.default_rng(len(predicted)).permutation(len(predicted))
    mixed = _choices(parameters, order)
    while len(found) < count:
        source = mixed if len(found) % _EXPLORE_EVERY == _EXPLORE_EVERY - 1 else best
        new = next((item for item in source if item not in known and item not in found), None)
        if new is None:
            break
        found[new] = None
    return list(found)


def space_size(parameters: Parameters) -> int:
    """Return how many kernels there are in addition to the default."""
    size = 1
    for values in parameters.values():
        size *= len(values)
    return size - 1


def _alone(parameters: Parameters) -> Iterator[Point]:
    default = tuple(values[0] for values in parameters.values())
    for index, values in enumerate(parameters.values()):
        for value in values[1:]:
            yield (*default[:index], value, *default[index + 1 :])


def _text(parameters: Parameters, point: Point) -> str:
    """Return what differs from the defaults."""
    return ",".join(
        f"{name}={value}"
        for (name, values), value in zip(parameters.items(), point, strict=True)
        if value != values[0]
    )


def _choices(parameters: Parameters, indices: np.ndarray) -> Iterator[str]:
    """Yield the texts of points by their indices among all, the last parameter fastest."""
    shape = tuple(len(values) for values in parameters.values())
    for index in indices:
        at = np.unravel_index(int(index), shape)
        values = zip(parameters.values(), at, strict=True)
        yield _text(parameters, tuple(possible[int(i)] for possible, i in values))


def _predicted(parameters: Parameters, tried: Mapping[str, float | None]) -> np.ndarray:
    """Return for all points, in their order, the logarithm of the ratio as the model has it."""
    known = [(text, ratio) for text, ratio in tried.items() if ratio is not None]
    rows = [(row, r) for text, r in known if (row := _row(parameters, _read(text))) is not None]
    width = sum(len(values) - 1 for values in parameters.values())
    effects = np.zeros(width)
    if rows and width:
        seen = np.asarray([row for row, _ in rows], float)
        gram = seen.T @ seen + _PRIOR * np.eye(width)
        ratios = np.asarray([ratio for _, ratio in rows], float)
        effects = np.linalg.solve(gram, seen.T @ np.log(ratios))
    found = np.zeros(1)
    for values in parameters.values():
        own, effects = effects[: len(values) - 1], effects[len(values) - 1 :]
        found = (found[:, None] + np.concatenate(([0.0], own))).reshape(-1)
    return found


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
