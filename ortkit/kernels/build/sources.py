"""The generated code of kernels as files to read: Triton's Python and PTX, TIR scripts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ortkit.errors import UserError
from ortkit.kernels.backend import Kernel
from ortkit.kernels.catalog import load_backend
from ortkit.kernels.cuda import CeilDiv, Condition, CudaKernel, Step, Variant
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.sizes import Extent, symbols_of


def write_sources(
    kernels: Sequence[Kernel | CudaKernel],
    signatures: Sequence[RegionSignature],
    folder: Path,
) -> dict[str, tuple[str, ...]]:
    """Write the code of all kernels; returns the names of the files by the signatures' keys.

    Args:
        kernels: One per signature, their files still there.
        signatures: What each kernel computes; equal ones are written once.
        folder: Made if it is not there.

    Raises:
        UserError: The folder cannot be written.
    """
    found: dict[str, tuple[str, ...]] = {}
    for kernel, signature in zip(kernels, signatures, strict=True):
        if signature.key in found:
            continue
        texts = load_backend(kernel.backend).source(signature, kernel.target)
        head = _head(signature)
        files = {
            f"{signature.op_type}{end}": _commented(head, end) + text
            for end, text in texts.items()
        }
        if isinstance(kernel, CudaKernel):
            files = _with_launches(files, kernel, signature) | _ptx(kernel, signature)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in files.items():
                (folder / name).write_text(text, "utf-8")
        except OSError as error:
            raise UserError(f"cannot be written: {error.strerror}", where=str(folder)) from error
        found[signature.key] = tuple(files)
    return found


def ending(variant: int, step: int, kind: str) -> str:
    """Return what is added to an op's name for the code of one launch."""
    return f".{variant}.{step}.{kind}"


def one_line(text: str) -> str:
    """Return text for a comment: names are the model's, and must not end the line."""
    return "".join(item if item.isprintable() else "?" for item in text)


def _head(signature: RegionSignature) -> str:
    """Return the region as comments: what comes in, what goes out, and the operators between."""
    lines = [f"ortkit.fused::{signature.op_type}"]
    lines += [f"  in   {_tensor(spec)}" for spec in signature.inputs]
    lines += [f"  out  {_tensor(output)}" for output in signature.outputs]
    lines += ["", *signature.body.strip().splitlines(), ""]
    return "".join(f"# {one_line(line)}".rstrip() + "\n" for line in lines)


def _commented(head: str, end: str) -> str:
    """Return comments as a language has them, which the ending of its files tells."""
    return re.sub("^#", "//", head, flags=re.MULTILINE) if end == ".c" else head


def _tensor(spec: TensorSpec) -> str:
    return f"{spec.name}: {spec.dtype}[{', '.join(map(str, spec.shape))}]"


def _ptx(kernel: CudaKernel, signature: RegionSignature) -> dict[str, str]:
    return {
        signature.op_type + ending(image.variant, image.step, "ptx"): (
            image.path.read_bytes().rstrip(b"\0").decode()
        )
        for image in kernel.images
        if image.is_ptx
    }


def _with_launches(
    files: dict[str, str], kernel: CudaKernel, signature: RegionSignature
) -> dict[str, str]:
    """Say in front of each file when it is launched, and how."""
    names = symbols_of((*signature.inputs, *signature.outputs))
    found = dict(files)
    for number, variant in enumerate(kernel.variants):
        for index, step in enumerate(variant.steps):
            name = signature.op_type + ending(number, index, "py")
            lines = (
                f"# {one_line(line)}\n" for line in _launch(number, variant, index, step, names)
            )
            found[name] = "".join((*lines, "#\n", files[name]))
    return found


def _launch(
    number: int, variant: Variant, index: int, step: Step, names: Sequence[str]
) -> list[str]:
    conditions = [_condition(condition, names) for condition in variant.conditions]
    conditions += ["all tensors start at multiples of 16 bytes"] if variant.aligned else []
    grid = " x ".join(_blocks(ceil_div, names) for ceil_div in step.grid)
    return [
        f"variant {number}, the first of which this holds: {'; '.join(conditions) or 'always'}",
        f"launch {index + 1} of {len(variant.steps)}: {grid} blocks of {step.threads} threads, "
        f"{step.shared_bytes} bytes of shared memory",
    ]


def _condition(condition: Condition, names: Sequence[str]) -> str:
    bounds = [f"a multiple of {condition.divisible_by}"] if condition.divisible_by > 1 else []
    bounds += [] if condition.at_most is None else [f"at most {condition.at_most}"]
    return f"{_extent(condition.extent, names)} is {' and '.join(bounds) or 'any'}"


def _blocks(ceil_div: CeilDiv, names: Sequence[str]) -> str:
    size = _extent(ceil_div.extent, names)
    return size if ceil_div.divisor == 1 else f"ceil({size} / {ceil_div.divisor})"


def _extent(extent: Extent, names: Sequence[str]) -> str:
    return str(Extent(extent.factor, tuple(names[int(symbol[1:])] for symbol in extent.symbols)))
