"""Names that are no plain text: nothing of a model commands the terminal, nothing floods it."""

from __future__ import annotations

import pytest

from ortkit.cli import main, show
from ortkit.errors import UserError


def test_control_characters_of_names_are_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    show.table("", ("node",), [("\x1b[31ma\nb",), ("[red]é漢",)])
    show.line("a\x1b[2Jb")
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert r"\x1b[31ma\nb" in said
    assert "[red]é漢" in said
    assert r"a\x1b[2Jb" in said


def test_long_names_lose_their_middle(capsys: pytest.CaptureFixture[str]) -> None:
    show.table("", ("node",), [("begin" + "x" * 5000 + "end",)])
    said = capsys.readouterr().out
    assert "begin" in said
    assert "end" in said
    assert len(said) < 1000


def test_an_error_is_one_line_whatever_it_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: object) -> int:
        raise UserError("a\x1b[31m")

    monkeypatch.setattr("ortkit.cli.inspect.run", refuse)
    assert main.run(["inspect", "model.onnx"]) == 2
    assert capsys.readouterr().err == "ortkit: a\\x1b[31m\n"
