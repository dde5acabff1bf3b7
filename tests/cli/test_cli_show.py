"""Names that are no plain text: nothing of a model commands the terminal, nothing floods it."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import onnx
import onnx.parser
import pytest

from ortkit import env
from ortkit.cli import main, show
from ortkit.cli.table_widths import NARROW, WIDE, Fit, cut, fitted, wrapped
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


@pytest.mark.parametrize("width", [80, 60, 200])
def test_tables_are_as_wide_as_the_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    name = "/model/layers.0/self_attn/rotary/Unsqueeze_output_0_to_the_end"
    rows = [(name, "MatMul", 12345678.9, None), ("short", "x" * 90, 3, name)]
    show.table("", ("node", "operator", "ms", "more"), rows)
    said = capsys.readouterr().out.splitlines()
    assert max(map(len, said)) <= width
    assert len([line for line in said if line.strip()]) == 4
    assert "12,345,679" in said[3]
    assert any("/mod" in line and "end" in line for line in said)
    with show.shown_as_asked(argparse.Namespace(verbose=True)):
        show.table("", ("node",), [(name,)])
    assert "…" not in capsys.readouterr().out


def test_long_lines_are_wrapped_below_themselves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    shapes = [f"past_key_values.{at}.key [1, 2, 128, 16]" for at in range(4)]
    show.labelled("inputs", ", ".join([*shapes, "long_" * 20]))
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "inputs    past_key_values.0.key [1, 2, 128, 16],"
    assert [line[10:].rstrip(",") for line in rest] == [*shapes[1:], "long_" * 20]
    assert {line[:10] for line in rest} == {" " * 10}
    show.labelled("inputs", "x\x1b[31m")
    assert capsys.readouterr().out == "inputs    x\\x1b[31m\n"


def test_there_are_no_empty_tables(capsys: pytest.CaptureFixture[str]) -> None:
    show.table("title", ("node", "ms"), [])
    assert capsys.readouterr().out == ""


def test_an_error_is_one_line_whatever_it_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: object) -> int:
        raise UserError("a\x1b[31m")

    monkeypatch.setattr("ortkit.cli.inspect.run", refuse)
    assert main.run(["inspect", "model.onnx"]) == 2
    assert capsys.readouterr().err == "ortkit: a\\x1b[31m\n"


def test_a_name_with_line_breaks_stays_on_its_line(capfd: pytest.CaptureFixture[str]) -> None:
    show.line("x\nverified  yes")
    show.note("x\r\nnote")
    show.table("a [red]title[/]\x1b[2J", ("a\x1b[31m",), [("\u202ex\u2028y" * 4,)])
    said = capfd.readouterr()
    assert said.out.startswith("x\\nverified  yes\n")
    assert said.err == "x\\r\\nnote\n"
    assert "a [red]title[/]\\x1b[2J" in said.out
    assert "a\\x1b[31m" in said.out
    assert "\\u202ex\\u2028y" in said.out


@pytest.mark.parametrize("kind", [OSError, RuntimeError])
def test_every_way_out_of_main_is_harmless(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise kind("a\x1b[31mb\nverified  yes")

    monkeypatch.setattr("ortkit.cli.inspect.run", fail)
    assert main.run(["inspect", "model.onnx"]) in (2, 70)
    said = capfd.readouterr().err
    assert "\x1b" not in said
    assert "a\\x1b[31mb\\nverified  yes" in said


OVERFLOW = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x) => (float[a, b, c] y)
<int64[3] s = {2147483648, 1073741824, 2}> { z = ConstantOfShape(s) y = Add(z, x) }"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("command", ["run", "profile", "memory", "compare", "optimize", "verify"])
def test_the_runtime_prints_nothing_of_its_own(command: str, tmp_path: Path) -> None:
    """A size that overflows: ONNX Runtime says so through its default logger, in colours."""
    model = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(OVERFLOW), model)
    given = [str(model)] * (2 if command == "verify" else 1)
    # In a process of its own: in this one others may have set the logger.
    done = subprocess.run(
        [sys.executable, "-m", "ortkit", command, *given],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == (3 if command in ("optimize", "verify") else 2)
    assert done.stderr.startswith("ortkit: ")
    assert done.stderr.count("\n") == 1
    assert "overflowed" in done.stderr
    assert "\x1b" not in done.stderr + done.stdout
    assert "onnxruntime:" not in done.stderr + done.stdout


def test_the_log_is_the_callers_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    class Runtime(ModuleType):
        severity = 2

        def set_default_logger_severity(self, level: int) -> None:
            self.severity = level

    runtime = Runtime("onnxruntime")
    monkeypatch.delenv("ORTKIT_RUNTIME_LOG", raising=False)
    env.set_runtime_log(runtime)
    assert runtime.severity == 2
    monkeypatch.setenv("ORTKIT_RUNTIME_LOG", "on")
    env.keep_runtime_log_off()
    env.set_runtime_log(runtime)
    assert runtime.severity == 2
    monkeypatch.delenv("ORTKIT_RUNTIME_LOG")
    env.keep_runtime_log_off()
    env.set_runtime_log(runtime)
    assert runtime.severity == 4


def test_numbers_stay_whole_and_words_lose_their_middle() -> None:
    heads = ["row", "median ms", "node", "interval"]
    rows = [["1", "0.741612", "/model/layers.0/self_attn/Add_output_0", "0.7207 to 0.7568"]]
    assert fitted(heads, rows, 77) == Fit([3, 9, 38, 16], WIDE, True)
    assert fitted(heads, rows, 63) == Fit([3, 9, 24, 16], WIDE, True)
    assert fitted(heads, rows, 54) == Fit([3, 8, 24, 8], WIDE, True)
    assert fitted(heads, rows, 48) == Fit([3, 8, 24, 8], NARROW, True)
    found = fitted(heads, rows, 40)
    assert found == Fit([3, 8, 12, 12], NARROW, False)
    assert [cut(cell, width) for cell, width in zip(rows[0], found.widths, strict=True)] == [
        "1", "0.741612", "/model…put_0", "0.7207 to 0.7568",
    ]  # fmt: skip
    tall = ["1x2x3 " * 20]
    assert not fitted(["shapes"], [tall], 30).is_easy
    assert fitted(["shapes"], [tall], 60).is_easy


def test_numbers_stay_with_their_units_and_names_with_their_counts() -> None:
    assert wrapped("largest 524.3 kB", 12) == ["largest", "524.3 kB"]
    assert wrapped("rewrite 0.05 s, fuse-regions 20, 12 more", 18) == [
        "rewrite 0.05 s,", "fuse-regions 20,", "12 more",
    ]  # fmt: skip


def test_a_narrow_table_leaves_columns_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = ("node", "op", "µs", "mean", "p95", "none")
    rows = [("/layers.0/attention/self/MatMul", "ortkit.fused::product_gelu_0123456789ab",
             1.5, "12.25", "13.75", None)]  # fmt: skip
    for width, missing in ((100, []), (54, ["mean"]), (46, ["mean", "p95"])):
        monkeypatch.setenv("COLUMNS", str(width))
        show.table("", columns, rows, spare=("mean", "p95"))
        said = capsys.readouterr().out
        assert "none" not in said
        assert "product_gelu" in said
        assert "ortkit.fused" not in said
        told = f"not shown in {width} columns: {', '.join(missing)}"
        assert (told in " ".join(said.split())) == bool(missing)
        assert ("13.75" in said) == ("p95" not in missing)
        assert max(map(len, said.splitlines())) <= width
    with show.shown_as_asked(argparse.Namespace(verbose=True)):
        show.table("", columns, rows, spare=("mean", "p95"))
    assert "13.75" in capsys.readouterr().out
