"""Wrong weights: in one element, in one channel, or in all."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from mutants.draft import Rng, Site
from mutants.kinds import Catalog, Plant

CATALOG = Catalog()

_VECTORS = ("Add", "Mul", "Conv", "Gemm", "LayerNormalization", "RMSNormalization",
            "SimplifiedLayerNormalization")  # fmt: skip
Change = Callable[[np.ndarray, Rng], "np.ndarray | None"]


def _weights(site: Site) -> list[int]:
    """Return the places of float constants of two axes or more."""
    arrays = [site.array(at) for at in range(len(site.node.input))]
    return [at for at, each in enumerate(arrays)
            if each is not None and each.ndim >= 2 and each.size >= 8
            and np.issubdtype(each.astype(each.dtype).dtype, np.floating)
            and site.op != "Constant"]  # fmt: skip


def _changing(change: Change) -> Plant:
    def plant(site: Site, rng: Rng) -> bool:
        places = _weights(site)
        if not places:
            return False
        at = places[int(rng.integers(len(places)))]
        array = site.array(at)
        made = change(array.astype(np.float32), rng)
        if made is None or made.shape != array.shape:
            return False
        site.set_array(at, np.ascontiguousarray(made).astype(array.dtype))
        return True

    return plant


def _channel(array: np.ndarray, rng: Rng) -> tuple[object, ...]:
    """Return the index of one output channel: a row of a filter, a column of a matrix."""
    if array.ndim == 2:
        return (slice(None), int(rng.integers(array.shape[1])))
    return (int(rng.integers(array.shape[0])),)


def weight(name: str) -> Callable[[Change], Change]:
    """Add a kind that changes a weight."""

    def add(change: Change) -> Change:
        CATALOG.fault(name)(_changing(change))
        return change

    return add


@weight("weight: one channel is zero")
def _zeroed(array: np.ndarray, rng: Rng) -> np.ndarray:
    array[_channel(array, rng)] = 0
    return array


@weight("weight: one channel negated")
def _negated(array: np.ndarray, rng: Rng) -> np.ndarray:
    array[_channel(array, rng)] *= -1
    return array


@weight("weight: one channel a percent larger")
def _larger(array: np.ndarray, rng: Rng) -> np.ndarray:
    array[_channel(array, rng)] *= 1.01
    return array


@weight("weight: one element off by a percent")
def _element(array: np.ndarray, rng: Rng) -> np.ndarray:
    places = np.argsort(np.abs(array), axis=None)[array.size // 2 :]
    array.reshape(-1)[int(rng.choice(places))] *= 1.01
    return array


@weight("weight: one element is zero")
def _hole(array: np.ndarray, rng: Rng) -> np.ndarray:
    array.reshape(-1)[int(rng.integers(array.size))] = 0
    return array


@weight("weight: two channels swapped")
def _swapped(array: np.ndarray, rng: Rng) -> np.ndarray | None:
    axis = 1 if array.ndim == 2 else 0
    if array.shape[axis] < 2:
        return None
    order = np.arange(array.shape[axis])
    order[[0, 1]] = [1, 0]
    return np.take(array, order, axis)


@weight("weight: channels rolled by one")
def _rolled(array: np.ndarray, rng: Rng) -> np.ndarray:
    return np.roll(array, 1, 1 if array.ndim == 2 else 0)


@weight("weight: transposed")
def _transposed(array: np.ndarray, rng: Rng) -> np.ndarray | None:
    return array.T if array.ndim == 2 else np.swapaxes(array, -1, -2)


@weight("weight: rounded to float16")
def _half(array: np.ndarray, rng: Rng) -> np.ndarray:
    return array.astype(np.float16).astype(np.float32)


@weight("weight: rounded to bfloat16")
def _bfloat16(array: np.ndarray, rng: Rng) -> np.ndarray:
    return array.astype(ml_dtypes.bfloat16).astype(np.float32)


@weight("weight: a thousandth larger")
def _thousandth(array: np.ndarray, rng: Rng) -> np.ndarray:
    return array * 1.001


@weight("weight: filters flipped")
def _flipped(array: np.ndarray, rng: Rng) -> np.ndarray | None:
    is_filter = array.ndim == 4 and array.shape[-1] > 1
    return array[..., ::-1, ::-1] if is_filter else None


@weight("weight: heads permuted")
def _heads(array: np.ndarray, rng: Rng) -> np.ndarray | None:
    if array.ndim != 2 or array.shape[1] % 32:
        return None
    return np.roll(array, 16, 1)


@weight("weight: rows of heads interleaved")
def _interleaved(array: np.ndarray, rng: Rng) -> np.ndarray | None:
    if array.ndim != 2 or array.shape[1] % 4:
        return None
    halves = array.reshape(array.shape[0], 2, -1)
    return halves.swapaxes(1, 2).reshape(array.shape)


@weight("weight: BatchNorm folded with a wrong epsilon")
def _folded(array: np.ndarray, rng: Rng) -> np.ndarray | None:
    if array.ndim != 4:
        return None
    variance = rng.lognormal(0, 0.6, (array.shape[0], 1, 1, 1))
    return array * np.sqrt((variance + 1e-3) / (variance + 1e-5))


@weight("weight: BatchNorm folded without its square root")
def _not_rooted(array: np.ndarray, rng: Rng) -> np.ndarray | None:
    if array.ndim != 4:
        return None
    return array / np.sqrt(rng.lognormal(0, 0.6, (array.shape[0], 1, 1, 1)))


def _vector(name: str, change: Change) -> None:
    def plant(site: Site, rng: Rng) -> bool:
        for at in rng.permutation(len(site.node.input)):
            array = site.array(int(at))
            if array is None or array.ndim != 1 or array.size < 4 or array.dtype.kind not in "fV":
                continue
            made = change(array.astype(np.float32), rng)
            site.set_array(int(at), np.asarray(made).astype(array.dtype))
            return True
        return False

    CATALOG.fault(name, *_VECTORS)(plant)


def _one(array: np.ndarray, rng: Rng) -> np.ndarray:
    array[int(rng.integers(array.size))] += 0.01 * max(float(np.abs(array).max()), 0.1)
    return array


_vector("vector: one element off by a percent", _one)
_vector("vector: rolled by one", lambda array, rng: np.roll(array, 1))
_vector("vector: reversed", lambda array, rng: array[::-1])
_vector("vector: negated", lambda array, rng: -array)
_vector("vector: its mean for all", lambda array, rng: np.full_like(array, array.mean()))
