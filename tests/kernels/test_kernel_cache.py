"""Kernels on disk: found again by content, rebuilt when damaged, never half written, bounded."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fused_model import bias_gelu, unary
from odd_backends import LAUNCH, artifact_kernel

from ortkit.errors import UserError
from ortkit.kernels.backend import Kernel
from ortkit.kernels.build import library as build
from ortkit.kernels.build.cache import DEFAULT_LIMIT, KernelCache, Slot, default_cache
from ortkit.kernels.build.library import LibraryBuild
from ortkit.kernels.signature import RegionSignature
from ortkit.targets.target import Target

TARGET = Target("cpu", "x86-64-v3")


def slot(columns: int = 8, fingerprint: str = "1", level: str = "x86-64-v3", **given: str) -> Slot:
    return Slot(bias_gelu("n", columns, **given), "odd", fingerprint, Target("cpu", level))


def kernel(folder: Path, of: Slot, content: bytes) -> Kernel:
    folder.mkdir(parents=True, exist_ok=True)
    return artifact_kernel(of.signature, of.target, folder, content)


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    return KernelCache(tmp_path / "cache")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    (tmp_path / "made").mkdir()
    return tmp_path / "made"


def stored(cache: KernelCache, made: Path, of: Slot, content: bytes = b"code\n\0of it") -> Path:
    assert cache.store(of, kernel(made, of, content)) == ""
    return cache._path(of)


def test_what_was_stored_is_found_with_its_bytes(cache: KernelCache, made: Path) -> None:
    assert cache.find(slot(), made) is None
    stored(cache, made, slot())
    found = cache.find(slot(), made)
    assert found is not None
    assert found.artifact.parent == made
    assert found.artifact.read_bytes() == b"code\n\0of it"
    assert (found.key, found.backend, found.target) == (slot().signature.key, "odd", TARGET)
    assert (found.symbol, found.launch, found.compile_seconds) == ("symbol", LAUNCH, 0.0)


def test_signature_target_and_toolchain_each_have_their_own_place(
    cache: KernelCache, made: Path
) -> None:
    stored(cache, made, slot())
    assert cache.find(slot(9), made) is None
    assert cache.find(slot(fingerprint="2"), made) is None
    assert cache.find(slot(level="x86-64-v4"), made) is None
    assert cache.find(slot(name="other_name"), made) is not None


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-3],
        lambda content: content + b"x",
        lambda content: content[:40],
        lambda content: content.replace(b"code", b"cude"),
        lambda content: b"[1]\n" + content.partition(b"\n")[2],
        lambda content: content.replace(b'"schema": 4', b'"schema": 3'),
        lambda content: content.replace(b'"symbol": "symbol"', b'"symbol": 7'),
        lambda content: content.replace(b'"factor": 8', b'"factor": "many"'),
        lambda content: content.replace(b'"points"', b'"dots"'),
        lambda content: b"\xff\xfe\n" + content,
    ],
)
def test_a_damaged_file_is_as_good_as_none(
    damage: Callable[[bytes], bytes], cache: KernelCache, made: Path
) -> None:
    path = stored(cache, made, slot())
    content = path.read_bytes()
    assert damage(content) != content
    path.write_bytes(damage(content))
    assert cache.find(slot(), made) is None
    cache.entries()
    assert stored(cache, made, slot()).read_bytes() == content


def test_what_was_not_used_for_longest_goes_first(cache: KernelCache, made: Path) -> None:
    size = stored(cache, made, slot(0), b"x" * 5000).stat().st_size
    for columns in range(1, 6):
        stored(cache, made, slot(columns), b"x" * 5000)
    for columns in range(6):
        os.utime(cache._path(slot(columns)), (columns + 1, columns + 1))
    assert cache.find(slot(0), made) is not None  # used now
    KernelCache(cache.folder, limit=3 * size).trim()
    left = [columns for columns in range(6) if cache.find(slot(columns), made) is not None]
    assert left == [0, 4, 5]


def test_a_running_build_keeps_what_it_has_loaded(cache: KernelCache, made: Path) -> None:
    stored(cache, made, slot())
    found = cache.find(slot(), made)
    assert found is not None
    KernelCache(cache.folder, limit=0).trim()
    assert cache.entries() == ()
    assert found.artifact.read_bytes() == b"code\n\0of it"


def test_entries_and_clear(cache: KernelCache, made: Path) -> None:
    first = stored(cache, made, slot(8))
    second = stored(cache, made, slot(9), b"longer code")
    os.utime(first, (5, 5))
    (cache.folder / "foreign.txt").write_text("not ours")
    found = cache.entries()
    assert [item.path for item in found] == [second, first]
    assert found[1].op == slot(8).signature.op_type
    assert (found[1].backend, found[1].level, found[1].used) == ("odd", "x86-64-v3", 5.0)
    size = first.stat().st_size + second.stat().st_size
    assert sum(one.size for one in found) == size
    assert cache.clear() == (2, size)
    assert [path.name for path in cache.folder.iterdir()] == ["foreign.txt"]
    assert cache.clear() == (0, 0)


def test_what_a_killed_process_left_goes(cache: KernelCache, made: Path) -> None:
    whole = stored(cache, made, slot())
    (cache.folder / ".ortkit-draft-0123456789abcdef.tmp").write_text("half")
    cache.trim()
    assert [path.name for path in cache.folder.iterdir()] == [whole.name]


def test_a_folder_that_cannot_be_made_is_said_and_stops_nothing(
    tmp_path: Path, made: Path
) -> None:
    (tmp_path / "file").write_text("")
    cache = KernelCache(tmp_path / "file" / "below")
    said = cache.store(slot(), kernel(made, slot(), b"code"))
    assert said.endswith(
        "cannot be written: Not a directory; set ORTKIT_CACHE to a folder that can"
    )
    assert cache.find(slot(), made) is None
    assert cache.entries() == ()
    cache.trim()


def test_a_folder_that_may_only_be_read_is_read(
    cache: KernelCache, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stored(cache, made, slot())

    def refused(*given: object, **named: object) -> None:
        raise PermissionError(13, "Permission denied")

    # Permissions do not stop root, so the calls that they would stop are stopped.
    monkeypatch.setattr(os, "utime", refused)
    monkeypatch.setattr(Path, "replace", refused)
    monkeypatch.setattr(Path, "unlink", refused)
    assert cache.find(slot(), made) is not None
    assert "Permission denied" in cache.store(slot(9), kernel(made, slot(9), b"code"))
    KernelCache(cache.folder, limit=0).trim()
    assert path.exists()
    with pytest.raises(UserError, match="cannot be removed: Permission denied"):
        cache.clear()


FULL = """
import resource, sys
from pathlib import Path
import test_kernel_cache as t
folder = Path(sys.argv[1])
of = t.slot()
kernel = t.kernel(folder / "made", of, b"x" * 50_000)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
print(t.KernelCache(folder / "cache").store(of, kernel))
"""


def test_a_write_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stops the write where a full disk would."""
    done = python(FULL, tmp_path)
    assert "cannot be written: File too large" in done
    assert list((tmp_path / "cache").iterdir()) == []


