"""ortkit: a compiler and toolkit on top of stock ONNX Runtime.

Everything public is reached from here and imported only when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from pkgutil import extend_path
from typing import TYPE_CHECKING

from ortkit.deferred_imports import defer_imports
from ortkit.version import __version__ as __version__

defer_imports()
# A checkout has `ortkit.custom_ops` beside this folder and without its native part. Where a wheel
# is installed too, `python -m ortkit` in the checkout takes it from the wheel.
if not (Path(__file__).parent / "custom_ops").is_dir():
    __path__ = extend_path(__path__, __name__)

if TYPE_CHECKING:
    from ortkit.errors import CheckError as CheckError
    from ortkit.errors import InternalError as InternalError
    from ortkit.errors import KernelError as KernelError
    from ortkit.errors import MissingDependencyError as MissingDependencyError
    from ortkit.errors import ModelError as ModelError
    from ortkit.errors import OrtkitError as OrtkitError
    from ortkit.errors import RunError as RunError
    from ortkit.errors import UserError as UserError
    from ortkit.extend.body.recognize import RecogniseOps as RecogniseOps
    from ortkit.extend.declare.op import CustomOp as CustomOp
    from ortkit.extend.declare.op import custom_op as custom_op
    from ortkit.extend.declare.tensor_types import BFloat16 as BFloat16
    from ortkit.extend.declare.tensor_types import Bool as Bool
    from ortkit.extend.declare.tensor_types import Float as Float
    from ortkit.extend.declare.tensor_types import Float16 as Float16
    from ortkit.extend.declare.tensor_types import Float32 as Float32
    from ortkit.extend.declare.tensor_types import Float64 as Float64
    from ortkit.extend.declare.tensor_types import Int as Int
    from ortkit.extend.declare.tensor_types import Int8 as Int8
    from ortkit.extend.declare.tensor_types import Int16 as Int16
    from ortkit.extend.declare.tensor_types import Int32 as Int32
    from ortkit.extend.declare.tensor_types import Int64 as Int64
    from ortkit.extend.declare.tensor_types import UInt as UInt
    from ortkit.extend.declare.tensor_types import UInt8 as UInt8
    from ortkit.extend.declare.tensor_types import UInt16 as UInt16
    from ortkit.extend.declare.tensor_types import UInt32 as UInt32
    from ortkit.extend.declare.tensor_types import UInt64 as UInt64
    from ortkit.genai.optimize import optimize_genai as optimize_genai
    from ortkit.optimization.call import Optimized as Optimized
    from ortkit.optimization.call import OptimizeOptions as OptimizeOptions
    from ortkit.optimization.torch_modules import optimize as optimize
    from ortkit.provider.base import ExecutionProvider as ExecutionProvider
    from ortkit.provider.registration import register_provider as register_provider
    from ortkit.provider.registration import unregister_provider as unregister_provider
    from ortkit.runtime.plain_options import session_options as session_options
    from ortkit.runtime.session import Session as Session

_PUBLIC = {
    "CheckError": "ortkit.errors",
    "ExecutionProvider": "ortkit.provider.base",
    "InternalError": "ortkit.errors",
    "KernelError": "ortkit.errors",
    "MissingDependencyError": "ortkit.errors",
    "ModelError": "ortkit.errors",
    "OptimizeOptions": "ortkit.optimization.call",
    "Optimized": "ortkit.optimization.call",
    "OrtkitError": "ortkit.errors",
    "RunError": "ortkit.errors",
    "Session": "ortkit.runtime.session",
    "UserError": "ortkit.errors",
    "optimize": "ortkit.optimization.torch_modules",
    "optimize_genai": "ortkit.genai.optimize",
    "register_provider": "ortkit.provider.registration",
    "session_options": "ortkit.runtime.plain_options",
    "unregister_provider": "ortkit.provider.registration",
    "CustomOp": "ortkit.extend.declare.op",
    "custom_op": "ortkit.extend.declare.op",
    "RecogniseOps": "ortkit.extend.body.recognize",
    **dict.fromkeys(
        (
            "BFloat16", "Bool", "Float", "Float16", "Float32", "Float64", "Int", "Int8", "Int16",
            "Int32", "Int64", "UInt", "UInt8", "UInt16", "UInt32", "UInt64",
        ),
        "ortkit.extend.declare.tensor_types",
    ),
}  # fmt: skip

__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'ortkit' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
