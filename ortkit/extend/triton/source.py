"""The text of a Triton function that a user wrote, with everything of its module that it names."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from types import FunctionType, ModuleType
from typing import Any

from ortkit.errors import UserError
from ortkit.extend.declare.kernel_parameters import python_function

_DEFINITION = re.compile(r"^def\s+\w+\s*\(", re.MULTILINE)


def text_of(function: Any, where: str) -> str:
    """Return a module that defines the function.

    Args:
        function: Of Triton, or the Python function itself.
        where: For messages.

    Raises:
        UserError: Its source is not there, or it needs what cannot be written down.
    """
    lines: dict[str, str] = {}
    _add(function, lines, where)
    imports = [line for line in lines.values() if not line.startswith("@")]
    functions = [item for item in lines.values() if item.startswith("@")]
    package = "triton.experimental.gluon" if is_gluon(function) else "triton"
    head = [f"from {package} import jit as _jit"]
    if any("_constexpr(" in one for one in imports):
        head.append(f"from {package}.language import constexpr as _constexpr")
    return "\n".join([*head, *imports, "", "", *(f"{function}\n" for function in functions)])


def is_gluon(function: Any) -> bool:
    """Say whether it is a function of Gluon, which itself says where values lie."""
    asked = getattr(function, "is_gluon", None)
    return callable(asked) and bool(asked())


def name_of(function: Any) -> str:
    """Return what a function is called in its text."""
    return str(python_function(function).__name__)


def _add(function: Any, lines: dict[str, str], where: str) -> None:
    inner = python_function(function)
    if not isinstance(inner, FunctionType):
        raise UserError(
            f"{type(function).__name__} is no function of Triton", where=where,
            fix="decorate it with @triton.jit only, and give what was tuned as constants",
        )  # fmt: skip
    key = f"def {inner.__name__}"
    if key in lines:
        return
    lines[key] = ""  # a function may call itself
    try:
        source = textwrap.dedent(inspect.getsource(inner))
    except (OSError, TypeError) as error:
        raise UserError(
            f"the source of {inner.__name__} is not there", where=where,
            fix="write kernels in a file, as Triton needs it too",
        ) from error  # fmt: skip
    match = _DEFINITION.search(source)
    if match is None:
        raise UserError(f"the source of {inner.__name__} is no function", where=where)
    for name, value in _named(inner, source[match.start() :]).items():
        _add_name(name, value, lines, where)
    # Behind what it needs.
    del lines[key]
    lines[key] = f"@_jit\n{source[match.start() :].rstrip()}\n"


def _named(function: FunctionType, source: str) -> dict[str, Any]:
    """Return what a function names outside of itself, but for what Python always has."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    around = {**function.__globals__, **{name: cell.cell_contents for name, cell in cells}}
    names = {item.id for item in ast.walk(ast.parse(source)) if isinstance(item, ast.Name)}
    own = set(function.__code__.co_varnames)
    return {name: around[name] for name in sorted(names - own) if name in around}


def _add_name(name: str, value: Any, lines: dict[str, str], where: str) -> None:
    if isinstance(value, ModuleType):
        parent, _, last = value.__name__.rpartition(".")
        lines[name] = f"{f'from {parent} ' if parent else ''}import {last} as {name}"
        return
    inner = python_function(value)
    module = getattr(value, "__module__", "") or ""
    if module.startswith("triton.") and hasattr(value, "__name__"):
        lines[name] = f"from {module} import {value.__name__} as {name}"
    elif isinstance(inner, FunctionType):
        if inner.__name__ != name:
            raise UserError(
                f"the function {inner.__name__} is called {name} there", where=where,
                fix="call functions by their own names",
            )  # fmt: skip
        _add(value, lines, where)
    elif type(value).__name__ == "constexpr":
        lines[name] = f"{name} = _constexpr({value.value!r})"
    elif type(value).__name__ == "dtype" and module.startswith("triton"):
        lines[name] = f"from triton.language import {value} as {name}"
    elif isinstance(value, bool | int | float | str | None):
        lines[name] = f"{name} = {value!r}"
    else:
        raise UserError(
            f"it names {name}, a {type(value).__name__}, which a kernel cannot", where=where,
            fix="pass it as a constant",
        )  # fmt: skip
