"""Backends that do what toolchains do on bad days; a region's name says what."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from ortkit.errors import KernelError
from ortkit.kernels.backend import Kernel, Launch
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent
from ortkit.kernels.tvm.backend import TvmBackend
from ortkit.refusal import Refused
from ortkit.targets.target import Target

LAUNCH = Launch((Extent(4, ("s0", "s1")), Extent(2)), Extent(8), 900, ((0, 0),))


def artifact_kernel(
    signature: RegionSignature, target: Target, folder: Path, content: bytes
) -> Kernel:
    """Return a kernel whose object is `content`."""
    artifact = folder / "kernel.o"
    artifact.write_bytes(content)
    return Kernel(signature.key, "odd", target, artifact, "symbol", LAUNCH, compile_seconds=1.0)


@dataclass(frozen=True)
class OddBackend:
    """Fails in the way that the region is called, and compiles others to their key."""

    name: str = "odd"

    def available(self) -> Refused | None:
        return None

    def fingerprint(self) -> str:
        return "1"

    def accepts(self, signature: RegionSignature, target: Target) -> Refused | None:
        return None

    def load(self) -> None:
        os.write(1, b"loading prints this\n")

    def compile(self, signature: RegionSignature, target: Target, folder: Path) -> Kernel:
        os.write(1, b"compiling prints this\n")
        misbehave(signature.name)
        return artifact_kernel(signature, target, folder, signature.key.encode())


@dataclass(frozen=True)
class DoesNotLoad(OddBackend):
    """Its toolchain is broken."""

    def load(self) -> None:
        raise ImportError("libLLVM.so: cannot open shared object file")


@dataclass(frozen=True)
class CrashesWhenLoaded(OddBackend):
    """Its toolchain takes the process with it."""

    def load(self) -> None:
        os.write(2, b"illegal instruction in a constructor\n")
        os.kill(os.getpid(), signal.SIGILL)


@dataclass(frozen=True)
class Fragile(TvmBackend):
    """TVM, but for regions that are called like a way to fail."""

    def compile(self, signature: RegionSignature, target: Target, folder: Path) -> Kernel:
        misbehave(signature.name)
        return super().compile(signature, target, folder)


def misbehave(how: str) -> None:
    if how == "crashes":
        os.write(2, b"first line\nLLVM ERROR: cannot select\n")
        os.kill(os.getpid(), signal.SIGSEGV)
    elif how == "exits":
        os._exit(3)
    elif how == "hangs":
        os.write(2, b"scheduling\n")
        time.sleep(600)
    elif how == "fails":
        raise KernelError("a loop has no end\nat line 7")
    elif how == "raises":
        raise ZeroDivisionError("by zero")
