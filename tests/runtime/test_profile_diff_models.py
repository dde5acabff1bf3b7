"""`ortkit profile diff`: models measured in turns, saved profiles, traces, and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from ortkit.cli.main import run
from ortkit.runtime.session import Session
from tests.cli.test_cli_json import documented, paths

TWICE = ["--runs", "40", "--seconds", "0.8", "--threads", "1", "--target", "cpu"]
QUICK = [*TWICE, "--processes", "1"]

FILES = (".onnx", ".json", ".trace")


def save(path: Path, body: str) -> Path:
    """Save a model of one input and the weight `k`, both [96, 96]."""
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
    g (float[96, 96] x) => (float[96, 96] y) {{ {body} }}"""
    model = onnx.parser.parse_model(text)
    weight = np.full((96, 96), 0.01, np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "k"))
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("diff")
    save(made / "short.onnx", "[first] a = MatMul(x, k) [last] y = Tanh(a)")
    steps = " ".join(f"[more{i}] b{i} = MatMul({f'b{i - 1}' if i else 'x'}, k)" for i in range(12))
    save(made / "long.onnx", f"{steps} [first] a = MatMul(b11, k) [last] y = Tanh(a)")
    for name in ("short", "long"):
        with Session(made / f"{name}.onnx", "cpu", threads=1) as session:
            feeds = {"x": np.ones((96, 96), np.float32)}
            with session.profile(warmup=2) as recording:
                for _ in range(40):
                    session.run(feeds)
            document = recording.result.to_json()
            (made / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
            with session.twin(trace_prefix=made / name) as traced:
                for _ in range(40):
                    traced.run(feeds)
                Path(traced.onnxruntime.end_profiling()).rename(made / f"{name}.trace")
    return made


def diff(
    folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0
) -> dict[str, Any]:
    capsys.readouterr()
    paths = [
        str(folder / argument) if Path(argument).suffix in FILES else argument
        for argument in arguments
    ]
    assert run(["profile", "diff", *paths, "--json"]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["schema"] == "ortkit.profile-diff/1"
    return document


def refused(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    paths = [
        str(folder / argument) if Path(argument).suffix in FILES else argument
        for argument in arguments
    ]
    assert run(["profile", "diff", *paths]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "Traceback" not in said.err
    return said.err


def change(document: dict[str, Any], name: str) -> dict[str, Any]:
    found = [
        item
        for item in document["changes"]
        if name in [node["name"] for node in item["before"] + item["after"]]
    ]
    assert len(found) == 1
    return found[0]  # type: ignore[no-any-return]


def test_a_model_that_does_more_is_slower(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = diff(folder, capsys, "short.onnx", "long.onnx", *TWICE, "--fail-slower", "20", code=1)
    assert found["speedup"]["direction"] == "slower"
    assert (found["matched_by"], found["in_turns"]) == ("model", True)
    more = change(found, "more3")
    assert [one["name"] for one in more["before"]] == ["first"]
    assert (len(more["after"]), more["direction"]) == (13, "slower")
    same = change(found, "last")
    assert [one["name"] for one in same["before"]] == ["last"]
    assert found["before"]["nodes"] < found["after"]["nodes"]
    assert found["before"]["peak_bytes"] > 0
    gains = [item["gain_us"] for item in found["changes"]]
    assert gains == sorted(gains, reverse=True)


def test_every_key_is_documented(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = diff(folder, capsys, "short.trace", "long.trace")
    known = documented("profile diff")
    assert set(paths(found, known)) == known


def test_a_model_is_no_slower_than_itself(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = diff(folder, capsys, "short.onnx", "short.onnx", *QUICK, "--fail-slower", "50")
    assert len(found["changes"]) == found["before"]["nodes"] == 2
    assert all(item["before"] == item["after"] for item in found["changes"])


def test_tables_are_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(folder / "long.json"), str(folder / "short.json")]
    assert run(["profile", "diff", *paths]) == 0
    said = capsys.readouterr().out
    assert "times as fast" in said and "matched through the models" in said


@pytest.mark.parametrize("kind", ["json", "trace"])
def test_what_was_saved_is_compared(
    kind: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = ["--model-a", "short.onnx", "--model-b", "long.onnx"] if kind == "trace" else []
    found = diff(folder, capsys, f"short.{kind}", f"long.{kind}", *models)
    assert (found["matched_by"], found["in_turns"]) == ("model", False)
    assert len(change(found, "more3")["after"]) == 13
    assert [item["name"] for item in change(found, "last")["before"]] == ["last"]
    assert any("did not run interleaved" in note for note in found["notes"])
    assert found["before"]["run_us"]["median"] > 0


def test_without_models_nodes_match_by_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = diff(folder, capsys, "short.trace", "long.trace")
    assert found["matched_by"] == "name"
    first = change(found, "first")
    assert len(first["before"]) == len(first["after"]) == 1
    assert any("--model-a" in note for note in found["notes"])


def test_a_model_that_has_changed_since_is_not_used(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    document = json.loads((folder / "short.json").read_text(encoding="utf-8"))
    document["about"]["sha256"] = "0" * 64
    (tmp_path / "old.json").write_text(json.dumps(document), encoding="utf-8")
    found = diff(tmp_path, capsys, "old.json", str(folder / "long.json"))
    assert found["matched_by"] == "name"
    assert any("not the same any more" in note for note in found["notes"])


def test_few_runs_are_no_verdict(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name in ("short", "long"):
        document = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        for times in (document["overall"]["profiled"], *(n["run"] for n in document["nodes"])):
            times["low_us"] = times["high_us"] = None
        (tmp_path / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
    found = diff(tmp_path, capsys, "short.json", "long.json")
    assert found["speedup"]["direction"] == "not known"
    assert {item["direction"] for item in found["changes"]} == {"not known"}
    said = refused(tmp_path, capsys, "short.json", "long.json", "--fail-slower", "5")
    assert "too few runs" in said


class TestBadInput:
    def test_a_model_and_a_profile(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert "give two models" in refused(folder, capsys, "short.onnx", "long.json")

    def test_what_is_not_there(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert "none.onnx: No such file" in refused(folder, capsys, "short.onnx", "none.onnx")

    def test_a_profile_that_is_cut_off(
        self, folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        whole = (folder / "short.json").read_text(encoding="utf-8")
        (tmp_path / "cut.json").write_text(whole[: len(whole) // 2], encoding="utf-8")
        assert "cut.json" in refused(tmp_path, capsys, "cut.json", str(folder / "long.json"))

    def test_a_profile_of_another_version(
        self, folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        (tmp_path / "new.json").write_text('{"schema": "ortkit.profile/9"}', encoding="utf-8")
        said = refused(tmp_path, capsys, "new.json", str(folder / "long.json"))
        assert "ortkit.profile/9" in said

    def test_a_trace_that_is_cut_off(
        self, folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        whole = (folder / "short.trace").read_bytes()
        (tmp_path / "cut.trace").write_bytes(whole[: len(whole) // 2])
        assert "cut" in refused(tmp_path, capsys, "cut.trace", str(folder / "long.trace"))

    def test_no_model(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (folder / "junk.onnx").write_bytes(b"\x00\x01junk")
        assert "junk.onnx" in refused(folder, capsys, "short.onnx", "junk.onnx", *QUICK)

    def test_a_model_of_other_inputs(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        text = """<ir_version: 10, opset_import: ["" : 20]>
        g (float[3] other) => (float[3] y) { y = Tanh(other) }"""
        onnx.save(onnx.parser.parse_model(text), folder / "other.onnx")
        said = refused(folder, capsys, "short.onnx", "other.onnx", *QUICK)
        assert "other.onnx" in said

    @pytest.mark.parametrize(
        ("flags", "said"),
        [
            (["--fail-slower", "-1"], "--fail-slower"),
            (["--fail-slower", "nan"], "--fail-slower"),
            (["--runs", "3"], "--runs"),
            (["--seconds", "0"], "--seconds"),
            (["--processes", "0"], "--processes"),
            (["--top", "-1"], "--top"),
            (["--model-a", "short.onnx"], "--model-a"),
            (["--shape", "nonsense"], "--shape"),
            (["--target", "NoSuchProvider"], "NoSuchProvider"),
        ],
    )
    def test_flags_that_make_no_sense(
        self, flags: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert said in refused(folder, capsys, "short.onnx", "long.onnx", *flags)
