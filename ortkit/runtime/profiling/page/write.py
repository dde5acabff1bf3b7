"""One page that shows a profile: it holds everything it needs and loads nothing."""

from __future__ import annotations

import html
import importlib.resources
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ortkit.graph.io.atomic import write_whole
from ortkit.page.shell import Card, Shell, item_list, render

_ASSETS = importlib.resources.files("ortkit.runtime.profiling.page") / "assets"


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
    """For the page's script: see `data.py`."""


def write_page(page: Page, path: Path) -> None:
    """Write a page.

    Raises:
        UserError: `path` cannot be written.
    """
    write_whole(path, page_text(page))


def page_text(page: Page) -> str:
    """Return a page as HTML."""
    cards = [Card(name, figure) for name, figure in page.facts]
    advice = item_list("advice", "What to do", "ol", [_advice(*item) for item in page.advice])
    shell = Shell(page.title, page.subtitle, cards, page.notes, page.data)
    return render(shell, _ASSETS, {"ADVICE": advice})


def _advice(title: str, detail: str, gain: str) -> str:
    parts = [f"<strong>{html.escape(title)}</strong>"]
    parts += [f"<br>{html.escape(detail)}"] * bool(detail)
    parts += [f'<br><span class="gain">{html.escape(gain)}</span>'] * bool(gain)
    return "".join(parts)
