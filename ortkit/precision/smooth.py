"""Outliers of activations moved into the weights behind them, once and offline.

Before:
    y = MatMul(LayerNormalization(h, scale, bias), W)
After:
    y = MatMul(LayerNormalization(h, scale / s, bias / s), s W)

Exact but for rounding in float32. One large channel makes the steps of all others large where a
tensor is quantized with one scale; a weight has a scale for each column and bears more.

Source:
    Xiao et al., "SmoothQuant" (2023), equation 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortkit.graph.constants import constant_array, is_constant
from ortkit.operators import where
from ortkit.precision.building import Builder
from ortkit.precision.products import PASS, Product
from ortkit.rewrite.log import RewriteLog
from ortkit.rewrite.site import describe

#: How much of an outlier goes into the weights; each is tried.
STRENGTHS = (0.5, 0.75)
#: A channel is an outlier if it is this many times as large as the median one.
OUTLIER = 6.0
#: What smoothing must leave of the squared error to be worth it.
WORTH = 0.9

_NORMS = where(row_norm=True)
_SMALL = 1e-5


@dataclass(frozen=True, eq=False)
class Group:
    """A norm and the products that alone read it."""

    norm: ir.Node
    products: tuple[Product, ...]

    @property
    def key(self) -> str:
        """The name of what the norm gives."""
        return self.norm.outputs[0].name or ""


def find_groups(model: ir.Model, products: Sequence[Product]) -> list[Group]:
    """Return the norms with constant scales whose readers are all products."""
    by_value: dict[ir.Value, list[Product]] = {}
    for product in products:
        if product.kind == "product":
            by_value.setdefault(product.x, []).append(product)
    found = []
    for value, readers in by_value.items():
        norm = value.producer()
        if norm is None or norm.op_type not in _NORMS or norm.outputs[0] is not value:
            continue
        nodes = {product.node for product in readers}
        if value.is_graph_output() or any(use.node not in nodes for use in value.uses()):
            continue
        if any(product.node.inputs.count(value) != 1 for product in readers):
            continue
        if all(_is_row(model, each, readers[0]) for each in norm.inputs[1:] if each is not None):
            found.append(Group(norm, tuple(readers)))
    return found


def factors(group: Group, largest: np.ndarray, strength: float) -> np.ndarray | None:
    """Return what each channel is divided by; None where no channel stands out.

    Args:
        group: A norm and its products.
        largest: Magnitudes of the norm's channels, float32 [k].
        strength: 0 moves nothing, 1 everything.
    """
    usual = float(np.median(largest))
    if usual <= 0 or float(largest.max()) < OUTLIER * usual:
        return None
    weights = np.max([np.abs(product.array()).max(axis=1) for product in group.products], axis=0)
    found = np.power(np.maximum(largest, _SMALL * usual), strength)
    found /= np.power(np.maximum(weights, _SMALL * float(weights.max() or 1.0)), 1 - strength)
    found /= np.exp(np.log(found).mean())
    return np.asarray(found, np.float32)


def smooth(
    model: ir.Model,
    products: Sequence[Product],
    by_key: Mapping[str, np.ndarray],
    log: RewriteLog | None = None,
) -> int:
    """Divide norms by factors and multiply the weights behind them.

    Args:
        model: The model, changed in place.
        products: The model's products.
        by_key: Factors by `Group.key`.
        log: Where each norm is claimed, if it is to be. What it gives has another name then.

    Returns:
        How many norms were changed.
    """
    count, build = 0, Builder(model)
    for group in find_groups(model, products):
        factor = by_key.get(group.key)
        if factor is None:
            continue
        if log is not None and not log.claim(PASS, "smooth", group.key, describe(group.norm)):
            continue
        for index in range(1, len(group.norm.inputs)):
            row = group.norm.inputs[index]
            if row is not None:
                _scale(build, group.norm, index, 1 / factor)
        for product in group.products:
            _scale(build, product.node, 1, factor if product.is_transposed else factor[:, None])
        if log is not None:
            # What bears a name of the original is compared with it; this is another value now.
            group.norm.outputs[0].name = build.fresh(f"{group.key}/smooth")
        count += 1
    return count


def _scale(build: Builder, node: ir.Node, index: int, by: np.ndarray) -> None:
    """Let a node read a constant times something."""
    value = node.inputs[index]
    array = None if value is None else constant_array(value)
    assert value is not None and array is not None
    made = build.constant((array * by).astype(np.float32), f"{value.name}/smooth")
    node.replace_input_with(index, made)


def _is_row(model: ir.Model, value: ir.Value, product: Product) -> bool:
    """Say whether a value is a constant with one number for each channel."""
    if not is_constant(value, model):
        return False
    array = constant_array(value)
    channels = product.array().shape[0]
    return array is not None and array.dtype == np.float32 and array.shape[-1:] == (channels,)
