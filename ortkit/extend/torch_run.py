"""A declared op on PyTorch's tensors: by its kernels, else by its body or reference."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from ortkit.errors import OrtkitError, UserError
from ortkit.extend.custom_ops import CustomOp
from ortkit.extend.forms import Form, forms_of
from ortkit.extend.native_call import NativeOp, takes
from ortkit.extend.op_cases import flat_sizes
from ortkit.extend.op_schema import Attribute, Types, checked_attributes
from ortkit.extend.size_rules import value_of
from ortkit.extend.sizes import Sizes
from ortkit.extend.torch_body import compute_body, unknown_operator
from ortkit.extend.triton_kernels import sources_of_form
from ortkit.kernels.backend import Refused
from ortkit.kernels.triton.source import StepSource, VariantSource, sources_of

# torch is optional, and has no types here.
Tensor: TypeAlias = Any
#: "auto": kernels where there are some; "always": an error where there are none; "never".
Kernels: TypeAlias = Literal["auto", "always", "never"]

_ALIGNED = 16


def dtype_name(dtype: Any) -> str:
    """Return numpy's name of one of torch's element types."""
    return str(dtype).removeprefix("torch.")


class TorchRun:
    """An op's computation on tensors of any device."""

    def __init__(self, op: CustomOp, kernels: Kernels) -> None:
        """Compile nothing yet."""
        self.op, self.kernels = op, kernels
        self.native = NativeOp(op)
        self._sources: dict[object, list[tuple[Form, tuple[VariantSource, ...]]]] = {}
        self._problem = ""

    def __call__(
        self, inputs: Sequence[Tensor | None], attributes: Mapping[str, object]
    ) -> tuple[Tensor, ...]:
        """Compute the op.

        Raises:
            UserError: The inputs do not fit the declaration, or a kernel is asked for and there
                is none.
        """
        op = self.op
        given = checked_attributes(op.schema, attributes, op.id)
        there = [(one, tensor) for one, tensor in op.formal(inputs) if tensor is not None]
        types = op.schema.bind_types([(one, dtype_name(t.dtype)) for one, t in there], op.id)
        sizes = Sizes()
        sizes.learn([(one.name, one.type, tuple(t.shape)) for one, t in there], op.id)
        is_there = [tensor is not None for tensor in inputs]
        is_there += [False] * (len(op.schema.inputs) - len(is_there))
        call = _Call(tuple(is_there), [t.detach() for _, t in there], given, types, sizes, op)
        if self.kernels != "never":
            found = self._native(call) if call.device.type == "cpu" else self._on_gpu(call)
            if found is not None:
                return found
            if self.kernels == "always":
                why = self.native.problem if call.device.type == "cpu" else self._problem
                raise UserError(
                    f"there is no kernel for this call on {call.device.type}"
                    + (f": {why}" if why else ""), where=op.id,
                )  # fmt: skip
            if call.device.type != "cpu" and (found := self._by_body(call)) is not None:
                return found
        return self._by_reference(call)

    def _native(self, call: _Call) -> tuple[Tensor, ...] | None:
        import torch

        flat = flat_sizes(call.sizes)
        kernel = self.native.find(call.types, call.is_there, call.attributes, flat)
        if kernel is None:
            return None
        inputs = [one.contiguous() for one in call.inputs]
        outputs = call.outputs()
        if any(one.numel() for one in outputs):
            addresses = [one.data_ptr() for one in (*inputs, *outputs)]
            kernel.call(addresses, call.attributes, flat, torch.get_num_threads())
        return outputs

    def _on_gpu(self, call: _Call) -> tuple[Tensor, ...] | None:
        """Launch a kernel in Triton on torch's stream, with Triton's own launcher."""
        if call.device.type != "cuda" or find_spec("triton") is None:
            self._problem = "kernels for GPUs are CUDA's, and need triton"
            return None
        flat = flat_sizes(call.sizes)
        inputs = [one.contiguous() for one in call.inputs]
        outputs = call.outputs()
        if not any(one.numel() for one in outputs):
            return outputs
        for form, sources in self._forms(call):
            if not takes(form, call.attributes, flat):
                continue
            for source in sources:
                if _fits(source, (*inputs, *outputs), flat):
                    _launch(form, source, (*inputs, *outputs), call.attributes, flat)
                    return outputs
        return None

    def _forms(self, call: _Call) -> list[tuple[Form, tuple[VariantSource, ...]]]:
        key = tuple(sorted(call.types.items())), call.is_there
        if key in self._sources:
            return self._sources[key]
        made = []
        try:
            for form in forms_of(self.op, list(call.types.values()), "cuda"):
                if not isinstance(form, Form):
                    self._problem = form[1]
                elif form.types == call.types and form.is_there == call.is_there:
                    found = _sources(form)
                    if isinstance(found, Refused):
                        self._problem = found.reason
                    else:
                        made.append((form, found))
        except OrtkitError as error:
            self._problem = error.problem
        return self._sources.setdefault(key, made)

    def _by_body(self, call: _Call) -> tuple[Tensor, ...] | None:
        """Compute the body with torch's operators, where the tensors are."""
        body = self.op.bodies.get(call.absent)
        if body is None or unknown_operator(body):
            return None
        import torch

        with torch.no_grad():
            found = compute_body(body, call.inputs, call.attributes, self.op.id)
        return tuple(one.contiguous() for one in found)

    def _by_reference(self, call: _Call) -> tuple[Tensor, ...]:
        arrays = iter([to_numpy(one) for one in call.inputs])
        inputs = [next(arrays) if flag else None for flag in call.is_there]
        results = self.op.compute(inputs, call.attributes)
        return tuple(from_numpy(one, call.device) for one in results)


