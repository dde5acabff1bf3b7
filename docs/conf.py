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


def on_source_read(_: object, name: str, source: list[str]) -> None:
    """Put copied files into their pages; links to files that are no pages become their text."""
    folder = (DOCS / name).parent
    here = folder
    if name in COPIES:
        here = ROOT
        source[0] = (ROOT / COPIES[name]).read_text("utf-8")
    source[0] = _LINK.sub(lambda found: link(found, here, folder), source[0])


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
    return f"{found[1]}({os.path.relpath(target, folder)}{hash_}{place})"


def on_docstring(*arguments: Any) -> None:
    """Make `names` of docstrings what reStructuredText calls literals."""
    lines: list[str] = arguments[-1]
    text = "\n".join(lines)
    lines[:] = re.sub(r"(?<!`)`([^`]+)`(?!`)(?=(\w)?)", literal, text).split("\n")


def literal(found: re.Match[str]) -> str:
    """Return a literal, apart from a letter that follows it."""
    return f"``{found[1]}``" + ("\\ " if found[2] else "")


def setup(app: Any) -> None:
    """Register what Sphinx calls."""
    connect: Callable[[str, Callable[..., None]], object] = app.connect
    connect("source-read", on_source_read)
    connect("autodoc-process-docstring", on_docstring)
