"""Making the OrtkitExecutionProvider known to ONNX Runtime."""

from __future__ import annotations

from ortkit.provider.own.provider import OrtkitExecutionProvider


def register_own() -> str:
    """Register it; returns its name. See `ortkit.provider.registration.register_provider`."""
    from ortkit.provider.registration import register_provider

    return register_provider(OrtkitExecutionProvider())
