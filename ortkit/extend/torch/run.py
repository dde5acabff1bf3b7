"""A declared op on PyTorch's tensors: by its kernels, else by its body or reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias

import numpy as np

from ortkit.errors import OrtkitError, UserError
from ortkit.extend.build.call import NativeKernel, NativeOp, takes
from ortkit.extend.check.op_cases import flat_sizes
from ortkit.extend.declare.declared_op import DeclaredOp
from ortkit.extend.declare.op_schema import Attribute, Types, checked_attributes
from ortkit.extend.declare.sizes import Sizes
from ortkit.extend.declare.variants import Form, forms_of
from ortkit.extend.torch.body import compute_body, unknown_operator
from ortkit.extend.torch.launch import Launches, fitting, is_aligned, sources_for
from ortkit.kernels.triton.source import VariantSource
from ortkit.refusal import Refused

# torch is optional, and has no types here.
Tensor: TypeAlias = Any
#: "auto": kernels where there are some; "always": an error where there are none; "never".
Kernels: TypeAlias = Literal["auto", "always", "never"]

#: What this many different calls mean is remembered.
_MOST_KNOWN = 4096


def dtype_name(dtype: Any) -> str:
    """Return numpy's name of one of torch's element types."""
    return str(dtype).removeprefix("torch.")


@dataclass
class _Call:
    """What calls with tensors of the same shapes, types and attributes have in common."""

    op: DeclaredOp
    is_present: tuple[bool, ...]
    attributes: Mapping[str, Attribute]
    types: Types
    sizes: Sizes
    device: Any
    flat: Mapping[str, int] = field(default_factory=dict)
    outputs: tuple[tuple[tuple[int, ...], Any], ...] = ()
    """The shape and torch's type of each."""
    native: NativeKernel | None = None
    launches: dict[bool, Launches | None] = field(default_factory=dict)
    """By whether all tensors are aligned."""

    @property
    def is_on_host(self) -> bool:
        """Whether its tensors are in the host's memory."""
        return bool(self.device.type == "cpu")

    @property
    def is_on_cuda(self) -> bool:
        """Whether they are on a GPU of CUDA's; torch has others."""
        return bool(self.device.type == "cuda")

    @property
    def absent(self) -> frozenset[str]:
        """The optional inputs that are not there."""
        pairs = zip(self.op.schema.inputs, self.is_present, strict=True)
        return frozenset(op_input.name for op_input, flag in pairs if not flag)

    def empty(self, like: Tensor) -> tuple[Tensor, ...]:
        """Return tensors for the results."""
        return tuple(like.new_empty(shape, dtype=dtype) for shape, dtype in self.outputs)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be written."""
        return all(0 in shape for shape, _ in self.outputs)


class TorchRun:
    """An op's computation on tensors of any device."""

    def __init__(self, op: DeclaredOp, kernels: Kernels) -> None:
        """Compile nothing yet."""
        self.op, self.kernels = op, kernels
        self.native = NativeOp(op)
        self._sources: dict[object, list[tuple[Form, tuple[VariantSource, ...]]]] = {}
        self._calls: dict[object, _Call] = {}
        self._problem = ""

    def __call__(
        self, inputs: Sequence[Tensor | None], attributes: Mapping[str, object]
    ) -> tuple[Tensor, ...]:
        """Compute the op.

        Raises:
            UserError: The inputs do not fit the declaration, or a kernel is asked for and there
                is none.
        """
        call = self._call(inputs, attributes)
        there = [item.detach() for item in inputs if item is not None]
        if self.kernels != "never":
            on_host = call.is_on_host
            found = self._native(call, there) if on_host else self._on_gpu(call, there)
            if found is not None:
                return found
            if self.kernels == "always":
                why = self.native.problem if on_host else self._problem
                raise UserError(
                    f"there is no kernel for this call on {call.device.type}"
                    + (f": {why}" if why else ""), where=self.op.id,
                )  # fmt: skip
            if not on_host and (found := self._by_body(call, there)) is not None:
                return found
        return self._by_reference(call, there)

    def _call(self, inputs: Sequence[Tensor | None], attributes: Mapping[str, object]) -> _Call:
        """Return what a call means, which is worked out once for equal ones."""
        key = (
            tuple(
                None if item is None else (item.shape, item.dtype, item.device) for item in inputs
            ),
            tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in attributes.items()),
        )
        call = self._calls.get(key)
        if call is None:
            if len(self._calls) >= _MOST_KNOWN:
                self._calls.clear()
            call = self._calls[key] = self._understood(inputs, attributes)
        return call

    def _understood(
        self, inputs: Sequence[Tensor | None], attributes: Mapping[str, object]
    ) -> _Call:
        import torch

        op = self.op
        given = checked_attributes(op.schema, attributes, op.id)
        there = [
            (op_input, tensor) for op_input, tensor in op.formal(inputs) if tensor is not None
        ]
        types = op.schema.bind_types([(item, dtype_name(t.dtype)) for item, t in there], op.id)
        sizes = Sizes()
        sizes.learn([(one.name, one.type, tuple(t.shape)) for one, t in there], op.id)
        device = there[0][1].device
        for _, one in there:
            if one.device != device:
                raise UserError(f"its tensors are on {device} and on {one.device}", where=op.id)
        is_present = [tensor is not None for tensor in inputs]
        is_present += [False] * (len(op.schema.inputs) - len(is_present))
        call = _Call(op, tuple(is_present), given, types, sizes, device, flat_sizes(sizes))
        shapes = [(sizes.shape(kind), types[kind.kind]) for kind in op.schema.outputs.values()]
        call.outputs = tuple((shape or (), getattr(torch, dtype)) for shape, dtype in shapes)
        if call.is_on_host and self.kernels != "never":
            call.native = self.native.find(types, call.is_present, given, call.flat)
        return call

    def _native(self, call: _Call, there: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
        import torch

        if call.native is None:
            return None
        inputs = [item.contiguous() for item in there]
        outputs = call.empty(inputs[0])
        if not call.is_empty:
            addresses = [output.data_ptr() for output in (*inputs, *outputs)]
            call.native.call(addresses, call.attributes, call.flat, torch.get_num_threads())
        return outputs

    def _on_gpu(self, call: _Call, there: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
        """Launch a kernel in Triton on torch's stream, with Triton's own launcher."""
        if not call.is_on_cuda or find_spec("triton") is None:
            self._problem = "kernels for GPUs are CUDA's, and need triton"
            return None
        inputs = [item.contiguous() for item in there]
        outputs = call.empty(inputs[0])
        if call.is_empty:
            return outputs
        tensors = (*inputs, *outputs)
        aligned = is_aligned(tensors)
        if aligned not in call.launches:
            call.launches[aligned] = self._launches(call, aligned=aligned)
        launches = call.launches[aligned]
        if launches is None:
            return None
        launches.run(tensors)
        return outputs

    def _launches(self, call: _Call, *, aligned: bool) -> Launches | None:
        for form, sources in self._forms(call):
            if takes(form, call.attributes, call.flat):
                source = fitting(sources, call.flat, call.device, aligned=aligned)
                if source is not None:
                    return Launches(form, source, call.attributes, call.flat)
        return None

    def _forms(self, call: _Call) -> list[tuple[Form, tuple[VariantSource, ...]]]:
        key = tuple(sorted(call.types.items())), call.is_present
        if key in self._sources:
            return self._sources[key]
        made = []
        try:
            for form in forms_of(self.op, list(call.types.values()), "cuda"):
                if not isinstance(form, Form):
                    self._problem = form[1]
                elif form.types == call.types and form.is_present == call.is_present:
                    found = sources_for(form)
                    if isinstance(found, Refused):
                        self._problem = found.reason
                    else:
                        made.append((form, found))
        except OrtkitError as error:
            self._problem = error.problem
        return self._sources.setdefault(key, made)

    def _by_body(self, call: _Call, there: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
        """Compute the body with torch's operators, where the tensors are."""
        body = self.op.bodies.get(call.absent)
        if body is None or unknown_operator(body):
            return None
        import torch

        with torch.no_grad():
            found = compute_body(body, there, call.attributes, self.op.id)
        # Not an input itself, which an op may not return.
        return tuple(item.clone(memory_format=torch.contiguous_format) for item in found)

    def _by_reference(self, call: _Call, there: Sequence[Tensor]) -> tuple[Tensor, ...]:
        arrays = iter([to_numpy(item) for item in there])
        inputs = [next(arrays) if flag else None for flag in call.is_present]
        results = self.op.compute(inputs, call.attributes)
        return tuple(from_numpy(result, call.device) for result in results)


def empty_outputs(op: DeclaredOp, types: Types, sizes: Sizes, like: Tensor) -> tuple[Tensor, ...]:
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
