"""Providers that are right, wrong, broken, deadly and slow, for the tests of conformance."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

import ortkit
from ortkit.provider import GraphView


class Right(ortkit.ExecutionProvider):
    """Takes Relu and Abs."""

    name = "RightExecutionProvider"
    OPS = {"Relu": lambda x: np.maximum(x, 0), "Abs": np.abs}

    def get_capability(self, graph: GraphView) -> list[Any]:
        return [[node] for node in graph if node.op_type in self.OPS]

    def compile(self, subgraph: GraphView) -> Any:
        (node,) = subgraph
        return self.OPS[node.op_type]


class Wrong(Right):
    """Is right about Relu only."""

    name = "WrongExecutionProvider"
    OPS = {"Relu": lambda x: np.maximum(x, 0), "Abs": lambda x: x}


class Failing(Right):
    """Raises in its kernel."""

    name = "FailingExecutionProvider"

    def compile(self, subgraph: GraphView) -> Any:
        def fail(*_: object) -> object:
            raise ValueError("this chip is not soldered")

        return fail


class Deadly(Right):
    """Ends the process in a kernel for Abs."""

    name = "DeadlyExecutionProvider"
    OPS = {"Relu": lambda x: np.maximum(x, 0), "Abs": lambda x: os.abort()}


class Hanging(Right):
    """Does not come back from Abs."""

    name = "HangingExecutionProvider"
    OPS = {"Relu": lambda x: np.maximum(x, 0), "Abs": lambda x: time.sleep(3600)}
