"""Entries of the cache that are not what was written for their key: none is accepted."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from fused_model import bias_gelu
from odd_backends import artifact_kernel

from ortkit.kernels.build.cache import KernelCache, Slot
from ortkit.targets.target import Target

SLOT = Slot(bias_gelu("n", 8), "odd", "1", Target("cpu", "x86-64-v3"))
#: One thing changed each.
OTHERS = {
    "signature": replace(SLOT, signature=bias_gelu("n", 9)),
    "backend": replace(SLOT, backend="even"),
    "fingerprint": replace(SLOT, fingerprint="2"),
    "kind": replace(SLOT, target=Target("cuda", "x86-64-v3")),
    "level": replace(SLOT, target=Target("cpu", "x86-64-v4")),
    "choices": replace(SLOT, choices="vector=8"),
}
FLIPS = 400


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    (tmp_path / "into").mkdir()
    return KernelCache(tmp_path / "cache")


def entry(cache: KernelCache, slot: Slot = SLOT) -> Path:
    """Store a kernel of random code; returns its file."""
    made = cache.folder.parent / "made"
    made.mkdir(exist_ok=True)
    code = random.Random(1).randbytes(4000)
    assert cache.store(slot, artifact_kernel(slot.signature, slot.target, made, code)) == ""
    return cache._path(slot)


def is_found(cache: KernelCache, slot: Slot = SLOT) -> bool:
    return cache.find(slot, cache.folder.parent / "into") is not None


def test_no_flipped_bit_is_accepted(cache: KernelCache) -> None:
    path = entry(cache)
    assert is_found(cache)
    content = path.read_bytes()
    head = content.index(b"\n")
    chance = random.Random(20)
    # Half of them in the head, each of whose bits is tried in time; half anywhere.
    bits = [*chance.sample(range(8 * head), FLIPS // 2)]
    bits += chance.sample(range(8 * len(content)), FLIPS // 2)
    accepted = []
    for bit in bits:
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        accepted += [bit] if is_found(cache) else []
    assert accepted == []
    path.write_bytes(content)
    assert is_found(cache)


def test_no_other_length_is_accepted(cache: KernelCache) -> None:
    path = entry(cache)
    content = path.read_bytes()
    ends = [*range(200), *range(200, len(content), 97), len(content) - 1]
    for end in ends:
        path.write_bytes(content[:end])
        assert not is_found(cache), end
    for more in (b"\0", b"\n", b" ", content):
        path.write_bytes(content + more)
        assert not is_found(cache)
        path.write_bytes(more + content)
        assert not is_found(cache)


@pytest.mark.parametrize("name", OTHERS)
def test_no_entry_is_accepted_in_the_place_of_another(name: str, cache: KernelCache) -> None:
    other = OTHERS[name]
    path, content = cache._path(other), entry(cache).read_bytes()
    assert path != cache._path(SLOT)
    path.write_bytes(content)
    assert is_found(cache)
    assert not is_found(cache, other)


def test_a_changed_number_in_the_head_is_not_accepted(cache: KernelCache) -> None:
    path = entry(cache)
    content = path.read_bytes()
    changed = content.replace(b'"factor": ', b'"factor": 9', 1)
    assert changed != content
    path.write_bytes(changed)
    assert not is_found(cache)
