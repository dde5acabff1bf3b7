"""What rounded weights shift on average, taken back in the bias.

Before:
    y = x W' + b                   # W': W rounded
After:
    y = x W' + (b - E[x] (W' - W))

Values behind an activation are positive on the whole, so that what rounding does to a column of
weights does not average out. It moves the column's results by as much on every input.

Source:
    Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction" (2019),
    section 4.2; means are measured here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ortkit.precision.building import Builder
from ortkit.precision.products import Product
from ortkit.precision.running import Runner
from ortkit.precision.trials import giving, reduced, twin
from ortkit.verify.exchange import read_values

MEANS = "ortkit/mean"


def find_means(
    runner: Runner, model: ir.Model, products: Sequence[Product]
) -> dict[str, np.ndarray]:
    """Return the mean of each channel of what products read, by their keys.

    Args:
        runner: Has the input sets; each counts as much as the others.
        model: In float32; not changed.
        products: The model's products.

    Raises:
        CheckError: The model does not run on the data.
    """
    if not products:
        return {}
    results = runner.run(runner.save(means_model(model, products), "means"), runner.sets)
    found: dict[str, np.ndarray] = {}
    for each in runner.sets:
        values = read_values(results / each.name)
        for number, product in enumerate(products):
            value = values[f"{MEANS}/{number}"]
            assert isinstance(value, np.ndarray)
            part = value.astype(np.float64) / len(runner.sets)
            found[product.key] = found.get(product.key, 0.0) + part
    return {key: mean for key, mean in found.items() if np.isfinite(mean).all()}


def means_model(model: ir.Model, products: Sequence[Product]) -> ir.Model:
    """Return a copy whose outputs are `MEANS/number` alone: float32 [channels]."""
    copy, found = twin(model, products)
    build, outputs = Builder(copy), []
    for number, product in enumerate(found.values()):
        value, axes = product.x, [0]
        if product.kind == "convolution":
            axes += range(2, product.array().ndim)
        else:
            shape = build.constant(np.array([-1, product.array().shape[0]]), f"{MEANS}/shape")
            value = build.one("Reshape", [value, shape], f"{MEANS}/rows")
        constant = build.constant(np.array(axes, np.int64), f"{MEANS}/axes")
        outputs.append(reduced(build, "ReduceMean", value, constant, f"{MEANS}/{number}"))
        copy.graph.insert_after(product.last, build.take())
    return giving(copy, outputs)
