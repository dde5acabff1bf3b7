"""The site: its pages are found, its prose is short, its messages are those of the sources."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.house.test_docs import LINK

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
#: What a newcomer looks for -> its page, at most two clicks from the first.
SOUGHT = {
    "optimize": "guides/optimize",
    "deploy in C++": "guides/deploy",
    "precision": "guides/precision",
    "GPU": "guides/gpu",
    "custom op": "guides/custom-ops",
    "provider": "guides/provider",
    "profile": "sessions/profile",
}
_TREE = re.compile(r"```\{toctree\}\n(.*?)```", re.DOTALL)
_ENTRY = re.compile(r"^[^:\s]\S*$", re.MULTILINE)


def name_of(page: Path) -> str:
    return str(page.relative_to(DOCS).with_suffix(""))


def links(page: Path) -> set[Path]:
    """Return the pages that a page or its menu leads to."""
    targets = LINK.findall(page.read_text("utf-8"))
    found = {(page.parent / target.partition("#")[0]).resolve() for target in targets}
    return menu(page) | {each for each in found if each in PAGES}


def menu(page: Path) -> set[Path]:
    """Return the pages below a page in the menu."""
    trees = _TREE.findall(page.read_text("utf-8"))
    return {
        (page.parent / f"{word}.md").resolve() for tree in trees for word in _ENTRY.findall(tree)
    }


@pytest.mark.parametrize("sought", SOUGHT)
def test_a_newcomer_finds_it_in_two_clicks(sought: str) -> None:
    first = links(DOCS / "index.md")
    second = {page for each in first for page in links(each)}
    assert DOCS / f"{SOUGHT[sought]}.md" in first | second


def test_every_page_is_in_the_menu() -> None:
    found, left = set[Path](), [DOCS / "index.md"]
    while left:
        page = left.pop()
        found.add(page)
        left += menu(page) - found
    assert {name_of(page) for page in PAGES} == {name_of(page) for page in found}


@cache
def sources() -> str:
    """Return all of ortkit with texts of several literals joined, and values as `{}`."""
    text = "\n".join(path.read_text("utf-8") for path in sorted((ROOT / "ortkit").rglob("*.py")))
    text += "\n".join(
        path.read_text("utf-8") for path in sorted((ROOT / "custom_ops" / "native").rglob("*.cc"))
    )
    return re.sub(r"[\"']\s*\n?\s*f?[\"']", "", re.sub(r"\{[^{}\n]*\}|%\w+", "{}", text))


def messages() -> list[str]:
    text = (DOCS / "troubleshooting.md").read_text("utf-8")
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)


#: Words of a message that stand for any value.
_VALUES = re.compile(r"\b(?:FILE|LEVEL|NAME|REASON|TARGET|WHAT|CUDAExecutionProvider)\b|'\w+'")


@pytest.mark.parametrize("message", messages())
def test_a_message_is_one_of_the_sources(message: str) -> None:
    parts = [part.strip(" :()") for part in _VALUES.split(message)]
    assert [part for part in parts if part not in sources()] == []


@pytest.mark.parametrize(
    "page",
    [
        *(DOCS / "guides").glob("*.md"),
        *(DOCS / "concepts").glob("*.md"),
        DOCS / "getting-started.md",
    ],
    ids=name_of,
)
def test_a_page_starts_with_what_it_gives(page: Path) -> None:
    if page.stem != "index":
        assert re.match(r"# .+\n\nAfter this page you (?:can|know|have) ", page.read_text("utf-8"))


def test_guides_hold_no_measurements() -> None:
    """A date marks a measurement: these are in docs/benchmarks."""
    found = [
        f"{name_of(page)}: {line}"
        for page in [*(DOCS / "guides").glob("*.md"), DOCS / "getting-started.md"]
        for line in page.read_text("utf-8").splitlines()
        if re.search(r"\b20\d\d-\d\d", line)
    ]
    assert found == []


# Sphinx reads all pages and imports the whole API: 6 s.
@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    if find_spec("sphinx") is None or find_spec("furo") is None:
        pytest.skip('no Sphinx; pip install ".[docs]"')
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", DOCS, tmp_path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    api = (tmp_path / "reference" / "python.html").read_text("utf-8")
    assert "OptimizeOptions" in api
    assert "Type<span" not in api, "the start of a docstring was taken for a type"
    assert "flowchart" not in (tmp_path / "architecture.html").read_text("utf-8")
