"""What a library launches for given sizes, from the kernel's data to the driver's arguments."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest

from ortkit.kernels.cuda import ONE_BLOCK, Argument, CeilDiv, Condition, CudaKernel, Step, Variant
from ortkit.kernels.link.linker import link_library
from ortkit.kernels.sizes import ONE, Extent
from tests.native.cuda_kernels import (
    Case,
    add_rows,
    add_step,
    cuda_kernel,
    expected_launches,
    size_of,
)
from tests.native.objects import COMPILER, HERE, compiled, linked
from tests.native.test_cuda_shim import fake_driver

SHARED_BYTES = 160 << 10
Launches: TypeAlias = Callable[[CudaKernel, Sequence[Case]], list[list[str]]]


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The program that prints launches, and the folder of its driver."""
    if COMPILER is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("probe")
    parts = [compiled(HERE / f"{name}.cc", []) for name in ("launch_probe", "fake_runtime")]
    program = linked(folder / "probe", [*parts, "-pthread", "-ldl"], [])
    return program, fake_driver(folder / "driver", [])


@pytest.fixture
def launches(probe: tuple[Path, Path], tmp_path: Path) -> Launches:
    """Runs a kernel on each case; returns the lines of each, its end or its status last."""

    def run(kernel: CudaKernel, cases: Sequence[Case]) -> list[list[str]]:
        path = tmp_path / "x.so"
        link_library([kernel], [add_rows()], path, kernel.target)
        steps = {step.entry: step for variant in kernel.variants for step in variant.steps}
        command = [str(probe[0]), str(path), "90", str(SHARED_BYTES)]
        for entry, step in steps.items():
            command += [entry, str(len(step.arguments) + 2)]
        lines = (
            f"{a} {b} {0 if case.is_aligned else 4}" for case in cases for a, b in [case.sizes]
        )
        done = subprocess.run(
            command, input="\n".join(lines), capture_output=True, text=True, check=True,
            env={**os.environ, "LD_LIBRARY_PATH": str(probe[1])}, timeout=60,
        )  # fmt: skip
        found: list[list[str]] = [[]]
        for line in done.stdout.splitlines():
            found[-1].append(line)
            if line == "." or line[:2] in ("1 ", "2 ") or line.startswith("not "):
                found.append([])
        return found[:-1]

    return run


def test_the_launches_of_a_plain_kernel(launches: Launches, tmp_path: Path) -> None:
    cases = [Case((3, 5)), Case((1, 1)), Case((0, 7)), Case((7, 0))]
    found = launches(cuda_kernel(tmp_path / "images", add_rows()), cases)
    assert found[0] == ["add 2x3x1 128 0 t0 t1 t2 3 5 0 0", "."]
    assert found[1] == ["add 1x1x1 128 0 t0 t1 t2 1 1 0 0", "."]
    assert found[2:] == [["."], ["."]]


def test_a_launch_without_blocks_is_left_out(launches: Launches, tmp_path: Path) -> None:
    empty = replace(add_step("first"), grid=(CeilDiv(ONE), CeilDiv(Extent(0, ("s0",))), ONE_BLOCK))
    variant = Variant((), False, (empty, add_step("second")))
    kernel = cuda_kernel(tmp_path / "images", add_rows(), [variant])
    (found,) = launches(kernel, [Case((3, 5))])
    assert found == ["second 2x3x1 128 0 t0 t1 t2 3 5 0 0", "."]


@pytest.mark.parametrize("seed", range(4))
def test_launches_are_what_the_data_say(seed: int, launches: Launches, tmp_path: Path) -> None:
    """Kernels at random against the same rules in Python."""
    rng = random.Random(seed)
    kernel = cuda_kernel(tmp_path / "images", add_rows(), _random_variants(rng))
    cases = [
        Case((rng.choice((1, 2, 16, 33)), rng.choice((1, 8, 16, 48, 100)))) for _ in range(20)
    ]
    cases += [replace(case, is_aligned=False) for case in cases]
    runnable = {
        number: all(step.shared_bytes <= SHARED_BYTES for step in variant.steps)
        for number, variant in enumerate(kernel.variants)
    }
    kinds = set()
    for case, lines in zip(cases, launches(kernel, cases), strict=True):
        wanted = expected_launches(kernel, case, 3, runnable)
        if wanted is None:
            assert len(lines) == 1
            assert lines[0].startswith("2 ortkit.fused::add_rows_"), (case, lines)
            kinds.add("refused")
        else:
            assert lines == [*wanted, "."], case
            kinds.add("launched" if wanted else "nothing")
    assert "launched" in kinds


def _random_variants(rng: random.Random) -> tuple[Variant, ...]:
    extents = [ONE, Extent(1, ("s0",)), Extent(1, ("s1",)), Extent(3, ("s0", "s1")), Extent(40)]
    extents += [Extent(2, ("s1", "s1")), Extent(0, ("s0",))]

    def step(number: int) -> Step:
        sizes = [Argument(rng.choice(("size32", "size64")), 0, extent) for extent in extents]
        others = [Argument("tensor", index) for index in range(3)]
        others += [Argument("scratch", 0), Argument("scratch", 1), Argument("null")]
        arguments = rng.sample([*sizes, *others], rng.randrange(1, 10))
        blocks = [rng.choice(extents[:6]) if rng.random() < 0.95 else extents[6] for _ in "xyz"]
        grid = [CeilDiv(block, rng.choice((1, 7, 64))) for block in blocks]
        shared = rng.choice((0, 1000, 100 << 10, 200 << 10))
        return Step(
            f"entry_{number}", (grid[0], grid[1], grid[2]), rng.choice((32, 96, 1024)), shared,
            tuple(arguments),
        )  # fmt: skip

    def variant(number: int) -> Variant:
        conditions = [
            Condition(rng.choice(extents), rng.choice((1, 8, 16)), rng.choice((None, 20, 4000)))
            for _ in range(rng.randrange(3))
        ]
        steps = [step(number * 10 + place) for place in range(rng.randrange(1, 4))]
        scratch = (rng.choice(extents), rng.choice(extents))
        return Variant(tuple(conditions), rng.random() < 0.5, tuple(steps), scratch)

    return tuple(variant(number) for number in range(4))


def test_the_rules_in_python_are_right_where_they_are_known() -> None:
    """What the test above relies on, for one case worked out by hand."""
    case = Case((5, 12))
    assert size_of(Extent(2, ("s0", "s1", "s1")), case) == 1440
    variant = Variant((Condition(Extent(1, ("s1",)), 4, 12),), False, (add_step(),))
    kernel = CudaKernel("0", "tests", None, (variant,), (), 0.0)  # type: ignore[arg-type]
    wanted = ["add 3x5x1 128 0 t0 t1 t2 5 12 0 0"]
    assert expected_launches(kernel, case, 3, {0: True}) == wanted
    assert expected_launches(kernel, Case((5, 13)), 3, {0: True}) is None
    assert expected_launches(kernel, case, 3, {0: False}) is None
