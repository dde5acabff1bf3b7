"""Optional packages: imported where they are used, and named with their extra if they lack."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from ortkit.errors import MissingDependencyError


def require(module: str, extra: str) -> ModuleType:
    """Import a module of an optional package.

    Args:
        module: Its name, such as `mlserver.codecs`.
        extra: The extra of ortkit that installs it.

    Raises:
        MissingDependencyError: It is not installed, or does not load.
    """
    package = module.partition(".")[0]
    fix = f'pip install "ortkit[{extra}]"'
    if importlib.util.find_spec(package) is None:
        raise MissingDependencyError(f"{package} is not installed", fix=fix)
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"{package} is installed but does not load: {error}", fix=fix
        ) from error
