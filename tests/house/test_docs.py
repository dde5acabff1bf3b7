"""The documentation is true where a program can tell: links lead somewhere, commands parse."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import models.__main__
from models.catalog import BUILDERS
from ortkit.cli.main import parser

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "models/*.md", "ortkit/**/*.md", "custom_ops/*.md")
    for page in ROOT.glob(pattern)
)
LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
#: A line of an indented or fenced block that is a command of ours, up to a comment.
COMMAND = re.compile(r"^(?: {4}|\t)?(?:\$ )?((?:ortkit|scripts/\w[\w-]*|python -m \w+)(?: .*)?)$")
#: After them comes what is not ours.
SHELL_WORDS = {">", "2>", "|", "||", "&&"}
EXAMPLE_VALUES = {"MODEL": "model.onnx", "COMMAND": "optimize", "NAME": "bert"}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(text: str) -> list[str]:
    """Return the lines of indented and fenced blocks."""
    lines, fenced = [], False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif fenced or line.startswith("    "):
            lines.append(line)
    return lines


def commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for line in blocks(page.read_text(encoding="utf-8")):
            match = COMMAND.match(line)
            if match and "..." not in line:
                found.append((name_of(page), match[1].partition("  #")[0].strip()))
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target or target.startswith("#"):
            continue
        path = page.parent / target.partition("#")[0]
        assert path.exists(), f"{name_of(page)} links to {target}"
        assert path.resolve().is_relative_to(ROOT), f"{target} leads out of the repository"


def test_the_readme_shows_commands() -> None:
    shown = [command for page, command in commands() if page == "README.md"]
    assert any(command.startswith("ortkit optimize") for command in shown)
    assert "scripts/demo" in shown


@pytest.mark.parametrize(("page", "command"), commands())
def test_commands_parse(page: str, command: str) -> None:
    words = [EXAMPLE_VALUES.get(word, word) for word in shlex.split(command)]
    cut = next((i for i, word in enumerate(words) if word in SHELL_WORDS), len(words))
    program, *arguments = words[:cut]
    if program == "python":
        module = arguments[1]
        assert (ROOT / module.replace(".", "/")).exists() or module == "ortkit"
        if module == "models":
            parsed = models.__main__._parser().parse_args(arguments[2:])
            assert parsed.name is None or parsed.name in BUILDERS
    elif program.startswith("scripts/"):
        assert (ROOT / program).is_file(), f"{page} names {program}"
    else:
        assert program == "ortkit"
        parser().parse_args(arguments)