class _Call:
    """One call: what came in, and what it means."""

    def __init__(
        self,
        is_there: tuple[bool, ...],
        inputs: list[Tensor],
        attributes: Mapping[str, Attribute],
        types: Types,
        sizes: Sizes,
        op: CustomOp,
    ) -> None:
        self.is_there, self.inputs, self.attributes = is_there, inputs, attributes
        self.types, self.sizes, self.op = types, sizes, op
        self.device = inputs[0].device
        for one in inputs[1:]:
            if one.device != self.device:
                raise UserError(
                    f"its tensors are on {self.device} and on {one.device}", where=op.id
                )

    @cached_property
    def absent(self) -> frozenset[str]:
        """The optional inputs that are not there."""
        pairs = zip(self.op.schema.inputs, self.is_there, strict=True)
        return frozenset(one.name for one, flag in pairs if not flag)

    def outputs(self) -> tuple[Tensor, ...]:
        """Return tensors for the results."""
        return empty_outputs(self.op, self.types, self.sizes, self.inputs[0])


def empty_outputs(op: CustomOp, types: Types, sizes: Sizes, like: Tensor) -> tuple[Tensor, ...]:
    """Return tensors of the outputs' shapes, on the device of another."""
    import torch

    made = []
    for kind in op.schema.outputs.values():
        shape = sizes.shape(kind)
        assert shape is not None
        made.append(like.new_empty(shape, dtype=getattr(torch, types[kind.kind])))
    return tuple(made)


def to_numpy(tensor: Tensor) -> np.ndarray[Any, np.dtype[Any]]:
    """Return a tensor's values, bfloat16 included."""
    import ml_dtypes
    import torch

    host = tensor.detach().cpu().contiguous()
    if host.dtype != torch.bfloat16:
        array: np.ndarray[Any, np.dtype[Any]] = host.numpy()
        return array
    return np.asarray(host.view(torch.uint16).numpy()).view(ml_dtypes.bfloat16)


def from_numpy(array: np.ndarray[Any, np.dtype[Any]], device: Any) -> Tensor:
    """Return an array's values as a tensor."""
    import torch

    dense = np.array(array, order="C")
    if dense.dtype.name == "bfloat16":
        return torch.from_numpy(dense.view(np.uint16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(dense).to(device)


# ---- kernels in Triton
def _sources(form: Form) -> tuple[VariantSource, ...] | Refused:
    return sources_of(form.signature) if form.declared is None else sources_of_form(form)


def _fits(source: VariantSource, tensors: Sequence[Tensor], sizes: Mapping[str, int]) -> bool:
    """Say whether a variant takes these sizes, alignments and this GPU."""
    import torch

    if source.is_aligned and any(one.data_ptr() % _ALIGNED for one in tensors):
        return False
    major, minor = torch.cuda.get_device_capability(tensors[0].device)
    if source.architectures is not None and 10 * major + minor not in source.architectures:
        return False
    for one in source.conditions:
        size = value_of(one.extent, sizes)
        if size % one.divisible_by or (one.at_most is not None and size > one.at_most):
            return False
    return True


def _launch(
    form: Form,
    source: VariantSource,
    tensors: Sequence[Tensor],
    attributes: Mapping[str, Attribute],
    sizes: Mapping[str, int],
) -> None:
    import torch

    by_place = {f"s{place}": sizes[name] for place, name in enumerate(source.symbols)}
    scratch = [
        torch.empty(value_of(one, sizes), dtype=torch.uint8, device=tensors[0].device)
        for one in source.scratch
    ]
    inputs = len(form.signature.inputs) - len(form.attributes)
    # Attributes stand between the inputs and the outputs.
    placed = [*tensors[:inputs], *(None for _ in form.attributes), *tensors[inputs:]]
    names = [one.name for one in form.signature.inputs]
    with torch.cuda.device(tensors[0].device):
        for step in source.steps:
            arguments: list[Any] = []
            for one in step.parameters:
                argument = one.argument
                if argument.kind == "tensor":
                    arguments.append(_as(placed[argument.index], one.type))
                elif argument.kind == "number":
                    arguments.append(attributes[names[argument.index]])
                elif argument.kind == "scratch":
                    arguments.append(_as(scratch[argument.index], one.type))
                else:
                    assert argument.extent is not None
                    arguments.append(value_of(argument.extent, by_place))
            grid = tuple(-(-value_of(extent, sizes) // by) for extent, by in step.grid)
            if all(grid):
                options = {} if step.stages is None else {"num_stages": step.stages}
                _function(step)[grid](
                    *arguments, num_warps=step.warps, enable_fp_fusion=step.fp_fusion, **options
                )


def _as(tensor: Tensor, type_: str) -> Tensor:
    """Return a tensor that Triton takes for a pointer of a type: bools of bytes, scratch."""
    import torch

    wanted = {
        "*u8": torch.uint8, "*fp32": torch.float32, "*fp16": torch.float16, "*i32": torch.int32,
        "*i64": torch.int64, "*fp64": torch.float64, "*bf16": torch.bfloat16,
    }.get(type_)  # fmt: skip
    return tensor if wanted is None or tensor.dtype == wanted else tensor.view(wanted)


_modules: dict[str, Any] = {}


def _function(step: StepSource) -> Any:
    """Return a step's function; Triton reads its source again from a file."""
    if step.text not in _modules:
        folder = Path(tempfile.mkdtemp(prefix="ortkit-triton-"))
        path = folder / f"{step.entry}.py"
        path.write_text(step.text, "utf-8")
        spec = importlib.util.spec_from_file_location(f"ortkit_triton_{len(_modules)}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        _modules[step.text] = module
    return getattr(_modules[step.text], step.entry)
