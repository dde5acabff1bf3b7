"""How a module of ours is run as a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import ortkit

_ROOT = str(Path(ortkit.__file__).parents[1])
# -P keeps the working folder out of the child's module path, where a file may be called as a
# module of the standard library; ours is found wherever this process found it. The child ends
# with this process, so that it does not work on in a folder that the next run removes.
_CODE = (
    "import sys; sys.path.append({root!r}); "
    "from ortkit.parent import end_with_parent; end_with_parent({parent}); "
)
_CALL = "from {module} import main; main(*sys.argv[1:])"
_SCRIPT = "import runpy; sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"


def child_command(module: str, *arguments: str) -> list[str]:
    """Return the command that calls the `main` of a module, with these arguments.

    The process ends with the thread that starts it, which has to be one of this process.
    """
    return _command(_CALL.format(module=module), *arguments)


def script_command(script: str, *arguments: str) -> list[str]:
    """Return the command that runs a file of Python as `python FILE` does; see `child_command`."""
    return _command(_SCRIPT, script, *arguments)


def _command(code: str, *arguments: str) -> list[str]:
    begin = _CODE.format(root=_ROOT, parent=os.getpid())
    return [sys.executable, "-P", "-c", begin + code, *arguments]
