"""What the commands say to people, and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx.parser
import pytest

from ortkit.cli import show

TABLE_RULE = "─"


def test_inspect_shows_names_costs_and_what_is_assumed(call, folder: Path) -> None:
    done = call("inspect", folder / "bert.onnx", "--shape", "batch=2")
    assert done.code == 0
    assert "[batch, sequence]" in done.out
    assert "dynamic   sequence: input_ids[1], attention_mask[1]" in done.out
    assert "for       batch=2, sequence=1 (assumed)" in done.out
    assert "\x1b" not in done.out
    doubled = json.loads(call("inspect", folder / "bert.onnx", "--json", "--shape", "batch=4").out)
    single = json.loads(call("inspect", folder / "bert.onnx", "--json", "--shape", "batch=2").out)
    products = [
        {item["op"]: item["flops"] for item in content["cost"]["ops"]}["MatMul"]
        for content in (single, doubled)
    ]
    assert products[1] == 2 * products[0] > 0


def test_diff_names_what_changed(call, folder: Path) -> None:
    same = call("diff", folder / "small.onnx", folder / "small.onnx", "--exit-code")
    assert (same.code, same.out) == (0, "no difference\n")
    done = call("diff", folder / "small.onnx", folder / "other.onnx")
    assert done.code == 0
    assert "operator Tanh -> Sigmoid" in done.out
    assert call("diff", folder / "small.onnx", folder / "other.onnx", "--exit-code").code == 1


def test_diff_shows_all_only_when_asked(call, folder: Path) -> None:
    short = call("diff", folder / "small.onnx", folder / "bert.onnx").out
    whole = call("diff", folder / "small.onnx", folder / "bert.onnx", "--all").out
    assert "more (--all shows them)" in short
    assert "more (--all" not in whole
    assert whole.count("\n") > short.count("\n") > 40


def test_verify_tells_equal_from_different(call, folder: Path) -> None:
    same = call("verify", folder / "small.onnx", folder / "small.onnx")
    assert same.code == 0, same.out + same.err
    assert "verified  yes" in same.out
    done = call("verify", folder / "small.onnx", folder / "other.onnx")
    assert done.code == 1
    assert "verified  no: value 'c', computed from the original's values" in done.out


@pytest.mark.parametrize(
    ("command", "flags"),
    [("verify", ()), ("optimize", ("--kernels", "off", "--quiet", "--report", "REPORT"))],
)
def test_full_verification_compares_on_more_inputs(
    command: str, flags: tuple[str, ...], call, folder: Path, tmp_path: Path
) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes((folder / "small.onnx").read_bytes())
    report = tmp_path / "report.json"
    flags = tuple(str(report) if flag == "REPORT" else flag for flag in flags)
    samples = []
    for level in ((), ("--verify", "quick"), ("--verify", "full"), ("--samples", "1")):
        given = (model, model, "--json") if command == "verify" else (model, *flags)
        done = call(command, *given, *level)
        assert done.code == 0, done.err
        document = json.loads(done.out if command == "verify" else report.read_text())
        samples.append(document.get("verification", document)["samples"])
    assert samples[0] == samples[1] < samples[2]
    assert samples[3] == 1


def test_verify_says_when_it_cannot(call, tmp_path: Path) -> None:
    text = '<ir_version: 10, opset_import: ["": 20, "own": 1]> g (float[2] x) => (float[2] y) '
    model = onnx.parser.parse_model(text + "{ y = own.Secret(x) }")
    onnx.save(model, tmp_path / "own.onnx")
    done = call("verify", tmp_path / "own.onnx", tmp_path / "own.onnx")
    assert done.code == 3
    assert "verified  not possible" in done.out
    assert done.err.startswith("ortkit: not verified: ONNX Runtime does not load the original: ")


def test_bisect_finds_nothing_to_blame(call, folder: Path) -> None:
    done = call("bisect", folder / "small.onnx", "--kernels", "off")
    assert done.code == 0, done.out + done.err
    assert "nothing is broken by" in done.out


@pytest.mark.usefixtures("brief_timing")
def test_try_measures_and_writes_nothing(call, folder: Path) -> None:
    before = sorted(folder.iterdir())
    done = call("try", folder / "bert.onnx", "--seconds", "120", "--shape", "sequence=16")
    assert done.code == 0, done.out + done.err
    assert "input     input_ids [1, 16]" in done.out
    for start in ("before", "after", "speedup", "ceiling", "verified  yes"):
        assert any(line.startswith(start) for line in done.out.splitlines()), done.out
    assert sorted(folder.iterdir()) == before


def test_passes_are_listed_by_level_and_shown(call) -> None:
    everything = json.loads(call("passes", "list", "--json").out)["passes"]
    clean = json.loads(call("passes", "list", "--level", "0", "--json").out)["passes"]
    assert {item["level"] for item in clean} == {0}
    assert 0 < len(clean) < len(everything)
    done = call("passes", "show", "fold-constants")
    assert "text  fold-constants{limit=1048576}" in done.out
    assert "Skips:" in done.out
    assert "Bytes by which one folded result may exceed" in done.out


def test_square_brackets_in_tables_are_no_markup(capfd: pytest.CaptureFixture[str]) -> None:
    show.table("", ("shape", "n"), [("[batch, seq]", 1), ("[bold]x[/]", None)])
    out = capfd.readouterr().out
    assert "[batch, seq]" in out
    assert "[bold]x[/]" in out
    assert TABLE_RULE in out


def test_counts_and_sizes_for_people() -> None:
    assert show.count_text(999) == "999"
    assert show.count_text(22_400_000_000) == "22.40 G"
    assert show.bytes_text(346e6) == "346.0 MB"


def test_optimize_says_why_not(call, tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    two (float[n] x, float[m] x2) => (float[n] out1, float[m] out2) {
      out1 = Identity (x)
      z = Dropout (x2)
      out2 = Identity (x2)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "two.onnx")
    start = ("optimize", tmp_path / "two.onnx", "--no-verify", "--kernels", "off")
    for what, count in (("identity", 2), ("IDENT", 2), ("drop-id", 2), ("out1", 1), ("out2", 1)):
        done = call(*start, "--why", what)
        assert done.code == 0, done.err
        rows = [line for line in done.out.splitlines() if "must keep its name" in line]
        assert len(rows) == count
        assert all("drop-identity" in row for row in rows)
    done = call(*start, "--why", "out9")
    said = "why       no pass, operator, node or region is called 'out9'; did you mean 'out2'?\n"
    assert done.out.endswith(said)
    assert "refused" not in call(*start, "--why", "wholly").out
    assert "refused" not in call(*start).out
    content = json.loads(call(*start, "--why", "out2", "--json").out)
    assert content["why"] == "out2"
    assert [item["outputs"] for item in content["refused"]] == [["out2"]]
    assert len(json.loads(call(*start, "--json").out)["refused"]) == 2
