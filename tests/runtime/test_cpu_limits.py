"""What a process may use of the processors, as cgroups of both versions say it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortkit.runtime.cpu_limits import CpuLimits, cpu_limits


def proc(folder: Path, cgroup: str, mount: str, kind: str) -> Path:
    """Write what the system says of a process: its groups, and where they are mounted."""
    (folder / "cgroup").write_text(cgroup)
    top = folder / "groups"
    top.mkdir()
    (folder / "mountinfo").write_text(
        f"1 0 8:1 / / rw - ext4 /dev/vda rw\n2 1 0:2 {mount} {top} rw,nosuid shared:1 - {kind}\n"
    )
    return top


def v1(folder: Path, quota: str) -> None:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (folder / "cpu.cfs_period_us").write_text("100000\n")


def test_the_least_quota_of_all_levels_holds(tmp_path: Path) -> None:
    top = proc(tmp_path, "0::/pod/one\n", "/", "cgroup2 cgroup2 rw")
    (top / "pod" / "one").mkdir(parents=True)
    (top / "pod" / "one" / "cpu.max").write_text("max 100000\n")
    assert cpu_limits(tmp_path).quota is None
    (top / "pod" / "cpu.max").write_text("150000 100000\n")
    assert cpu_limits(tmp_path).quota == 1.5
    (top / "pod" / "one" / "cpu.max").write_text("60000 50000\n")
    assert cpu_limits(tmp_path).quota == 1.2


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    top = proc(tmp_path, "0::/docker/a/b\n", "/docker/a", "cgroup2 cgroup2 rw")
    (top / "b").mkdir()
    (top / "b" / "cpu.max").write_text("50000 100000")
    assert cpu_limits(tmp_path).quota == 0.5


def test_version_1_is_read_at_its_own_mount(tmp_path: Path) -> None:
    groups = "5:memory:/other\n2:cpu,cpuacct:/job\n0::/\n"
    top = proc(tmp_path, groups, "/", "cgroup cgroup rw,cpu,cpuacct")
    v1(top, "-1")
    v1(top / "job", "250000")
    v1(top / "other", "10000")
    assert cpu_limits(tmp_path).quota == 2.5


@pytest.mark.parametrize("text", ["max", "", "a b", "-5 100000", "100000 0", "1 2 3"])
def test_what_is_no_quota_limits_nothing(tmp_path: Path, text: str) -> None:
    top = proc(tmp_path, "0::/\n", "/", "cgroup2 cgroup2 rw")
    (top / "cpu.max").write_text(text)
    assert cpu_limits(tmp_path).quota is None


@pytest.mark.parametrize("line", ["0::/../..", "nonsense", "2:cpu:/elsewhere", ""])
def test_groups_that_are_not_shown_limit_nothing(tmp_path: Path, line: str) -> None:
    top = proc(tmp_path, line + "\n", "/docker/a", "cgroup2 cgroup2 rw")
    (top.parent / "cpu.max").write_text("1000 100000")
    assert cpu_limits(tmp_path).quota is None


def test_no_files_limit_nothing(tmp_path: Path) -> None:
    found = cpu_limits(tmp_path)
    assert found.quota is None
    assert found.whole == found.allowed >= 1


@pytest.mark.parametrize(
    ("allowed", "quota", "whole"),
    [(8, None, 8), (8, 1.5, 1), (2, 7.9, 2), (4, 0.2, 1), (4, 3.0, 3)],
)
def test_threads_that_run_all_the_time(allowed: int, quota: float | None, whole: int) -> None:
    assert CpuLimits(64, allowed, quota).whole == whole
