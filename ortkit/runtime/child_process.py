"""How a module of ours is run as a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import ortkit

_ROOT = str(Path(ortkit.__file__).parents[1])
# -P keeps the working folder out of the child's module path, where a file may be called as a
# module of the standard library; ours is found wherever this process found it.
_CODE = "import sys; sys.path.append({root!r}); from {module} import main; main(*sys.argv[1:])"


def child_command(module: str, *arguments: str) -> list[str]:
    """Return the command that calls the `main` of a module, with these arguments."""
    code = _CODE.format(root=_ROOT, module=module)
    return [sys.executable, "-P", "-c", code, *arguments]
