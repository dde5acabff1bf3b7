"""Wrong scales, zero points and integer weights of quantized and lowered models."""

from __future__ import annotations

import numpy as np

from mutants.draft import Rng, Site
from mutants.kinds import Catalog, Plant

CATALOG = Catalog()
fault = CATALOG.fault

#: By operator, the places of scales and of zero points.
_PLACES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "QuantizeLinear": ((1,), (2,)),
    "DequantizeLinear": ((1,), (2,)),
    "QLinearMatMul": ((1, 4, 6), (2, 5, 7)),
    "QLinearConv": ((1, 4, 6), (2, 5, 7)),
    "QLinearAdd": ((1, 4, 6), (2, 5, 7)),
    "QGemm": ((1, 4, 7), (2, 5, 8)),
    "DynamicQuantizeMatMul": ((2,), (3,)),
    "MatMulIntegerToFloat": ((2, 3), (4, 5)),
    "MatMulNBits": ((2,), (3,)),
}
#: By operator, the place of weights.
_WEIGHTS = {"DequantizeLinear": 0, "QLinearMatMul": 3, "QLinearConv": 3, "QGemm": 3,
            "DynamicQuantizeMatMul": 1, "MatMulIntegerToFloat": 1}  # fmt: skip
_ALL = tuple(_PLACES)


def _pick(site: Site, rng: Rng, which: int, least: int = 1) -> int | None:
    """Return the place of a scale (0) or zero point (1) that is a constant."""
    places = [at for at in _PLACES[site.op][which]
              if (array := site.array(at)) is not None and array.size >= least]  # fmt: skip
    return places[int(rng.integers(len(places)))] if places else None


def _scale(factor: float) -> Plant:
    def plant(site: Site, rng: Rng) -> bool:
        at = _pick(site, rng, 0)
        if at is None:
            return False
        array = site.array(at)
        site.set_array(at, (array * factor).astype(array.dtype))
        return True

    return plant


fault("scale two percent off", *_ALL)(_scale(1.02))
fault("scale five percent off", *_ALL)(_scale(0.95))
fault("scale doubled", *_ALL)(_scale(2.0))


@fault("scale of one channel", *_ALL)
def _channel(site: Site, rng: Rng) -> bool:
    at = _pick(site, rng, 0, 2)
    if at is None:
        return False
    array = site.array(at).copy()
    array.reshape(-1)[int(rng.integers(array.size))] *= 1.5
    site.set_array(at, array)
    return True


@fault("scale of one block is one", *_ALL)
def _block(site: Site, rng: Rng) -> bool:
    at = _pick(site, rng, 0, 2)
    if at is None:
        return False
    array = site.array(at).copy()
    array.reshape(-1)[int(rng.integers(array.size))] = 1
    site.set_array(at, array)
    return True


@fault("scales of neighbours", *_ALL)
def _neighbours(site: Site, rng: Rng) -> bool:
    at = _pick(site, rng, 0, 2)
    if at is None:
        return False
    site.set_array(at, np.roll(site.array(at), 1, -1))
    return True


@fault("scale of another tensor", *_ALL)
def _other(site: Site, rng: Rng) -> bool:
    at = _pick(site, rng, 0)
    if at is None:
        return False
    own = site.array(at)
    for other in site.draft.sites(site.op):
        found = other.array(at) if at < len(other.node.input) else None
        if found is not None and found.shape == own.shape and not np.allclose(found, own):
            site.set_array(at, found)
            return True
    return False


@fault("zero point off by one", *_ALL)
def _zero_point(site: Site, rng: Rng) -> bool:
    at = _pick(site, rng, 1)
    if at is None:
        return False
    array = site.array(at)
    if array.dtype.kind not in "iu" or array.itemsize > 1:
        return False
    moved = array.copy()
    moved.reshape(-1)[int(rng.integers(array.size))] ^= 1
    site.set_array(at, moved)
    return True


