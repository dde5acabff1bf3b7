"""Links kernels, their manifest and the shim into one shared library that ONNX Runtime loads."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from ortkit.errors import (
    InternalError,
    MissingDependencyError,
    StaleInstallationError,
    UserError,
)
from ortkit.kernels.backend import Kernel
from ortkit.kernels.c_compiler import find_linker as find_linker
from ortkit.kernels.c_compiler import run_compiler
from ortkit.kernels.cuda import CudaKernel
from ortkit.kernels.link.manifest import MANIFEST_VERSION, LibraryOp, manifest_source
from ortkit.kernels.link.manifest_cuda import ImageFile, image_files
from ortkit.kernels.link.named_ops import NAMES_VERSION, NamedOp, names_source
from ortkit.kernels.signature import RegionSignature
from ortkit.targets.cpu import machine
from ortkit.targets.target import Target
from ortkit.temporary import TemporaryFolder, write_whole

SHIM_ARCHIVE = "libortkit_shim.a"
MANIFEST_HEADER = "manifest.h"
NAMES_HEADER = "names.h"
#: What the code of programs includes.
PROGRAM_HEADERS = ("program.h", "kernel.h", "slices.h", MANIFEST_HEADER)
_INSTALL = "run `pip install .` in ortkit's folder, or `pip install -e .` to work on it"

_EXPORTS = "{ global: RegisterCustomOps; ortkit_kernel_manifest;%s local: *; };\n"
# No build id and no symbol table: equal input must give equal bytes. The C compiler does not link
# the C++ run-time library, and libgcc is never needed at run time.
_FLAGS = (
    "-shared", "-fPIC", "-O2", "-std=c11", "-fvisibility=hidden",
    "-Wl,--build-id=none", "-Wl,--gc-sections", "-Wl,--no-undefined", "-Wl,-z,relro", "-Wl,-z,now",
    "-Wl,-z,noexecstack", "-Wl,-u,RegisterCustomOps", "-s",
)  # fmt: skip


@dataclass(frozen=True)
class KernelLibrary:
    """A linked library.

    Args:
        path: Path of the file.
        sha256: Of its bytes, in hex.
        ops: What it registers, sorted: op types of the domain `ortkit.fused`, or the users' own
            ops with their domains.
    """

    path: Path
    sha256: str
    ops: tuple[str, ...]


@dataclass(frozen=True)
class Programs:
    """C code that calls kernels in a row; see ortkit/provider/own/source.py.

    Args:
        source: Of all functions; may include `PROGRAM_HEADERS`.
        files: Of constants, by the names under which the code includes them.
        symbols: The functions, which the library exports.
    """

    source: str
    files: Mapping[str, bytes]
    symbols: tuple[str, ...]


def link_library(
    kernels: Sequence[Kernel | CudaKernel],
    signatures: Sequence[RegionSignature],
    path: Path,
    target: Target,
    programs: Programs | None = None,
) -> KernelLibrary:
    """Write the library of `kernels` to `path`, whole or not at all.

    Args:
        kernels: One per signature, in the same order.
        signatures: What each kernel computes. The same op type twice is linked once, but may have
            a kernel for the CPU and one for CUDA.
        path: Conventionally MODEL.opt.ops.so.
        target: What the library as a whole asks of the processor; a library for CUDA only runs
            on every processor of this machine's kind.
        programs: Code that is compiled and linked with the kernels.

    Raises:
        UserError: There is nothing to link, or `path` cannot be written.
        MissingDependencyError: No C compiler, or ortkit is not installed.
        KernelError: The compiler failed.
        InternalError: A kernel was made for another processor level than the library.
    """
    if not kernels:
        raise UserError("a kernel library needs at least one kernel", where=str(path))
    shim, header = find_shim()
    level = _level(target)
    ops = _ops(kernels, signatures, level)
    images = image_files(op.cuda for op in ops if op.cuda)
    symbols = () if programs is None else programs.symbols
    exports = _EXPORTS % "".join(f" {symbol};" for symbol in symbols)
    with TemporaryFolder("link") as folder:
        _write_images(images.values(), folder)
        (folder / "manifest.c").write_text(manifest_source(ops, level, images), "utf-8")
        if programs is not None:
            _write_programs(programs, folder)
        content = _linked(
            folder, (shim, header), (op.cpu.artifact for op in ops if op.cpu), exports,
            () if programs is None else ("programs.c",), ("-ldl",) if images else (),
        )  # fmt: skip
    _write_atomically(path, content)
    names = sorted(op.signature.op_type for op in ops)
    return KernelLibrary(path, hashlib.sha256(content).hexdigest(), tuple(names))


def link_named(ops: Sequence[NamedOp], path: Path, target: Target) -> KernelLibrary:
    """Write a library of ops under names of their users' to `path`, whole or not at all.

    Args:
        ops: One for each set of element types.
        path: The file.
        target: What the library as a whole asks of the processor.

    Raises:
        UserError: `path` cannot be written.
        MissingDependencyError: No C compiler, or ortkit is not installed.
        KernelError: The compiler failed.
    """
    shim, header = find_shim()
    names = header.with_name(NAMES_HEADER)
    _check_version(names, "NAMES", NAMES_VERSION)
    level = _level(target)
    with TemporaryFolder("link") as folder:
        kernels = [kernel.kernel for op in ops for kernel in op.kernels]
        images = image_files(
            cuda_kernel for cuda_kernel in kernels if isinstance(cuda_kernel, CudaKernel)
        )
        _write_images(images.values(), folder)
        (folder / "manifest.c").write_text(names_source(ops, level, images), "utf-8")
        artifacts = (part.artifact for item in kernels if isinstance(item, Kernel)
                     for part in item.parts)  # fmt: skip
        content = _linked(
            folder, (shim, header, names), artifacts, _EXPORTS % "",
            libraries=("-ldl",) if images else (),
        )  # fmt: skip
    _write_atomically(path, content)
    known = sorted({op.id for op in ops})
    return KernelLibrary(path, hashlib.sha256(content).hexdigest(), tuple(known))


def _level(target: Target) -> str:
    """Return what the shim is compiled for, which the host's processor runs."""
    on_host = target if target.traits.is_host else Target(level=machine())
    return on_host.resolved().level


