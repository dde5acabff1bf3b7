"""Wrong attributes and small constants, with results of the same shapes."""

from __future__ import annotations

import numpy as np

from mutants.draft import Rng, Site
from mutants.kinds import Catalog

CATALOG = Catalog()
fault = CATALOG.fault

_NORMS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization",
          "SkipLayerNormalization", "BatchNormalization", "InstanceNormalization")  # fmt: skip


@fault("softmax over another axis", "Softmax")
def _axis(site: Site, rng: Rng) -> bool:
    site.set_attribute("axis", -2 if site.attribute("axis", -1) in (-1, 3) else -1)
    return True


def _epsilon(factor: float):
    def plant(site: Site, rng: Rng) -> bool:
        site.set_attribute("epsilon", site.attribute("epsilon", 1e-5) * factor)
        return True

    return plant


fault("epsilon ten times", *_NORMS)(_epsilon(10.0))
fault("epsilon a thousand times", *_NORMS)(_epsilon(1000.0))
fault("epsilon dropped", *_NORMS)(_epsilon(0.0))


def _scaled(name: str, default: float, factor: float):
    def plant(site: Site, rng: Rng) -> bool:
        site.set_attribute(name, site.attribute(name, default) * factor)
        return True

    return plant


fault("alpha of Gemm", "Gemm")(_scaled("alpha", 1.0, 1.02))
fault("beta of Gemm", "Gemm")(_scaled("beta", 1.0, 0.5))
fault("slope of LeakyRelu", "LeakyRelu")(_scaled("alpha", 0.01, 2.0))
fault("alpha of Elu", "Elu")(_scaled("alpha", 1.0, 0.9))
fault("slope of HardSigmoid", "HardSigmoid")(_scaled("alpha", 0.2, 1.02))
fault("offset of HardSigmoid", "HardSigmoid")(_scaled("beta", 0.5, 0.98))
fault("alpha of SiLU", "QuickGelu")(_scaled("alpha", 1.702, 1.702))


@fault("transposed B", "Gemm", "FusedMatMul")
def _transposed(site: Site, rng: Rng) -> bool:
    site.set_attribute("transB", 1 - site.attribute("transB", 0))
    return True


@fault("permutation of Transpose", "Transpose")
def _permutation(site: Site, rng: Rng) -> bool:
    """Swap two axes more, and give the result the shape that it has."""
    perm = list(site.attribute("perm", ()))
    if len(perm) < 3:
        return False

    def other(end: Site, good: str) -> str:
        swapped = [*range(len(perm) - 2), len(perm) - 1, len(perm) - 2]
        shape = end.before("Shape", good)
        return end.before("Reshape", end.before("Transpose", good, perm=swapped), shape)

    site.after(other)
    return True


@fault("Transpose dropped", "Transpose")
def _no_transpose(site: Site, rng: Rng) -> bool:
    source = site.node.input[0]
    site.after(lambda end, good: end.before("Reshape", source, end.before("Shape", good)))
    return True


def _pads(site: Site) -> list[int]:
    return list(site.attribute("pads", ()))


@fault("pads shifted", "Conv", "MaxPool", "AveragePool")
def _shifted(site: Site, rng: Rng) -> bool:
    pads = _pads(site)
    if len(pads) != 4 or pads[0] < 1 or pads[2] < 1:
        return False
    site.set_attribute("pads", [pads[0] - 1, pads[1], pads[2] + 1, pads[3]])
    return True


@fault("dilated", "Conv", "MaxPool")
def _dilated(site: Site, rng: Rng) -> bool:
    pads, kernel = _pads(site), site.attribute("kernel_shape", ())
    if len(pads) != 4 or list(kernel) != [3, 3]:
        return False
    site.set_attribute("pads", [each + 1 for each in pads])
    site.set_attribute("dilations", [2, 2])
    return True


@fault("stride after the convolution", "Conv")
def _stride(site: Site, rng: Rng) -> bool:
    """Take the odd pixels where a stride of two takes the even ones."""
    pads = _pads(site)
    if list(site.attribute("strides", ())) != [2, 2] or len(pads) != 4 or min(pads) < 1:
        return False
    site.set_attribute("pads", [pads[0] - 1, pads[1] - 1, pads[2] + 1, pads[3] + 1])
    return True


@fault("padding counted in an average", "AveragePool")
def _counted(site: Site, rng: Rng) -> bool:
    site.set_attribute("count_include_pad", 1 - site.attribute("count_include_pad", 0))
    return True


@fault("groups permuted", "Conv")
def _groups(site: Site, rng: Rng) -> bool:
    weight = site.array(1)
    if site.attribute("group", 1) < 2 or weight is None:
        return False
    site.set_array(1, np.ascontiguousarray(np.roll(weight, 1, 0)))
    return True


def _reduced(site: Site) -> np.ndarray | None:
    return site.array(1) if len(site.node.input) > 1 else None


@fault("reduced over another axis", "ReduceMean", "ReduceMax", "ReduceSum")
def _other_axis(site: Site, rng: Rng) -> bool:
    """Reduce the axis in front; the result is expanded or cut to its shape by what follows."""
    axes = _reduced(site)
    if axes is None or axes.size != 1 or not site.attribute("keepdims", 1):
        return False
    site.set_array(1, axes - 1 if axes[0] < 0 or axes[0] > 1 else axes + 1)
    return True


def _number(site: Site) -> int | None:
    """Return the place of a constant with one element."""
    for at in range(len(site.node.input)):
        array = site.array(at)
        if array is not None and array.size == 1 and array.dtype.kind == "f" and array.any():
            return at
    return None


def _constant(factor: float):
    def plant(site: Site, rng: Rng) -> bool:
        at = _number(site)
        if at is None or not np.isfinite(site.array(at)).all():
            return False
        array = site.array(at)
        made = (array * factor).astype(array.dtype)
        # A number of its type next to it: a rewrite that rounds may be off by half of that, and
        # one number does not tell how it was rounded.
        if made in (array, np.nextafter(array, made)):
            return False
        site.set_array(at, made)
        return True

    return plant


fault("constant off by a thousandth", "Mul", "Div", "Add", "Sub")(_constant(1.001))
fault("constant off by a percent", "Mul", "Div", "Add", "Sub")(_constant(1.01))
fault("constant with another sign", "Mul", "Div", "Add", "Sub")(_constant(-1.0))
fault("exponent", "Pow")(_constant(1.5))


def _bound(place: int):
    def plant(site: Site, rng: Rng) -> bool:
        array = site.array(place)
        if array is None:
            return False
        site.set_array(place, (array * 0.8 + (0.05 if not array.any() else 0)).astype(array.dtype))
        return True

    return plant


fault("lower bound of Clip", "Clip")(_bound(1))
fault("upper bound of Clip", "Clip")(_bound(2))
