"""What can be said of a pass without running it: level, options, documentation."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from itertools import pairwise

from ortkit.errors import UserError
from ortkit.passes.catalog import PASSES
from ortkit.passes.presets import ORDER
from ortkit.passes.select import catalog, load_pass
from ortkit.rewrite.passes import GraphPass, ModelPass, NodePass, Pass

SCHEMA = "ortkit.passes/1"


@dataclass(frozen=True)
class OptionInfo:
    """One option of a pass, as `--passes` spells it."""

    name: str
    default: str
    summary: str


@dataclass(frozen=True)
class PassInfo:
    """One pass of the catalog."""

    name: str
    level: int | None
    """The first level it runs at, None if it runs only when it is named."""
    kind: str
    """`node`, `graph` or `model`: what it looks at at once."""
    ops: tuple[str, ...]
    """Op types that a node pass starts from; `*` for all."""
    summary: str
    """The first line of `doc`."""
    doc: str
    options: tuple[OptionInfo, ...]
    text: str
    """How `--passes` writes it with every option at its default."""
    place: str
    """`module:class`."""

    def to_json(self) -> dict[str, object]:
        """Return the fields as JSON types."""
        return asdict(self)


def list_passes(level: int | None = None) -> tuple[PassInfo, ...]:
    """Return the passes of the catalog, those of the levels first, in the order they run in.

    Args:
        level: Only those that run at this level.

    Raises:
        UserError: There is no such level, or an installed package's pass cannot be loaded.
    """
    if level is not None and level not in range(4):
        raise UserError(f"there is no level {level}", where="--level", fix="use 0 to 3")
    known = catalog()
    ordered = [name for name, _ in ORDER if name in known]
    infos = [_info(name, known[name]) for name in dict.fromkeys((*ordered, *sorted(known)))]
    return tuple(
        info for info in infos if level is None or (info.level is not None and info.level <= level)
    )


def describe_pass(name: str) -> PassInfo:
    """Return what there is to say of one pass.

    Raises:
        UserError: There is no such pass, or it cannot be loaded.
    """
    load_pass(name)
    return _info(name, catalog()[name])


def _info(name: str, source: str) -> PassInfo:
    loaded = _loaded(name, source)
    cls = type(loaded)
    doc = inspect.cleandoc(cls.__doc__ or "")
    return PassInfo(
        name=name,
        level=dict(ORDER).get(name),
        kind=_kind(loaded),
        ops=tuple(loaded.ops) if isinstance(loaded, NodePass) else (),
        summary=doc.partition("\n")[0],
        doc=doc,
        options=_options(loaded),
        text=f"{name}{{{_option_text(loaded)}}}" if fields(loaded) else name,
        place=source,
    )


def _loaded(name: str, source: str) -> Pass:
    try:
        return load_pass(name)
    except (ImportError, AttributeError, TypeError) as error:
        if name in PASSES:
            raise
        raise UserError(
            f"pass {name!r} cannot be loaded: {error}",
            where=f"entry point {source}",
            fix="repair or uninstall the package that brings it",
        ) from error


def _kind(one: Pass) -> str:
    kinds: tuple[tuple[type[Pass], str], ...] = (
        (NodePass, "node"), (GraphPass, "graph"), (ModelPass, "model"),
    )  # fmt: skip
    return next((text for kind, text in kinds if isinstance(one, kind)), "other")


def _options(one: Pass) -> tuple[OptionInfo, ...]:
    texts = _field_texts(type(one))
    return tuple(
        OptionInfo(
            field.name.replace("_", "-"), str(getattr(one, field.name)), texts.get(field.name, "")
        )
        for field in fields(one)
    )


def _option_text(one: Pass) -> str:
    return ",".join(f"{option.name}={option.default}" for option in _options(one))


def _field_texts(cls: type[Pass]) -> Mapping[str, str]:
    """Return the string under each field of a class, which Python itself drops."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return {}  # no source at hand: the options are shown without their texts
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    found = {}
    for field, under in pairwise(body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(under, ast.Expr) and isinstance(under.value, ast.Constant):
            found[field.target.id] = " ".join(str(under.value.value).split())
    return found
