"""Ranges of values in 8 bits: for each the one that rounds it best.

The whole range of a value leaves steps that are coarse for most of it; a shorter one cuts a few
numbers off. Which loses less is measured on the calibration data, for each value by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ortkit.precision.building import Builder
from ortkit.precision.products import Product
from ortkit.precision.running import Runner
from ortkit.precision.static import CARRIED, Grid, Range, rounded
from ortkit.precision.trials import giving, sum_of_squares
from ortkit.verify.exchange import read_values

#: Parts of the whole range that are tried.
PARTS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
ROUNDING = "ortkit/rounding"


def fitted(
    runner: Runner,
    model: ir.Model,
    products: Sequence[Product],
    found: Sequence[Mapping[str, Range]],
) -> dict[str, Range]:
    """Return the best range of each value that convolutions on integers may round.

    Args:
        runner: Has the calibration data.
        model: In float32; not changed.
        products: Its convolutions.
        found: Ranges by the names of values; the first are whole ones, of which parts are tried.

    Raises:
        CheckError: The model does not run on the data.
    """
    wanted = {product.key for product in products} | {product.x.name for product in products}
    wanted |= {v.name for node in model.graph if node.op_type in CARRIED for v in node.outputs}
    tried = {name: _tried(name, found) for name in found[0] if name in wanted}
    if not tried:
        return {}
    trial = runner.save(roundings_model(model, tried), "ranges")
    results = runner.run(trial, runner.sets)
    errors = {name: np.zeros(len(ranges)) for name, ranges in tried.items()}
    for each in runner.sets:
        values = read_values(results / each.name)
        for number, name in enumerate(tried):
            value = values[f"{ROUNDING}/{number}"]
            assert isinstance(value, np.ndarray)
            errors[name] += value
    # The first of equals is the largest range: other data may need it.
    return {name: ranges[int(np.argmin(errors[name]))] for name, ranges in tried.items()}


def roundings_model(model: ir.Model, tried: Mapping[str, Sequence[Range]]) -> ir.Model:
    """Return a copy that gives, for each value, what rounding it to each range loses.

    Its outputs are `ROUNDING/number` alone, in the order of `tried`: float32 [ranges], sums of
    squares.
    """
    copy = model.clone()
    values = {value.name: value for node in copy.graph for value in node.outputs}
    values |= {value.name: value for value in copy.graph.inputs}
    build, outputs = Builder(copy), []
    for number, (name, ranges) in enumerate(tried.items()):
        value = values[name]
        lost = []
        for limits in ranges:
            difference = build.one(
                "Sub", [rounded(build, value, Grid.of(limits)), value], ROUNDING
            )
            lost.append(sum_of_squares(build, difference, ROUNDING))
        outputs.append(build.one("Concat", lost, f"{ROUNDING}/{number}", {"axis": 0}))
        producer = value.producer()
        if producer is None:
            copy.graph.insert_before(copy.graph[0], build.take())
        else:
            copy.graph.insert_after(producer, build.take())
    return giving(copy, outputs)


def _tried(name: str, found: Sequence[Mapping[str, Range]]) -> list[Range]:
    low, high = found[0][name]
    parts = [(part * low, part * high) for part in PARTS]
    return parts + [ranges[name] for ranges in found[1:] if name in ranges]
