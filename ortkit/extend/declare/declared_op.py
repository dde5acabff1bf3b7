"""What was declared of an op, and its reference computed and checked against that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ortkit.errors import UserError
from ortkit.extend.declare.kernel_options import DeclaredKernel, Packing
from ortkit.extend.declare.op_schema import OpInput, OpSchema, Types, checked_attributes
from ortkit.extend.declare.sizes import Sizes
from ortkit.extend.declare.tensor_types import TensorType

if TYPE_CHECKING:
    import onnx

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


class DeclaredOp:
    """An op: its declaration, its reference, and what else was given to it; see `CustomOp`.

    Called with numpy arrays, it computes the reference and checks it against the declaration.
    """

    def __init__(
        self,
        domain: str,
        name: str,
        version: int,
        schema: OpSchema,
        reference: Callable[..., object],
    ) -> None:
        """Use `ortkit.custom_op` instead."""
        self.domain = domain
        self.name = name
        self.version = version
        self.schema = schema
        self.reference = reference
        self.bodies: dict[frozenset[str], onnx.FunctionProto] = {}
        """By the optional inputs that they are without."""
        self.kernels: list[DeclaredKernel] = []
        """Those that were written for it, in the order in which they are tried."""
        self.packings: dict[str, Packing] = {}
        """By the input that is packed."""
        self.gradient: Callable[..., object] | None = None
        """See `backward`."""
        self.__doc__ = reference.__doc__

    @property
    def id(self) -> str:
        """`mydomain::Name`."""
        return f"{self.domain}::{self.name}"

    @property
    def place(self) -> str:
        """Where it is defined: `file.py:12`."""
        code = getattr(self.reference, "__code__", None)
        return "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"

    def __call__(self, *inputs: object, **attributes: object) -> Any:
        """Compute the reference.

        Args:
            inputs: Numpy arrays, None for an optional one that is absent.
            attributes: By name.

        Returns:
            An array, or a tuple of several.

        Raises:
            UserError: Something does not fit the declaration.
        """
        arrays = [None if item is None else np.asarray(item) for item in inputs]
        results = self.compute(arrays, attributes)
        return results[0] if len(results) == 1 else results

    def compute(
        self, inputs: Sequence[Array | None], attributes: Mapping[str, object]
    ) -> tuple[Array, ...]:
        """Compute the reference, and check what comes in and goes out against the declaration.

        Raises:
            UserError: Something does not fit.
        """
        given = checked_attributes(self.schema, attributes, self.id)
        there = [(op_input, array) for op_input, array in self.formal(inputs) if array is not None]
        types = self.schema.bind_types(
            [(item, array.dtype.name) for item, array in there], self.id
        )
        sizes = Sizes()
        sizes.learn([(one.name, one.type, array.shape) for one, array in there], self.id)
        results = self.reference(*inputs, **given)
        found = results if isinstance(results, tuple) else (results,)
        if len(found) != len(self.schema.outputs):
            raise UserError(
                f"the reference returned {len(found)} results, declared are "
                f"{len(self.schema.outputs)}", where=self.id,
            )  # fmt: skip
        return tuple(
            self._checked(name, kind, result, types, sizes)
            for (name, kind), result in zip(self.schema.outputs.items(), found, strict=True)
        )

    def formal(self, inputs: Sequence[Any]) -> Iterator[tuple[OpInput, Any]]:
        """Yield each input with what the declaration calls it; trailing ones may be left out.

        Raises:
            UserError: There are too many, or a required one is absent.
        """
        declared = self.schema.inputs
        is_open = declared[-1].is_variadic
        if len(inputs) > len(declared) and not is_open:
            raise UserError(f"{len(inputs)} inputs, declared are {len(declared)}", where=self.id)
        for index in range(max(len(inputs), len(declared))):
            one = declared[min(index, len(declared) - 1)]
            value = inputs[index] if index < len(inputs) else None
            if value is None and not one.type.is_optional:
                raise UserError(f"the input {one.name} is missing", where=self.id)
            yield one, value

    def result_dtypes(
        self, dtypes: Sequence[str | None], attributes: Mapping[str, object]
    ) -> tuple[str, ...]:
        """Return the outputs' element types in a node with inputs of these; None is absent.

        Raises:
            UserError: The node does not fit the declaration.
        """
        checked_attributes(self.schema, attributes, self.id)
        there = [(op_input, dtype) for op_input, dtype in self.formal(dtypes) if dtype is not None]
        types = self.schema.bind_types(there, self.id)
        return tuple(types[kind.kind] for kind in self.schema.outputs.values())

    def _checked(
        self, name: str, kind: TensorType, result: object, types: Types, sizes: Sizes
    ) -> Array:
        array, dtype = np.asarray(result), types[kind.kind]
        if array.dtype.name != dtype:
            raise UserError(
                f"{name}: the reference returned {array.dtype.name}, declared is {kind.kind}, "
                f"which is {dtype} here", where=self.id, fix=f"return it as {dtype}",
            )  # fmt: skip
        shape = sizes.shape(kind)
        if shape is not None and array.shape != shape:
            raise UserError(
                f"{name}: the reference returned the shape {list(array.shape)}, declared is "
                f"{kind}, which is {list(shape)} here", where=self.id,
                fix="correct the annotation or the reference",
            )  # fmt: skip
        return array
