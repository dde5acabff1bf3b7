"""Triton kernels beside their bodies by Triton's interpreter, on machines without a GPU."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from faulty_kernels import calling

from ortkit.kernels import objects as known
from ortkit.kernels.build.library import build_library
from ortkit.kernels.objects import known_origins
from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.source import VariantSource
from ortkit.refusal import Refused
from ortkit.targets.target import Target
from ortkit.verify.kernels import check
from ortkit.verify.kernels.check import KernelReport, KernelRow, check_kernels
from ortkit.verify.kernels.source import KernelSource, not_interpreted, sources_of_library
from ortkit.verify.verification import Gap

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("own_cache")

BODY = '<opset_import: ["" : 20]> f (X, B) => (Y) { S = Add (X, B)  Y = Softmax <axis = -1> (S) }'


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(check, "device_count", lambda: 0)


def signature(dtype: str = "float32", rows: int | str = "n") -> RegionSignature:
    x, y = (TensorSpec(name, dtype, (rows, 40)) for name in "XY")
    return RegionSignature("softmax", BODY, (x, TensorSpec("B", dtype, (40,))), (y,))


def variants(region: RegionSignature) -> tuple[VariantSource, ...]:
    found = sources_of(region)
    assert not isinstance(found, Refused), found.reason
    return found


def changed(one: VariantSource, text: str, other: str) -> VariantSource:
    steps = tuple(replace(step, text=step.text.replace(text, other)) for step in one.steps)
    assert steps != one.steps
    return replace(one, steps=steps)


def report_of(region: RegionSignature, sources: Sequence[VariantSource]) -> KernelReport:
    source = KernelSource(region, tuple(sources))
    return check_kernels(calling(region), None, interpret="quick", source_of=lambda _: source)


def row_of(region: RegionSignature, sources: Sequence[VariantSource]) -> KernelRow:
    (row,) = report_of(region, sources).rows
    return row


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_right_kernel_passes_and_is_not_run_on_a_gpu(dtype: str) -> None:
    region = signature(dtype)
    report = report_of(region, variants(region))
    (row,) = report.rows
    assert (row.verdict, row.reason, row.note, row.reference) == ("passed", "", "", "float64")
    assert row.cases > 5
    assert row.runs > row.cases
    assert 0 < row.ratio < 1
    what = "alone: interpreted, not run on a GPU"
    assert report.gaps == (Gap("1 kernel", what, needs_hardware=True),)
    assert report.summary().startswith("1 kernel interpreted alone in ")
    again = report_of(region, variants(region)).rows[0]
    assert again == replace(row, is_cached=True)


def test_a_gelu_passes_where_one_plus_erf_cancels() -> None:
    """Large negative numbers give rows that the body rounds to a few values near zero."""
    body = '<opset_import: ["" : 20]> f (X, B) => (Y) { S = Add (X, B)  Y = Gelu (S) }'
    x, y = (TensorSpec(name, "float32", ("n", 256)) for name in "XY")
    region = RegionSignature("bias_gelu", body, (x, TensorSpec("B", "float32", (256,))), (y,))
    good = variants(region)
    wrong = [changed(item, "tl.store(y0 + ", "tl.store(y0 + 1 + ") for item in good]
    model = calling(region, bias=np.linspace(-0.05, 0.05, 256, dtype=np.float32))
    for sources, verdict in ((good, "passed"), (wrong, "failed")):
        source = KernelSource(region, tuple(sources))
        report = check_kernels(model, None, interpret="quick", source_of=lambda _, s=source: s)
        assert report.rows[0].verdict == verdict, report.rows[0].reason


def test_a_verdict_is_kept_where_sizes_were_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The level is part of the key: another check of the same level has no more time."""
    monkeypatch.setattr(check, "SECONDS", {"quick": 0.001, "full": 300.0})
    monkeypatch.setattr(check, "_INTERPRETED", {"full": (0.01, 60.0)})
    region = signature()
    source = KernelSource(region, variants(region))
    rows = [
        check_kernels(calling(region), None, interpret="full", source_of=lambda _: source).rows[0]
        for _ in range(2)
    ]
    assert rows[0].left_out > 0
    assert [row.is_cached for row in rows] == [False, True]


