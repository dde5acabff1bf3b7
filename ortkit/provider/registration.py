"""Providers made known to ONNX Runtime, and taken from it."""

from __future__ import annotations

import threading
from importlib import import_module
from typing import Any

from ortkit.errors import RunError, UserError
from ortkit.provider import native
from ortkit.provider.base import ExecutionProvider, check_provider
from ortkit.provider.definition import DEFINITIONS
from ortkit.runtime.ort import import_onnxruntime

_lock = threading.Lock()
#: Name of the provider -> what was registered.
_registered: dict[str, ExecutionProvider | None] = {}


def register_provider(provider: ExecutionProvider | None = None) -> str:
    """Make a provider known to ONNX Runtime, for sessions that are created from now on.

    Sessions then ask for it by name: `InferenceSession(model, providers=["MyExecutionProvider",
    "CPUExecutionProvider"])`, or by its devices among `onnxruntime.get_ep_devices()`.

    Args:
        provider: An object of a subclass of `ExecutionProvider`; None for ortkit's own,
            `OrtkitExecutionProvider`.

    Returns:
        The provider's name.

    Raises:
        UserError: The provider lacks something, or one of its name is registered already.
        RunError: ONNX Runtime refuses it.
    """
    if provider is None:
        name: str = import_module("ortkit.provider.own.registration").register_own()
        return name
    check_provider(provider)
    with _lock:
        _check_free(provider.name)
        DEFINITIONS.define(provider.name, provider)
        _register_library(provider.name)
        _registered[provider.name] = provider
    return provider.name


def unregister_provider(provider: ExecutionProvider | str) -> None:
    """Take a provider from ONNX Runtime; sessions that use it go on until they are closed.

    Raises:
        UserError: None of that name was registered by `register_provider`.
        RunError: ONNX Runtime refuses.
    """
    name = provider if isinstance(provider, str) else provider.name
    with _lock:
        if name not in _registered:
            known = ", ".join(_registered) or "none"
            raise UserError(f"no provider {name!r} is registered", fix=f"registered: {known}")
        ort = import_onnxruntime()
        try:
            ort.unregister_execution_provider_library(name)
        except Exception as error:  # onnxruntime's own classes, which share no base
            raise RunError(f"ONNX Runtime does not unregister it: {error}", where=name) from error
        native.undefine(name)
        del _registered[name]


def registered_providers() -> dict[str, ExecutionProvider | None]:
    """Return what is registered, by name."""
    return dict(_registered)


def _check_free(name: str) -> None:
    if name in _registered:
        raise UserError(
            f"a provider {name!r} is registered already",
            fix=f"unregister it first: ortkit.unregister_provider({name!r})",
        )
    ort = import_onnxruntime()
    if name in ort.get_available_providers():
        raise UserError(f"ONNX Runtime has a provider {name!r} already", fix="choose another name")


def _register_library(name: str) -> None:
    ort: Any = import_onnxruntime()
    if not hasattr(ort, "register_execution_provider_library"):
        raise RunError(
            f"ONNX Runtime {ort.__version__} takes no providers at run time",
            fix='pip install "onnxruntime>=1.24"',
        )
    try:
        ort.register_execution_provider_library(name, str(native.library_path()))
    except Exception as error:  # onnxruntime's own classes, which share no base
        native.undefine(name)
        text = " ".join(str(error).split())
        raise RunError(f"ONNX Runtime does not register it: {text}", where=name) from error
