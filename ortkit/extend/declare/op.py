"""`@ortkit.custom_op`: an op that is declared as a Python function on numpy arrays."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from ortkit.errors import UserError
from ortkit.extend.declare.op_schema import (
    OpInput,
    OpSchema,
    Types,
    checked_attributes,
    read_schema,
)
from ortkit.extend.declare.sizes import Sizes
from ortkit.extend.declare.tensor_types import TensorType
from ortkit.runtime.python_ops import OPS

if TYPE_CHECKING:
    import onnx

    from ortkit.extend.declare.kernels import DeclaredKernel
    from ortkit.extend.declare.prepack import Packing

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_NAME = re.compile(r"(?P<domain>[A-Za-z_][\w.-]*)::(?P<name>[A-Za-z_]\w*)")
#: Domains whose ops ONNX Runtime has, or ortkit makes.
_TAKEN = ("ai.onnx", "com.microsoft", "com.ms.internal", "ortkit.fused", "ortkit.python")


class CustomOp:
    """An op: its declaration, its reference, and what else was given to it.

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
        arrays = [None if one is None else np.asarray(one) for one in inputs]
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
        there = [(one, array) for one, array in self.formal(inputs) if array is not None]
        types = self.schema.bind_types([(one, array.dtype.name) for one, array in there], self.id)
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
        there = [(one, dtype) for one, dtype in self.formal(dtypes) if dtype is not None]
        types = self.schema.bind_types(there, self.id)
        return tuple(types[kind.kind] for kind in self.schema.outputs.values())

    def body(self, source: Any = None, *, without: Sequence[str] = ()) -> Any:
        """Give the op a body; also a decorator: `@op.body` above `@onnxscript.script()`.

        With it the op runs in any session, its kernel can be generated (`ortkit ops build`), and
        it is found in models that have it written out.

        Args:
            source: An onnxscript function, ONNX text, a FunctionProto or a ModelProto.
            without: Optional inputs that this body is without; each combination that is to be
                compiled has its own.

        Raises:
            UserError: It is not a body of this op.
        """
        from ortkit.extend.body.function import read_body

        if source is None:
            return lambda later: self.body(later, without=without)
        optional = {one.name for one in self.schema.inputs if one.type.is_optional}
        for name in without:
            if name not in optional:
                raise UserError(f"the input {name!r} is not optional", where=self.id)
        key = frozenset(without)
        self.bodies[key] = read_body(source, self.schema, self.id, tuple(without))
        return source

    def kernel(self, backend: str, function: Any = None, **options: Any) -> Any:
        """Give the op a kernel; also a decorator: `@op.kernel("tvm")`.

        Of several kernels for a node's element types and inputs the first one runs whose `when`
        holds; after them comes what is generated from the body. docs/custom-ops.md has examples.

        Args:
            backend: "tvm", for CPUs, or "triton", for CUDA.
            function: For tvm one of TE (from placeholders to tensors, attributes by name) or a
                PrimFunc over buffers, inputs first; for triton one of Triton. Or where it is,
                "module:function", which is imported when the kernel is compiled.
            options: See `ortkit.extend.declare.kernels.KernelOptions`.

        Raises:
            UserError: It is not a kernel of this op.
        """
        from ortkit.extend.declare.kernels import declared_kernel

        if function is None:
            return lambda later: self.kernel(backend, later, **options)
        self.kernels.append(declared_kernel(self, backend, function, options))
        return function

    def prepack(
        self,
        name: str,
        function: Any = None,
        *,
        shape: Sequence[str | int],
        dtype: str = "",
        **options: Any,
    ) -> Any:
        """Say how an input is laid out for kernels with `packed=(name,)`; also a decorator.

        Where a node's input is a constant it is packed once, when the session is made; else such
        kernels are the last ones that are taken, and it is packed in each run.

        Args:
            name: The input.
            function: As in `kernel("tvm", ...)`, from the input to the packed tensor.
            shape: Of that: numbers, products, `ceil(n / 32)` of the input's sizes.
            dtype: Of that; empty for the input's.
            options: `units`, `schedule`, `constants`, as in `kernel`.

        Raises:
            UserError: It does not fit the input.
        """
        from ortkit.extend.declare.prepack import declared_packing

        if function is None:
            return lambda later: self.prepack(name, later, shape=shape, dtype=dtype, **options)
        self.packings[name] = declared_packing(self, name, function, dtype, shape, options)
        return function

    def backward(self, function: Callable[..., object]) -> Callable[..., object]:
        """Give the op its gradients, for PyTorch: a decorator.

        Args:
            function: Takes the gradients of the outputs, then the inputs, as numpy arrays, and
                the attributes by name; returns the inputs' gradients, None where there is none.
        """
        self.gradient = function
        return function

    def torch(self, *, kernels: Literal["auto", "always", "never"] = "auto") -> Any:
        """Register the op in PyTorch; returns what calls it. See `ortkit.extend.torch.op`."""
        from ortkit.extend.torch.op import register_torch

        return register_torch(self, kernels)

    def function(self, opset: int, there: Sequence[bool]) -> onnx.FunctionProto | None:
        """Return its body as the model-local function of nodes with these inputs.

        Args:
            opset: The model's version of the default domain.
            there: Which inputs a node has.

        Returns:
            None if it has none, or none for that version.
        """
        from ortkit.extend.body.function import at_opset

        body = self.bodies.get(frozenset())
        if body is None or len(there) < len(self.schema.inputs) or not all(there):
            return None
        return at_opset(body, opset)

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

    def __repr__(self) -> str:
        return f"<ortkit.custom_op {self.id} version {self.version}>"


def custom_op(
    name: str, *, version: int = 1, outputs: Sequence[str] = ()
) -> Callable[[Callable[..., object]], CustomOp]:
    """Declare an op: `@ortkit.custom_op("mydomain::Name")` above its reference on numpy arrays.

    Inputs are positional and annotated `ortkit.Float["*shape"]`, an optional one
    `ortkit.Float["n"] | None = None`, any number of them `*xs: ortkit.Float["*shape"]`;
    attributes are keyword-only and annotated with a Python type. From then on every
    `ortkit.Session` of this process runs the op; docs/custom-ops.md has the rest. Declared again,
    an op is replaced.

    Args:
        name: Domain and name.
        version: The version of the domain that it is part of from then on.
        outputs: Their names.

    Raises:
        UserError: The name or the signature does not declare an op.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise UserError(
            f"{name!r} is no name of an op", where="custom_op", fix='write it as "domain::Name"'
        )
    domain = match["domain"]
    if domain in _TAKEN:
        raise UserError(f"the domain {domain} is taken", where=name, fix="choose your own")
    if not isinstance(version, int) or version < 1:
        raise UserError(f"{version!r} is no version", where=name, fix="use 1 or more")

    def declare(reference: Callable[..., object]) -> CustomOp:
        schema = read_schema(reference, outputs, name)
        made = CustomOp(domain, match["name"], version, schema, reference)
        OPS[(domain, match["name"], version)] = made
        return made

    return declare


def declared_ops() -> tuple[CustomOp, ...]:
    """Return the ops that were declared in this process, in the order of their names."""
    found = [one for one in OPS.values() if isinstance(one, CustomOp)]
    return tuple(sorted(found, key=lambda one: (one.id, one.version)))
