"""Kernels in Triton launched on PyTorch's tensors by Triton's own launcher."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ortkit.extend.declare.op_schema import Attribute
from ortkit.extend.declare.size_rules import value_of
from ortkit.extend.declare.variants import Form
from ortkit.extend.triton.kernels import has_elements, sources_of_form
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.parameters import Parameter
from ortkit.kernels.triton.source import StepSource, VariantSource
from ortkit.refusal import Refused
from ortkit.temporary import TemporaryFolder

# torch is optional, and has no types here.
Tensor: TypeAlias = Any

_ALIGNED = 16


def sources_for(form: Form) -> tuple[VariantSource, ...] | Refused:
    """Return the variants of a form's kernel, written or generated, or why there is none."""
    return sources_of(form.signature) if form.declared is None else sources_of_form(form)


def is_aligned(tensors: Sequence[Tensor]) -> bool:
    """Say whether all begin at multiples of 16 bytes."""
    return not any(tensor.data_ptr() % _ALIGNED for tensor in tensors)


def fitting(
    sources: Sequence[VariantSource], sizes: Mapping[str, int], device: Any, *, aligned: bool
) -> VariantSource | None:
    """Return the first variant that takes these sizes and this GPU, None if there is none."""
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    for source in sources:
        if source.is_aligned and not aligned:
            continue
        if source.architectures is not None and 10 * major + minor not in source.architectures:
            continue
        # What Gluon is, each Triton says again, and torch brings its own.
        if any(step.is_gluon for step in source.steps) or not has_elements(source, sizes):
            continue
        if all(
            (size := value_of(condition.extent, sizes)) % condition.divisible_by == 0
            and (condition.at_most is None or size <= condition.at_most)
            for condition in source.conditions
        ):
            return source
    return None


@dataclass(frozen=True)
class _Step:
    """One launch, but for the tensors."""

    function: Any
    grid: tuple[int, ...]
    arguments: tuple[tuple[str, Any], ...]
    """The kind, tensor or scratch, with its place and its type; a map; or a value."""
    options: Mapping[str, Any]


class Launches:
    """What is launched for a call."""

    def __init__(
        self,
        form: Form,
        source: VariantSource,
        attributes: Mapping[str, Attribute],
        sizes: Mapping[str, int],
    ) -> None:
        """Work out grids and numbers.

        Args:
            form: The kernel's.
            source: The variant that fits.
            attributes: All of the op's.
            sizes: By name.
        """
        self._scratch = [value_of(item, sizes) for item in source.scratch]
        by_symbol = {f"s{position}": sizes[name] for position, name in enumerate(source.symbols)}
        inputs = len(form.signature.inputs) - len(form.attributes)
        names = [spec.name for spec in form.signature.inputs]

        def parameter_of(index: int) -> int:
            # Attributes stand between the inputs and the outputs.
            return index - (len(form.attributes) if index >= inputs else 0)

        def passed(step: StepSource, one: Parameter) -> tuple[str, Any]:
            argument = one.argument
            if argument.kind == "tensor":
                return "tensor", (parameter_of(argument.index), one.type)
            if argument.kind == "map":
                map_ = step.maps[argument.index]
                dims, strides = (
                    tuple(value_of(size, by_symbol) for size in sizes_of)
                    for sizes_of in (map_.dims, map_.strides)
                )
                return "map", (parameter_of(map_.tensor), map_.first, _Map(dims, strides, one.box))
            if argument.kind == "scratch":
                return "scratch", (argument.index, one.type)
            if argument.kind == "number":
                return "value", attributes[names[argument.index]]
            assert argument.extent is not None
            return "value", value_of(argument.extent, by_symbol)

        self._steps = []
        for step in source.steps:
            grid = tuple(-(-value_of(extent, sizes) // by) for extent, by in step.grid)
            options = {"num_warps": step.warps, "enable_fp_fusion": step.fp_fusion}
            if step.stages is not None:
                options["num_stages"] = step.stages
            if step.registers is not None:
                options["maxnreg"] = step.registers
            if all(grid):
                arguments = tuple(passed(step, parameter) for parameter in step.parameters)
                self._steps.append(_Step(_function(step), grid, arguments, options))

    def run(self, tensors: Sequence[Tensor]) -> None:
        """Launch on the inputs that there are and the outputs, on torch's current stream."""
        import torch

        with torch.cuda.device(tensors[0].device):
            scratch = [tensors[0].new_empty(size, dtype=torch.uint8) for size in self._scratch]
            blocks = {"tensor": tensors, "scratch": scratch}
            for step in self._steps:
                arguments = [
                    value if kind == "value"
                    else value[2].of(tensors[value[0]], value[1]) if kind == "map"
                    else _as(blocks[kind][value[0]], value[1])
                    for kind, value in step.arguments
                ]  # fmt: skip
                step.function[step.grid](*arguments, **step.options)


@dataclass(frozen=True)
class _Map:
    """A map of a tensor, but for the tensor; strides in bytes."""

    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]

    def of(self, tensor: Tensor, first: int) -> Any:
        """Return what Triton's launcher takes for it; `first` are bytes."""
        from triton.tools.tensor_descriptor import TensorDescriptor

        size = tensor.element_size()
        strides = [*(stride // size for stride in self.strides), 1]
        begin = tensor.reshape(-1)[first // size :]
        return TensorDescriptor(begin, list(self.dims), strides, list(self.box))


def _as(tensor: Tensor, type_: str) -> Tensor:
    """Return a tensor that Triton takes for a pointer of a type: bools of bytes, scratch."""
    import torch

    wanted = {
        "*u8": torch.uint8, "*fp32": torch.float32, "*fp16": torch.float16, "*i32": torch.int32,
        "*i64": torch.int64, "*fp64": torch.float64, "*bf16": torch.bfloat16,
    }.get(type_)  # fmt: skip
    return tensor if wanted is None or tensor.dtype == wanted else tensor.view(wanted)


_modules: dict[str, Any] = {}
_folders: list[TemporaryFolder] = []
"""Of the modules, as long as this process lives."""


def _function(step: StepSource) -> Any:
    """Return a step's function; Triton reads its source again from a file."""
    if step.text not in _modules:
        folder = TemporaryFolder("triton")
        _folders.append(folder)
        path = folder.path / f"{step.entry}.py"
        path.write_text(step.text, "utf-8")
        spec = importlib.util.spec_from_file_location(f"ortkit_triton_{len(_modules)}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        _modules[step.text] = module
    return getattr(_modules[step.text], step.entry)
