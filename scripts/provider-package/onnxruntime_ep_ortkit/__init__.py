"""OrtkitExecutionProvider by the convention for packages of plugin providers of ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

_LIBRARY = "libortkit_provider.so"
#: The name that it is registered under is the provider's name.
_NAME = "OrtkitExecutionProvider"


def get_library_path() -> str:
    """Return the path of the provider's library, for `register_execution_provider_library`."""
    return str(Path(__file__).with_name(_LIBRARY))


def get_ep_name() -> str:
    """Return the provider's name."""
    return _NAME


def get_ep_names() -> list[str]:
    """Return the names of all providers in the library."""
    return [_NAME]
