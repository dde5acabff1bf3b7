"""Sums of pairs of 16 bits, which older assemblers get wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortkit.errors import KernelError
from ortkit.kernels.triton.assembler import is_wrong, without_pairs
from ortkit.kernels.triton.build import compile_step
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.source import StepSource
from scripts.sanitizer.cases import Case

SUM = "\tadd.s16x2 \t%r5, %r3, %r4;"


def step() -> StepSource:
    """A first layer, whose positions in an image have 16 bits."""
    case = Case(
        "first", "V = Transpose <perm = [0, 3, 1, 2]> (W)  C = Conv <kernel_shape = [3, 3],"
        " pads = [1, 1, 1, 1], strides = [2, 2]> (X, V)  R = Relu (C)"
        "  Y = Transpose <perm = [0, 2, 3, 1]> (R)",
        {"X": (32, 3, 224, 224), "W": (32, 3, 3, 3)}, {"Y": (32, 112, 112, 32)},
    )  # fmt: skip
    sources = sources_of(case.signature())
    assert isinstance(sources, tuple)
    return sources[0].steps[0]


def use(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Triton use one of the assemblers that it brings."""
    nvidia = pytest.importorskip("triton.backends.nvidia.compiler")
    tool = Path(nvidia.__file__).parent / "bin" / name
    if not tool.exists():
        pytest.skip(f"this triton brings no {name}")
    monkeypatch.setenv("TRITON_PTXAS_BLACKWELL_PATH", str(tool))


@pytest.mark.parametrize("release", ["12.8", "12.9", "13.0"])
def test_old_ones_are_wrong(release: str) -> None:
    assert is_wrong(SUM, release)
    assert not is_wrong("\tadd.s32 \t%r5, %r3, %r4;", release)


@pytest.mark.parametrize("release", ["13.1", "13.4", "14.0"])
def test_new_ones_are_right(release: str) -> None:
    assert not is_wrong(SUM, release)


def test_halves_are_added_one_by_one() -> None:
    before = f"\tmov.b32 \t%r4, 65535;\n{SUM}\n{SUM.replace('s16', 'u16')}\n\tret;"
    after = without_pairs(before)
    assert "16x2" not in after
    assert after.count("add.s16 ") == after.count("add.u16 ") == 2
    assert after.count("mov.b32 {low, high}, %r3;") == after.count("{more, most}, %r4;") == 2
    assert after.startswith("\tmov.b32 \t%r4, 65535;\n\t{\n") and after.endswith("\t}\n\tret;")


def test_code_of_an_old_one_has_no_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use("ptxas-blackwell", monkeypatch)
    (new := tmp_path / "new").mkdir()
    assert "add.s16x2" in compile_step(step(), 90, new).ptx
    use("ptxas", monkeypatch)
    (old := tmp_path / "old").mkdir()
    assert "add.s16x2" not in compile_step(step(), 90, old).ptx


def test_what_stays_wrong_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ortkit.kernels.triton import build

    use("ptxas", monkeypatch)
    monkeypatch.setattr(build, "without_pairs", lambda ptx: ptx)
    with pytest.raises(KernelError, match=r"ptxas of CUDA 13\.1"):
        compile_step(step(), 90, tmp_path)