def test_a_fault_in_one_variant_is_found() -> None:
    region = signature()
    good = variants(region)
    assert len(good) > 1
    for number, one in enumerate(good):
        wrong = changed(one, "tl.sum(", "tl.max(")
        row = row_of(region, [*good[:number], wrong, *good[number + 1 :]])
        assert row.verdict == "failed"
        assert f"variant {number} interpreted: output 0 " in row.reason


def test_a_verdict_belongs_to_the_source() -> None:
    region = signature()
    assert row_of(region, variants(region)).verdict == "passed"
    wrong = [changed(variant, "tl.sum(", "tl.max(") for variant in variants(region)]
    assert row_of(region, wrong).verdict == "failed"


def test_a_kernel_that_reads_what_is_not_there_fails() -> None:
    """Far away there is no memory: the process ends, and this one goes on."""
    region = signature()
    wrong = [
        changed(variant, "tl.load(x1 + ", "tl.load(x1 + 1000000000000 + ")
        for variant in variants(region)
    ]
    row = row_of(region, wrong)
    assert row.verdict == "failed"
    assert "signal 11" in row.reason


def test_what_lies_around_inputs_is_no_number() -> None:
    region = signature()
    wrong = [
        changed(variant, "tl.load(x1 + ", "tl.load(x1 + 1 + ") for variant in variants(region)
    ]
    assert "nan" in row_of(region, wrong).reason


def test_a_kernel_that_writes_beside_its_output_fails() -> None:
    region = signature()
    wrong = [
        changed(variant, "tl.store(y0 + ", "tl.store(y0 + 1 + ") for variant in variants(region)
    ]
    assert "outside of output 0" in row_of(region, wrong).reason


def test_gluon_is_not_run_and_named() -> None:
    region = signature()
    gluon = [
        replace(variant, steps=tuple(replace(step, is_gluon=True) for step in variant.steps))
        for variant in variants(region)
    ]
    report = report_of(region, gluon)
    reason = "alone: not run: it is in Gluon, which has no interpreter"
    assert report.gaps == (Gap(f"kernel {region.op_type!r}", reason, needs_hardware=True),)
    row = row_of(region, [gluon[0], *variants(region)[1:]])
    assert row.verdict == "passed"
    assert row.note == "variants that were not run: 0 (it is in Gluon, which has no interpreter)"


def test_what_the_interpreter_does_not_know_is_not_run() -> None:
    region = signature()
    wanted = "tl.inline_asm_elementwise('mov.b32 $0, $1;', '=r,r', [{}], tl.float32, True, 1)"
    strange = [
        changed(variant, "tl.store(y0", f"strange = {wanted.format('x0')}\n    tl.store(y0")
        for variant in variants(region)
    ]
    row = row_of(region, strange)
    assert (row.verdict, row.needs_hardware) == ("not run", True)
    assert "Triton's interpreter does not run it" in row.reason


def test_a_slow_kernel_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_INTERPRETED", {"quick": (0.1, 1.5)})
    region = signature()
    endless = [
        changed(variant, "    tl.store(y0", "    while True:\n        pass\n    tl.store(y0")
        for variant in variants(region)
    ]
    row = row_of(region, endless)
    assert (row.verdict, row.needs_hardware) == ("not run", True)
    assert row.reason == "it does not end within 1.5 seconds"


def test_without_triton_nothing_is_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortkit.verify.kernels.source.find_spec", lambda _: None)
    region = signature()
    assert "not installed" in not_interpreted(KernelSource(region, variants(region)))


def test_sources_of_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was built here is generated again, by the same generator only."""
    region = signature()
    path = tmp_path / "m.opt.ops.so"
    build_library([region], Target("cuda", "sm_80"), path, "triton")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    (origin,) = known_origins(digest).values()
    assert origin.signature == region
    found = sources_of_library(digest)(region.op_type)
    assert found == KernelSource(region, variants(region))
    (row,) = check_kernels(calling(region), path, interpret="quick").rows
    assert (row.verdict, row.is_interpreted) == ("passed", True)
    (row,) = check_kernels(calling(region), path).rows
    assert (row.verdict, row.is_interpreted) == ("not run", False)
    monkeypatch.setattr(
        "ortkit.kernels.triton.backend.TritonBackend.fingerprint", lambda _: "another"
    )
    refused = sources_of_library(digest)(region.op_type)
    assert refused == Refused("another version of its generator made it")
    assert known.known_origins("0" * 64) == {}
