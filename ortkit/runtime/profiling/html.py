"""One page that shows a profile: it holds everything it needs and loads nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from ortkit.errors import MissingDependencyError
from ortkit.graph.io.atomic import write_whole

_ASSETS = importlib.resources.files("ortkit.runtime.profiling") / "html_assets"


@dataclass(frozen=True)
class Page:
    """What the page says."""

    title: str
    subtitle: str
    facts: Sequence[tuple[str, str]]
    """A name and a figure each, in the page's head."""
    advice: Sequence[tuple[str, str, str]]
    """What to do, what speaks for it, and what it gives at most."""
    notes: Sequence[str]
    """What was left out or is not known, and why."""
    data: Mapping[str, object]
    """For the page's script: see `html_data`."""


def write_page(page: Page, path: Path) -> None:
    """Write a page.

    Raises:
        MissingDependencyError: plotly, which draws it, is not installed.
        UserError: `path` cannot be written.
    """
    write_whole(path, page_text(page))


def page_text(page: Page) -> str:
    """Return a page as HTML, about 5 MB of which are plotly.js.

    Raises:
        MissingDependencyError: plotly, which draws it, is not installed.
    """
    plotly = require_plotly()
    script = _script()
    return Template(_asset("page.html")).substitute(
        POLICY=html.escape(_policy(plotly, script)),
        TITLE=html.escape(page.title),
        SUBTITLE=html.escape(page.subtitle),
        STYLE=_asset("page.css"),
        FACTS="".join(
            f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(figure)}</dd></div>"
            for name, figure in page.facts
        ),
        ADVICE=_list("advice", "What to do", "ol", [_advice(*one) for one in page.advice]),
        NOTES=_list("notes", "Notes", "ul", [html.escape(note) for note in page.notes]),
        DATA=_embedded(page.data),
        PLOTLY=plotly,
        SCRIPT=script,
    )


def require_plotly() -> str:
    """Return plotly's script.

    Raises:
        MissingDependencyError: plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingDependencyError(
            "plotly, which draws the page, is not installed",
            where="--html",
            fix='install it with: pip install "ortkit[report]"',
        ) from error
    script: str = get_plotlyjs()
    return script


def _script() -> str:
    names = sorted(one.name for one in _ASSETS.iterdir() if one.name.endswith(".js"))
    parts = "\n".join(_asset(name) for name in names)
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _policy(*scripts: str) -> str:
    """Allow these scripts and nothing else: neither a script in a name nor any request.

    Source: Content Security Policy Level 3, sections 6.1 (directives) and 2.3.1 (hashes).
    """
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'"
        for one in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _embedded(data: Mapping[str, object]) -> str:
    """Return JSON that cannot end the script element which holds it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _advice(title: str, detail: str, gain: str) -> str:
    parts = [f"<strong>{html.escape(title)}</strong>"]
    parts += [f"<br>{html.escape(detail)}"] * bool(detail)
    parts += [f'<br><span class="gain">{html.escape(gain)}</span>'] * bool(gain)
    return "".join(parts)


def _list(name: str, title: str, kind: str, items: Sequence[str]) -> str:
    if not items:
        return ""
    lines = "".join(f"<li>{item}</li>" for item in items)
    return (
        f'<section id="{name}" aria-labelledby="{name}-title">'
        f'<h2 id="{name}-title">{title}</h2><{kind}>{lines}</{kind}></section>'
    )
