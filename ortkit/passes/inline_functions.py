"""inline-functions: replace calls of model-local functions by their bodies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import onnx_ir as ir

from ortkit.graph.inline import inline_functions, not_inlined
from ortkit.graph.walk import nodes_below, roots
from ortkit.rewrite.log import RewriteLog
from ortkit.rewrite.passes import ModelPass

#: The metadata of functions whose calls a pass has just put there.
KEPT_KEY = "ortkit.found"


@dataclass(frozen=True)
class InlineFunctions(ModelPass):
    """Inline model-local functions, so that every later pass sees through them.

    Before:
        y = local::F(x)        # F(x) = Relu(Neg(x))
    After:
        t = Neg(x);  y = Relu(t)

    Skips:
        * A domain that also has nodes without a function body: it is a custom-op domain, and
          its functions are fallbacks for ops that a library may implement.
        * A domain or a function named in `keep`, and ops that another pass found.
        * A function that imports another version of a domain than the model, or takes a graph.

    Source:
        ONNX IR, "Functions": a call means its body.
    """

    name: ClassVar[str] = "inline-functions"

    keep: str = ""
    """Domains, and functions as `domain::name`, to leave alone, separated by `+`."""

    def run(self, model: ir.Model, log: RewriteLog) -> None:
        if not model.functions:
            return
        wanted = set(filter(None, self.keep.split("+")))
        custom = _custom_domains(model)
        kept = not_inlined(model)
        chosen: set[ir.OperatorIdentifier] = set()
        for identifier, function in model.functions.items():
            label = f"{function.domain}::{function.name}"
            if (
                not wanted.isdisjoint((function.domain, label))
                or KEPT_KEY in function.metadata_props
            ):
                log.miss(self.name, label, "it is kept, as asked for")
                continue
            if function.domain in custom:
                log.miss(self.name, label, "its domain holds custom ops")
                continue
            if reason := kept.get(identifier):
                log.miss(self.name, label, reason)
                continue
            if log.claim(self.name, "inline", label, label):
                chosen.add(identifier)
        if chosen:
            inline_functions(model, lambda function: function.identifier() in chosen)


def _custom_domains(model: ir.Model) -> set[str]:
    used = {node.op_identifier() for root in roots(model) for node in nodes_below(root)}
    return {identifier[0] for identifier in used if identifier not in model.functions} - {""}
