"""fuse-activation: GELU, SiLU, Mish, HardSwish and their kind, however they are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import ml_dtypes
import numpy as np
import onnx_ir as ir

from ortkit.analysis.cones import Cone, Order, cones_at
from ortkit.analysis.float64_eval import Array
from ortkit.ops.activations.forms import Argument, Form, X, form_of, pays
from ortkit.ops.activations.match import Nearest, Written, recognise
from ortkit.ops.activations.reference import TOLERANCE, Match
from ortkit.rewrite.passes import GraphPass
from ortkit.rewrite.scope import Scope
from ortkit.rewrite.site import Site

#: Min, Max and Mul broadcast from this version on.
FIRST_OPSET = 8
#: First opset of what has no op in another domain.
SINCE = {"HardSwish": 14, "Mish": 18}
#: Single nodes that are worth looking at: slow ones, and Max(x, 0).
ALONE = frozenset({"Max", "Mish", "PRelu", "Swish"})
#: With a slope of 0 they answer NaN at minus infinity, where Relu answers 0.
SLOPES = frozenset({"LeakyRelu", "PRelu"})
#: A constant of fewer digits is meant as it stands (0.5, 3, 0.25).
EXACT_DIGITS = 2
#: The relative error that a written constant of more digits is taken to have at least, as it may
#: be computed from a rounded one, and at most.
ROUNDING = (2e-5, 1.2e-3)


@dataclass(frozen=True)
class FuseActivation(GraphPass):
    """Recognize functions of one value by what they compute, and write the fastest form.

    Before:
        t = Add(Erf(Div(x, 1.4142)), 1);  y = Mul(Mul(x, t), 0.5)
    After:
        y = Gelu(x)                    # com.microsoft::Gelu below opset 20

    Pointwise nodes between one value and a result are evaluated at points that include kinks,
    large numbers, infinities and NaN, and compared with the activations of
    `ortkit.ops.activations.reference`. How they are spelled does not matter. Constants with few
    digits are taken as rounded ones.

    Skips:
        * LeakyRelu and PRelu with slope 0: at minus infinity they are NaN, and Relu is 0. (What a
          formula of arithmetic loses at infinities is taken for overflow.)
        * Inner results that others read, where nothing would be saved.
        * Below level 3: forms that are slower on the target.
        * Element types for which the target has no kernel; float casts are never crossed.

    Source:
        The activations' own, in `ortkit.ops.activations.reference`.
    """

    name: ClassVar[str] = "fuse-activation"

    def run(self, scope: Scope) -> None:
        if scope.opset() < FIRST_OPSET:
            return
        order = Order(scope)
        explained: set[ir.Node] = set()
        # From the outputs on: what a larger activation contains is not looked at alone.
        for node in reversed(tuple(order.index)):
            if node.graph is not None:
                _fuse(Site(scope, node, self.name), order, explained)


def _fuse(site: Site, order: Order, explained: set[ir.Node]) -> None:
    """Look for an activation that ends at the node; what almost is one is reported once."""
    closest: tuple[Nearest, Cone] | None = None
    for cone in reversed(cones_at(site.scope, site.node, order)):
        if len(cone.nodes) == 1 and site.node.op_type not in ALONE:
            break
        found = _recognise(site.scope, cone)
        if isinstance(found, Match):
            if _write(site, cone, found, order):
                return
        elif found is not None and (closest is None or found.distance < closest[0].distance):
            closest = found, cone
    if closest is not None and site.node not in explained:
        explained.update(closest[1].nodes)
        site.miss(_describe(closest[0]))


def _describe(closest: Nearest) -> str:
    if closest.factor != 1:
        return f"it is {closest.factor:.3g} times {closest.name}"
    return f"it differs from {closest.name} by {closest.distance:.2g}"


def _recognise(scope: Scope, cone: Cone) -> Match | Nearest | None:
    numbers = [float(number) for number in cone.numbers.values()]
    has_slope = any(node.op_type in SLOPES for node in cone.nodes)
    written = Written(
        numbers, cone.evaluate, lambda x, y: _slack(scope, cone, x, y), is_operator=has_slope
    )
    try:
        return recognise(written)
    except ValueError:
        return None


def _slack(scope: Scope, cone: Cone, points: Array, values: Array) -> Array:
    """Return how far the rounding of the constants may have moved `values`."""
    total = np.zeros(points.shape)
    if any(node.attributes for node in cone.nodes):
        # Attributes are float32: as if the point were rounded, which moves no flat part.
        total += _moved(cone.evaluate(points * (1 + TOLERANCE)), values)
    for value, number in cone.numbers.items():
        array = scope.array(value, 1)
        share = 0.0 if array is None else rounding_of(array.reshape(-1)[0])
        if share:
            total += _moved(cone.evaluate(points, {value: number * (1 + share)}), values)
    return total


def _moved(changed: Array, values: Array) -> Array:
    return np.asarray(np.nan_to_num(np.abs(changed - values), posinf=0.0))


def rounding_of(number: np.generic) -> float:
    """Return the relative error that a constant is taken to have: half of its last digit."""
    value = float(number)
    if number.dtype.kind in "biu" or not np.isfinite(value) or value == 0:
        return 0.0
    make: Callable[[float], np.generic] = number.dtype.type
    digits = next((n for n in range(1, 17) if make(float(f"{value:.{n - 1}e}")) == number), 17)
    if digits <= EXACT_DIGITS:
        return 0.0
    last = 10.0 ** (np.floor(np.log10(abs(value))) - digits + 1)
    narrow = float(ml_dtypes.finfo(number.dtype).eps) / 2  # type: ignore[no-untyped-call]
    return float(min(max(last / 2 / abs(value), narrow, ROUNDING[0]), ROUNDING[1]))


def _write(site: Site, cone: Cone, found: Match, order: Order) -> bool:
    """Write `found` in place of the cone; False, with the reason left, where it stays."""
    scope, dtype = site.scope, site.dtype(cone.root)
    assert dtype is not None
    target, level = scope.target, scope.options.level

    def form_in(opset: int) -> Form | str:
        return form_of(found, target=target, level=level, opset=opset, dtype=dtype)

    # Only those without a contrib op are worth a higher opset, for fewer nodes.
    wants = SINCE.get(found.name, 0) if level >= 3 else 0
    form = form_in(max(site.opset, wants))
    refused = form if isinstance(form, str) else _refused(scope, cone, found, form)
    lower = form_in(site.opset)
    if refused is None and form != lower and not scope.require_opset(wants):
        form = lower
        refused = form if isinstance(form, str) else _refused(scope, cone, found, form)
    if isinstance(form, str) or refused is not None:
        if refused:
            site.miss(refused)
        return False
    if not site.claim(_rule(found)):
        return True
    made = _insert(site, cone.root, form, order)
    site.replace(made)
    return True


def _refused(scope: Scope, cone: Cone, found: Match, form: Form) -> str | None:
    """Return why `form` should not replace the cone; empty where it is within tolerance."""
    freed, target = cone.freed(), scope.target
    if pays(freed, form, target=target, level=scope.options.level):
        return None
    if len(form) < len(freed):
        return f"{found.name} would be slower on {target.kind}"
    if len(freed) < len(cone.nodes):
        return f"{found.name}: others read its inner results, and nothing would be saved"
    return ""


def _rule(found: Match) -> str:
    words = "".join(f"-{c.lower()}" if c.isupper() else c for c in found.name)
    return words.removeprefix("-")


def _insert(site: Site, root: ir.Value, form: Form, order: Order) -> ir.Value:
    made: list[ir.Value] = []
    for step in form:
        if step.domain:
            site.scope.import_domain(step.domain, 1)
        inputs = [_argument(site, root, made, argument) for argument in step.inputs]
        made.append(site.op(step.op_type, inputs, dict(step.attributes), domain=step.domain))
    producers = (value.producer() for value in made)
    order.place([node for node in producers if node is not None], site.node)
    return made[-1]


def _argument(
    site: Site, root: ir.Value, made: list[ir.Value], argument: Argument
) -> ir.Value | None:
    if argument is None or argument == X:
        return None if argument is None else root
    if isinstance(argument, int):
        return made[argument]
    dtype = site.dtype(root)
    assert dtype is not None
    return site.constant(np.array(argument, dtype.numpy()))
