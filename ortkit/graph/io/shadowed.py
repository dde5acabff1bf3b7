"""Model-local functions with the name of an operator that ONNX Runtime has itself."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import onnx_ir as ir

#: How the domains begin that ONNX Runtime has operators in, beside the default one.
_RUNTIME_DOMAINS = ("ai.onnx", "com.microsoft", "com.ms.")


def drop_shadowed(model: ir.Model) -> None:
    """Drop functions with the name of an operator of ONNX Runtime, which never runs them.

    ONNX leaves it to runtimes which of the two a call means. ONNX Runtime takes the operator where
    the imported version has it: its kernel, else the operator's own body. Where it has neither for
    the element type, the model does not load (1.31.1, 2026-11).
    """
    versions: dict[str, int] = {}
    for imports in (model.opset_imports, *(f.opset_imports for f in model.functions.values())):
        for domain, version in imports.items():
            versions[domain] = max(version, versions.get(domain, 0))
    for key in list(model.functions):
        domain = "" if key[0] == "ai.onnx" else key[0]
        if domain and not domain.startswith(_RUNTIME_DOMAINS):
            continue
        first = _first_versions().get((domain, key[1]))
        if first is not None and first <= versions.get(domain, 0):
            del model.functions[key]


@cache
def _first_versions() -> Mapping[tuple[str, str], int]:
    """Return the version that each operator came with, by its domain and name.

    Those are ONNX Runtime's operators, or ONNX's where it is not installed or does not list them.
    """
    try:
        from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema as schemas
    except ImportError:
        from onnx.defs import get_all_schemas_with_history as schemas
    found: dict[tuple[str, str], int] = {}
    for schema in schemas():
        key = schema.domain, schema.name
        found[key] = min(schema.since_version, found.get(key, schema.since_version))
    return found
