"""`@ortkit.custom_op`: an op that is declared as a Python function on numpy arrays."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ortkit.errors import UserError
from ortkit.extend.declare.declared_op import DeclaredOp
from ortkit.extend.declare.op_schema import read_schema
from ortkit.runtime.python_ops import OPS

if TYPE_CHECKING:
    import onnx

_NAME = re.compile(r"(?P<domain>[A-Za-z_][\w.-]*)::(?P<name>[A-Za-z_]\w*)")
#: Domains whose ops ONNX Runtime has, or ortkit makes.
_RESERVED_DOMAINS = (
    "ai.onnx",
    "com.microsoft",
    "com.ms.internal",
    "ortkit.fused",
    "ortkit.python",
)


class CustomOp(DeclaredOp):
    """An op that more can be given to: bodies, kernels, packed weights, gradients.

    Called with numpy arrays, it computes the reference and checks it against the declaration.
    """

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
        optional = {op_input.name for op_input in self.schema.inputs if op_input.type.is_optional}
        for name in without:
            if name not in optional:
                raise UserError(f"the input {name!r} is not optional", where=self.id)
        key = frozenset(without)
        self.bodies[key] = read_body(source, self.schema, self.id, tuple(without))
        return source

    def kernel(self, backend: str, function: Any = None, **options: Any) -> Any:
        """Give the op a kernel; also a decorator: `@op.kernel("tvm")`.

        Of several kernels for a node's element types and inputs the first one runs whose `when`
        holds; after them comes what is generated from the body.
        docs/guides/custom-ops.md has examples.

        Args:
            backend: "tvm", for CPUs, or "triton", for CUDA.
            function: For tvm one of TE (from placeholders to tensors, attributes by name) or a
                PrimFunc over buffers, inputs first; for triton one of Triton. Or where it is,
                "module:function", which is imported when the kernel is compiled.
            options: See `ortkit.extend.declare.kernel_options.KernelOptions`.

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

        Where a node's input is a constant it is packed once, when the session is made. Else such
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

    def __repr__(self) -> str:
        return f"<ortkit.custom_op {self.id} version {self.version}>"


def custom_op(
    name: str, *, version: int = 1, outputs: Sequence[str] = ()
) -> Callable[[Callable[..., object]], CustomOp]:
    """Declare an op: `@ortkit.custom_op("mydomain::Name")` above its reference on numpy arrays.

    Inputs are positional and annotated `ortkit.Float["*shape"]`, an optional one
    `ortkit.Float["n"] | None = None`, any number of them `*xs: ortkit.Float["*shape"]`;
    attributes are keyword-only and annotated with a Python type. From then on every
    `ortkit.Session` of this process runs the op; docs/guides/custom-ops.md has the
    rest. Declared again, an op is replaced.

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
    if domain in _RESERVED_DOMAINS:
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
    found = [op for op in OPS.values() if isinstance(op, CustomOp)]
    return tuple(sorted(found, key=lambda one: (one.id, one.version)))
