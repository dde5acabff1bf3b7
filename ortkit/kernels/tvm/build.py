"""TIR functions to an object file. Equal input and toolchain give equal bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ortkit.errors import KernelError

# AVX-512 at full width; LLVM's generic v4 tuning would stay at 256 bits.
_ATTRIBUTES = {"x86-64-v4": ["-prefer-256-bit"]}


def write_object(function: Any, level: str, path: Path) -> None:
    """Compile one function for a processor level and write the object file.

    Raises:
        KernelError: TVM failed.
    """
    import tvm
    from tvm import tirx

    target = tvm.target.Target(_llvm_target(level))
    module = tvm.IRModule({function.attrs["global_symbol"]: function})
    passes = [
        tirx.transform.BindTarget(target),
        tirx.transform.FlattenBuffer(),
        tirx.transform.VectorizeLoop(True),
        tirx.transform.UnrollLoop(),
        tirx.transform.LowerIntrin(),
    ]
    try:
        with tvm.transform.PassContext():
            lowered = tvm.ir.transform.Sequential(passes)(module)
            built = tvm.get_global_func("target.build.llvm")(lowered, target)
        built.write_to_file(str(path))
    except (ValueError, TypeError, RuntimeError) as error:
        last = str(error).strip().splitlines()[-1:]
        raise KernelError(f"TVM failed on a kernel: {' '.join(last)}", where=str(path)) from error


def _llvm_target(level: str) -> dict[str, Any]:
    if level == "aarch64":
        return {"kind": "llvm", "mtriple": "aarch64-unknown-linux-gnu"}
    target: dict[str, Any] = {
        "kind": "llvm",
        "mtriple": "x86_64-unknown-linux-gnu",
        "mcpu": level,
    }
    if level in _ATTRIBUTES:
        target["mattr"] = _ATTRIBUTES[level]
    return target
