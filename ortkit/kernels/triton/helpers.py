"""Pointwise operators as functions beside the kernel, each written once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from ortkit.kernels.region.program import Point
from ortkit.kernels.triton.emit import Emitter
from ortkit.kernels.triton.expr import Expr, bare


@dataclass
class Helpers:
    """The functions of one module, and the calls of them."""

    functions: dict[str, str] = field(default_factory=dict)
    """Name -> source."""
    _names: dict[object, str] = field(default_factory=dict)

    def call(self, e: Emitter, node: Point, operands: Sequence[Expr | None]) -> Expr:
        """Return the operator applied to shared values or constants."""
        emitter = Emitter()
        given: list[Expr | None] = []
        for index, operand in enumerate(operands):
            is_variable = operand is not None and operand.literal is None
            given.append(Expr(f"x{index}", operand.dtype) if operand and is_variable else operand)
        result = _write(emitter, node, given)
        if not emitter.lines:
            return _write(e, node, operands)
        parameters = [
            expr.text
            for expr, was in zip(given, operands, strict=True)
            if expr is not was and expr
        ]
        arguments = [
            was.text for item, was in zip(given, operands, strict=True) if item is not was and was
        ]
        body = [*emitter.lines, f"return {bare(result.text)}"]
        key = (node.op_type, tuple(parameters), tuple(body))
        if key not in self._names:
            name = self._name(node.op_type)
            self._names[key] = name
            lines = "\n".join(f"    {line}" for line in body)
            self.functions[name] = f"@triton.jit\ndef {name}({', '.join(parameters)}):\n{lines}\n"
        return Expr(f"{self._names[key]}({', '.join(arguments)})", result.dtype)

    def _name(self, op_type: str) -> str:
        stem = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", op_type).lower()
        count = sum(name.rstrip("_0123456789") == f"op_{stem}" for name in self.functions)
        return f"op_{stem}_{count + 1}" if count else f"op_{stem}"


def _write(e: Emitter, node: Point, operands: Sequence[Expr | None]) -> Expr:
    return cast(Expr, node.op.write(e, node.attributes, operands))
