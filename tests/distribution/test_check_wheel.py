"""What `scripts/release` asks of a wheel before it gets its platform tag."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from scripts.check_wheel import NEEDED, problem_inside, problem_of

PLATFORM = "manylinux_2_28_aarch64"
PROVIDER = "libortkit_provider.so"


@pytest.mark.parametrize(
    ("tag", "libraries", "problem"),
    [
        ("manylinux_2_17_aarch64", {}, ""),
        ("manylinux_2_28_aarch64", {}, ""),
        ("manylinux_2_34_aarch64", {}, "it needs manylinux_2_34_aarch64, more than"),
        ("manylinux_2_17_x86_64", {}, "it needs manylinux_2_17_x86_64"),
        ("linux_aarch64", {}, "it fits no manylinux policy"),
        ("manylinux_2_17_aarch64", {"libfoo.so": None}, "it needs libraries that are not in it"),
    ],
)
def test_a_policy_is_held(tag: str, libraries: dict[str, None], problem: str) -> None:
    found = problem_of({"overall_tag": tag, "external_libs": libraries}, PLATFORM)
    assert found.startswith(problem)
    assert bool(found) == bool(problem)


@pytest.mark.parametrize(
    ("project", "machine", "left_out", "problem"),
    [
        ("ortkit", 183, "", ""),
        ("ortkit", 62, "", "libortkit_runtime.so is for another processor"),
        ("ortkit", 183, "names.h", "names.h is missing"),
        ("onnxruntime_ep_ortkit", 183, "", ""),
        ("onnxruntime_ep_ortkit", 62, "", f"{PROVIDER} is for another processor"),
        ("onnxruntime_ep_ortkit", 183, PROVIDER, f"{PROVIDER} is missing"),
    ],
)
def test_the_contents_are_checked(
    project: str, machine: int, left_out: str, problem: str, tmp_path: Path
) -> None:
    wheel = tmp_path / f"{project}-0.1.0-py3-none-linux_aarch64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in set(NEEDED[project]) - {left_out}:
            content = b"\x7fELF".ljust(18, b"\0") + machine.to_bytes(2, "little")
            archive.writestr(f"ortkit/custom_ops/{name}", content)
    assert problem_inside(wheel, PLATFORM) == problem
