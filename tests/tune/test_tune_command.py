"""`ortkit tune` and `ortkit optimize --db` from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortkit.cli.main import run


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--seconds", "soon"], "--seconds: 'soon' is no time"),
        (["--db", "/nowhere/db.json", "--trials", "1"], "there is no folder"),
        (["--merge", "/nowhere/db.json"], "there is no such file"),
    ],
)
def test_bad_usage_is_one_line(
    arguments: list[str], problem: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["tune", str(model), *arguments]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1


def test_a_table_of_kernels_is_printed(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = tmp_path / "db.json"
    given = ["tune", str(model), "--trials", "1", "--shape", "n=2", "--db", str(db)]
    assert run(given) == 0
    printed = capsys.readouterr().out
    assert "1 new trials" in printed
    assert f"wrote     {db}" in printed
    assert run(["optimize", str(model), "--db", str(db), "--no-verify", "--quiet"]) == 0


def test_a_missing_database_is_said_by_optimize(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["optimize", str(model), "--db", "/nowhere/db.json"]) == 2
    assert "there is no such file" in capsys.readouterr().err
