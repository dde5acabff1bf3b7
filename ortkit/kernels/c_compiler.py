"""The C compiler of this machine: links kernels, and compiles those that are written in C."""

from __future__ import annotations

import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from ortkit import env
from ortkit.errors import KernelError, MissingDependencyError
from ortkit.kernels.cache_files import say_unused
from ortkit.private_folder import private_folder_refusal
from ortkit.targets.cpu import machine
from ortkit.temporary import TemporaryFolder, tools_in

# The C library that ONNX Runtime's own wheels ask for.
_ZIG_TARGETS = {"x86-64": "x86_64-linux-gnu.2.28", "aarch64": "aarch64-linux-gnu.2.28"}
# Floats are computed as they are written: no product is contracted with a sum.
_FLAGS = (
    "-c", "-O3", "-std=c11", "-fPIC", "-ffp-contract=off", "-fno-math-errno",
    "-fvisibility=hidden", "-ffunction-sections",
)  # fmt: skip


def compile_c(source: str, path: Path) -> None:
    """Compile a kernel in C, and write its object file.

    Args:
        source: C11; what it needs of the processor stands there as attributes of functions.
        path: The object file.

    Raises:
        MissingDependencyError: There is no C compiler.
        KernelError: It failed.
    """
    with TemporaryFolder("c") as folder:
        (folder / "kernel.c").write_text(source, "utf-8")
        command = [*find_linker(), *_FLAGS, "kernel.c", "-o", "kernel.o"]
        run_compiler(command, folder, "compile a kernel")
        shutil.copyfile(folder / "kernel.o", path)


def find_linker() -> list[str]:
    """Return the command of a C compiler: `CC`, else cc, gcc or clang, else the package ziglang.

    Raises:
        MissingDependencyError: There is none.
    """
    named = env.compiler_command()
    if named is not None:
        command = named.split()
        if shutil.which(command[0]) is None:
            raise MissingDependencyError(
                f"CC names {command[0]!r}, which is not there", fix="correct CC or unset it"
            )
        return command
    for name in ("cc", "gcc", "clang"):
        if (found := shutil.which(name)) is not None:
            return [found]
    if (zig := _find_zig()) is not None:
        # Named, or zig would compile for this very processor and this machine's C library.
        return [str(zig), "cc", "-target", _ZIG_TARGETS.get(machine(), "native")]
    raise MissingDependencyError(
        "no C compiler to link kernels with",
        fix="install gcc or clang, or `pip install ziglang`",
    )


def _find_zig() -> Path | None:
    """Return zig as the package ziglang brings it; the package itself only calls it."""
    spec = find_spec("ziglang")
    if spec is None:
        return None
    candidates = (Path(folder) / "zig" for folder in spec.submodule_search_locations or ())
    return next((zig.resolve() for zig in candidates if zig.is_file()), None)


def run_compiler(command: list[str], folder: Path, purpose: str) -> None:
    """Run a C compiler in a folder.

    Args:
        command: Of `find_linker`, with arguments.
        folder: Its temporary files lie there too.
        purpose: What it is to do, for the message where it fails.

    Raises:
        KernelError: It does not start, or fails.
    """
    # zig keeps what it compiles of the C library, and finds no place for it without HOME.
    surroundings = {"ZIG_GLOBAL_CACHE_DIR": str(_zig_cache(folder)), **tools_in(folder)}
    try:
        result = subprocess.run(
            command, cwd=folder, env=surroundings, capture_output=True, text=True,
            errors="replace", check=False,
        )  # fmt: skip
    except OSError as error:
        raise KernelError(f"cannot run {command[0]}: {error.strerror}") from error
    if result.returncode != 0:
        last = result.stderr.strip().splitlines()[-5:]
        raise KernelError(
            f"{command[0]} failed to {purpose}: {' | '.join(last)}",
            fix="if this is a broken C compiler, name another one with CC",
        )


def _zig_cache(folder: Path) -> Path:
    """Return where zig keeps code: in the cache, or in `folder` if that cannot be used."""
    kept = env.cache_dir() / "zig"
    if reason := private_folder_refusal(kept):
        say_unused(reason)
        return folder / "zig"
    return kept
