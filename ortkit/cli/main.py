"""Parse the command line, run one subcommand, and turn what it raises into an exit code."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

from ortkit.cli.catalog import COMMANDS, GROUPS, RENAMED
from ortkit.cli.flags import add_shown
from ortkit.cli.show import harmless, shown_as_asked
from ortkit.cli.tree import Parser, leaves
from ortkit.env import keep_runtime_log_off
from ortkit.errors import InternalError, OrtkitError, naming_flags
from ortkit.version import __version__

USAGE, BUG, INTERRUPTED = 2, 70, 130
#: Packages that are ours to install: one of them missing is no bug.
NEEDED = frozenset({"numpy", "onnx", "onnx_ir", "onnxscript", "onnxruntime", "rich", "tvm"})


def run(arguments: Sequence[str]) -> int:
    """Run `ortkit` with these arguments.

    Returns:
        0 done, 1 a check failed, 2 bad input or usage, 3 not verified or only in part, 70 a bug in
        ortkit, 130 interrupted.
    """
    _fill_closed_streams()
    keep_runtime_log_off()
    with naming_flags():
        return _run(arguments)


def _fill_closed_streams() -> None:
    """Let closed standard streams (`>&-`) lead to the null device.

    Else the next file that is opened would get the number of one, and what children print.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115


def _run(arguments: Sequence[str]) -> int:
    try:
        parsed, unknown = parser().parse_known_args(_renamed(arguments))
        if unknown:
            parsed.parser.refuse(unknown)
        module: ModuleType = import_module(COMMANDS[parsed.command][0])
        with shown_as_asked(parsed):
            code: int = module.run(parsed)
        sys.stdout.flush()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else USAGE
    except KeyboardInterrupt:
        _say("ortkit: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) left; nothing more can be said on stdout, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except InternalError as error:
        return _bug(error)
    except OrtkitError as error:
        _say(f"ortkit: {error}")
        return error.exit_code
    except MemoryError:
        _say("ortkit: out of memory; use a machine with more, or --no-verify")
        return USAGE
    except OSError as error:
        return _system(error)
    except ModuleNotFoundError as error:
        return _missing(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is ours and is reported
        return _bug(error)
    return code


def parser() -> Parser:
    """Return the parser with all subcommands; none of them imports anything heavy for it."""
    top = _Top(
        prog="ortkit",
        description="A compiler and toolkit on top of stock ONNX Runtime.",
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"ortkit {__version__}")
    commands = top.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=Parser
    )
    for name, (module, summary) in COMMANDS.items():
        sub = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        sub.set_defaults(parser=sub)
        import_module(module).add_arguments(sub)
        for leaf in leaves(sub):
            add_shown(leaf)
    return top


class _Top(Parser):
    """The parser of `ortkit` itself, whose page has the commands in groups."""

    def format_help(self) -> str:
        from ortkit.cli.help_page import top_page

        return top_page(self, GROUPS)


_MORE_SPACE = "; free some space, or set TMPDIR to a folder that has it"
_NO_ROOM = {
    errno.ENOSPC: _MORE_SPACE,
    errno.EDQUOT: _MORE_SPACE,
    errno.EFBIG: "; raise the limit of a file's size (ulimit -f)",
}


def _renamed(arguments: Sequence[str]) -> list[str]:
    """Put in what an old name of a command is now, with a note."""
    words = list(arguments)
    now = RENAMED.get(words[0]) if words else None
    if now is None:
        return words
    _say(f"ortkit: {words[0]} is called {' '.join(now)} now")
    return [*now, *words[1:]]


def _system(error: OSError) -> int:
    fix = _NO_ROOM.get(error.errno or 0, "")
    # A copy names its source first, which is not what has no space.
    name = (error.filename2 if fix else None) or error.filename
    where = f"{name}: " if name else ""
    _say(f"ortkit: {where}{error.strerror or error}{fix}")
    return USAGE


def _missing(error: ModuleNotFoundError) -> int:
    if (error.name or "").partition(".")[0] not in NEEDED:
        return _bug(error)
    _say(f"ortkit: {error.name} is not installed; see what is missing with `ortkit doctor`")
    return USAGE


def _bug(error: Exception) -> int:
    for part in traceback.format_exception(error):
        sys.stderr.write(harmless(part, keep="\n"))
    _say(f"ortkit: internal error: {error}")
    _say(
        "This is a bug in ortkit. Please report it with the lines above, the command, and "
        "the output of `ortkit doctor`."
    )
    return BUG


def _say(text: str) -> None:
    sys.stderr.write(harmless(text) + "\n")
