"""What tuning found: by processor, region and sizes, which kernels were tried and which is best.

A file of records, as JSON. Kernels are made after it wherever the processor's model and level fit;
`ortkit tune` fills it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from ortkit import env
from ortkit.errors import UserError
from ortkit.kernels.cache_files import DAMAGED, read_cached, write_cached
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.tuning.calibration import processor
from ortkit.targets.target import Target

SCHEMA = "ortkit.tuned/1"
FILE = "tuned.json"
_KEY = "tuned"

#: Returns which kernel to make of a region: choices, empty for the rules of the backend, None if
#: nothing is known; then what ships with ortkit is chosen (`ortkit.kernels.tuning.defaults`).
Chooser: TypeAlias = Callable[[RegionSignature, str, Target], str | None]


@dataclass(frozen=True)
class RecordKey:
    """What times hold for."""

    processor: str
    """The model of the CPU or GPU, as the system names it."""
    level: str
    """That the kernel is compiled for: a processor level, or a GPU architecture."""
    backend: str
    key: str
    """Of the region's signature."""
    bucket: str
    """Its named sizes, rounded up to powers of two; empty if all its sizes are numbers."""


@dataclass(frozen=True)
class TrialRecord:
    """One kernel that was timed beside the default."""

    choices: str
    ratio: float | None
    """How many times as fast as the default it was, None if it was not timed."""
    problem: str = ""
    """Why it was not timed."""


@dataclass(frozen=True)
class Record:
    """What is known of one `RecordKey`.

    Args:
        op: The fused operator, for reading.
        generator: The version of what made the kernels: trials of another one are repeated.
        trials: Each choice once.
        best: The choices whose gain was confirmed in processes of their own; empty: the default.
        gain: How many times as fast as the default `best` is, 1 for the default.
        confirmed: The trials among which `best` is the best: how many there were.
    """

    op: str
    generator: str
    trials: tuple[TrialRecord, ...] = ()
    best: str = ""
    gain: float = 1.0
    confirmed: int = 0

    @property
    def ratios(self) -> Mapping[str, float]:
        """The ratios of what was timed, with what was confirmed."""
        found = {trial.choices: trial.ratio for trial in self.trials if trial.ratio is not None}
        return {**found, self.best: self.gain, "": 1.0}

    def merged(self, other: Record) -> Record:
        """Return both; of different generators the other one's."""
        if other.generator != self.generator:
            return other
        trials = {one.choices: one for one in (*self.trials, *other.trials)}
        better = self if self.gain > other.gain else other
        return replace(better, trials=tuple(trials.values()))


@dataclass(frozen=True)
class TunedDatabase:
    """Records by key; never changed."""

    records: Mapping[RecordKey, Record] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.records)

    def merged(self, other: TunedDatabase) -> TunedDatabase:
        """Return what both know; see `Record.merged`."""
        records = dict(self.records)
        for record_key, record in other.records.items():
            before = records.get(record_key)
            records[record_key] = record if before is None else before.merged(record)
        return TunedDatabase(records)

    def digest(self) -> str:
        """Name what is chosen after this database, such as `tuned-0a1b2c3d4e5f`; empty if nothing.

        Trials that led to no choice leave it as it is.
        """
        best = sorted(
            (astuple(record_key), record.best)
            for record_key, record in self.records.items()
            if record.best or record.confirmed
        )
        return f"tuned-{hashlib.sha256(repr(best).encode()).hexdigest()[:12]}" if best else ""

    def chooser(self, model: str | None = None) -> Chooser:
        """Return what makes kernels after this database.

        Kernels for CPUs are made where they run; those for GPUs anywhere, so that for them all
        GPUs of the newest architecture that something is known of count.

        Args:
            model: Of the processor; None: this machine's.
        """
        here = processor() if model is None else model
        by_region: dict[tuple[str, str, str], list[Record]] = {}
        for record_key, record in self.records.items():
            if record_key.processor == here or record_key.level.startswith("sm_"):
                by_region.setdefault(
                    (record_key.key, record_key.backend, record_key.level), []
                ).append(record)

        def choose(signature: RegionSignature, backend: str, target: Target) -> str | None:
            if not by_region:
                return None
            for level in target.levels:
                if records := by_region.get((signature.key, backend, level)):
                    return best_of(records)
            return None

        return choose


