"""What the model is optimized for, as far as rewriting needs to know."""

from __future__ import annotations

from dataclasses import dataclass, field

from ortkit.targets.target import Target


@dataclass(frozen=True)
class RewriteOptions:
    """What passes are told."""

    target: Target = field(default_factory=Target)
    """What the result should be fast on."""
    level: int = 2
    """0 to 3; at 3 every recognised fusion is emitted, whatever it costs."""
    max_opset: int = 23
    """The default domain's version may be raised up to this where a fusion needs it."""
