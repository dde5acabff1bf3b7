"""What a pass is: a frozen value whose fields are its options and its text form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import onnx_ir as ir

    from ortkit.rewrite.log import RewriteLog
    from ortkit.rewrite.scope import Scope
    from ortkit.rewrite.site import Site


@dataclass(frozen=True)
class Pass(ABC):
    """One graph transformation: a value whose fields are its options.

    A pass keeps the graph's interface (names, order and types of inputs and outputs), asks
    `claim` before each rewrite and then does it, and settles: run again, it finds nothing.
    """

    name: ClassVar[str]
    """Verb-object, as the command line and the file spell it: `drop-identity`."""

    @property
    def text(self) -> str:
        """The pass with its changed options, as `--passes` reads it: `name{option=value}`."""
        changed = [
            f"{field.name.replace('_', '-')}={getattr(self, field.name)}"
            for field in fields(self)
            if getattr(self, field.name) != field.default
        ]
        return f"{self.name}{{{','.join(changed)}}}" if changed else self.name


@dataclass(frozen=True)
class NodePass(Pass):
    """A pass that decides at one node from what lies around it.

    Neighbouring node passes of a pipeline share one worklist, so that each rewrite is followed
    by a look at only the nodes that it touched. Cost stays linear in the graph.
    """

    ops: ClassVar[Sequence[str]]
    """Op types it looks at, `domain::Op` outside the default domain; `*` for all."""

    @abstractmethod
    def rewrite(self, site: Site) -> None:
        """Rewrite at `site.node`, or leave a reason with `site.miss`, or do nothing."""


@dataclass(frozen=True)
class GraphPass(Pass):
    """A pass that needs to see the whole graph at once."""

    @abstractmethod
    def run(self, scope: Scope) -> None:
        """Rewrite `scope`, claiming each rewrite first."""


@dataclass(frozen=True)
class ModelPass(Pass):
    """A pass that changes which graphs there are; shapes are inferred again after it."""

    @abstractmethod
    def run(self, model: ir.Model, log: RewriteLog) -> None:
        """Rewrite `model`, claiming each rewrite with `log.claim` first."""