def python(code: str, *given: object) -> str:
    command = [sys.executable, "-c", code, *map(str, given)]
    here = Path(__file__).parent
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=here).stdout


USER = """
import random, sys, time
from pathlib import Path
import test_kernel_cache as t
folder, number = Path(sys.argv[1]), int(sys.argv[2])
cache = t.KernelCache(folder / "cache", limit=60_000)
made = folder / f"made{number}"
made.mkdir()
chance = random.Random(number)
until = time.monotonic() + float(sys.argv[3])
seen = 0
while time.monotonic() < until or not seen:
    of = t.slot(chance.randrange(6))
    content = of.name.encode() * 400
    found = cache.find(of, made)
    if found is None:
        assert cache.store(of, t.kernel(made, of, content)) == ""
    else:
        seen += 1
        assert found.artifact.read_bytes() == content
    if chance.random() < 0.2:
        cache.trim()
    if chance.random() < 0.02:
        cache.clear()
print(seen)
"""


def test_processes_share_a_folder_and_may_be_killed_at_any_time(tmp_path: Path) -> None:
    here = Path(__file__).parent
    command = [sys.executable, "-c", USER, str(tmp_path)]
    users = [
        subprocess.Popen(
            [*command, str(number), "1" if number < 3 else "60"],
            stdout=subprocess.PIPE, text=True, cwd=here,
        )
        for number in range(6)
    ]  # fmt: skip
    until = time.monotonic() + 30
    while time.monotonic() < until and len(list(tmp_path.glob("made*"))) < 6:
        time.sleep(0.02)
    time.sleep(0.3)
    for victim in users[3:]:
        assert victim.poll() is None
        victim.kill()
    ended = [user.communicate(timeout=60)[0] for user in users]
    assert [user.returncode for user in users] == [0, 0, 0, -9, -9, -9]
    assert all(int(seen) > 0 for seen in ended[:3])
    cache, made = KernelCache(tmp_path / "cache"), tmp_path / "made0"
    for columns in range(6):
        stored(cache, made, slot(columns))
        assert cache.find(slot(columns), made) is not None
    assert len(cache.entries()) == 6


