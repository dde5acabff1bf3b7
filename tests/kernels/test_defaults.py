"""Defaults that ship: by kind of region, for processor levels and GPU architectures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fused_model import bias_gelu

from ortkit.errors import InternalError
from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library
from ortkit.kernels.catalog import load_backend
from ortkit.kernels.triton.backend import TritonBackend
from ortkit.kernels.tunable import Tunable
from ortkit.kernels.tuning import defaults
from ortkit.kernels.tuning.defaults import default_choices, table
from ortkit.kernels.tvm.backend import TvmBackend
from ortkit.targets.target import Target

SIGNATURE = bias_gelu("n", 64)
V3, V4 = Target("cpu", "x86-64-v3"), Target("cpu", "x86-64-v4")
KIND = TvmBackend().kind(SIGNATURE, V4)


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(defaults, "FOLDER", tmp_path)
    table.cache_clear()
    yield tmp_path
    table.cache_clear()


def write(folder: Path, name: str, choices: str, backend: str = "tvm", kind: str = KIND) -> None:
    kinds = {kind: {"choices": choices, "gain": 1.1}}
    content = {"schema": defaults.SCHEMA, "backend": backend, "kinds": kinds}
    (folder / f"{name}.json").write_text(json.dumps(content))


def test_each_level_has_its_own(tables: Path) -> None:
    write(tables, "x86-64-v4", "vector=32")
    write(tables, "x86-64-v3", "vector=8")
    assert default_choices(SIGNATURE, TvmBackend(), V4) == "vector=32"
    assert default_choices(SIGNATURE, TvmBackend(), V3) == "vector=8"
    amx = Target("cpu", "x86-64-v4-amx")
    assert default_choices(SIGNATURE, TvmBackend(), amx) == "vector=32"
    for level in ("x86-64-v2", "aarch64"):
        assert default_choices(SIGNATURE, TvmBackend(), Target("cpu", level)) == ""


def test_gpus_take_the_table_of_the_newest_architecture(tables: Path) -> None:
    kind = TritonBackend().kind(SIGNATURE, Target("cuda", "sm_90"))
    write(tables, "sm_90", "warps=8", "triton", kind)
    for level, choices in (("sm_80,sm_90", "warps=8"), ("sm_80", ""), ("sm_90,sm_100", "warps=8")):
        assert default_choices(SIGNATURE, TritonBackend(), Target("cuda", level)) == choices


def test_what_means_nothing_to_the_backend_is_left(tables: Path) -> None:
    write(tables, "x86-64-v4", "wings=2")
    assert default_choices(SIGNATURE, TvmBackend(), V4) == ""
    table.cache_clear()
    write(tables, "x86-64-v4", "vector=32", kind="another kind")
    assert default_choices(SIGNATURE, TvmBackend(), V4) == ""
    assert default_choices(SIGNATURE, TritonBackend(), V4) == ""


def test_a_damaged_table_is_a_fault_of_ours(tables: Path) -> None:
    (tables / "x86-64-v4.json").write_text("{")
    with pytest.raises(InternalError, match=r"x86-64-v4\.json cannot be read"):
        default_choices(SIGNATURE, TvmBackend(), V4)
    (tables / "x86-64-v4.json").write_text('{"schema": "ortkit.tuned-defaults/9"}')
    with pytest.raises(InternalError, match="another version"):
        default_choices(SIGNATURE, TvmBackend(), V4)


def test_kernels_are_made_as_the_table_says(tables: Path, cache: KernelCache) -> None:
    """Unless something is known of the region itself: that its rules are best, too."""
    target = Target().resolved()
    name = "x86-64-v4" if target.level.startswith("x86-64-v4") else target.level
    write(tables, name, "vector=8")

    def built(chooser: object) -> bytes:
        path = tables / "k.so"
        build_library([SIGNATURE], target, path, cache=cache, chooser=chooser)  # type: ignore[arg-type]
        return path.read_bytes()

    unknown, rules, named = (built(lambda *_, c=c: c) for c in (None, "", "vector=8"))
    if name in ("x86-64-v3", "x86-64-v4"):
        assert unknown == named
    assert rules != named


def test_times_of_kernels_hold_until_tables_change(tables: Path) -> None:
    assert defaults.digest() == ""
    write(tables, "sm_90", "warps=8")
    first = defaults.digest()
    write(tables, "sm_90", "warps=4")
    assert len({first, defaults.digest(), ""}) == 3


def test_what_ships_can_be_read() -> None:
    for path in defaults.FOLDER.glob("*.json"):
        content = json.loads(path.read_text("utf-8"))
        assert content["level"] == path.stem
        backend = load_backend(content["backend"])
        assert isinstance(backend, Tunable)
        for kind, one in content["kinds"].items():
            assert backend.is_choice(one["choices"]), kind
            assert one["gain"] >= 1.02
            assert one["least"] >= 0.99
        assert table(path.stem)[content["backend"]].keys() == content["kinds"].keys()
