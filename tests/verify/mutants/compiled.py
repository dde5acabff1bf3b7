"""Kernels that compute something else than the functions that stand for them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import patch

import numpy as np
import onnx

from mutants import subjects
from mutants.draft import Fault, Rng
from mutants.kinds import Kind, plant_one
from mutants.rewriting import KINDS
from ortkit.errors import InternalError
from ortkit.fusion import plan
from ortkit.kernels.backend import Kernel
from ortkit.kernels.build.library import build_kernels
from ortkit.kernels.link.linker import find_linker, link_library
from ortkit.kernels.signature import RegionSignature, body_text
from ortkit.kernels.sizes import Extent, extent_of, symbols_of
from ortkit.targets.target import Target

#: The fault's name, its kind, and what makes the kernel for a place; None where it does not fit.
_Maker: TypeAlias = tuple[str, str, Callable[[int], "Kernel | None"]]
_TARGET = Target("cpu", "native")

#: C conditions by name: `sizes` are a kernel's named sizes, `data` its tensors, inputs first.
_CONDITIONS = {
    "always": "1",
    "a size is 1": "any(1)",
    "a size is 3": "any(3)",
    "a size above 16": "above(16)",
    "a size above 128": "above(128)",
    "a size is odd": "odd()",
    "a size is no multiple of 8": "rest(8)",
    "an output on an odd address": "(uintptr_t)out % 64 != 0",
    "in place": "in_place",
    "work is cut": "begin > 0",
    "work is cut unevenly": "begin > 0 && (end - begin) % 2",
    "an input above 50": "first > 50.0f || first < -50.0f",
    "an input is zero": "first == 0.0f",
    "an input is negative": "first < 0.0f",
}


@dataclass(frozen=True)
class Compiled:
    """A candidate with kernels.

    Args:
        model: The candidate.
        signatures: Of its kernels.
        kernels: In the same order; their files are there inside the `with` block.
        folder: Libraries are written there.
    """

    model: onnx.ModelProto
    signatures: tuple[RegionSignature, ...]
    kernels: tuple[Kernel, ...]
    folder: Path

    def library(self, name: str, changed: dict[int, Kernel] | None = None) -> Path:
        """Link the kernels, some of them changed."""
        path = self.folder / f"{name}.so"
        kernels = [(changed or {}).get(at, each) for at, each in enumerate(self.kernels)]
        return link_library(kernels, self.signatures, path, _TARGET).path


@contextmanager
def compiled(original: onnx.ModelProto, folder: Path) -> Iterator[Compiled]:
    """Optimize a model and yield it with its kernels."""
    recorded: list[RegionSignature] = []
    build = plan.build_library

    def record(signatures: Sequence[RegionSignature], *args: Any, **options: Any) -> Any:
        recorded.extend(signatures)
        return build(signatures, *args, **options)

    with patch.object(plan, "build_library", record):
        model = subjects.optimized(original)
    used = {node.op_type for node in model.graph.node}
    wanted = [each for each in recorded if each.op_type in used]
    with build_kernels(wanted, _TARGET) as built:
        pairs = [(signature, kernel)
                 for signature, kernel in zip(wanted, built.found, strict=True)
                 if isinstance(kernel, Kernel)]  # fmt: skip
        signatures = tuple(signature for signature, _ in pairs)
        kernels = tuple(kernel for _, kernel in pairs)
        yield Compiled(model, signatures, kernels, folder)


def plant(candidate: Compiled, rng: Rng) -> Iterator[Fault]:
    """Yield faults of kernels in random order, of conditions and of bodies in turn."""
    conditions: list[_Maker] = [(name, "conditional", partial(_wrapped, candidate, name=name))
                                for name in _CONDITIONS]  # fmt: skip
    conditions += [
        ("last unit left out", "unconditional", partial(_short, candidate)),
        ("memory shared wrongly", "conditional", partial(_shared, candidate)),
        ("kernel of another region", "unconditional", partial(_exchanged, candidate)),
    ]
    bodies: list[_Maker] = [
        (kind.name, kind.kind, partial(_other_body, candidate, kind=kind))
        for kind in KINDS
        if kind.kind == "unconditional"
    ]
    drawn = [
        [makers[at] for at in rng.permutation(len(makers))] for makers in (conditions, bodies)
    ]
    for number, maker in enumerate(chain.from_iterable(zip_longest(*drawn))):
        if maker is None:
            continue
        name, group, make = maker
        for at in rng.permutation(len(candidate.kernels)):
            kernel = make(int(at))
            if kernel is not None:
                library = candidate.library(f"fault{number}", {int(at): kernel})
                region = candidate.signatures[at].name
                yield Fault(f"{region}: {name}", group, candidate.model, library)
                break


def _other_body(candidate: Compiled, at: int, kind: Kind) -> Kernel | None:
    """Compile the kernel of a body with a fault; None where it has no place for that."""
    signature = candidate.signatures[at]
    model = onnx.ModelProto(functions=[signature.function()])
    fault = plant_one(model, np.random.default_rng(at), kind)
    if fault is None:
        return None
    try:
        other = replace(signature, body=body_text(fault.model.functions[0]))
        if other.key == signature.key:
            return None
        with build_kernels([other], _TARGET) as built:
            (kernel,) = built.found
            if not isinstance(kernel, Kernel):
                return None
            kept = candidate.folder / f"{at}_{kernel.artifact.name}"
            kept.write_bytes(kernel.artifact.read_bytes())
    except InternalError:  # the text of the body does not parse
        return None
    same = kernel.packs == candidate.kernels[at].packs == ()
    return replace(kernel, artifact=kept) if same else None


def _exchanged(candidate: Compiled, at: int) -> Kernel | None:
    """Return the kernel of a region with the same tensors."""
    own = candidate.signatures[at]
    for other, kernel in zip(candidate.signatures, candidate.kernels, strict=True):
        alike = [(each.dtype, each.shape) for each in (*own.inputs, *own.outputs)] == [
            (each.dtype, each.shape) for each in (*other.inputs, *other.outputs)
        ]
        if other.key != own.key and alike and not kernel.packs and not candidate.kernels[at].packs:
            return kernel
    return None


def _short(candidate: Compiled, at: int) -> Kernel | None:
    """Let the last unit of the first axis be left out: what is there stays."""
    kernel = candidate.kernels[at]
    units = kernel.launch.units
    if not units or units[0].symbols or units[0].factor < 2:
        return None
    cut = (Extent(units[0].factor - 1), *units[1:])
    return replace(kernel, launch=replace(kernel.launch, units=cut))


def _shared(candidate: Compiled, at: int) -> Kernel | None:
    """Let an input and an output share memory although the kernel reads it later."""
    kernel, signature = candidate.kernels[at], candidate.signatures[at]
    output = signature.outputs[0]
    for place, tensor in enumerate(signature.inputs):
        is_same = (tensor.dtype, tensor.shape) == (output.dtype, output.shape)
        if is_same and not kernel.launch.inplace:
            return replace(kernel, launch=replace(kernel.launch, inplace=((place, 0),)))
    return None


def _wrapped(candidate: Compiled, at: int, name: str) -> Kernel | None:
    """Change one element of the first output where a condition holds."""
    kernel, signature = candidate.kernels[at], candidate.signatures[at]
    tensors = (*signature.inputs, *signature.outputs)
    symbols = symbols_of(tensors)
    floats = [place for place, each in enumerate(signature.inputs) if each.dtype == "float32"]
    if signature.outputs[0].dtype != "float32" or not floats:
        return None
    source = _source(kernel, len(signature.inputs), len(tensors), len(symbols), floats[0],
                     _elements(signature, symbols), _CONDITIONS[name])  # fmt: skip
    stem = candidate.folder / f"wrapped{at}_{list(_CONDITIONS).index(name)}"
    stem.with_suffix(".c").write_text(source, encoding="utf-8")
    command = [*find_linker(), "-O1", "-fPIC", "-ffunction-sections"]
    subprocess.run(
        [*command, "-c", f"{stem}.c", "-o", f"{stem}_own.o"], check=True, capture_output=True
    )
    subprocess.run(
        [*command, "-r", "-nostdlib", f"{stem}_own.o", str(kernel.artifact), "-o", f"{stem}.o"],
        check=True,
        capture_output=True,
    )
    return replace(kernel, artifact=stem.with_suffix(".o"), symbol=f"wrapped_{kernel.symbol}")


def _elements(signature: RegionSignature, symbols: Sequence[str]) -> str:
    """Return the number of elements of the first output, in C."""
    parts = ["(int64_t)1"]
    for dim in signature.outputs[0].shape:
        extent = extent_of(dim).numbered(symbols)
        parts += [str(extent.factor), *(f"sizes[{symbol[1:]}]" for symbol in extent.symbols)]
    return " * ".join(parts)


def _source(
    kernel: Kernel, inputs: int, tensors: int, sizes: int, place: int, elements: str, when: str
) -> str:
    data = ", ".join(f"void* t{number}" for number in range(tensors))
    named = "".join(f", int64_t s{number}" for number in range(sizes))
    types = ", ".join(["void*"] * tensors + ["int64_t"] * (sizes + 2))
    passed = ", ".join(
        [*(f"t{n}" for n in range(tensors)), *(f"s{n}" for n in range(sizes)), "begin", "end"]
    )
    held = ", ".join([*(f"s{number}" for number in range(sizes)), "0"])
    return f"""#include <stdint.h>
