"""Kernels on disk: found again by content, rebuilt when damaged, never half written."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fused_model import bias_gelu

from ortkit.errors import KernelError, UserError
from ortkit.kernels import Kernel, Refused, RegionSignature, Target
from ortkit.kernels.backend import Launch
from ortkit.kernels.cache import KernelCache
from ortkit.kernels.sizes import Extent

TARGET = Target("cpu", "x86-64-v3")


LAUNCH = Launch((Extent(4, ("batch", "seq")),), Extent(8), 900, ((0, 0),))


@dataclass
class CountingBackend:
    """Writes a fixed artifact and counts how often it is asked to."""

    name: str = "counting"
    version: str = "1"
    compiled: list[str] = field(default_factory=list)
    fails: bool = False

    def available(self) -> Refused | None:
        return None

    def fingerprint(self) -> str:
        return self.version

    def accepts(self, signature: RegionSignature, target: Target) -> Refused | None:
        return None

    def compile(self, signature: RegionSignature, target: Target, folder: Path) -> Kernel:
        artifact = folder / "kernel.o"
        artifact.write_bytes(b"machine code of " + signature.key.encode())
        if self.fails:
            raise KernelError("the toolchain failed")
        self.compiled.append(signature.key)
        return Kernel(
            signature.key, self.name, target, artifact, "symbol", LAUNCH, compile_seconds=1.0
        )


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    return KernelCache(tmp_path / "cache")


def test_the_second_time_comes_from_disk(cache: KernelCache) -> None:
    backend = CountingBackend()
    first = cache.compile(backend, bias_gelu("n", 8), TARGET)
    second = cache.compile(backend, bias_gelu("n", 8), TARGET)
    assert len(backend.compiled) == 1
    assert (first.compile_seconds, second.compile_seconds) == (1.0, 0.0)
    assert second.artifact.read_bytes().startswith(b"machine code of")
    assert (second.symbol, second.launch) == ("symbol", LAUNCH)


def test_signature_target_and_toolchain_each_have_their_own_entry(cache: KernelCache) -> None:
    old, new = CountingBackend(version="1"), CountingBackend(version="2")
    cache.compile(old, bias_gelu("n", 8), TARGET)
    cache.compile(old, bias_gelu("n", 9), TARGET)
    cache.compile(old, bias_gelu("n", 8), Target("cpu", "x86-64-v4"))
    cache.compile(new, bias_gelu("n", 8), TARGET)
    assert (len(old.compiled), len(new.compiled)) == (3, 1)
    cache.compile(new, bias_gelu("n", 8), TARGET)
    assert len(new.compiled) == 1


@pytest.mark.parametrize(
    "damage", ["object", "cut object", "no object", "record", "no record", "list"]
)
def test_a_damaged_entry_is_rebuilt(damage: str, cache: KernelCache) -> None:
    backend = CountingBackend()
    artifact = cache.compile(backend, bias_gelu("n", 8), TARGET).artifact
    content, record = artifact.read_bytes(), artifact.with_suffix(".json")
    if "object" in damage:
        artifact.write_bytes(b"x" + content[1:] if damage == "object" else content[:-3])
        if damage == "no object":
            artifact.unlink()
    elif damage == "no record":
        record.unlink()
    else:
        record.write_text("[1]" if damage == "list" else '{"schema": 1, "key"')
    rebuilt = cache.compile(backend, bias_gelu("n", 8), TARGET)
    assert len(backend.compiled) == 2
    assert rebuilt.artifact.read_bytes() == content
    assert json.loads(record.read_text())["key"] == bias_gelu("n", 8).key


def test_a_failed_compilation_leaves_nothing(cache: KernelCache) -> None:
    with pytest.raises(KernelError):
        cache.compile(CountingBackend(fails=True), bias_gelu("n", 8), TARGET)
    assert list(cache.folder.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_the_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        UserError, match="cannot write the kernel cache: Not a directory; set ORTKIT_CACHE"
    ):
        KernelCache(tmp_path / "file" / "below").compile(
            CountingBackend(), bias_gelu("n", 8), TARGET
        )
