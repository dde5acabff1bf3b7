"""Facts about ONNX operators, one row for each: `operator` finds a row, `where` a set of them.

The facts are what the standard says. What a kernel costs, what a target can do and what numbers
an operator makes are tables of their own, by the operator's name. Nothing here imports onnx.
"""

from ortkit.operators.catalog import operator, where
from ortkit.operators.info import OpInfo

__all__ = ["OpInfo", "operator", "where"]
