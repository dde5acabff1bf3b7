"""The site: `scripts/docs` builds it with Sphinx, furo and MyST."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ortkit.version import __version__

DOCS = Path(__file__).parent
ROOT = DOCS.parent

project = "ortkit"
project_copyright = "the authors of ortkit, Apache-2.0"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"ortkit {__version__}"
html_show_sphinx = False
exclude_patterns = ["_build"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["misc.highlighting_failure"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
python_use_unqualified_type_names = True

#: Pages of the site that are files beside `docs/`.
COPIES = {"reference/security": "SECURITY.md", "reference/changelog": "CHANGELOG.md"}
_LINK = re.compile(r"(!?\[(?P<text>[^]]*)\])\((?P<target>[^)\s]+)\)")
_COLON = "\N{MODIFIER LETTER COLON}"
_DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
_BOX = re.compile(r"^ +(\w+)\[(\w+): (.+)\]$", re.MULTILINE)
_ARROW = re.compile(r"^ +(\w+) --> (\w+)$", re.MULTILINE)


def on_source_read(_: object, name: str, source: list[str]) -> None:
    """Put copied files into their pages; links to files that are no pages become their text."""
    folder = (DOCS / name).parent
    here = folder
    if name in COPIES:
        here = ROOT
        source[0] = (ROOT / COPIES[name]).read_text("utf-8")
    source[0] = _LINK.sub(lambda found: link(found, here, folder), source[0])
    source[0] = _DIAGRAM.sub(table, source[0])


def table(diagram: re.Match[str]) -> str:
    """Return a diagram of packages as a table: the site loads nothing that could draw it."""
    arrows = _ARROW.findall(diagram[1])
    names = {key: name for key, name, _ in _BOX.findall(diagram[1])}
    rows = [
        f"| `{name}` | {what} | {', '.join(f'`{names[to]}`' for of, to in arrows if of == key)} |"
        for key, name, what in _BOX.findall(diagram[1])
    ]
    return "\n".join(["| package | what it is | imports |", "| --- | --- | --- |", *rows, ""])


def link(found: re.Match[str], here: Path, folder: Path) -> str:
    """Return a link as the site has it.

    Args:
        found: The link as written.
        here: The folder that its target is relative to.
        folder: The folder of the page.
    """
    path, hash_, place = found["target"].partition("#")
    if "://" in path or not path:
        return found[0]
    target = (here / path).resolve()
    for page, copied in COPIES.items():
        if target == ROOT / copied:
            target = DOCS / f"{page}.md"
    if not target.is_relative_to(DOCS) or target.is_dir():
        return found["text"]
    text = found[1]
    if found["text"].endswith(".md"):
        text = f"[{title(target)}]"
    return f"{text}({os.path.relpath(target, folder)}{hash_}{place})"


def title(page: Path) -> str:
    """Return the heading of a page, which says more than the name of its file."""
    text = ROOT / COPIES.get(str(page.relative_to(DOCS).with_suffix("")), page)
    return text.read_text("utf-8").partition("\n")[0].removeprefix("# ")


def on_attribute(_: object, what: str, *arguments: Any) -> None:
    """Hide colons: napoleon takes the start of a field's docstring, up to one, for its type."""
    lines: list[str] = arguments[-1]
    if what in ("attribute", "property", "data") and lines:
        lines[0] = lines[0].replace(":", _COLON)


def on_docstring(*arguments: Any) -> None:
    """Make `names` of docstrings what reStructuredText calls literals."""
    lines: list[str] = arguments[-1]
    text = "\n".join(lines).replace(_COLON, ":")
    lines[:] = re.sub(r"(?<!`)`([^`]+)`(?!`)(?=(\w)?)", literal, text).split("\n")


def literal(found: re.Match[str]) -> str:
    """Return a literal, apart from a letter that follows it."""
    return f"``{found[1]}``" + ("\\ " if found[2] else "")


def setup(app: Any) -> None:
    """Register what Sphinx calls."""
    connect: Callable[..., object] = app.connect
    connect("source-read", on_source_read)
    connect("autodoc-process-docstring", on_attribute, priority=100)  # before napoleon
    connect("autodoc-process-docstring", on_docstring)
