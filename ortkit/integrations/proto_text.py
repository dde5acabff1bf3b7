"""The text format of protocol buffers, as far as configuration files need it.

Protobuf's own writer needs the compiled schema, Triton's `model_config.proto`. Only `tritonclient`
brings that, together with gRPC; `ortkit bundle triton` needs neither. A test parses what this
module writes with that schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

Message: TypeAlias = Mapping[str, "Field"]
Field: TypeAlias = "str | int | bool | Enum | Message | Sequence[Field]"


class Enum(str):
    """A value of an enumeration, which is written without quotes."""

    __slots__ = ()


def proto_text(message: Message) -> str:
    """Return a message as text; a sequence is a repeated field.

    Source: the text format specification of protocol buffers (protobuf.dev).
    """
    return "".join(f"{line}\n" for line in _lines(message))


def _lines(message: Message, indent: str = "") -> Iterator[str]:
    for name, value in message.items():
        is_repeated = isinstance(value, Sequence) and not isinstance(value, str)
        for one in value if is_repeated else [value]:  # type: ignore[union-attr]
            if isinstance(one, Mapping):
                yield f"{indent}{name} {{"
                yield from _lines(one, indent + "  ")
                yield f"{indent}}}"
            else:
                yield f"{indent}{name}: {_scalar(one)}"


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return str.__str__(value)
    if not isinstance(value, str):
        return str(value)
    return '"' + "".join(map(_escaped, value.encode("utf-8"))) + '"'


def _escaped(byte: int) -> str:
    character = chr(byte)
    is_plain = 0x20 <= byte < 0x7F and character not in '"\\'
    return character if is_plain else f"\\{byte:03o}"
