"""Which norms are smoothed, and how strongly: by the error of the products behind them."""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np
import onnx_ir as ir

from ortkit.graph.shapes.infer import Shapes
from ortkit.precision.forms import DynamicInt8
from ortkit.precision.products import Product, find_products
from ortkit.precision.running import Runner
from ortkit.precision.smooth import STRENGTHS, WORTH, factors, find_groups, smooth
from ortkit.rewrite.log import RewriteLog


def find_smoothing(
    runner: Runner, model: ir.Model, products: Sequence[Product]
) -> dict[str, np.ndarray]:
    """Return the factors of the norms that are better smoothed, by the names of their values.

    Args:
        runner: Has the input sets.
        model: In float32; not changed.
        products: The model's products.
    """
    groups = find_groups(model, products)
    if not groups:
        return {}
    ranges = runner.ranges(model, [group.products[0] for group in groups])
    tried: dict[float, dict[str, np.ndarray]] = {}
    for strength in STRENGTHS:
        for group in groups:
            found = factors(group, ranges[group.products[0].key], strength)
            if found is not None:
                tried.setdefault(strength, {})[group.key] = found
    if not tried:
        return {}
    standing_out = {key for by_key in tried.values() for key in by_key}
    best = _errors(runner, model, standing_out)
    best = {key: WORTH * error for key, error in best.items()}
    chosen: dict[str, np.ndarray] = {}
    for by_key in tried.values():
        copy = model.clone()
        smooth(copy, find_products(copy, Shapes.infer(copy), RewriteLog()), by_key)
        for key, error in _errors(runner, copy, by_key.keys()).items():
            if error < best[key]:
                best[key], chosen[key] = error, by_key[key]
    return chosen


def _errors(runner: Runner, model: ir.Model, keys: Container[str]) -> dict[str, float]:
    """Return the squared errors of 8-bit products behind norms, summed for each norm."""
    products = find_products(model, Shapes.infer(model), RewriteLog())
    groups = [group for group in find_groups(model, products) if group.key in keys]
    forms = [(group.key, DynamicInt8(product)) for group in groups for product in group.products]
    errors = runner.errors(model, [form for _, form in forms])
    found = dict.fromkeys((group.key for group in groups), 0.0)
    for (key, _), error in zip(forms, errors, strict=True):
        found[key] += error * error
    return found
