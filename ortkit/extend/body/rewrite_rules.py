"""onnxscript's rewrite rules as a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import onnx_ir as ir

from ortkit.errors import UserError
from ortkit.rewrite.log import RewriteLog
from ortkit.rewrite.passes import ModelPass

if TYPE_CHECKING:
    from onnxscript.rewriter.pattern import RewriteRule


@dataclass(frozen=True)
class RewriteRules(ModelPass):
    """Apply onnxscript rewrite rules to the whole model.

    Before:
        a subgraph that a rule's pattern matches
    After:
        the rule's replacement

    Each rule counts as one rewrite per round, however often it matches: onnxscript decides
    where. A rule is tried on a copy first, so that one that is held back changes nothing.

    Source:
        onnxscript.rewriter.pattern.RewriteRule.
    """

    name: ClassVar[str] = "rewrite-rules"

    rules: tuple[RewriteRule, ...] = ()

    @classmethod
    def of(cls, rules: RewriteRule | Sequence[RewriteRule]) -> RewriteRules:
        """Return a pass for one rule or several, applied in this order.

        Raises:
            UserError: Something else than rewrite rules was given.
        """
        from onnxscript.rewriter.pattern import RewriteRule as Rule

        given = tuple(rules) if isinstance(rules, Sequence) else (rules,)
        for rule in given:
            if not isinstance(rule, Rule):
                raise UserError(
                    f"{type(rule).__name__} is no onnxscript RewriteRule",
                    where="RewriteRules.of",
                    fix="pass what RewriteRule(...) or RewriteRuleClass.rule() returned",
                )
        return cls(given)

    def run(self, model: ir.Model, log: RewriteLog) -> None:
        from onnxscript.rewriter.pattern import RewriteRuleSet

        for index, rule in enumerate(self.rules):
            label = str(rule.name or f"rule {index}")
            rewrite_rule_set = RewriteRuleSet([rule])
            if not rewrite_rule_set.apply_to_model(model.clone()):
                log.miss(self.name, label, "it matches nowhere")
            elif log.claim(self.name, label, f"rule{index}", label):
                rewrite_rule_set.apply_to_model(model)
