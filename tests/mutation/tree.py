"""A copy of the working tree in which one source at a time is changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import _editable_skbc_ortkit

ROOT = Path(__file__).parents[2]
_HOOK = Path(__file__).with_name("hook.py")


class Tree:
    """The copy, which processes import instead of the working tree."""

    def __enter__(self) -> Self:
        """Make it."""
        self._folder = tempfile.TemporaryDirectory(prefix="mutation-")
        self.path = Path(self._folder.name).resolve() / "tree"
        self._site = self.path.with_name("site")
        for name in _files():
            target = self.path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
        for folder in {(ROOT / name).parent for name in _files()}:
            bytecode = folder / "__pycache__"  # valid, as the sources keep their times
            if bytecode.is_dir():
                target = self.path / bytecode.relative_to(ROOT)
                shutil.copytree(bytecode, target, dirs_exist_ok=True)
        self._write_site()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove it."""
        self._folder.cleanup()

    @property
    def surroundings(self) -> dict[str, str]:
        """Environment variables of processes that import the copy."""
        return {"PYTHONPATH": str(self._site), "MUTATION_TREE": str(self.path)}

    @contextmanager
    def changed(self, file: str, source: str) -> Iterator[None]:
        """Let a file have another source."""
        path = self.path / file
        before = path.with_name(f"{path.name}.before")
        path.rename(before)
        path.write_text(source, encoding="utf-8")
        try:
            yield
        finally:
            before.replace(path)

    def _write_site(self) -> None:
        """Write what the editable install consists of, leading to the copy, and the hook."""
        installed = Path(_editable_skbc_ortkit.__file__)
        self._site.mkdir()
        finder = installed.read_text(encoding="utf-8")
        for end in ("/", "'"):
            finder = finder.replace(f"{ROOT}{end}", f"{self.path}{end}")
        (self._site / installed.name).write_text(finder, encoding="utf-8")
        (self._site / "ortkit").symlink_to(installed.parent / "ortkit")
        shutil.copy2(_HOOK, self._site / "sitecustomize.py")


def _files() -> list[str]:
    """Return the files of the working tree, but for those that git ignores."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if name and os.path.lexists(ROOT / name)]
