"""What a session may ask of the OrtkitExecutionProvider, read from its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from ortkit import env
from ortkit.errors import UserError

NAME = "OrtkitExecutionProvider"
#: Of the cache, for its libraries and records.
FOLDER = "provider"
#: Groups are claimed from this level on.
CLAIMS_SINCE_LEVEL = 2
_KERNELS = ("auto", "off", "tvm")
#: As the native library reads them.
_SWITCHES = {"0": False, "1": True}


@dataclass(frozen=True)
class OwnOptions:
    """The options of one session; all are text in ONNX Runtime."""

    level: int = 2
    """As of `ortkit optimize`: below 2 nothing is claimed, at 3 whatever has a kernel."""
    kernels: str = "auto"
    """Which backend makes kernels: auto, tvm, or off for none."""
    measure: bool = False
    """Time groups while a session is made, and leave out what does not pay on this machine."""
    cpu: str = "native"
    """The processor level that kernels are made for, such as x86-64-v3."""
    cache_dir: Path | None = None
    """Where kernels and libraries are kept; None: the user's cache."""
    verbosity: int = 0
    """1: log a line for each graph; 2: also what is claimed, what is not, and why."""
    strict: bool = False
    """Fail the session if claiming fails, which otherwise leaves everything to others."""
    trust: bool = False
    """Load kernel libraries that models compiled ahead of time bring, even if built elsewhere."""

    @property
    def cache(self) -> Path:
        """The folder for kernels and libraries."""
        return env.cache_dir() if self.cache_dir is None else self.cache_dir

    @property
    def claims(self) -> bool:
        """Whether anything is looked for."""
        return self.level >= CLAIMS_SINCE_LEVEL and self.kernels != "off"

    @staticmethod
    def of(texts: Mapping[str, str]) -> OwnOptions:
        """Read options.

        Raises:
            UserError: An option is unknown, or has a value that it cannot have.
        """
        reader = _Reader(texts)
        return OwnOptions(
            level=reader.number("level", 2, 3),
            kernels=reader.word("kernels", "auto", _KERNELS),
            measure=reader.switch("measure"),
            cpu=texts.get("cpu", "native"),
            cache_dir=Path(texts["cache_dir"]).expanduser() if texts.get("cache_dir") else None,
            verbosity=reader.number("verbosity", 0, 2),
            strict=reader.switch("strict"),
            trust=reader.switch("trust"),
        )


KNOWN = tuple(OwnOptions.__dataclass_fields__)


class _Reader:
    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        for key in texts:
            if key not in KNOWN:
                near = get_close_matches(key, KNOWN, 1)
                fix = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(KNOWN)}"
                raise UserError(f"there is no option {key!r}", where=NAME, fix=fix)

    def number(self, key: str, default: int, largest: int) -> int:
        text = self._texts.get(key, str(default))
        if not text.isdecimal() or int(text) > largest:
            raise self._wrong(key, text, f"0 to {largest}")
        return int(text)

    def word(self, key: str, default: str, known: tuple[str, ...]) -> str:
        text = self._texts.get(key, default)
        if text not in known:
            raise self._wrong(key, text, ", ".join(known))
        return text

    def switch(self, key: str) -> bool:
        text = self._texts.get(key, "0")
        if text not in _SWITCHES:
            raise self._wrong(key, text, "0 or 1")
        return _SWITCHES[text]

    @staticmethod
    def _wrong(key: str, text: str, fix: str) -> UserError:
        return UserError(f"option {key} is {text!r}", where=NAME, fix=f"use {fix}")
