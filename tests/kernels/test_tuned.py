"""The database of tuned kernels: what is read, merged, and chosen after it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fused_model import bias_gelu

from ortkit.errors import UserError
from ortkit.kernels.tuning.database import (
    Record,
    RecordKey,
    TrialRecord,
    TunedDatabase,
    best_of,
    cache_file,
    cached_database,
    database_text,
    existing_database,
    keep_database,
    known_database,
    load_database,
)
from ortkit.targets.target import Target
from ortkit.tune.store import TuneStore

SIGNATURE = bias_gelu("n", 64)
TARGET = Target("cpu", "x86-64-v3")


def place(bucket: str = "s0=128", processor: str = "Some CPU") -> RecordKey:
    return RecordKey(processor, "x86-64-v3", "tvm", SIGNATURE.key, bucket)


def record(best: str, gain: float, *trials: TrialRecord, generator: str = "g1") -> Record:
    return Record(SIGNATURE.op_type, generator, trials, best, gain, len(trials))


def chosen(database: TunedDatabase, processor: str = "Some CPU") -> str | None:
    return database.chooser(processor)(SIGNATURE, "tvm", TARGET)


def test_a_database_is_read_as_it_was_written(tmp_path: Path) -> None:
    trials = TrialRecord("keep=0", 1.25), TrialRecord("vector=64", None, "it crashed")
    database = TunedDatabase({place(): record("keep=0", 1.2, *trials)})
    path = tmp_path / "db.json"
    path.write_text(database_text(database))
    assert load_database(path) == database
    assert len(load_database(tmp_path / "none.json")) == 0


def test_kernels_are_chosen_for_the_same_processor_level_and_backend() -> None:
    database = TunedDatabase({place(): record("keep=0", 1.2)})
    assert chosen(database) == "keep=0"
    assert chosen(database, "Another CPU") is None
    choose = database.chooser("Some CPU")
    assert choose(SIGNATURE, "tvm", Target("cpu", "x86-64-v4")) is None
    assert choose(SIGNATURE, "other", TARGET) is None
    assert choose(bias_gelu("n", 65), "tvm", TARGET) is None


def test_kernels_for_gpus_are_chosen_on_any_machine() -> None:
    """Those of the newest architecture that something is known of."""
    trial = TrialRecord("warps=8", 1.2)
    places = [RecordKey("Some GPU", level, "triton", SIGNATURE.key, "s0=128")
              for level in ("sm_80", "sm_90")]  # fmt: skip
    records = [record("warps=4", 1.1, trial), record("warps=8", 1.2, trial)]
    choose = TunedDatabase(dict(zip(places, records, strict=True))).chooser("Some CPU")
    assert choose(SIGNATURE, "triton", Target("cuda", "sm_80,sm_90")) == "warps=8"
    assert choose(SIGNATURE, "triton", Target("cuda", "sm_80")) == "warps=4"
    assert choose(SIGNATURE, "triton", Target("cuda", "sm_100")) is None
    assert choose(SIGNATURE, "triton", Target("cpu", "x86-64-v3")) is None


def test_that_the_default_is_best_is_known_too() -> None:
    """And goes before what ships for the kind of the region."""
    confirmed = record("", 1.0, TrialRecord("keep=0", 0.9))
    assert chosen(TunedDatabase({place(): confirmed})) == ""
    unknown = Record(SIGNATURE.op_type, "g1", (TrialRecord("keep=0", 0.9),))
    assert chosen(TunedDatabase({place(): unknown})) is None


def test_one_kernel_is_best_over_all_sizes() -> None:
    """At one size a loses much, b a little."""
    small = record("a", 1.3, TrialRecord("a", 1.3), TrialRecord("b", 1.2))
    large = record("b", 1.2, TrialRecord("a", 0.5), TrialRecord("b", 1.2))
    assert best_of([small, large]) == "b"
    assert best_of([small]) == "a"
    assert best_of([record("", 1.0, TrialRecord("a", 0.9))]) == ""
    assert best_of([]) is None


def test_times_of_kernels_hold_until_others_are_chosen() -> None:
    trial = TrialRecord("keep=0", 1.2)
    nothing = TunedDatabase({place(): Record(SIGNATURE.op_type, "g1", (trial,))})
    default = TunedDatabase({place(): record("", 1.0, trial)})
    first = TunedDatabase({place(): record("keep=0", 1.2, trial)})
    second = TunedDatabase({place(): record("vector=8", 1.2, trial)})
    assert nothing.digest() == TunedDatabase().digest() == ""
    assert len({default.digest(), first.digest(), second.digest(), ""}) == 4


def test_databases_are_merged_by_place() -> None:
    first = TunedDatabase({
        place(): record("a", 1.3, TrialRecord("a", 1.3)),
        place("s0=1"): record("a", 1.1, TrialRecord("a", 1.1)),
    })  # fmt: skip
    second = TunedDatabase({
        place(): record("b", 1.2, TrialRecord("b", 1.2)),
        place("s0=1"): record("c", 1.05, TrialRecord("c", 1.05), generator="g2"),
    })  # fmt: skip
    merged = first.merged(second)
    both = merged.records[place()]
    assert (both.best, [trial.choices for trial in both.trials]) == ("a", ["a", "b"])
    # The times of an older generator's kernels say nothing.
    assert merged.records[place("s0=1")].best == "c"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is no database of tuned kernels"),
        ("[]", "is no database of tuned kernels"),
        ('{"schema": "ortkit.tune/1"}', "is no database of tuned kernels"),
        ('{"schema": "ortkit.tuned/2", "records": []}', "another version"),
        ('{"schema": "ortkit.tuned/1"}', "cannot be read"),
        ('{"schema": "ortkit.tuned/1", "records": [{"processor": 1}]}', "cannot be read"),
        ('{"schema": "ortkit.tuned/1", "records": 3}', "cannot be read"),
    ],
)
def test_what_is_no_database_is_said(
    text: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tuned.json"
    path.write_text(text)
    with pytest.raises(UserError, match=problem) as raised:
        load_database(path)
    assert str(path) in str(raised.value)
    # In the cache it is as good as none.
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path))
    assert len(known_database()) == 0
    assert path.read_text() == text


def test_what_was_changed_in_the_cache_is_none_and_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path))
    database = TunedDatabase({place(): record("keep=0", 1.2)})
    assert len(cached_database()) == 0
    keep_database(database)
    assert known_database() == cached_database() == load_database(cache_file()) == database
    text = cache_file().read_text("utf-8")
    for changed in (text.replace("keep=0", "keep=1"), database_text(database), "", "[]"):
        assert changed != text
        cache_file().write_text(changed, "utf-8")
        assert len(known_database()) == 0
        with pytest.raises(UserError, match="move it and take it over with `ortkit tune --merge"):
            cached_database()
        with pytest.raises(UserError, match="was changed, or is of another version"):
            TuneStore(None)
        assert cache_file().read_text("utf-8") == changed


def test_the_caches_own_file_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path))
    TuneStore(cache_file()).put(place(), record("keep=0", 1.2))
    assert len(cached_database()) == 1


@pytest.mark.parametrize("gain", [0, -1, float("inf"), "1", True])
def test_a_gain_that_is_none(gain: object, tmp_path: Path) -> None:
    database = TunedDatabase({place(): record("keep=0", 1.2)})
    content = json.loads(database_text(database))
    content["records"][0]["gain"] = gain
    path = tmp_path / "db.json"
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="cannot be read"):
        load_database(path)


def test_a_file_that_was_named_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        existing_database(tmp_path / "none.json")
