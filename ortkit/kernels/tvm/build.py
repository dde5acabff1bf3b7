"""TIR functions to an object file. Equal input and toolchain give equal bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ortkit.errors import KernelError

# AVX-512 at full width; LLVM's generic v4 tuning would stay at 256 bits.
_WIDE = "-prefer-256-bit"
_VNNI = (_WIDE, "+avx512vnni")
_BF16 = (_WIDE, "+avx512bf16", "+avx512vnni")
_ATTRIBUTES = {
    "x86-64-v4": (_WIDE,),
    "x86-64-v4-vnni": _VNNI,
    "x86-64-v4-bf16": _BF16,
    "x86-64-v4-amx": (*_BF16, "+amx-tile", "+amx-bf16", "+amx-int8"),
}


def write_object(
    function: Any,
    level: str,
    path: Path,
    *,
    reassociate: bool = False,
    called: Sequence[Any] = (),
) -> None:
    """Compile one function for a processor level and write the object file.

    Args:
        function: With the calling convention of kernels.
        level: Of processors.
        path: The file.
        reassociate: Whether LLVM may add up floating-point numbers in another order.
        called: More functions, for the same file.

    Raises:
        KernelError: TVM failed.
    """
    with _failures(str(path)):
        _compile([function, *called], level, reassociate=reassociate).write_to_file(str(path))


def assembly(function: Any, level: str) -> str:
    """Return the assembly of one function for a processor level.

    Raises:
        KernelError: TVM failed.
    """
    with _failures(""):
        return str(_compile([function], level).inspect_source("asm"))


def _compile(functions: Sequence[Any], level: str, *, reassociate: bool = False) -> Any:
    import tvm
    from tvm import tirx

    flags = {"fast-math-reassoc": True} if reassociate else {}
    target = tvm.target.Target({**llvm_target(level), **flags})
    module = tvm.IRModule({function.attrs["global_symbol"]: function for function in functions})
    passes = [
        tirx.transform.BindTarget(target),
        tirx.transform.FlattenBuffer(),
        tirx.transform.VectorizeLoop(True),
        tirx.transform.UnrollLoop(),
        tirx.transform.LowerIntrin(),
    ]
    with tvm.transform.PassContext():
        lowered = tvm.ir.transform.Sequential(passes)(module)
        return tvm.get_global_func("target.build.llvm")(lowered, target)


@contextmanager
def _failures(where: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, RuntimeError) as error:
        last = str(error).strip().splitlines()[-1:]
        raise KernelError(f"TVM failed on a kernel: {' '.join(last)}", where=where) from error


def llvm_target(level: str) -> dict[str, Any]:
    """Return a processor level as `tvm.target.Target` takes it."""
    if level == "aarch64":
        return {"kind": "llvm", "mtriple": "aarch64-unknown-linux-gnu"}
    target: dict[str, Any] = {
        "kind": "llvm",
        "mtriple": "x86_64-unknown-linux-gnu",
        "mcpu": "x86-64-v4" if level in _ATTRIBUTES else level,
    }
    if level in _ATTRIBUTES:
        target["mattr"] = list(_ATTRIBUTES[level])
    return target
