"""Baselines: what an update writes, and what it leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.baselines.listing import conclude, read, write


@pytest.mark.parametrize("is_partial", [True, False])
def test_only_an_update_of_a_part_keeps_other_entries(tmp_path: Path, is_partial: bool) -> None:
    path = tmp_path / "baseline.txt"
    write(path, {"a": ("1",), "b": ("2",)})

    conclude(path, {"a": ("3",)}, is_update=True, is_whole=False, is_partial=is_partial)

    assert read(path) == ({"a": ("3",), "b": ("2",)} if is_partial else {"a": ("3",)})
