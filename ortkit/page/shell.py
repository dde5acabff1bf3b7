"""One HTML file that holds everything it needs and loads nothing: what all pages share."""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from string import Template

_ASSETS = importlib.resources.files("ortkit.page") / "assets"


@dataclass(frozen=True)
class Card:
    """A figure in the head of a page."""

    name: str
    figure: str
    remark: str = ""
    """Shown below the figure."""


@dataclass(frozen=True)
class Shell:
    """A page without its own part."""

    title: str
    subtitle: str
    cards: Sequence[Card]
    notes: Sequence[str]
    """What was left out or is not known, and why."""
    data: Mapping[str, object]
    """For the page's script."""


def render(shell: Shell, assets: Traversable, values: Mapping[str, str]) -> str:
    """Return a page as HTML.

    Args:
        shell: What it says in its head, and its data.
        assets: Folder of its own part: `page.html` for the body, `page.css`, and scripts, which
            run in the order of their names.
        values: What is put in for `$NAME` in `page.html`, as HTML.
    """
    script = _script(_ASSETS, assets)
    body = Template(_text(assets, "page.html")).substitute(values)
    return Template(_text(_ASSETS, "page.html")).substitute(
        POLICY=html.escape(_policy(script)),
        TITLE=html.escape(shell.title),
        SUBTITLE=html.escape(shell.subtitle),
        STYLE=_text(_ASSETS, "page.css") + _text(assets, "page.css"),
        CARDS="".join(map(_card, shell.cards)),
        BODY=body,
        NOTES=item_list("notes", "Notes", "ul", [html.escape(note) for note in shell.notes]),
        DATA=_embedded(shell.data),
        SCRIPT=script,
    )


def item_list(name: str, title: str, kind: str, items: Sequence[str]) -> str:
    """Return a section with a list of items, which are HTML; nothing if there are none."""
    if not items:
        return ""
    lines = "".join(f"<li>{item}</li>" for item in items)
    return (
        f'<section id="{name}" aria-labelledby="{name}-title">'
        f'<h2 id="{name}-title">{title}</h2><{kind}>{lines}</{kind}></section>'
    )


def _card(card: Card) -> str:
    name, figure, text = map(html.escape, (card.name, card.figure, card.remark))
    remark = f'<dd title="{text}">{text}</dd>' if text else ""
    return f"<div><dt>{name}</dt><dd>{figure}</dd>{remark}</div>"


def _script(*folders: Traversable) -> str:
    parts = "\n".join(
        _text(folder, name)
        for folder in folders
        for name in sorted(path.name for path in folder.iterdir() if path.name.endswith(".js"))
    )
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


def _text(folder: Traversable, name: str) -> str:
    return (folder / name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    """Allow this script and nothing else: neither a script in a name nor any request.

    Source: Content Security Policy Level 3, sections 6.1 (directives) and 2.3.1 (hashes).
    """
    sha256 = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{sha256}'; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _embedded(data: Mapping[str, object]) -> str:
    """Return JSON that cannot end the script element which holds it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")
