"""Where declared ops come from: files and modules that are named, and packages' entry points."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

from ortkit.errors import UserError
from ortkit.extend.declare.op import CustomOp, declared_ops

#: Packages ship ops under this entry point group: any name -> a module that declares them.
ENTRY_POINTS = "ortkit.ops"


def find_ops(sources: Sequence[str] = (), flag: str = "--from") -> tuple[CustomOp, ...]:
    """Import what declares ops, and return all that are declared.

    Args:
        sources: Python files, or modules by name; in addition, ops of installed packages are
            found.
        flag: What named the sources, for messages.

    Raises:
        UserError: One of them cannot be imported.
    """
    for source in sources:
        _import(source, f"{flag} {source}")
    for entry in entry_points(group=ENTRY_POINTS):
        _import(entry.value.partition(":")[0], f"entry point {entry.name} = {entry.value}")
    return declared_ops()


def choose_ops(ops: Sequence[CustomOp], names: Sequence[str]) -> tuple[CustomOp, ...]:
    """Return the ops that are named, the newest version of each; all if there is no name.

    Args:
        ops: What there is.
        names: `domain::Name`, or `Name` where only one domain has it.

    Raises:
        UserError: There is none of a name, or there are several.
    """
    newest = {op.id: op for op in sorted(ops, key=lambda op: op.version)}
    if not names:
        return tuple(newest.values())
    found = []
    for name in names:
        fits = [op for op in newest.values() if name in (op.id, op.name)]
        if len(fits) > 1:
            raise UserError(
                f"{name!r} is in several domains", fix=f"say {' or '.join(op.id for op in fits)}"
            )
        if not fits:
            near = difflib.get_close_matches(name, [*newest, *(op.name for op in ops)], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UserError(
                f"no op is called {name!r}{hint}",
                fix="see `ortkit ops list`, and name the file that declares it with --from",
            )
        found.append(fits[0])
    return tuple(found)


def _import(source: str, where: str) -> None:
    try:
        if source.endswith(".py") or "/" in source:
            _import_file(Path(source), where)
        else:
            importlib.import_module(source)
    except UserError:
        raise
    except ModuleNotFoundError as error:
        raise UserError(f"there is no module {error.name!r}", where=where) from error
    except (Exception, SystemExit) as error:
        line = " ".join(str(error).split())
        raise UserError(f"{type(error).__name__}: {line}", where=where) from error


def _import_file(path: Path, where: str) -> None:
    if not path.is_file():
        raise UserError("no such file", where=where, fix="check the path")
    name = f"ortkit_ops_{path.stem}_{abs(hash(path.resolve())):x}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError("is no Python file", where=where)
    module = importlib.util.module_from_spec(spec)
    # There before it runs: onnxscript looks for a function's source through its module.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
