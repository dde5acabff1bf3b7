"""Groups that take products: a kernel over rows and a matrix that the session holds in panels.

Values keep their names in the copy only where reshapes stand as they did: a group may begin before
a reshape of its rows, and end after one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import onnx_ir as ir

from ortkit.fusion.gemm.cpu_fp32 import Product, find_product, with_epilogues
from ortkit.fusion.gemm.cpu_fp32_bodies import product_signature
from ortkit.fusion.gemm.cpu_fp32_cost import LEAST_GAIN, predict_product
from ortkit.fusion.regions.cost_model import Prediction
from ortkit.fusion.regions.members import is_reshape
from ortkit.kernels.layouts.fp32_panels import panels
from ortkit.kernels.signature import TensorSpec
from ortkit.kernels.sizes import extent_of, product
from ortkit.kernels.tuning.calibration import Calibration
from ortkit.provider.own.anchored_groups import Accepts, AnchoredGroup, Builder
from ortkit.provider.own.program_builder import spec_of
from ortkit.provider.own.weights import Origin
from ortkit.refusal import Refused
from ortkit.rewrite.scope import Scope

#: Of bodies here: kernels are made of them, and nothing else.
_OPSET = 20


def product_groups(
    scope: Scope, calibration: Calibration, accepts: Accepts
) -> Iterator[list[AnchoredGroup | Refused]]:
    """Yield for each product of a main graph that pays the groups that it may become.

    The one with the longest epilogue comes first.

    Args:
        scope: The copy's.
        calibration: Overhead of nodes.
        accepts: Says why there is no kernel for a signature.
    """
    assert isinstance(scope.root, ir.Graph)
    for node in scope.root:
        first = find_product(scope, node)
        if not isinstance(first, Product):
            continue
        found: list[AnchoredGroup | Refused] = []
        for one in with_epilogues(scope, first, in_place=False):
            prediction = predict_product(one, calibration)
            if prediction.gain >= LEAST_GAIN:
                starts = (*_before_reshapes(one), one)
                found += [_group_of(scope, each, prediction, accepts) for each in starts]
        if found:
            yield found


def _before_reshapes(one: Product) -> Iterator[Product]:
    """Yield the product of what its rows are reshaped from: equal reshapes are one in the copy."""
    x, nodes = one.x, one.nodes
    while (node := x.producer()) is not None and is_reshape(node) and node.inputs[0] is not None:
        x, nodes = node.inputs[0], (node, *nodes)
    if x is not one.x:
        yield replace(one, x=x, nodes=nodes)


def _group_of(
    scope: Scope, one: Product, prediction: Prediction, accepts: Accepts
) -> AnchoredGroup | Refused:
    """Return the group of a product, or why there is none."""
    given, made = spec_of(scope, one.x), spec_of(scope, one.end)
    if isinstance(given, Refused):
        return given
    if isinstance(made, Refused):
        return made
    rows = _rows(one.rows)
    if rows is None:
        return Refused("a number of rows that has no name")
    name = _name_of(rows, (*given.shape, *made.shape))
    signature = product_signature(scope, one, ((name,), (name,)), max(scope.opset(), _OPSET))
    builder = Builder(bakes=False, accepts=accepts, opset=scope.opset())
    x = builder.view(_spec("x", (rows, one.depth)), builder.enter(given))
    is_plain = one.factor == 1.0
    origin = Origin(one.weight.name or "", one.is_transposed, one.weight.const_value)
    weights = [
        builder.weight(signature.inputs[1], panels(one.matrix()), origin if is_plain else None)
    ]
    if one.bias is not None:
        weights.append(builder.weight(signature.inputs[2], one.bias))
    place = builder.add(_spec("y", (rows, one.columns)))
    builder.step(signature, (x, *weights), (place,))
    if builder.refused is not None:
        return builder.refused
    program = builder.program(signature.name, [builder.view(made, place)])
    regions = tuple(node.outputs[0].name or "" for node in one.nodes)
    return AnchoredGroup(
        program, (one.x,), (one.end,), builder.held, frozenset(one.nodes), prediction, regions,
        builder.origins,
    )  # fmt: skip


def _rows(sizes: Sequence[int | str]) -> int | str | None:
    """Return the product of sizes as a `TensorSpec` has it; None where its text would not say."""
    found = product(extent_of(size) for size in sizes)
    if found.static is not None:
        return found.static
    return str(found) if extent_of(str(found)) == found else None


def _name_of(rows: int | str, sizes: Sequence[int | str]) -> int | str:
    """Return what the kernel calls a number of rows: products of sizes it could not tell apart."""
    if isinstance(rows, int) or len(extent_of(rows).symbols) == 1:
        return rows
    name, known = "rows", {symbol for size in sizes for symbol in extent_of(size).symbols}
    while name in known:
        name += "_"
    return name


def _spec(name: str, shape: Sequence[int | str]) -> TensorSpec:
    return TensorSpec(name, "float32", tuple(shape))
