"""Folders of models: which files are a model's own, and copies of all others."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from ortkit.errors import UserError
from ortkit.graph.io.open import open_model
from ortkit.graph.io.origin import source_of
from ortkit.kernels.metadata import library_path


def files_of(model: Path) -> frozenset[Path]:
    """Return a model's file, its external data, and where its kernel library lies.

    Raises:
        ModelError: It is no valid model.
    """
    source = source_of(open_model(model))
    data = () if source is None else source.external_files
    return frozenset({model, library_path(model), *data})


def copy_others(source: Path, target: Path, left_out: frozenset[Path], anchor: Path) -> None:
    """Copy the files of a folder and its subfolders into a new folder, but for some.

    Links to files are copied as the files. They may lead to the folder, and to the one where the
    anchor really lies: download caches keep all files there, and a folder of links.

    Args:
        source: The folder.
        target: Made here.
        left_out: Paths of files that are not copied, made of `source`.
        anchor: A file of the folder that was read and found valid.

    Raises:
        UserError: A link leads elsewhere or to a folder, something is neither a file nor a folder,
            or a file cannot be copied.
    """
    roots = (source.resolve(), anchor.resolve().parent)
    skipped = {os.path.abspath(path) for path in left_out}  # noqa: PTH100  (links stay links)
    try:
        target.mkdir()
        for path in _entries(source):
            folder = target / path.relative_to(source)
            if path.is_dir():
                folder.mkdir()
            elif os.path.abspath(path) not in skipped:  # noqa: PTH100
                shutil.copyfile(_file(path, roots), folder)
    except OSError as error:
        where = str(error.filename or source)
        raise UserError(f"cannot be copied: {error.strerror or error}", where=where) from error


def _entries(folder: Path) -> Iterator[Path]:
    """Yield what is below a folder, folders before what is in them."""
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        path = folder / entry.name
        if entry.is_symlink() and entry.is_dir():
            raise UserError("is a link to a folder", where=str(path), fix="put the folder there")
        yield path
        if entry.is_dir():
            yield from _entries(path)


def _file(path: Path, roots: tuple[Path, ...]) -> Path:
    """Return the file that is copied for an entry of a folder."""
    real = path.resolve()
    if not any(real.is_relative_to(root) for root in roots):
        raise UserError(
            "is a link out of the folder", where=str(path), fix="put the file itself there"
        )
    if not stat.S_ISREG(real.stat().st_mode):
        raise UserError("is neither a file nor a folder", where=str(path), fix="remove it")
    return real
