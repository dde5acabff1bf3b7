"""Which attributes of its op a kernel takes, by the names of its function's parameters."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from ortkit.errors import UserError
from ortkit.extend.declare.kernel_options import DeclaredKernel

if TYPE_CHECKING:
    from ortkit.extend.declare.declared_op import DeclaredOp


def is_prim_func(function: Any) -> bool:
    """Say whether it is a function of TIR; loads no tvm."""
    return type(function).__name__ == "PrimFunc" and type(function).__module__.startswith("tvm.")


def python_function(function: Any) -> Any:
    """Return the Python function inside of what Triton made of it."""
    return getattr(function, "fn", function)


def attributes_of(op: DeclaredOp, kernel: DeclaredKernel) -> tuple[str, ...]:
    """Return the attributes that a kernel takes as numbers, in the order of their declaration.

    Raises:
        UserError: Its signature cannot be read.
    """
    if is_prim_func(kernel.function):
        names = {str(param.name) for param in kernel.function.params}
    else:
        try:
            parameters = inspect.signature(python_function(kernel.function)).parameters
        except (TypeError, ValueError) as error:
            raise UserError(f"its kernel {kernel.name} is no function", where=op.id) from error
        names = set(parameters)
    names -= set(kernel.options.constants)
    return tuple(name for name in op.schema.attributes if name in names)
