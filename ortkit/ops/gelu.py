"""GELU in standard ONNX, for models whose opset has no Gelu."""

from __future__ import annotations

import math

import onnx
from onnx import helper

#: The default domain has Gelu from this version on.
GELU_SINCE_OPSET = 20


def erf_form(x: str, y: str) -> list[onnx.NodeProto]:
    """Return nodes that compute y = x / 2 * (1 + erf(x / sqrt 2)), in any opset from 9 on.

    Args:
        x: Name of the input, [...], float32.
        y: Name of the output, the input's shape and type; inner values are named after it.

    Source:
        Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016).
    """
    numbers = {f"{y}_sqrt2": math.sqrt(2.0), f"{y}_one": 1.0, f"{y}_half": 0.5}
    constants = [
        helper.make_node(
            "Constant",
            [],
            [name],
            value=helper.make_tensor("", onnx.TensorProto.FLOAT, [], [value]),
        )
        for name, value in numbers.items()
    ]
    return [
        *constants,
        helper.make_node("Div", [x, f"{y}_sqrt2"], [f"{y}_scaled"]),
        helper.make_node("Erf", [f"{y}_scaled"], [f"{y}_erf"]),
        helper.make_node("Add", [f"{y}_erf", f"{y}_one"], [f"{y}_shifted"]),
        helper.make_node("Mul", [x, f"{y}_half"], [f"{y}_halved"]),
        helper.make_node("Mul", [f"{y}_halved", f"{y}_shifted"], [y]),
    ]
