"""What compute-sanitizer is given on a GPU: that it has every kind of kernel, and is sound."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from ortkit.kernels.triton.configs import configs_of
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.hand import PACKAGE
from ortkit.kernels.triton.space import space_of
from ortkit.kernels.triton.templates import template_for
from ortkit.refusal import Refused
from scripts.sanitizer import __main__ as sanitizer
from scripts.sanitizer.cases import CASES, Case
from scripts.sanitizer.races import hand_overs, instructions_in, of_libraries, programs_of
from scripts.sanitizer.suite import (
    Node,
    Rounded,
    Suite,
    body_outputs,
    build,
    compiled,
    feeds_of,
    is_rounded_alike,
    model_of,
    nodes_of,
    sizes_for,
    wrong_outputs,
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_variant_of_each_case_has_sizes(case: object) -> None:
    sources = sources_of(case.signature())  # type: ignore[attr-defined]
    assert not isinstance(sources, Refused), sources.reason
    variants = [source.variant([0] * len(source.steps)) for source in sources]
    for number in range(len(variants)):
        assert sizes_for(case, variants, number) is not None  # type: ignore[arg-type]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_results_of_each_case_are_finite(case: Case) -> None:
    for sizes in case.sizes[:2]:
        node = Node(case, case.signature(), None, sizes)  # type: ignore[arg-type]
        found = body_outputs(model_of([node]).SerializeToString(), feeds_of(node))
        assert all(np.isfinite(array.astype(np.float64)).all() for array in found.values())


def test_every_kind_of_kernel_is_there() -> None:
    kinds = set()
    for case in CASES:
        space = space_of(case.signature())
        if isinstance(space, Refused):
            assert template_for(case.signature()) is not None, case.name
            continue
        for config in configs_of(space):
            is_split = config.parts > 1
            kinds.add((space.kind, config.is_loop, is_split, config.is_aligned, config.is_wide))
    for kind, is_loop, is_split in (
        ("flat", False, False), ("turned", False, False), ("rows", False, False),
        ("rows", True, False), ("rows", True, True),
    ):  # fmt: skip
        for aligned in (True, False):
            assert (kind, is_loop, is_split, aligned, False) in kinds, (kind, is_loop, is_split)
    for kind in ("flat", "turned", "rows"):
        assert any(item[0] == kind and item[-1] for item in kinds), kind


def test_every_hand_shaped_kernel_is_there() -> None:
    sources = [sources_of(case.signature()) for case in CASES]
    texts = [
        step.text
        for found in sources
        if not isinstance(found, Refused)
        for source in found
        for step in source.steps
    ]
    folders = import_module(PACKAGE).__path__
    kernels = {path for folder in folders for path in Path(folder).rglob("*_kernel.py")}
    assert kernels
    for path in kernels:
        # Some texts have names of operands filled in.
        functions = re.findall(r"^def \w+\(", path.read_text("utf-8"), re.MULTILINE)
        assert functions
        assert any(all(name in text for name in functions) for text in texts), path.name


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    if find_spec("triton") is None:
        pytest.skip("triton is not installed")
    folder = tmp_path_factory.mktemp("suite")
    chosen = [item for item in CASES if item.name in ("chosen", "split_rows", "integers")]
    kernels = compiled(chosen, 90, folder / "code")
    pairs = zip(chosen, kernels, strict=True)
    return build([node for case, kernel in pairs for node in nodes_of(case, kernel)], folder)


def test_a_model_has_a_node_for_each_variant(suite: Suite) -> None:
    counts = {name: sum(one.case.name == name for one in suite.nodes) for name in ("chosen",)}
    assert counts == {"chosen": 3}
    assert {node.offset for node in suite.nodes} == {0, 8}
    assert all(len(item.kernel.variants) == 1 for item in suite.nodes)
    job = json.loads(suite.job.read_text())
    assert set(job["ops"]) == {one.signature.op_type for one in suite.nodes}
    assert set(job["offsets"]) == set(suite.feeds)
    assert Path(job["library"]).stat().st_size > 0


def test_results_are_compared_with_those_of_the_bodies(suite: Suite) -> None:
    found = body_outputs(str(suite.model), suite.feeds)
    names = list(found)
    assert wrong_outputs(suite, found) == []
    damaged = {name: array.copy() for name, array in found.items()}
    damaged[names[0]].reshape(-1)[0] += 1
    damaged[names[-1]].reshape(-1)[-1] = np.nan if damaged[names[-1]].dtype.kind == "f" else 99
    assert [line.partition(":")[0] for line in wrong_outputs(suite, damaged)] == [
        names[0],
        names[-1],
    ]


def test_numbers_in_eight_bits_may_be_a_step_off_now_and_then() -> None:
    expected = np.full(1024, 288, np.float16)
    error = np.zeros(1024)
    error[:4] = 32
    assert is_rounded_alike(error, expected)
    error[4] = 32
    assert not is_rounded_alike(error, expected)
    error[:5] = (64, 0, 0, 0, 0)
    assert not is_rounded_alike(error, expected)
    error[0] = np.nan
    assert not is_rounded_alike(error, expected)


def test_sums_near_zero_may_be_off_by_the_error_before_rounding() -> None:
    expected = np.linspace(-64, 64, 128).astype(np.float16)
    expected[:2] = 2.0**-6, -(2.0**-6)
    error, limits = np.zeros(128), Rounded(1 / 32, 2.0**-10)
    error[:2] = 2.0**-4
    assert is_rounded_alike(error, expected, limits)
    assert not is_rounded_alike(error, expected, Rounded(1 / 32))
    error[1] = 0.075
    assert not is_rounded_alike(error, expected, limits)
    error[:5] = 2.0**-4
    assert not is_rounded_alike(error, expected, limits)


@pytest.mark.parametrize(
    ("kind", "said", "count"),
    [
        ("memcheck", "========= ERROR SUMMARY: 0 errors\n", 0),
        ("memcheck", "========= Invalid __global__ write\n========= ERROR SUMMARY: 1 error\n", 1),
        ("memcheck", "========= COMPUTE-SANITIZER\nkilled\n", None),
        ("racecheck", "== RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)\n", 2),
        ("racecheck", "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 w", 0),
    ],
)
def test_errors_are_counted(kind: str, said: str, count: int | None) -> None:
    assert sanitizer.errors_of(kind, said) == count


def test_where_nothing_can_be_checked_the_reason_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["sanitizer", "--output", str(tmp_path)])
    monkeypatch.setattr(sanitizer, "why_not", lambda: "there is no CUDA driver")
    assert sanitizer.main() == 0
    assert "skipped: there is no CUDA driver" in capsys.readouterr().out
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text())["skipped"] == "there is no CUDA driver"


def test_the_tool_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sanitizer, "_TOOLKIT", tmp_path / "toolkit")
    assert sanitizer.find_tool() is None
    for folder in (tmp_path / "toolkit", tmp_path):
        folder.mkdir(exist_ok=True)
        tool = folder / "compute-sanitizer"
        tool.write_text("#!/bin/sh\n")
        tool.chmod(0o755)
        assert sanitizer.find_tool() == tool


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_seen", [True, False])
def test_what_is_found_fails_the_check(
    is_seen: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With a sanitizer that says what it is told to, and a CPU in the place of the GPU."""
    if find_spec("triton") is None:
        pytest.skip("triton is not installed")
    import onnxruntime

    said = {"memcheck": "ERROR SUMMARY: 0 errors", "racecheck": "RACECHECK SUMMARY: 2 hazards"}
    commands = []

    def run(suite: Suite, command: list[str]) -> tuple[float, str]:
        commands.append([suite.job.parent.name, *command[1:3]])
        if not command:
            found = onnxruntime.InferenceSession(
                str(suite.model), providers=["CPUExecutionProvider"]
            )
            names = [value.name for value in found.get_outputs()]
            values = found.run(None, suite.feeds)
            values[0] = values[0] + 1
            np.savez(suite.job.parent / "results.npz", **dict(zip(names, values, strict=True)))
            return 0.1, ""
        if suite.job.parent.name == "broken":
            return 0.1, f"ERROR SUMMARY: {int(is_seen)} errors"
        return 0.1, said[command[2]]

    monkeypatch.setattr(sanitizer, "CASES", CASES[:1])
    monkeypatch.setattr(sanitizer, "run", run)
    found = sanitizer.check(Path("compute-sanitizer"), 90, tmp_path)
    failures = found["failures"]
    assert isinstance(failures, list)
    assert failures[0].startswith("pointwise_0.Y: off by")
    assert failures[1] == "racecheck: 2 errors"
    assert len(failures) == (2 if is_seen else 3)
    assert found["errors"] == {
        "memcheck": 0, "racecheck": 2, "racecheck, roles handed over": 0,
        "racecheck, kernels of libraries": 0,
        "memcheck of a mistake": int(is_seen),
    }  # fmt: skip
    assert found["kernels"] == ["pointwise_0", "pointwise_1", "pointwise_2"]
    assert [item[1:] for item in commands] == [
        [], ["--tool", "memcheck"], ["--tool", "racecheck"], ["--tool", "memcheck"],
    ]  # fmt: skip


