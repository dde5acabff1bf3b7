"""What kernels say of sizes, as text: `2*m*n`, `n % 16 == 0 and n <= 4096`, `ceil(n / BLOCK)`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ortkit.errors import UserError
from ortkit.kernels.sizes import Extent, extent_of

_WORD = r"[A-Za-z_]\w*"
_SIZE = rf"(?:{_WORD}|\d+)(?:\s*\*\s*(?:{_WORD}|\d+))*"
_DIVISIBLE = re.compile(rf"(?P<size>{_SIZE})\s*%\s*(?P<number>{_WORD}|\d+)\s*==\s*0")
_AT_MOST = re.compile(rf"(?P<size>{_SIZE})\s*<=\s*(?P<number>{_WORD}|\d+)")
_BLOCKS = re.compile(rf"ceil\(\s*(?P<size>{_SIZE})\s*/\s*(?P<number>{_WORD}|\d+)\s*\)")


@dataclass(frozen=True)
class SizeRule:
    """A size is a multiple of a number, and not more than one."""

    size: Extent
    divisible_by: int = 1
    at_most: int | None = None

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Say whether it holds for these sizes by name."""
        size = value_of(self.size, sizes)
        return size % self.divisible_by == 0 and (self.at_most is None or size <= self.at_most)


def value_of(size: Extent, sizes: Mapping[str, int]) -> int:
    """Return a size in numbers."""
    result = size.factor
    for name in size.symbols:
        result *= sizes[name]
    return result


@dataclass(frozen=True)
class Words:
    """The words that such texts may use, for messages too."""

    where: str
    sizes: Sequence[str]
    constants: Mapping[str, int]

    def rules(self, text: str) -> tuple[SizeRule, ...]:
        """Read conditions that all must hold; empty text holds always.

        Raises:
            UserError: It is none.
        """
        parts = [part for part in re.split(r"\band\b", text) if part.strip()]
        return tuple(self._rule(part.strip()) for part in parts)

    def size(self, text: str | int) -> Extent:
        """Read a product.

        Raises:
            UserError: It is none.
        """
        found = str(text).strip()
        if not re.fullmatch(_SIZE, found):
            raise UserError(
                f"{found!r} is no size", where=self.where, fix="write products such as 2*m*n"
            )
        parts = [part.strip() for part in found.split("*")]
        return extent_of("*".join(str(self._known(part)) for part in parts))

    def blocks(self, text: str | int) -> tuple[Extent, int]:
        """Read one dim of a grid: what is divided by what, rounded up.

        Raises:
            UserError: It is none.
        """
        match = _BLOCKS.fullmatch(str(text).strip())
        if match is None:
            return self.size(text), 1
        return self.size(match["size"]), self._number(match["number"])

    def _rule(self, text: str) -> SizeRule:
        if match := _DIVISIBLE.fullmatch(text):
            return SizeRule(self.size(match["size"]), divisible_by=self._number(match["number"]))
        if match := _AT_MOST.fullmatch(text):
            return SizeRule(self.size(match["size"]), at_most=self._number(match["number"]))
        raise UserError(
            f"{text!r} is no condition", where=self.where,
            fix='write it as "n % 16 == 0 and n <= 4096"',
        )  # fmt: skip

    def _known(self, word: str) -> str | int:
        if word.isdecimal() or word in self.sizes:
            return word
        if word in self.constants:
            return self.constants[word]
        raise UserError(
            f"there is no size {word!r}", where=self.where,
            fix=f"known: {', '.join([*self.sizes, *self.constants])}",
        )  # fmt: skip

    def _number(self, word: str) -> int:
        found = int(word) if word.isdecimal() else self.constants.get(word, 0)
        if isinstance(found, bool) or not isinstance(found, int) or found < 1:
            raise UserError(
                f"{word!r} is no number from 1 on", where=self.where,
                fix=f"known: {', '.join(self.constants) or 'no constants'}",
            )  # fmt: skip
        return found
