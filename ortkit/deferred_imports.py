"""Modules that onnx_ir imports and hardly ever needs are loaded when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

#: sympy takes 0.3 s of processor time to import, two thirds of what onnx_ir takes. Only arithmetic
#: on named dimensions needs it. The second module is deferred too, as it reads names of sympy.
_DEFERRED = frozenset({"sympy", "onnx_ir._symbolic_shapes"})


class _Finder(MetaPathFinder):
    """Finds the deferred modules as the path does, and has them loaded on first use."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _DEFERRED:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        spec.loader = LazyLoader(spec.loader)
        return spec


def defer_imports() -> None:
    """Load sympy when it is first used; what is imported already stays."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