def fused_with_other_lanes(program: Mapping[int, str]) -> list[str]:
    """Return the fused products and sums that take what another lane has."""
    taken: set[str] = set()
    found = []
    for _, text in sorted(program.items()):
        operation, _, operands = text.partition(" ")
        registers = re.findall(r"\bR\d+\b", operands)
        if operation.startswith("FFMA") and taken.intersection(registers[1:]):
            found.append(text)
        if operation.startswith("SHFL"):
            taken.add(registers[0])
        elif registers and not operation.startswith("ST"):
            taken.discard(registers[0])
    return found


def test_lanes_round_the_sum_of_their_products_alike(tmp_path: Path) -> None:
    """Two of them write it to the same place of shared memory, which racecheck reports."""
    if find_spec("triton") is None:
        pytest.skip("triton is not installed")
    chosen = [case for case in CASES if case.name.startswith("squeeze_excite")]
    programs = programs_of(compiled(chosen, 90, tmp_path), 90)
    assert len(chosen) > 1
    for name, of in programs.items():
        assert all(any(text.startswith("SHFL") for text in one.values()) for one in of), name
        assert [fused_with_other_lanes(one) for one in of] == [[]] * len(of), name


_LISTING = """
        /*0940*/                   STS.64 [UR4+0x1c0a0], R2 ;   /* 0x0000 */
        /*0950*/                   STS [UR4+0x1c000], R6 ;      /* 0x0000 */
        /*0960*/                   BAR.SYNC.DEFER_BLOCKING 0x1 ;
        /*0970*/                   STS [UR4+0x1c004], R6 ;      /* 0x0000 */
        /*0980*/                   BAR.SYNC.DEFER_BLOCKING 0x1 ;
        /*0990*/                   BAR.SYNC.DEFER_BLOCKING 0x0, 0x80 ;
        /*5fe0*/               @P0 STS [UR4], R3 ;              /* 0x0001 */
        /*5ff0*/               @P0 BAR.SYNC.DEFER_BLOCKING 0x1 ;
        /*6000*/               @P0 BAR.SYNC.DEFER_BLOCKING 0x1 ;
        /*6080*/              @!P1 LDS.U8 R5, [R4+0x1c09c] ;    /* 0x0002 */
        /*6090*/                   LDS R6, [R4+0x1c000] ;       /* 0x0003 */
        /*60a0*/                   BAR.SYNC.DEFER_BLOCKING 0x1 ;
        /*60b0*/                   LDS R6, [R4+0x1c000] ;       /* 0x0003 */
        /*60c0*/                   BAR.SYNC.DEFER_BLOCKING 0x2, 0x80 ;
        /*60d0*/                   STS.U8 [R4], R7 ;            /* 0x0004 */
"""
_PROGRAMS = {"one": [{0x6080: "LDS"}, instructions_in(_LISTING)]}