# ---- in builds
def test_the_second_build_compiles_nothing_and_gives_the_same_bytes(
    build: Callable[..., LibraryBuild], cache: KernelCache, tmp_path: Path
) -> None:
    given = (bias_gelu("n", 24), unary("Tanh"), bias_gelu("m", 24, name="other"))
    first, second = (build_in(cache, tmp_path / name, *given) for name in ("a.so", "b.so"))
    assert (first.compiled, second.compiled) == (2, 0)
    assert (tmp_path / "a.so").read_bytes() == (tmp_path / "b.so").read_bytes()
    assert {item.compile_seconds for item in second.kernels} == {0.0}


def build_in(cache: KernelCache, path: Path, *given: RegionSignature) -> LibraryBuild:
    return build.build_library(given, Target(), path, cache=cache)


WARM = """
import sys
from pathlib import Path
from fused_model import unary
from ortkit.kernels.build import compiler
from ortkit.kernels.build.library import build_library
from ortkit.kernels.build.cache import KernelCache
from ortkit.targets.target import Target
folder = Path(sys.argv[1])
made = build_library([unary("Tanh")], Target(), folder / "x.so", cache=KernelCache(folder / "c"))
print(made.compiled, bool(compiler._servers), "tvm" in sys.modules)
"""


def test_a_build_from_the_cache_loads_no_toolchain_and_starts_no_compiler(tmp_path: Path) -> None:
    assert python(WARM, tmp_path) == "1 True False\n"
    assert python(WARM, tmp_path) == "0 False False\n"


BUILD = """
import sys
from pathlib import Path
from fused_model import bias_gelu, unary
from ortkit.kernels.build.library import build_library
from ortkit.kernels.build.cache import KernelCache
from ortkit.targets.target import Target
folder, name = Path(sys.argv[1]), sys.argv[2]
given = [unary("Tanh"), unary("Exp"), *(bias_gelu("n", 16 + i) for i in range(4))]
made = build_library(given, Target(), folder / name, cache=KernelCache(folder / "cache"))
print(len(made.kernels), len(made.refused))
"""


def test_builds_share_a_cold_cache_and_may_be_killed_in_the_middle(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUILD, str(tmp_path)]
    here = Path(__file__).parent
    for seconds in (0.7, 1.4):
        victim = subprocess.Popen([*command, "killed.so"], cwd=here, stdout=subprocess.DEVNULL)
        time.sleep(seconds)
        victim.kill()
        victim.wait()
    builds = [
        subprocess.Popen([*command, f"{number}.so"], cwd=here, stdout=subprocess.PIPE, text=True)
        for number in range(2)
    ]
    assert [item.communicate(timeout=120)[0] for item in builds] == ["6 0\n"] * 2
    contents = {(tmp_path / f"{number}.so").read_bytes() for number in range(2)}
    assert len(contents) == 1
    assert len(KernelCache(tmp_path / "cache").entries()) == 6


def test_a_cache_that_cannot_be_written_stops_no_build(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    made = build_in(KernelCache(tmp_path / "file"), tmp_path / "x.so", unary("Exp"))
    assert made.library is not None
    assert "cannot be written" in made.note


def test_a_build_keeps_the_cache_within_its_limit(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "cache")
    build_in(cache, tmp_path / "x.so", bias_gelu("n", 20))
    limit = 5 * cache.entries()[0].size // 2
    small = KernelCache(cache.folder, limit)
    for columns in range(21, 25):
        build_in(small, tmp_path / "x.so", bias_gelu("n", columns))
    assert 0 < sum(entry.size for entry in cache.entries()) <= limit


# ---- its size
@pytest.mark.parametrize(
    ("text", "size"),
    [("1000", 1000), ("2 kb", 2048), ("512MB", 512 << 20), ("1GiB", 1 << 30), ("", DEFAULT_LIMIT)],
)
def test_the_limit_is_the_users(text: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTKIT_CACHE_SIZE", text)
    assert default_cache().limit == size


@pytest.mark.parametrize("text", ["much", "-1", "1.5GB", "5TB"])
def test_a_limit_that_is_no_size_is_the_users_error(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTKIT_CACHE_SIZE", text)
    with pytest.raises(UserError, match=r"ORTKIT_CACHE_SIZE: '.*' is no size; give bytes"):
        default_cache()
