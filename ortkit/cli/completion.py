"""`ortkit completion`: a completion script for a shell, made from the parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ortkit.cli import show
from ortkit.cli.tree import actions, subcommands
from ortkit.passes.catalog import PASSES

SHELLS = ("bash", "zsh", "fish")
#: Values of what is no closed set: of flags, and of arguments by command and metavar.
_PASSES = ("clean", "fold", "default", "all", *PASSES)
_VALUES: Mapping[str, Sequence[str]] = {
    "--passes": _PASSES, "--target": ("auto", "cpu", "cuda"),
    "--optimizations": ("all", "extended", "basic", "off"),
    "--cpu": ("native", "x86-64-v3", "x86-64-v4"), "--arch": ("sm_80", "sm_90", "sm_100"),
    "/passes/show NAME": tuple(PASSES),
    "/provider/test PROVIDER": ("CPUExecutionProvider", "CUDAExecutionProvider"),
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the shell's name."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")
    parser.epilog = (
        'Use it with: eval "$(ortkit completion bash)" in ~/.bashrc or '
        'eval "$(ortkit completion zsh)" in ~/.zshrc; or '
        "ortkit completion fish > ~/.config/fish/completions/ortkit.fish"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    from ortkit.cli.main import parser

    write = {"bash": _bash, "zsh": _zsh, "fish": _fish}[arguments.shell]
    show.raw("\n".join(write(tuple(_levels(parser(), ())))) + "\n")
    return 0


# Tuples and not dataclasses: those import `inspect`, a third of the time of `--help`.
class _Flag(NamedTuple):
    names: tuple[str, ...]
    summary: str
    values: tuple[str, ...]
    takes_value: bool


class _Level(NamedTuple):
    """One parser of the tree: `ortkit`, `ortkit passes`, `ortkit passes list`."""

    path: tuple[str, ...]
    commands: tuple[tuple[str, str], ...]
    """Name and summary of each subcommand."""
    flags: tuple[_Flag, ...]
    choices: tuple[str, ...]
    """What a positional may be, where that is a closed set."""
    takes_file: bool

    @property
    def key(self) -> str:
        """The path as the scripts compare it: `/passes/list`."""
        return "".join(f"/{part}" for part in self.path)

    @property
    def words(self) -> str:
        flags = (name for flag in self.flags for name in flag.names)
        return " ".join((*(name for name, _ in self.commands), *self.choices, *flags))


def _levels(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> Iterator[_Level]:
    below = subcommands(parser)
    flags = []
    choices: list[str] = []
    takes_file = False
    for action in actions(parser):
        values = tuple(str(choice) for choice in action.choices or ())
        if not values:
            command = "".join(f"/{part}" for part in path)
            keys = action.option_strings or [f"{command} {action.metavar}"]
            values = tuple(next((_VALUES[key] for key in keys if key in _VALUES), ()))
        if action.option_strings:
            names = tuple(action.option_strings)
            flags.append(_Flag(names, action.help or "", values, action.nargs != 0))
        elif values:
            choices.extend(values)
        else:
            takes_file = True
    summaries = tuple((name, sub.description or "") for name, sub in below.items())
    yield _Level(path, summaries, tuple(flags), tuple(choices), takes_file)
    for name, sub in below.items():
        yield from _levels(sub, (*path, name))


def _paths(levels: tuple[_Level, ...]) -> str:
    """Return a shell pattern of the paths below `ortkit`."""
    return "|".join(level.key for level in levels if level.path)


def _bash(levels: tuple[_Level, ...]) -> Iterator[str]:
    yield "# bash completion for ortkit"
    yield "_ortkit() {"
    yield '  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"'
    yield '  local place="" words="" each'
    yield '  for each in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do'
    yield '    case "$place/$each" in'
    yield f'      {_paths(levels)}) place="$place/$each" ;;'
    yield "    esac"
    yield "  done"
    yield from _case(levels)
    yield '  case "$place:$before" in'
    for level in levels:
        for flag in level.flags:
            if flag.takes_value:
                pattern = "|".join(f"{level.key}:{name}" for name in flag.names)
                yield f'    {pattern}) words="{" ".join(flag.values)}" ;;'
    yield "  esac"
    yield '  local last="${word##*,}" head=""'
    yield '  [[ $word == -* && $before != --passes ]] || last="${last#[+-]}"'
    yield '  head="${word%"$last"}"'
    yield '  mapfile -t COMPREPLY < <(compgen -P "$head" -W "$words" -- "$last")'
    yield "}"
    yield "complete -o default -F _ortkit ortkit"


def _case(levels: tuple[_Level, ...]) -> Iterator[str]:
    yield '  case "$place" in'
    for level in levels:
        yield f'    "{level.key}") words="{level.words}" ;;'
    yield "  esac"


def _zsh(levels: tuple[_Level, ...]) -> Iterator[str]:
    yield "#compdef ortkit"
    yield "_ortkit() {"
    yield '  local place="" at="" each'
    yield "  local -a found"
    yield '  for each in "${(@)words[2,CURRENT-1]}"; do'
    yield '    case "$place/$each" in'
    yield f'      {_paths(levels)}) place="$place/$each" ;;'
    yield "    esac"
    yield "  done"
    yield '  at="$place:${words[CURRENT-1]}"'
    yield '  case "$at" in'
    for level in levels:
        for flag in level.flags:
            if flag.takes_value:
                pattern = "|".join(f"{level.key}:{name}" for name in flag.names)
                lists = "compset -P '*,'; compset -P '[+-]'; "
                added = f"{lists}compadd -- {' '.join(flag.values)}"
                act = added if flag.values else "_files"
                yield f"    {pattern}) {act}; return ;;"
    yield "  esac"
    yield '  case "$place" in'
    for level in levels:
        listed = [*level.commands, *((choice, "") for choice in level.choices)]
        listed += [(name, flag.summary) for flag in level.flags for name in flag.names]
        entries = " ".join(_quoted(f"{name}:{text}" if text else name) for name, text in listed)
        files = "; _files" if level.takes_file else ""
        yield f'    "{level.key}") found=({entries}); _describe ortkit found{files} ;;'
    yield "  esac"
    yield "}"
    yield "compdef _ortkit ortkit"


def _fish(levels: tuple[_Level, ...]) -> Iterator[str]:
    yield "# fish completion for ortkit"
    for level in levels:
        when = _fish_condition(level)
        if level.commands or level.choices:
            yield f"complete -c ortkit {when} -f"
        for name, summary in (*level.commands, *((choice, "") for choice in level.choices)):
            yield f"complete -c ortkit {when} -a {name} -d {_quoted(summary)}"
        for flag in level.flags:
            yield f"complete -c ortkit {when} {_fish_flag(flag)}"


def _fish_condition(level: _Level) -> str:
    tests = [f"__fish_seen_subcommand_from {part}" for part in level.path]
    if level.commands:
        tests.append(f"not __fish_seen_subcommand_from {' '.join(n for n, _ in level.commands)}")
    return f"-n {_quoted('; and '.join(tests))}" if tests else ""


def _fish_flag(flag: _Flag) -> str:
    parts = [f"-s {name[1:]}" for name in flag.names if not name.startswith("--")]
    parts += [f"-l {name[2:]}" for name in flag.names if name.startswith("--")]
    if flag.values:
        parts.append(f"-x -a {_quoted(' '.join(flag.values))}")
    elif flag.takes_value:
        parts.append("-r")
    return " ".join((*parts, f"-d {_quoted(flag.summary)}"))


def _quoted(text: str) -> str:
    """Quote for all three shells: none of them reads anything inside single quotes."""
    return "'" + text.replace("\\", "").replace("'", "’") + "'"