int32_t {kernel.symbol}({types});
static int any_of(const int64_t* sizes, int64_t n) {{
  for (int i = 0; i < {sizes}; ++i) if (sizes[i] == n) return 1;
  return 0; }}
static int above_of(const int64_t* sizes, int64_t n) {{
  for (int i = 0; i < {sizes}; ++i) if (sizes[i] > n) return 1;
  return 0; }}
static int rest_of(const int64_t* sizes, int64_t n) {{
  for (int i = 0; i < {sizes}; ++i) if (sizes[i] % n) return 1;
  return 0; }}
#define any(n) any_of(sizes, n)
#define above(n) above_of(sizes, n)
#define rest(n) rest_of(sizes, n)
#define odd() rest_of(sizes, 2)
int32_t wrapped_{kernel.symbol}({data}{named}, int64_t begin, int64_t end) {{
  const int64_t sizes[] = {{{held}}};
  float* out = (float*)t{inputs};
  const int in_place = t{place} == t{inputs};
  const float first = *(const float*)t{place};
  int32_t code = {kernel.symbol}({passed});
  const int64_t count = {elements};
  (void)sizes; (void)in_place; (void)first;
  if (count > 0 && ({when})) {{
    const int64_t at = begin > 0 ? count - 1 : 0;
    out[at] = out[at] * 1.05f + 0.01f;
  }}
  return code;
}}
"""
