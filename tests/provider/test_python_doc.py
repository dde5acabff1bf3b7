"""docs/guides/providers.md is run: definitions and sessions, in order, in one namespace."""

from __future__ import annotations

import doctest
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import ortkit.provider

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "providers.md"
FENCED = re.compile(r"^```(?P<kind>\w+)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_page_shows_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (os.environ.get("CC") or shutil.which("cc")):
        pytest.skip("no C compiler")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    said: list[str] = []
    count = 0
    try:
        for block in FENCED.finditer(TEXT):
            line = TEXT[: block.start()].count("\n") + 1
            if block["kind"] == "python":
                # A name of its own for each block: places in messages are those of the page.
                exec(compile("\n" * line + block["text"], str(PAGE), "exec"), names)
            elif block["kind"] == "pycon":
                test = doctest.DocTestParser().get_doctest(
                    block["text"], names, PAGE.name, str(PAGE), line
                )
                flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
                runner = doctest.DocTestRunner(optionflags=flags)
                result = runner.run(test, out=said.append, clear_globs=False)
                assert not result.failed, "".join(said)
                names.update(test.globs)
            else:
                raise AssertionError(f"line {line}: a block of {block['kind']} is not run")
            count += 1
        run_the_rest(names)
    finally:
        names.pop("session", None)
        for name in ortkit.provider.registered_providers():
            ortkit.unregister_provider(name)
    assert count > 10


def run_the_rest(names: dict[str, Any]) -> None:
    """Run the providers that the page only defines."""
    np, plain = names["np"], names["session_of"]("CPUExecutionProvider")
    feeds = {"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)}
    wanted = plain.run(None, feeds)[0]
    for kind, taken in (("OpProvider", 2), ("TracingProvider", 3)):
        name = ortkit.register_provider(names[kind]())
        made = names["session_of"](name)
        np.testing.assert_allclose(made.run(None, feeds)[0], wanted, rtol=1e-5)
        parts = made.get_provider_graph_assignment_info()
        assert sum(len(part.get_nodes()) for part in parts if part.ep_name == name) == taken
        del made
        ortkit.unregister_provider(name)


def test_the_first_provider_takes_thirty_lines() -> None:
    first = next(block["text"] for block in FENCED.finditer(TEXT) if block["kind"] == "python")
    assert "register_provider" in first
    assert len(first.splitlines()) <= 31
