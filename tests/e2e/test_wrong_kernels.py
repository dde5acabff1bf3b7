"""A kernel that is wrong where no input set of the model shows it: its region is put back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper

from models import catalog
from ortkit import CheckError, OptimizeOptions, optimize
from ortkit.fusion import plan
from ortkit.kernels.backend import Kernel
from ortkit.kernels.build.library import LibraryBuild, build_kernels
from ortkit.kernels.link.linker import link_library
from ortkit.kernels.signature import RegionSignature, body_text
from ortkit.optimization import kernel_stage, verify_stage
from ortkit.optimization.report import Report
from ortkit.targets.target import Target
from ortkit.verify import verifier
from ortkit.verify.kernels import check

pytest.importorskip("tvm")

TEXT = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 512] x, float[512] b, float[512, 512] w) => (float[n, 512] y) {
  s = Add (x, b)  a = Gelu (s)  c = MatMul (a, w)  d = Mul (c, b)  e = Gelu (d)  y = Mul (e, x)
}"""


Change = Callable[[RegionSignature], RegionSignature]
Break = Callable[..., None]


def capped(signature: RegionSignature) -> RegionSignature:
    """Return a region that differs in results over 50: standard normal inputs give none."""
    function = signature.function()
    name = function.output[0]
    for node in function.node:
        node.output[:] = ["raw" if item == name else item for item in node.output]
        node.input[:] = ["raw" if one == name else one for one in node.input]
    most = numpy_helper.from_array(np.array(50, np.float32))
    function.node.append(helper.make_node("Constant", [], ["most"], value=most))
    function.node.append(helper.make_node("Min", ["raw", "most"], [name]))
    return RegionSignature(
        signature.name, body_text(function), signature.inputs, signature.outputs
    )


def clipped_lower(signature: RegionSignature) -> RegionSignature:
    """Return a region that clips at 5 where it should at 6."""
    function = signature.function()
    for node in function.node:
        if (
            node.op_type == "Constant"
            and (value := numpy_helper.to_array(node.attribute[0].t)) == 6
        ):
            node.attribute[0].t.CopyFrom(numpy_helper.from_array(value - 1))
    return RegionSignature(
        signature.name, body_text(function), signature.inputs, signature.outputs
    )