def _linked(
    folder: Path,
    parts: Sequence[Path],
    artifacts: Iterable[Path],
    exports: str,
    sources: Sequence[str] = (),
    libraries: Sequence[str] = (),
) -> bytes:
    """Return the library of what lies in `folder`, of the shim and of kernels.

    Args:
        folder: With manifest.c; for nothing else.
        parts: The shim's archive, then headers.
        artifacts: The kernels' objects.
        exports: The linker's script of symbols.
        sources: More files to compile in `folder`.
        libraries: Flags at the end.
    """
    # Copied under fixed names: paths must not reach the output.
    for part in parts:
        shutil.copyfile(part, folder / part.name)
    objects = sorted({path.name: path for path in artifacts}.items())
    for name, artifact in objects:
        shutil.copyfile(artifact, folder / name)
    (folder / "exports.map").write_text(exports, "utf-8")
    arguments = [
        *_FLAGS, "-Wl,--version-script=exports.map", "-o", "library.so", "manifest.c", *sources,
        *(name for name, _ in objects), SHIM_ARCHIVE, "-Wl,--as-needed", "-lm", *libraries,
    ]  # fmt: skip
    run_compiler([*find_linker(), *arguments], folder, "link the kernel library")
    return (folder / "library.so").read_bytes()


def _write_images(images: Iterable[ImageFile], folder: Path) -> None:
    for image in set(images):
        (folder / f"{image.name}.bin").write_bytes(image.content)


def program_headers() -> list[Path]:
    """Return what the code of programs includes, as installed.

    Raises:
        MissingDependencyError: ortkit was never installed, or was before it had all of them.
    """
    headers = [find_shim()[1].with_name(name) for name in PROGRAM_HEADERS]
    for path in headers:
        if not path.is_file():
            raise MissingDependencyError(
                f"the native part of ortkit was built from other sources: it lacks {path.name}",
                where=str(path.parent),
                fix=_INSTALL,
            )
    return headers


def _write_programs(programs: Programs, folder: Path) -> None:
    for path in program_headers():
        shutil.copyfile(path, folder / path.name)
    (folder / "programs.c").write_text(programs.source, "utf-8")
    for name, content in programs.files.items():
        (folder / name).write_bytes(content)


def _ops(
    kernels: Sequence[Kernel | CudaKernel], signatures: Sequence[RegionSignature], level: str
) -> list[LibraryOp]:
    """Return the kernels by op, each op once."""
    ops: dict[str, LibraryOp] = {}
    for signature, kernel in zip(signatures, kernels, strict=True):
        op = ops.get(signature.op_type, LibraryOp(signature))
        if isinstance(kernel, CudaKernel):
            ops[signature.op_type] = replace(op, cuda=kernel)
            continue
        if kernel.target.level != level:  # the library would promise less than it needs
            raise InternalError(f"a kernel for {kernel.target.level} in a library for {level}")
        ops[signature.op_type] = replace(op, cpu=kernel)
    return list(ops.values())


def find_shim() -> tuple[Path, Path]:
    """Return the shim's archive and the manifest's header as installed.

    Raises:
        MissingDependencyError: ortkit runs from its sources and was never installed, or they have
            changed since.
    """
    folders: list[str] = []
    if find_spec("ortkit.custom_ops") is not None:
        folders = list(import_module("ortkit.custom_ops").__path__)
    for folder in map(Path, folders):
        if (folder / SHIM_ARCHIVE).is_file():
            _check_version(folder / MANIFEST_HEADER, "MANIFEST", MANIFEST_VERSION)
            return folder / SHIM_ARCHIVE, folder / MANIFEST_HEADER
    raise MissingDependencyError(
        f"the native part of ortkit ({SHIM_ARCHIVE}) is not installed", fix=_INSTALL
    )


def _check_version(header: Path, what: str, version: int) -> None:
    """Raise if the installed shim reads others than this code writes."""
    found = None
    if header.is_file():
        text = header.read_text("utf-8")
        found = re.search(rf"#define ORTKIT_{what}_VERSION (\d+)", text)
    if found is None or int(found[1]) != version:
        raise StaleInstallationError(
            f"the native part of ortkit was built from other sources (its {what.lower()} has "
            f"version {found[1] if found else 'unknown'}, not {version})",
            where=str(header),
            fix=_INSTALL,
        )


def _write_atomically(path: Path, content: bytes) -> None:
    try:
        write_whole(path, content, mode=0o755, is_durable=True)
    except OSError as error:
        raise UserError(
            f"cannot write the kernel library: {error.strerror}",
            where=str(path),
            fix="choose a folder that can be written and has room",
        ) from error