@pytest.mark.parametrize(
    ("accesses", "is_explained"),
    [
        (("Read", 0x6080, "Write", 0x940, "Write", 0x5FE0), True),
        (("Write", 0x5FE0, "Read", 0x6080), True),
        (("Write", 0x950, "Read", 0x6090), True),
        (("Read", 0x60B0, "Write", 0x950), False),
        (("Read", 0x6090, "Write", 0x970), False),
        (("Read", 0x6080, "Write", 0x60D0), False),
        (("Read", 0x6080, "Write", 0x77), False),
        (("Write", 0x940, "Write", 0x6090), False),
    ],
)
@pytest.mark.parametrize("entry", ["one", "other"])
def test_races_are_told_from_roles_handed_over(
    accesses: tuple[str | int, ...], is_explained: bool, entry: str
) -> None:
    first, *others = [
        f"{what} access at {entry}+{place:#x}"
        for what, place in zip(accesses[::2], accesses[1::2], strict=True)
    ]
    more = "".join(f"=========     and {other} [9 hazards]\n" for other in others)
    said = f"========= COMPUTE-SANITIZER\n========= Error: Race reported between {first}\n{more}"
    assert len(hand_overs(2 * said, _PROGRAMS)) == (2 if is_explained and entry == "one" else 0)


@pytest.mark.parametrize(
    ("entries", "is_of_a_library"),
    [
        (("nvjet_sm90_hsh_64x136", "nvjet_sm90_hsh_64x136"), True),
        (("one", "one"), False),
        (("nvjet_sm90_hsh_64x136", "one"), False),
        (("void f<int>(int)", "void f<int>(int)"), False),
    ],
)
def test_races_within_cublas_are_told_from_those_of_regions(
    entries: tuple[str, str], is_of_a_library: bool
) -> None:
    read, write = entries
    said = (
        f"========= Error: Race reported between Read access at {read}+0xa60\n"
        f"=========     and Write access at {write}+0x3440 [520 hazards]\n"
    )
    assert len(of_libraries(2 * said, {"one"})) == 2 * is_of_a_library
