"""Help in groups with an example, usage errors of one line, old names, -q and -v everywhere."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ortkit.cli.catalog import COMMANDS, GROUPS
from ortkit.cli.help_page import EXAMPLES
from ortkit.cli.main import parser
from ortkit.cli.tree import leaves
from tests.cli.conftest import Call

LEAVES = {leaf.prog.removeprefix("ortkit "): leaf for leaf in leaves(parser())}


def test_each_command_is_in_one_group() -> None:
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(listed) == sorted(COMMANDS)
    page = parser().format_help()
    assert all(f"\n{title}:\n" in page for title in GROUPS)
    assert page.index("  optimize ") < page.index("look at a model:") < page.index("  inspect ")


@pytest.mark.parametrize("command", LEAVES)
def test_a_page_ends_with_an_example_that_parses(command: str, call: Call) -> None:
    page = LEAVES[command].format_help()
    assert page.endswith(f"\nexample:\n  {EXAMPLES[command]}\n")
    for action in LEAVES[command]._actions:
        if action.help != "==SUPPRESS==":
            assert page.count(f" {(action.option_strings or [str(action.metavar)])[-1]}") >= 1
    words = shlex.split(EXAMPLES[command].removeprefix('eval "$(').removesuffix(')"'))
    assert parser().parse_args(words[1:]).parser.prog == LEAVES[command].prog


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_of_each_command_ends_with_an_example(command: str, call: Call) -> None:
    """As `ortkit --help` says; a command of several shows one of these."""
    example = call(command, "--help").out.partition("\nexample:\n  ")[2]
    assert example.removesuffix("\n") in EXAMPLES.values()
    assert f"ortkit {command}" in example


def test_flags_stand_in_groups(call: Call) -> None:
    page = call("optimize", "--help").out
    heads = ["usage: ortkit optimize [options] MODEL\n", "\noptions:", "\nprecision:", "\ninputs:",
             "\nverification:", "\nwhat is printed and written:", "\nexample:"]  # fmt: skip
    places = [page.index(head) for head in heads]
    assert places == sorted(places)
    assert page.index("\nprecision:") < page.index("  --max-error E") < page.index("\ninputs:")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("run",), "ortkit run: the following arguments are required: MODEL"),
        (("run", "m", "--bogus"), "ortkit run: unrecognized arguments: --bogus"),
        (("provider", "tset"), "ortkit provider: argument ACTION: invalid choice: 'tset'"),
    ],
)
def test_a_usage_error_is_one_line(given: tuple[str, ...], said: str, call: Call) -> None:
    done = call(*given)
    assert done.code == 2
    assert done.err.startswith(said)
    assert done.err.endswith(f"; see `{done.err.partition(':')[0]} --help`\n")
    assert done.err.count("\n") == 1


def test_old_names_work_with_a_note(call: Call, folder: Path) -> None:
    done = call("run", folder / "small.onnx", "--provider", "cpu", "--shape", "n=2")
    assert (done.code, done.err) == (0, "ortkit: --provider is called --target now\n")
    assert "--provider" not in call("run", "--help").out
    done = call("compile-provider", "nothing.onnx")
    first, second = done.err.splitlines()
    assert first == "ortkit: compile-provider is called provider compile now"
    assert second.startswith("ortkit: nothing.onnx: no such file")


def test_quiet_and_verbose_are_everywhere(call: Call, folder: Path) -> None:
    for command, leaf in LEAVES.items():
        assert {"-q", "--quiet", "-v", "--verbose"} <= {*leaf._option_string_actions}, command
    done = call("run", folder / "small.onnx", "-q")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert call("inspect", folder / "small.onnx", "-q", "--json").out.startswith("{")
