"""What a case of the suite is."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import onnx

from tests.spelling.manner import MANNERS, Manner
from tests.spelling.writer import Feeds, Writer

Write = Callable[[Writer], str | tuple[str, ...]]

MS = "com.microsoft::"
ATTENTION = frozenset(
    {"Attention", MS + "Attention", MS + "MultiHeadAttention", MS + "GroupQueryAttention"}
)
LAYER_NORM = frozenset({"LayerNormalization", MS + "SkipLayerNormalization"})
RMS_NORM = frozenset(
    {
        "RMSNormalization",
        "SimplifiedLayerNormalization",
        MS + "SkipSimplifiedLayerNormalization",
    }
)
GELU = frozenset({"Gelu", MS + "Gelu", MS + "BiasGelu", MS + "FastGelu"})
SILU = frozenset({"Swish", MS + "QuickGelu"})
ROTARY = frozenset({"RotaryEmbedding", MS + "RotaryEmbedding", MS + "GroupQueryAttention"})


#: From one manner of a formula to its next; no divisor of their number.
_STRIDE = 5


@dataclass(frozen=True)
class Formula:
    """One way to write an op."""

    op: str
    """What is written, as the tables call it."""
    name: str
    write: Write
    wanted: frozenset[str]
    """One of these must be in the result."""
    gone: frozenset[str]
    """None of these may be."""
    since: int = 13
    """The first opset that has all its nodes."""
    manners: int = 2
    """In how many manners to write it."""
    fixed: bool = False
    """Whether it has a constant that only one size fits."""


@dataclass(frozen=True)
class NearMiss:
    """Something that looks like an op and is not."""

    op: str
    name: str
    write: Write
    never: frozenset[str]
    """None of these may be in the result."""
    since: int = 13
    manners: int = 1


@dataclass(frozen=True)
class Case:
    """A formula or near miss in one manner."""

    what: Formula | NearMiss
    manner: Manner

    @property
    def name(self) -> str:
        """`op/formula/manner`."""
        words = f"{self.what.op}/{self.what.name}/{self.manner.text}"
        return words.replace(" ", "-")

    def build(self) -> tuple[onnx.ModelProto, tuple[Feeds, Feeds]]:
        """Return the model and inputs of two sizes."""
        writer = Writer(self.manner)
        results = self.what.write(writer)
        model = writer.model(*([results] if isinstance(results, str) else results))
        return model, writer.feeds()


def cases(formulas: Sequence[Formula]) -> Iterator[Case]:
    """Write each formula in some manners, which depend on its name alone."""
    for formula in formulas:
        for manner in _manners(formula, formula.manners):
            yield Case(formula, replace(manner, dynamic=manner.dynamic and not formula.fixed))


def near_cases(misses: Sequence[NearMiss]) -> Iterator[Case]:
    """Write each near miss in its manners."""
    for miss in misses:
        yield from (Case(miss, manner) for manner in _manners(miss, miss.manners))


def _manners(what: Formula | NearMiss, count: int) -> Iterator[Manner]:
    first = zlib.crc32(f"{what.op}/{what.name}".encode())
    for index in range(count):
        manner = MANNERS[(first + _STRIDE * index) % len(MANNERS)]
        yield replace(manner, opset=max(manner.opset, what.since))
