"""Which rule belongs to which operator."""

from __future__ import annotations

from ortkit.graph.shapes.rules import (
    attention,
    contrib,
    control,
    create,
    elementwise,
    indexing,
    layout,
    linear,
    normal,
    quantize,
    recurrent,
    reduce,
    resize,
    spatial,
)
from ortkit.graph.shapes.rules.call import Call, Rule
from ortkit.graph.shapes.rules.fallback import infer_by_schema

_STANDARD: dict[str, Rule] = {
    **elementwise.RULES,
    **layout.RULES,
    **indexing.RULES,
    **reduce.RULES,
    **linear.RULES,
    **spatial.RULES,
    **resize.RULES,
    **normal.RULES,
    **create.RULES,
    **recurrent.RULES,
    **attention.RULES,
    **quantize.RULES,
    **control.RULES,
}
_CONTRIB: dict[str, Rule] = contrib.RULES


def rule_for(domain: str, op_type: str) -> Rule:
    """Return the rule of an operator; for one without a rule, a rule that finds what it can."""
    if domain == "":
        return _STANDARD.get(op_type, infer_by_schema)
    if domain == "com.microsoft":
        return _CONTRIB.get(op_type, _nothing)
    return _nothing


def _nothing(call: Call) -> None:
    """Find nothing: the operator is not known."""
