"""`profile`, `memory` and `compare` of decoders: prefill and single tokens through the caches."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import models
from ortkit.cli.main import run
from ortkit.errors import UserError
from ortkit.genai.folder import read_folder
from ortkit.measure.decoding import Phase, decoder_of, phases_of
from ortkit.runtime.opening import SessionPlan
from ortkit.runtime.workers.worker import Worker
from ortkit.verify.exchange import read_values, write_feeds
from tests.cli.test_cli_json import documented, misfits, paths
from tests.genai.folders import LAYERS, config, genai_folder
from tests.verify.genai_model import GROUPS, HEAD, genai_model

#: Bytes of all caches for a token: keys and values in float32.
TOKEN_BYTES = LAYERS * 2 * GROUPS * HEAD * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return genai_folder(tmp_path_factory.mktemp("decoding") / "f")


def documents(
    capsys: pytest.CaptureFixture[str], *command: str | Path, code: int = 0
) -> dict[str, object]:
    assert run([*map(str, command), "--json"]) == code, capsys.readouterr().err
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_profile_has_each_phase(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--prompt", "16", "--sweep", "past=0,40", "--runs", "2")
    found = documents(capsys, "profile", folder, *asked)
    from scripts.json_schemas import schemas

    known = documented("profile FOLDER")
    named = {each for each in paths(found, known) if not each.startswith("phases[].profile")}
    assert named == known - {"phases[].profile"}
    assert list(misfits(found, schemas()["profile-FOLDER.json"])) == []
    phases = found["phases"]
    assert [(each["past"], each["new"]) for each in phases] == [(0, 16), (0, 1), (40, 1)]
    assert [each["cache_bytes"] for each in phases] == [n * TOKEN_BYTES for n in (16, 1, 41)]
    assert found["time_to_first_token_ms"] == phases[0]["run_ms"]
    assert phases[0]["tokens_per_second"] == pytest.approx(16e3 / phases[0]["run_ms"])
    shapes = phases[2]["profile"]["about"]["inputs"]
    assert shapes["input_ids"] == [1, 1]
    assert shapes["attention_mask"] == [1, 41]


def test_profile_writes_a_file_for_each_phase(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "t.json"
    given = ["--prompt", "4", "--runs", "1", "--top", "0", "--trace", str(out)]
    assert run(["profile", str(folder), *given]) == 0
    assert {each.name for each in tmp_path.iterdir()} == {
        "t-prefill-of-4.json", "t-token-after-4.json"
    }  # fmt: skip
    assert "caches are written in place, 256 B a token" in capsys.readouterr().out


def test_memory_has_the_caches(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = documents(capsys, "memory", folder, "--prompt", "8", "--sweep", "past=100")
    points = found["points"]
    assert [each["sizes"] for each in points] == [{"past": 0, "new": 8}, {"past": 100, "new": 1}]
    assert [each["cache_bytes"] for each in points] == [8 * TOKEN_BYTES, 101 * TOKEN_BYTES]


def test_compare_judges_each_phase(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.load(folder / "model.onnx")
    (scales,) = (each for each in model.graph.initializer if each.name == "head.s")
    scales.CopyFrom(onnx.numpy_helper.from_array(-onnx.numpy_helper.to_array(scales), "head.s"))
    other = genai_folder(tmp_path / "other", model)
    settings = json.loads((other / "genai_config.json").read_text())
    settings["model"]["decoder"]["session_options"]["intra_op_num_threads"] = 2
    (other / "genai_config.json").write_text(json.dumps(settings))
    brief = ("--prompt", "8", "--sweep", "past=20", "--rounds", "1", "--processes", "1")
    found = documents(capsys, "compare", folder, other, *brief, code=1)
    assert [each["phase"] for each in found["batches"]] == [
        {"past": 0, "new": 8}, {"past": 20, "new": 1}
    ]  # fmt: skip
    for batch in found["batches"]:
        first, second = batch["rows"]
        assert (first["threads"], second["threads"]) == (1, 2)
        assert second["equality"] == "different"
        latency = first["latency_ms"]
        tokens = batch["phase"]["new"]
        assert latency["items_per_second"] == pytest.approx(tokens * latency["per_second"])
        assert {each["name"]: each["equal"] for each in second["outputs"]} == {
            "logits": False,
            **{f"present.{n}.{part}": True for n in range(LAYERS) for part in ("key", "value")},
        }


def test_compare_has_a_table_of_phases(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    brief = ("--prompt", "8", "--sweep", "past=20", "--rounds", "1", "--processes", "1")
    assert run(["compare", str(folder), str(folder), *brief]) == 0
    table = capsys.readouterr().out.partition("\ntokens a second")[2].splitlines()
    assert [" ".join(each.split()) for each in table if "tokens/s" in each] == [
        "phase row 1, tokens/s row 2, tokens/s"
    ]
    for name in ("prefill of 8", "token after 20"):
        (found,) = (each for each in table if each.strip().startswith(name))
        assert re.fullmatch(rf"{name} +[\d,.]+ +[\d,.]+ \([\d.]+ times\)", found.strip())


def test_caches_are_written_in_place(folder: Path, tmp_path: Path) -> None:
    decoder = decoder_of(folder / "model.onnx")
    assert decoder.share == {
        f"past_key_values.{n}.{part}": f"present.{n}.{part}"
        for n in range(LAYERS) for part in ("key", "value")
    }  # fmt: skip
    feeds = next(decoder.feeds(Phase(5, 2)))
    assert all(feeds[name].shape[2] == 7 for name in decoder.share)
    write_feeds(tmp_path / "feeds", feeds)
    for name, share in (("plain", {}), ("shared", decoder.share)):
        with Worker() as worker:
            worker.load(SessionPlan(folder / "model.onnx", share=share), 60)
            worker.feed(tmp_path / "feeds", 60)
            worker.turn(0.0, 60)
            worker.keep(tmp_path / name, 60)
    plain, shared = (read_values(tmp_path / name) for name in ("plain", "shared"))
    for name, value in plain.items():
        np.testing.assert_array_equal(value, shared[name])


def test_caches_that_a_concat_grows_are_copied(tmp_path: Path) -> None:
    path = tmp_path / "kv.onnx"
    onnx.save(models.build("decoder_kv", spelling="dynamo"), path)
    decoder = decoder_of(path)
    assert decoder.share == {}
    assert set(decoder.growing.values()) == {2}
    feeds = next(decoder.feeds(Phase(6, 1)))
    assert feeds["input_ids"].shape == (1, 1)
    assert {feeds[name].shape[2] for name in decoder.growing} == {6}


def test_windows_keep_their_size(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(genai_model(window=16), path)
    decoder = decoder_of(path)
    assert len(decoder.windows) == 2
    assert len(decoder.growing) == 2
    phase = Phase(30, 1)
    feeds = next(decoder.feeds(phase))
    assert decoder.cache_bytes(feeds, phase) == 2 * GROUPS * HEAD * 4 * (16 + 31)


def test_threads_are_those_of_genai(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    read = read_folder(folder)
    assert read.decoder_threads == 16
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert read.decoder_threads == 1
    assert read.context == config()["model"]["context_length"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["--sweep", "past=300"], "takes sequences of 256 tokens at most, not 301"),
        (["--sweep", "layers=3"], "a decoder has no 'layers'"),
        (["--prompt", "0"], "a prompt of 0 tokens"),
        (["--shape", "n=2"], "--shape: does not go with a decoder"),
    ],
)
def test_what_is_refused(
    folder: Path, given: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("profile", "memory", "compare"):
        assert run([command, str(folder), *given]) == 2
        assert problem in capsys.readouterr().err


def test_models_that_are_no_decoders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    text = (
        '<ir_version: 10, opset_import: ["" : 20]> g (float[n] x) => (float[n] y) { y = Abs(x) }'
    )
    onnx.save(onnx.parser.parse_model(text), path)
    for command in ("profile", "memory", "compare"):
        assert run([command, str(path), "--decode"]) == 2
        assert "has no cache that grows" in capsys.readouterr().err
        for tokens in ("5", "0"):
            assert run([command, str(path), "--prompt", tokens]) == 2
            assert "add --decode" in capsys.readouterr().err


def test_a_folder_without_a_decoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", str(tmp_path)]) == 2
    assert "is a folder without genai_config.json" in capsys.readouterr().err


def test_a_prompt_and_tokens_are_phases() -> None:
    assert phases_of(8, ()) == (Phase(0, 8), Phase(8, 1))
    with pytest.raises(UserError, match="a prompt of 0 tokens"):
        phases_of(0, (3,))
