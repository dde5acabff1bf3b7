"""Wrong operators, operands and order: faults of rewriting that are there on every input."""

from __future__ import annotations

import numpy as np

from mutants.draft import Rng, Site
from mutants.kinds import Catalog, Plant

CATALOG = Catalog()
fault = CATALOG.fault

_ACTIVATIONS = ("Relu", "Gelu", "Sigmoid", "HardSigmoid", "HardSwish", "Clip", "LeakyRelu", "Tanh")


def _swap(site: Site, rng: Rng) -> bool:
    first, second = site.node.input[:2]
    site.node.input[0], site.node.input[1] = second, first
    return first != second


for _name in ("Sub", "Div", "MatMul", "Pow"):
    fault(f"operands of {_name} swapped", _name)(_swap)


def replaced(op: str, **attributes: object) -> Plant:
    """Return what puts another operator in a node's place."""

    def plant(site: Site, rng: Rng) -> bool:
        site.become(op, site.node.input[0], **attributes)
        return True

    return plant


fault("Relu for Gelu", "Gelu", "FastGelu")(replaced("Relu"))
fault("tanh-Gelu for the exact one", "Gelu")(replaced("Gelu", approximate="tanh"))
fault("Sigmoid for HardSigmoid", "HardSigmoid")(replaced("Sigmoid"))
fault("HardSigmoid for Sigmoid", "Sigmoid")(replaced("HardSigmoid", alpha=0.2, beta=0.5))
fault("LeakyRelu for Relu", "Relu")(replaced("LeakyRelu", alpha=0.01))
fault("Relu for Clip", "Clip")(replaced("Relu"))
fault("Relu for Softplus", "Softplus")(replaced("Relu"))
fault("Softsign for Tanh", "Tanh")(replaced("Softsign"))
fault("Tanh for Erf", "Erf")(replaced("Tanh"))
fault("LogSoftmax for Softmax", "Softmax")(replaced("LogSoftmax", axis=-1))
fault("HardSwish for SiLU", "QuickGelu")(replaced("HardSwish"))
fault("activation dropped", *_ACTIVATIONS, "QuickGelu", "Elu")(replaced("Identity"))
fault("Sin for Cos", "Cos")(replaced("Sin"))
fault("sign of Sin", "Sin")(
    lambda site, rng: site.after(lambda end, good: end.before("Neg", good)) is None
)
fault("missing square root", "Sqrt")(replaced("Identity"))
fault("reciprocal dropped", "Reciprocal")(replaced("Identity"))
fault("sign dropped", "Neg")(replaced("Identity"))


@fault("activation twice", *_ACTIVATIONS, "QuickGelu", "Softmax")
def _twice(site: Site, rng: Rng) -> bool:
    inner = site.before("Identity", site.node.input[0])
    node = site.draft.producer(site.holder, inner)
    assert node is not None
    attributes = list(site.node.attribute)
    rest = list(site.node.input[1:])
    node.op_type, node.domain = site.node.op_type, site.node.domain
    node.attribute.extend(attributes)
    node.input.extend(rest)
    site.node.input[0] = inner
    return True


@fault("Sub for Add", "Add")
def _subtracts(site: Site, rng: Rng) -> bool:
    site.node.op_type = "Sub"
    return True


@fault("Add for Mul", "Mul")
def _adds(site: Site, rng: Rng) -> bool:
    site.node.op_type = "Add"
    return True


@fault("Min for Max", "Max")
def _smallest(site: Site, rng: Rng) -> bool:
    site.node.op_type = "Min"
    return True


@fault("Or for And", "And")
def _or(site: Site, rng: Rng) -> bool:
    site.node.op_type = "Or"
    return True


@fault("comparison off by one", "GreaterOrEqual", "LessOrEqual", "Greater", "Less")
def _compared(site: Site, rng: Rng) -> bool:
    op = site.node.op_type
    site.node.op_type = op.removesuffix("OrEqual") if op.endswith("OrEqual") else f"{op}OrEqual"
    return True


@fault("branches of Where swapped", "Where")
def _where(site: Site, rng: Rng) -> bool:
    first, second = site.node.input[1:3]
    site.node.input[1], site.node.input[2] = second, first
    return True


@fault("bias dropped", "Add", "Conv", "Gemm", "FusedMatMul")
def _no_bias(site: Site, rng: Rng) -> bool:
    place = 2 if site.op in ("Conv", "Gemm") else 1
    for at in (place,) if place == 2 else (1, 0):
        array = site.array(at)
        if array is not None and array.ndim == 1 and array.any():
            site.set_array(at, np.zeros_like(array))
            return True
    return False


@fault("bias twice", "Add", "Conv", "Gemm")
def _two_biases(site: Site, rng: Rng) -> bool:
    at = 2 if site.op in ("Conv", "Gemm") else 1
    array = site.array(at)
    if array is None or array.ndim != 1 or not array.any():
        return False
    site.set_array(at, (array * 2).astype(array.dtype))
    return True


def _is_sum(site: Site) -> bool:
    return site.array(0) is None and site.array(1) is None and len(site.node.input) == 2


@fault("residual dropped", "Add")
def _no_residual(site: Site, rng: Rng) -> bool:
    if not _is_sum(site):
        return False
    site.become("Identity", site.node.input[int(rng.integers(2))])
    return True


@fault("residual twice", "Add")
def _two_residuals(site: Site, rng: Rng) -> bool:
    if not _is_sum(site):
        return False
    site.after(lambda end, good: end.before("Add", good, site.node.input[1]))
    return True


@fault("factor dropped", "Mul")
def _no_factor(site: Site, rng: Rng) -> bool:
    if not _is_sum(site):
        return False
    site.become("Identity", site.node.input[0])
    return True
