"""A Python function as a kernel: numpy arrays in, numpy arrays out."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import CFUNCTYPE, PYFUNCTYPE, c_char_p, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortkit.errors import UserError
from ortkit.provider.bridge import KernelContext, View
from ortkit.provider.failures import describe
from ortkit.provider.kernel_call import KernelCall
from ortkit.provider.views import (
    Array,
    TensorSpec,
    array_at,
    as_arrays,
    read_only,
    read_value,
    signature,
    spec_of,
    write_value,
)

_FAIL = 1  # OrtErrorCode
#: This many layouts of memory are remembered for each combination of shapes.
_REMEMBERED = 8
_ALL_SHAPES = 64
#: KernelContext in words of 8 bytes; reading them is several times as fast as its fields.
_WORDS = c_int64 * (ctypes.sizeof(KernelContext) // 8)
_FAIL_WORD = KernelContext.fail.offset // 8
_SIGNATURE = KernelContext.signature.offset // 8
_SIGNATURE_COUNT = KernelContext.signature_count.offset // 8
_DATA = KernelContext.data.offset // 8
_MAKE_OUTPUTS = KernelContext.make_outputs.offset // 8

_FAIL_TYPE = CFUNCTYPE(c_int32, c_void_p, c_int32, c_char_p)
_MAKE_OUTPUT_TYPE = CFUNCTYPE(c_int32, c_void_p, c_int32, c_void_p, c_int32, c_void_p)
_string_at = ctypes.string_at
_copy = np.copyto


@dataclass(frozen=True)
class Expected:
    """What a result has to be, as far as it is known."""

    name: str
    dtype: ir.DataType | None = None
    dims: tuple[int | None, ...] | None = None
    """None for a dim that is not fixed, or as a whole for a rank that is not."""
    is_wanted: bool = True
    """Whether anybody reads it."""


@dataclass(frozen=True)
class PythonFunction:
    """A Python function that also gets the call: `function(call, *arrays)`."""

    function: Callable[..., object]


class _Plan:
    """What is known once inputs of these shapes have been seen."""

    __slots__ = ("arrays", "data_bytes", "outputs", "specs")

    def __init__(self, specs: list[TensorSpec | None]) -> None:
        self.specs = specs
        self.data_bytes = 8 * len(specs)
        self.arrays: dict[bytes, tuple[Array | None, ...]] = {}
        self.outputs: _Outputs | None = None


class _Outputs:
    """Where results of certain shapes go."""

    __slots__ = ("addresses", "shapes", "signature", "specs", "targets")

    def __init__(self, specs: list[TensorSpec]) -> None:
        self.specs = specs
        self.shapes = [spec.shape for spec in specs]
        self.signature = signature(self.shapes)
        self.addresses = c_void_p * len(specs)
        self.targets: dict[bytes, tuple[Array, ...]] = {}


class PythonKernel:
    """Calls a Python function for each run of a node; from any thread, several at a time.

    Arrays are made once for as long as ONNX Runtime uses the same memory again, as it does for
    inputs of the same shapes. They are read-only, and valid until the function returns.
    """

    def __init__(
        self,
        function: Callable[..., object] | PythonFunction,
        *,
        expected: Sequence[Expected] | None,
        keeps_lock: bool = True,
    ) -> None:
        """Wrap a function.

        Args:
            function: Takes an array for each input (None for one that is absent), returns an
                array or a tuple of them.
            expected: The results; None: ONNX Runtime says what they are, and more of them than
                the node has outputs are left out.
            keeps_lock: Whether outputs may be made with the interpreter's lock held: not if that
                may wait for another thread's Python code, as an allocator in Python is.
        """
        self._tells = isinstance(function, PythonFunction)
        self._function = function.function if isinstance(function, PythonFunction) else function
        self._expected = expected
        self._plans: dict[bytes, _Plan] = {}
        self._types: list[ir.DataType] | None = None
        prototype = PYFUNCTYPE if keeps_lock else CFUNCTYPE
        self._make_outputs_type = prototype(c_int32, c_void_p, c_void_p, c_void_p)
        self._make_outputs: tuple[int, Any] = (0, None)

    def __call__(self, context: int) -> int:
        """Run on an OrtkitKernelContext; returns 0, or a code after the reason was given."""
        words = _WORDS.from_address(context)
        try:
            shapes = _string_at(words[_SIGNATURE], 8 * words[_SIGNATURE_COUNT])
            plan = self._plans.get(shapes)
            if plan is None:
                plan = self._plan(context, shapes)
            data = _string_at(words[_DATA], plan.data_bytes)
            arrays = plan.arrays.get(data)
            if arrays is None:
                arrays = self._arrays(context, plan, data)
            if self._tells:
                results = as_arrays(self._function(KernelCall(context), *arrays))
            else:
                results = as_arrays(self._function(*arrays))
            outputs = plan.outputs
            if outputs is None or outputs.shapes != [result.shape for result in results]:
                return self._first(context, plan, results)
            return self._finish(context, words, outputs, results)
        except BaseException as error:  # noqa: BLE001 - it must not leave the callback
            text = describe(error, "").encode("utf-8", "replace")
            code: int = _FAIL_TYPE(words[_FAIL_WORD])(context, _FAIL, text)
            return code or _FAIL

    def _plan(self, context: int, shapes: bytes) -> _Plan:
        call = KernelContext.from_address(context)
        plan = _Plan([spec_of(call.inputs[index]) for index in range(call.input_count)])
        if len(self._plans) >= _ALL_SHAPES:
            self._plans.clear()
        self._plans[shapes] = plan
        return plan

    def _arrays(self, context: int, plan: _Plan, data: bytes) -> tuple[Array | None, ...]:
        addresses = (c_int64 * len(plan.specs)).from_buffer_copy(data) if data else ()
        call = KernelContext.from_address(context)
        is_plain = True
        made: list[Array | None] = []
        for index, (spec, address) in enumerate(zip(plan.specs, addresses, strict=True)):
            if spec is None:
                made.append(None)
            elif spec.is_plain:
                made.append(read_only(array_at(address, spec)))
            else:
                is_plain = False
                made.append(read_value(call.ort_api, call.inputs[index], index))
        arrays = tuple(made)
        if is_plain:
            if len(plan.arrays) >= _REMEMBERED:
                plan.arrays.clear()
            plan.arrays[data] = arrays
        return arrays

    def _finish(
        self, context: int, words: Any, outputs: _Outputs, results: tuple[Array, ...]
    ) -> int:
        """Make outputs of shapes that were seen before, and fill them."""
        function = self._make_outputs
        if function[0] != words[_MAKE_OUTPUTS]:
            address = words[_MAKE_OUTPUTS]
            function = self._make_outputs = (address, self._make_outputs_type(address))
        addresses = outputs.addresses()
        code: int = function[1](context, outputs.signature, addresses)
        if code:
            return code
        key = bytes(addresses)
        targets = outputs.targets.get(key)
        if targets is None:
            pairs = zip(addresses, outputs.specs, strict=True)
            targets = tuple(array_at(address or 0, spec) for address, spec in pairs)
            if len(outputs.targets) >= _REMEMBERED:
                outputs.targets.clear()
            outputs.targets[key] = targets
        for target, result in zip(targets, results, strict=True):
            if result.dtype != target.dtype:
                raise UserError(f"it returned {result.dtype}, expected {target.dtype}")
            _copy(target, result)
        return 0

    def _first(self, context: int, plan: _Plan, results: tuple[Array, ...]) -> int:
        """Check results of shapes that were not seen before, and put them into outputs."""
        arrays = self._checked(context, results)
        call = KernelContext.from_address(context)
        make = _MAKE_OUTPUT_TYPE(ctypes.cast(call.make_output, c_void_p).value or 0)
        specs: list[TensorSpec] = []
        for index, array in enumerate(arrays):
            if self._expected is not None and not self._expected[index].is_wanted:
                continue
            view, dims = View(), (c_int64 * max(array.ndim, 1))(*array.shape)
            code: int = make(context, index, dims, array.ndim, ctypes.addressof(view))
            if code:
                return code
            spec = spec_of(view)
            if spec is None:  # an optional output that nobody reads
                continue
            self._check_type(index, array, spec.dtype)
            if spec.is_plain:
                _copy(array_at(view.tensor.data or 0, spec), array)
            else:
                write_value(call.ort_api, view, spec, array)
            specs.append(spec)
        if len(specs) == len(arrays) and all(spec.is_plain for spec in specs):
            plan.outputs = _Outputs(specs)
        return 0

    def _checked(self, context: int, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        count = KernelContext.from_address(context).output_count
        if self._expected is None:
            if len(arrays) < count:
                raise UserError(f"it returned {len(arrays)} arrays, the node has {count} outputs")
            return arrays[:count]
        if len(arrays) != len(self._expected):
            names = ", ".join(repr(item.name) for item in self._expected)
            raise UserError(
                f"it returned {len(arrays)} arrays, expected {len(self._expected)} ({names})"
            )
        for array, expected in zip(arrays, self._expected, strict=True):
            if expected.dims is not None and not _fits(array.shape, expected.dims):
                shape = ", ".join("?" if dim is None else str(dim) for dim in expected.dims)
                raise UserError(
                    f"it returned shape {list(array.shape)} for {expected.name!r}, "
                    f"expected [{shape}]"
                )
        return arrays

    def _check_type(self, index: int, array: Array, dtype: ir.DataType) -> None:
        if dtype == ir.DataType.STRING:
            is_right = array.dtype.kind in "OUST"
        else:
            is_right = array.dtype == dtype.numpy()
        if not is_right:
            name = f"output {index}"
            if self._expected is not None:
                name = repr(self._expected[index].name)
            wanted = "text" if dtype == ir.DataType.STRING else str(dtype.numpy())
            raise UserError(f"it returned {array.dtype} for {name}, expected {wanted}")


def _fits(shape: tuple[int, ...], dims: tuple[int | None, ...]) -> bool:
    return len(shape) == len(dims) and all(
        dim is None or dim == size for size, dim in zip(shape, dims, strict=True)
    )
