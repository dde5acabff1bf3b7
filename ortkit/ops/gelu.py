"""GELU in standard ONNX, for models whose opset has no Gelu: the bodies of fused nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx
from onnx import helper


def erf_form(x: str, y: str) -> list[onnx.NodeProto]:
    """Return nodes that compute y = x / 2 * (1 + erf(x / sqrt 2)), in any opset from 9 on.

    Args:
        x: Name of the input, [...], float32.
        y: Name of the output, the input's shape and type; inner values are named after it.

    Source:
        Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016).
    """
    numbers = {"sqrt2": math.sqrt(2.0), "one": 1.0, "half": 0.5}
    return [
        *_constants(y, numbers),
        helper.make_node("Div", [x, f"{y}_sqrt2"], [f"{y}_scaled"]),
        helper.make_node("Erf", [f"{y}_scaled"], [f"{y}_erf"]),
        helper.make_node("Add", [f"{y}_erf", f"{y}_one"], [f"{y}_shifted"]),
        helper.make_node("Mul", [x, f"{y}_half"], [f"{y}_halved"]),
        helper.make_node("Mul", [f"{y}_halved", f"{y}_shifted"], [y]),
    ]


def tanh_form(x: str, y: str) -> list[onnx.NodeProto]:
    """Return nodes that compute y = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))).

    Args:
        x: Name of the input, [...], float32.
        y: Name of the output, the input's shape and type; inner values are named after it.

    Source:
        Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016).
    """
    rate = math.sqrt(2.0 / math.pi)
    numbers = {"rate": rate, "cubic": rate * 0.044715, "one": 1.0, "half": 0.5}
    return [
        *_constants(y, numbers),
        helper.make_node("Mul", [x, x], [f"{y}_square"]),
        helper.make_node("Mul", [f"{y}_square", f"{y}_cubic"], [f"{y}_bent"]),
        helper.make_node("Add", [f"{y}_bent", f"{y}_rate"], [f"{y}_factor"]),
        helper.make_node("Mul", [x, f"{y}_factor"], [f"{y}_inner"]),
        helper.make_node("Tanh", [f"{y}_inner"], [f"{y}_tanh"]),
        helper.make_node("Add", [f"{y}_tanh", f"{y}_one"], [f"{y}_shifted"]),
        helper.make_node("Mul", [x, f"{y}_half"], [f"{y}_halved"]),
        helper.make_node("Mul", [f"{y}_halved", f"{y}_shifted"], [y]),
    ]


def _constants(y: str, numbers: Mapping[str, float]) -> list[onnx.NodeProto]:
    """Return float32 constants of rank 0, named after `y`."""
    return [
        helper.make_node(
            "Constant",
            [],
            [f"{y}_{name}"],
            value=helper.make_tensor("", onnx.TensorProto.FLOAT, [], [value]),
        )
        for name, value in numbers.items()
    ]