def best_of(records: Sequence[Record]) -> str | None:
    """Return the choices that are best over all sizes at which a region was tuned.

    One kernel serves all sizes: the geometric mean of its gains counts, and where it was not
    tried it is taken for no faster than the default. None if nothing was ever confirmed.
    """
    known = [record.ratios for record in records]
    if not any(record.best or record.confirmed for record in records):
        return None
    confirmed = {record.best for record in records} | {""}

    def gain(choices: str) -> float:
        return sum(math.log(max(item.get(choices, 1.0), 1e-9)) for item in known)

    return max(sorted(confirmed), key=gain, default="")


def known_database() -> TunedDatabase:
    """Return what is in the cache; nothing if that is of another version or was changed."""
    return read_cached(cache_file(), _KEY, _database) or TunedDatabase()


def cached_database() -> TunedDatabase:
    """Return what is in the cache, to be added to with `keep_database`.

    Raises:
        UserError: It is there, but is of another version or was changed.
    """
    path = cache_file()
    found = read_cached(path, _KEY, _database)
    if found is None and path.exists():
        raise UserError(
            "was changed, or is of another version of ortkit", where=str(path),
            fix="move it and take it over with `ortkit tune --merge FILE`, or remove it",
        )  # fmt: skip
    return found or TunedDatabase()


def keep_database(database: TunedDatabase) -> None:
    """Replace what is in the cache.

    Raises:
        OSError: The folder cannot be written, or others can write to it.
    """
    write_cached(cache_file(), _KEY, database_text(database), is_durable=True)


def existing_database(path: Path) -> TunedDatabase:
    """Read a file that has to be there.

    Raises:
        UserError: It is not, or `load_database` raises.
    """
    if not path.exists():
        raise UserError(
            "there is no such file", where=str(path), fix="write one with `ortkit tune --db`"
        )
    return load_database(path)


def chooser_after(path: Path) -> Chooser:
    """Return what makes kernels after a file, and after the cache what that does not know.

    Raises:
        UserError: The file is not there, cannot be read, or is of another version.
    """
    first, second = existing_database(path).chooser(), known_database().chooser()

    def choose(signature: RegionSignature, backend: str, target: Target) -> str | None:
        found = first(signature, backend, target)
        return second(signature, backend, target) if found is None else found

    return choose


def cache_file() -> Path:
    """Return where tuning keeps what it finds."""
    return env.cache_dir() / FILE


def load_database(path: Path) -> TunedDatabase:
    """Read a file; none at all is an empty database.

    Raises:
        UserError: It cannot be read, is no such file, or is of another version.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return TunedDatabase()
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except DAMAGED as error:
        raise UserError("is no database of tuned kernels", where=str(path)) from error
    schema = content.get("schema") if isinstance(content, dict) else None
    if not isinstance(schema, str) or not schema.startswith("ortkit.tuned/"):
        raise UserError("is no database of tuned kernels", where=str(path))
    if schema != SCHEMA:
        raise UserError(
            f"is a database of another version ({schema}, not {SCHEMA})",
            where=str(path),
            fix="tune again into another file; this one stays as it is",
        )
    try:
        return _database(content)
    except DAMAGED as error:
        raise UserError("holds a record that cannot be read", where=str(path)) from error


def database_text(database: TunedDatabase) -> str:
    """Return what `load_database` reads: equal databases have equal texts."""
    records = [
        {**asdict(record_key), **asdict(record)}
        for record_key, record in sorted(database.records.items(), key=lambda one: astuple(one[0]))
    ]
    return json.dumps({"schema": SCHEMA, "records": records}, indent=1) + "\n"


def astuple(record_key: RecordKey) -> tuple[str, ...]:
    """Return the fields of a record's key, to sort by."""
    return (
        record_key.processor,
        record_key.level,
        record_key.backend,
        record_key.key,
        record_key.bucket,
    )


def _database(content: Any) -> TunedDatabase:
    if content["schema"] != SCHEMA:
        raise ValueError(content["schema"])
    return TunedDatabase(dict(_records(content["records"])))


def _records(content: Any) -> Iterator[tuple[RecordKey, Record]]:
    for one in content:
        record_key = RecordKey(*(_text(one, name) for name in RecordKey.__dataclass_fields__))
        trials = tuple(
            TrialRecord(_text(each, "choices"), _ratio(each["ratio"]), _text(each, "problem"))
            for each in one["trials"]
        )
        gain = _ratio(one["gain"])
        yield record_key, Record(
            _text(one, "op"), _text(one, "generator"), trials, _text(one, "best"),
            1.0 if gain is None else gain, int(one["confirmed"]),
        )  # fmt: skip


def _text(record: Mapping[str, object], name: str) -> str:
    value = record[name]
    if not isinstance(value, str):
        raise TypeError(name)
    return value


def _ratio(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(value)
    return float(value)
