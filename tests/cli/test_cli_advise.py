"""`ortkit compare --advise` at the terminal: what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.json_schemas import schemas
from tests.cli.conftest import Call
from tests.cli.test_cli_json import documented, misfits, paths


@pytest.fixture(autouse=True)
def _one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round makes all sessions again; what several say is tested with made-up times."""
    monkeypatch.setattr("ortkit.runtime.advice.advise.ROUNDS", 1)


def test_it_says_what_was_measured_and_what_to_change(call: Call, folder: Path) -> None:
    flags = ("--seconds", "0.05", "--sessions", "2", "--concurrency", "2")
    done = call("compare", folder / "small.onnx", "--advise", *flags)
    assert (done.code, done.err) == (0, "")
    assert "2 run calls at a time in each of 2 sessions, for latency" in done.out
    for text in ("machine   ", "as the session is", "1 thread", "measured  ", "advice    "):
        assert text in done.out


def test_its_document(call: Call, folder: Path) -> None:
    flags = ("--seconds", "0.05", "--goal", "throughput", "--json")
    done = call("compare", folder / "small.onnx", "--advise", *flags)
    assert (done.code, done.err) == (0, "")
    document = json.loads(done.out)
    assert document["schema"] == "ortkit.advise/1"
    assert document["use"]["goal"] == "throughput"
    assert document["limits"]["allowed"] >= 1
    assert document["rows"][0]["changes"] == {}
    assert all(row["per_second"] > 0 for row in document["rows"])
    assert len(document["reasons"]) >= 2
    known = documented("compare --advise")
    assert set(paths(document, known)) - known == set()
    assert list(misfits(document, schemas()["compare---advise.json"])) == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--advise", "--nodes"), "--nodes: does not go with --advise"),
        (("--advise", "--fail-slower", "5"), "--fail-slower: does not go with --advise"),
        (("--advise", "--onnxruntime", "1.24.4"), "--onnxruntime: does not go with --advise"),
        (("--advise", "--threads", "1,2"), "--threads: does not go with --advise"),
        (("--advise", "--target", "cuda"), "--target: does not go with --advise"),
        (("--advise", "--concurrency", "1,2"), "--concurrency: is one number"),
        (("--advise", "--sessions", "0"), "sessions: cannot be 0"),
        (("--advise", "--seconds", "0"), "seconds: cannot be 0"),
        (("--sessions", "2"), "--sessions: goes with --advise only"),
        (("--goal", "throughput"), "--goal: goes with --advise only"),
    ],
)
def test_flags_that_make_no_sense_are_refused(
    call: Call, folder: Path, flags: tuple[str, ...], message: str
) -> None:
    done = call("compare", folder / "small.onnx", *flags)
    assert done.code != 0
    assert message in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_it_is_about_one_model(call: Call, folder: Path) -> None:
    done = call("compare", *[folder / "small.onnx"] * 2, "--advise")
    assert done.code != 0
    assert "--advise: is about one model; name one" in done.err
