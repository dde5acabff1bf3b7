"""From what the user wrote to passes: presets, single passes, their options, added and removed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from importlib import import_module
from importlib.metadata import entry_points

from ortkit.errors import UserError
from ortkit.passes.catalog import ENTRY_POINTS, PASSES
from ortkit.passes.presets import NAMED, preset
from ortkit.rewrite.passes import Pass
from ortkit.targets.catalog import Kind

ITEM = re.compile(r"(?P<sign>[+-]?)(?P<name>[A-Za-z][\w.-]*)(?:\{(?P<options>[^}]*)\})?")


def catalog() -> Mapping[str, str]:
    """Return every pass that can be named, installed packages' own included."""
    found = dict(PASSES)
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name in found:
            raise UserError(
                f"two passes are named {entry.name!r}",
                where=f"entry point {entry.value}",
                fix="rename the one in the package",
            )
        found[entry.name] = entry.value
    return found


def load_pass(name: str, options: Mapping[str, str] | None = None) -> Pass:
    """Return the pass called `name` with these options.

    Raises:
        UserError: There is no such pass or option, or a value of the wrong type.
    """
    # Looking for installed packages' passes takes 20 ms; ours are found without it.
    known = PASSES if name in PASSES else catalog()
    if name not in known:
        raise UserError(
            f"there is no pass {name!r}{_near(name, known)}",
            where="--passes",
            fix="see `ortkit passes list`",
        )
    module, _, attribute = known[name].partition(":")
    cls: type[Pass] = getattr(import_module(module), attribute)
    return cls(**_typed(cls, options or {}))


def select_passes(spec: str, level: int, kind: Kind = "cpu") -> tuple[Pass, ...]:
    """Return the passes that `spec` names.

    Args:
        spec: Empty for the level's preset; `a,b{option=1}` for these passes in this order;
            `+a,-b` for the preset with `a` added at its end and `b` removed; a preset's name
            (`clean`, `fold`, `default`, `all`) stands for its passes.
        level: 0 to 3.
        kind: What it is for; presets differ.

    Raises:
        UserError: The text does not parse, or names something that is not there.
    """
    chosen: list[tuple[str, Mapping[str, str]]] = []
    items = list(_items(spec))
    if all(sign for sign, _, _ in items):
        chosen = [(name, {}) for name in preset(level, kind)]
    for sign, name, options in items:
        if sign == "-":
            kept = [item for item in chosen if item[0] != name]
            if len(kept) == len(chosen):
                raise UserError(
                    f"pass {name!r} is not among those of level {level}"
                    f"{_near(name, [one for one, _ in chosen])}",
                    where="--passes",
                    fix="see `ortkit passes list`",
                )
            chosen = kept
        elif name in NAMED and not options:
            chosen.extend((one, {}) for one in preset(NAMED[name], kind))
        else:
            chosen.append((name, options))
    return tuple(load_pass(name, options) for name, options in chosen)


def _items(spec: str) -> Iterable[tuple[str, str, Mapping[str, str]]]:
    position = 0
    while position < len(spec):
        match = ITEM.match(spec, position)
        end = match.end() if match else position
        if match is None or (end < len(spec) and spec[end] != ","):
            raise UserError(
                f"cannot read {spec[position:]!r}",
                where="--passes",
                fix="write names separated by commas, options as name{option=value}",
            )
        yield match["sign"], match["name"], _options(match["options"] or "")
        position = end + 1


def _options(text: str) -> Mapping[str, str]:
    found = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise UserError(f"option {part!r} has no value", where="--passes", fix="write k=v")
        found[key.strip().replace("-", "_")] = value.strip()
    return found


def _typed(cls: type[Pass], options: Mapping[str, str]) -> dict[str, object]:
    known = {field.name: field for field in fields(cls)}
    typed: dict[str, object] = {}
    for key, text in options.items():
        if key not in known:
            raise UserError(
                f"pass {cls.name!r} has no option {key!r}{_near(key, known)}", where="--passes"
            )
        default = known[key].default
        try:
            typed[key] = _parse(text, default)
        except ValueError:
            raise UserError(
                f"option {key!r} of pass {cls.name!r} cannot be {text!r}",
                where="--passes",
                fix=f"give a value like {default!r}",
            ) from None
    return typed


def _parse(text: str, like: object) -> object:
    if isinstance(like, bool):
        words = {"true": True, "false": False}
        return words[text.lower()] if text.lower() in words else bool(int(text))
    if isinstance(like, int):
        return int(text)
    if isinstance(like, float):
        return float(text)
    return text


def _near(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
