"""Where trials are kept, so that none is repeated: the cache, and a file if one is named."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ortkit.errors import UserError
from ortkit.graph.io.atomic import write_whole
from ortkit.kernels.tuning.database import (
    Record,
    RecordKey,
    TunedDatabase,
    cache_file,
    cached_database,
    database_text,
    existing_database,
    keep_database,
    load_database,
)
from ortkit.private_folder import make_private_folder


class TuneStore:
    """The database that is being filled; each change is on disk when the call returns.

    Args:
        file: Written in addition to the cache, with what it holds already and what is added or
            asked for; made if it is not there. It may lie beside a model.
        merge: Files whose records are taken over.

    Raises:
        UserError: A file cannot be read or written, or is of another version.
    """

    def __init__(self, file: Path | None, merge: Sequence[Path] = ()) -> None:
        # The cache itself is sealed; it is no file to ship.
        is_cache = file is not None and file.resolve() == cache_file().resolve()
        self.file = None if is_cache else file
        given = TunedDatabase() if self.file is None else load_database(self.file)
        for path in merge:
            given = given.merged(existing_database(path))
        self._exported = given
        self.database = cached_database().merged(given)
        # Also to learn now, and not after an hour, that it cannot be written.
        self._write(given)

    def record(self, record_key: RecordKey, op: str, generator: str) -> Record:
        """Return the record of a key, from kernels of the same generator; the file gets it.

        Raises:
            UserError: The file cannot be written.
        """
        found = self.database.records.get(record_key)
        if found is None:
            return Record(op, generator)
        if record_key not in self._exported.records:
            self._export(TunedDatabase({record_key: found}))
        if found.generator != generator:
            # Its times are of other code. Its best choice is worth a trial still.
            return Record(op, generator, best=found.best, gain=found.gain)
        return found

    def put(self, record_key: RecordKey, record: Record) -> None:
        """Keep a record.

        Raises:
            UserError: A file cannot be written.
        """
        self._write(TunedDatabase({record_key: record}))

    def _write(self, news: TunedDatabase) -> None:
        path = cache_file()
        with _locked(path):
            # Another process may have added to it meanwhile.
            self.database = _over(cached_database(), news)
            keep_database(self.database)
        self._export(news)

    def _export(self, news: TunedDatabase) -> None:
        self._exported = _over(self._exported, news)
        if self.file is not None:
            write_whole(self.file, database_text(self._exported))


def _over(old: TunedDatabase, news: TunedDatabase) -> TunedDatabase:
    """Return both, with the trials of both, and the verdicts of the news."""
    records = dict(old.records)
    for record_key, record in news.records.items():
        before = records.get(record_key)
        if before is None or before.generator != record.generator:
            records[record_key] = record
            continue
        trials = {trial.choices: trial for trial in (*before.trials, *record.trials)}
        records[record_key] = Record(
            record.op, record.generator, tuple(trials.values()), record.best, record.gain,
            record.confirmed,
        )  # fmt: skip
    return TunedDatabase(records)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold off other processes that add to the same file."""
    try:
        make_private_folder(path.parent)
        with path.with_suffix(".lock").open("w", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise UserError(
            f"cannot be written: {error.strerror}",
            where=str(path),
            fix="set ORTKIT_CACHE to a folder that can be written",
        ) from error
