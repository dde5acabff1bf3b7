"""The ops of custom_ops/examples, declared for as long as tests use them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ortkit.extend.declare.find_ops import find_ops
from ortkit.extend.declare.op import CustomOp
from ortkit.runtime.python_ops import OPS, PythonOp

DOMAIN = "ortkit.examples"
#: What the examples declared. Their modules are imported once in a process, and several fixtures
#: of one worker use them.
_DECLARED: dict[tuple[str, str, int], PythonOp] = {}


@contextmanager
def example_ops() -> Iterator[dict[str, CustomOp]]:
    """Yield the ops by name; afterwards they are not declared any more."""
    before = set(OPS)
    OPS.update(_DECLARED)
    found = find_ops(["ortkit.custom_ops.examples"])
    try:
        yield {op.name: op for op in found if op.domain == DOMAIN}
    finally:
        _DECLARED.update({key: OPS.pop(key) for key in set(OPS) - before})