@fault("zero point dropped", *_ALL)
def _no_zero_point(site: Site, rng: Rng) -> bool:
    at = _pick(site, rng, 1)
    if at is None or not site.array(at).any() or site.array(at).dtype.kind not in "iu":
        return False
    site.set_array(at, np.zeros_like(site.array(at)))
    return True


def _integers(site: Site) -> np.ndarray | None:
    at = _WEIGHTS[site.op]
    array = site.array(at)
    fits = array is not None and array.ndim >= 2 and array.dtype in (np.int8, np.uint8)
    return array.copy() if fits else None


@fault("weights rounded to 4 bits", *_WEIGHTS)
def _four_bits(site: Site, rng: Rng) -> bool:
    array = _integers(site)
    if array is None:
        return False
    low, high = (-128, 127) if array.dtype == np.int8 else (0, 255)
    rounded = np.clip(np.round(array.astype(np.int32) / 16) * 16, low, high)
    site.set_array(_WEIGHTS[site.op], rounded.astype(array.dtype))
    return True


@fault("one integer weight off", *_WEIGHTS)
def _one_weight(site: Site, rng: Rng) -> bool:
    array = _integers(site)
    if array is None:
        return False
    array.reshape(-1)[int(rng.integers(array.size))] ^= 0x20
    site.set_array(_WEIGHTS[site.op], array)
    return True


@fault("integer weights of one channel are zero", *_WEIGHTS)
def _no_channel(site: Site, rng: Rng) -> bool:
    array = _integers(site)
    if array is None:
        return False
    if array.ndim == 2:
        array[:, int(rng.integers(array.shape[1]))] = 0
    else:
        array[int(rng.integers(array.shape[0]))] = 0
    site.set_array(_WEIGHTS[site.op], array)
    return True


@fault("integer bias dropped", "QLinearConv", "QGemm", "DynamicQuantizeMatMul",
       "MatMulIntegerToFloat", "MatMulNBits")  # fmt: skip
def _no_bias(site: Site, rng: Rng) -> bool:
    at = {"QLinearConv": 8, "QGemm": 6, "DynamicQuantizeMatMul": 4,
          "MatMulIntegerToFloat": 6, "MatMulNBits": 5}[site.op]  # fmt: skip
    array = site.array(at)
    if array is None or not array.any():
        return False
    site.set_array(at, np.zeros_like(array))
    return True


@fault("integer bias with the wrong sign", "QLinearConv", "QGemm", "DynamicQuantizeMatMul",
       "MatMulIntegerToFloat", "MatMulNBits")  # fmt: skip
def _signed_bias(site: Site, rng: Rng) -> bool:
    at = {"QLinearConv": 8, "QGemm": 6, "DynamicQuantizeMatMul": 4,
          "MatMulIntegerToFloat": 6, "MatMulNBits": 5}[site.op]  # fmt: skip
    array = site.array(at)
    if array is None or not array.any():
        return False
    site.set_array(at, -array)
    return True


@fault("wraps where it saturates", "QuantizeLinear")
def _wraps(site: Site, rng: Rng) -> bool:
    """Compute the quantized value in 32 bits and keep the last eight."""
    zero = site.array(2) if len(site.node.input) > 2 else None
    scale = site.array(1)
    if zero is None or scale is None or scale.size != 1 or zero.dtype not in (np.int8, np.uint8):
        return False
    steps = site.before("Round", site.before("Div", site.node.input[0], site.node.input[1]))
    whole = site.before("Cast", steps, to=7)
    moved = site.before("Add", whole, site.numbers(int(zero)))
    shifted = site.before("Add", moved, site.numbers(128 if zero.dtype == np.int8 else 0))
    kept = site.before("Mod", shifted, site.numbers(256))
    back = site.before("Sub", kept, site.numbers(128 if zero.dtype == np.int8 else 0))
    site.become("Cast", back, to=3 if zero.dtype == np.int8 else 2)
    return True