@pytest.fixture
def break_kernels(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Let the kernels whose op types a function names be compiled from other bodies."""
    real = plan.build_library

    def patch(is_meant: Callable[[str], bool], change: Change = capped) -> None:
        def build(
            signatures: Sequence[RegionSignature], target: Target, path: Path, *args: object,
            **options: object,
        ) -> LibraryBuild:  # fmt: skip
            made = real(signatures, target, path, *args, **options)  # type: ignore[arg-type]
            ops = () if made.library is None else made.library.ops
            left = [signature for signature in signatures if signature.op_type in ops]
            wanted = [change(item) if is_meant(item.op_type) else item for item in left]
            if left:
                with build_kernels(wanted, target) as built:
                    kernels = [one for one in built.found if isinstance(one, Kernel)]
                    assert len(kernels) == len(left)
                    link_library(kernels, left, path, target)
            return made

        monkeypatch.setattr(plan, "build_library", build)

    return patch


@pytest.fixture(params=[False, True], ids=["few cores", "many cores"])
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let stages run one after the other, and side by side."""
    monkeypatch.setattr(verify_stage, "has_room", lambda: request.param)


def found(model: onnx.ModelProto, **options: object) -> Report:
    return optimize(model, OptimizeOptions(**options)).report  # type: ignore[arg-type]


def by_kind(report: Report) -> Mapping[str, str]:
    return {region.kind: region.reason for region in report.regions}


@pytest.mark.usefixtures("cores")
def test_the_region_is_put_back_and_the_others_stay(
    break_kernels: Break,
) -> None:
    model = onnx.parser.parse_model(TEXT)
    plain = found(model)
    assert not plain.rolled_back
    kinds = [region.kind for region in plain.regions if region.emitted_as]
    assert len(kinds) == 2
    wrong = kinds[0]
    break_kernels(lambda op: op.rpartition("_")[0] == wrong)
    report = found(model)
    (rolled_back,) = report.rolled_back
    assert rolled_back.startswith(f"fuse-regions:{wrong}:")
    assert by_kind(report)[wrong].startswith("its kernel is wrong: inputs [3, 512]")
    assert sum(item.emitted_as is not None for item in report.regions) == 1
    assert report.verification is not None
    assert report.verification.verdict == "yes"
    assert "1 kernel run alone in " in report.verification.reason
    (row,) = json.loads(json.dumps(report.to_json()))["kernel_check"]["rows"]
    assert row["verdict"] == "passed"


def test_a_chain_of_convolutions_is_put_back_as_one(
    break_kernels: Break,
) -> None:
    meant: list[str] = []

    def first(op: str) -> bool:
        """Name one kernel in the middle of the chain."""
        if op.startswith("depthwise_conv") and not meant:
            meant.append(op)
        return op in meant

    break_kernels(first, clipped_lower)
    report = found(catalog.build("mobilenet_v2"))
    (rolled_back,) = report.rolled_back
    assert rolled_back.startswith("fuse-convolutions:nhwc:")
    assert all(
        region.emitted_as is None for region in report.regions if region.kind == "depthwise_conv"
    )


def test_without_verification_no_kernel_is_checked() -> None:
    report = found(onnx.parser.parse_model(TEXT), verify=False)
    assert report.kernel_check is None


@pytest.mark.usefixtures("cores")
def test_a_wrong_kernel_that_nothing_puts_back_is_an_error(
    break_kernels: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ortkit.optimization.candidate import Candidate

    break_kernels(lambda op: "gelu" in op)
    monkeypatch.setattr(Candidate, "rewrites_of", lambda *_: frozenset())
    with pytest.raises(CheckError, match=r"gelu.* is wrong: inputs"):
        found(onnx.parser.parse_model(TEXT))


def test_a_wrong_kernel_for_cuda_is_put_back_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("triton")
    from ortkit.kernels.triton import generate
    from ortkit.kernels.triton.source import VariantSource
    from ortkit.refusal import Refused
    from ortkit.verify.kernels import check

    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path))
    monkeypatch.setattr(check, "device_count", lambda: 0)
    model = onnx.parser.parse_model(TEXT)
    options: dict[str, object] = {"target": "cuda", "arch": "sm_80"}
    plain = found(model, **options)
    assert not plain.rolled_back
    assert plain.verification is not None
    assert plain.verification.lacks_hardware_only
    assert "2 kernels interpreted alone in " in plain.verification.reason
    assert "interpreted, not run on a GPU" in plain.verification.reason
    wrong, right = (region.kind for region in plain.regions if region.emitted_as)
    real = generate.sources_of

    def faulty(signature: RegionSignature, *choices: Any) -> tuple[VariantSource, ...]:
        """Return another sign of the last result."""
        made = real(signature, *choices)
        assert not isinstance(made, Refused)
        if signature.name != wrong:
            return made
        assert all(step.text.count("tl.store(y0 + ") == 1 for one in made for step in one.steps)
        return tuple(replace(one, steps=tuple(map(_negative, one.steps))) for one in made)

    monkeypatch.setattr(generate, "sources_of", faulty)
    report = found(model, **options)
    (rolled_back,) = report.rolled_back
    assert rolled_back.startswith(f"fuse-regions:{wrong}:")
    assert "interpreted: output 0 off by" in by_kind(report)[wrong]
    assert [item.kind for item in report.regions if item.emitted_as] == [right]
    assert report.verification is not None
    assert report.verification.verdict == "partly"


def _negative(step: Any) -> Any:
    return replace(step, text=re.sub(r"(tl\.store\(y0 \+ [^,]*, )", r"\1-1.0 * ", step.text))


def test_kernels_that_were_checked_are_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[object] = []
    real = check.check_kernels
    for module in (kernel_stage, verifier):
        monkeypatch.setattr(
            module, "check_kernels", lambda *a, **o: checks.append(a) or real(*a, **o)
        )
    report = found(onnx.parser.parse_model(TEXT))
    assert report.kernel_check is not None
    assert report.kernel_check.rows
    assert len(checks) == 1
