"""Execution providers of ONNX Runtime's: those written in Python, and ortkit's own.

What a provider's author needs is reached from here and imported only when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortkit.provider.base import Compatibility as Compatibility
    from ortkit.provider.base import ExecutionProvider as ExecutionProvider
    from ortkit.provider.devices import Device as Device
    from ortkit.provider.devices import DeviceMemory as DeviceMemory
    from ortkit.provider.devices import Place as Place
    from ortkit.provider.devices import StreamedMemory as StreamedMemory
    from ortkit.provider.graph_view import GraphView as GraphView
    from ortkit.provider.groups import Group as Group
    from ortkit.provider.kernel import Kernel as Kernel
    from ortkit.provider.kernel import header_folder as header_folder
    from ortkit.provider.kernel_call import KernelCall as KernelCall
    from ortkit.provider.native import recorded_errors as recorded_errors
    from ortkit.provider.op_kernels import OpKernel as OpKernel
    from ortkit.provider.python_kernel import PythonFunction as PythonFunction
    from ortkit.provider.registration import register_provider as register_provider
    from ortkit.provider.registration import registered_providers as registered_providers
    from ortkit.provider.registration import unregister_provider as unregister_provider
    from ortkit.provider.session_info import RunInfo as RunInfo
    from ortkit.provider.session_info import SessionInfo as SessionInfo

_PUBLIC = {
    "Compatibility": "base",
    "Device": "devices",
    "DeviceMemory": "devices",
    "ExecutionProvider": "base",
    "GraphView": "graph_view",
    "Group": "groups",
    "Kernel": "kernel",
    "KernelCall": "kernel_call",
    "OpKernel": "op_kernels",
    "Place": "devices",
    "PythonFunction": "python_kernel",
    "RunInfo": "session_info",
    "SessionInfo": "session_info",
    "StreamedMemory": "devices",
    "header_folder": "kernel",
    "recorded_errors": "native",
    "register_provider": "registration",
    "registered_providers": "registration",
    "unregister_provider": "registration",
}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'ortkit.provider' has no attribute {name!r}")
    return getattr(import_module(f"ortkit.provider.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
