"""Every pass writes what its golden cases say, for the reasons they give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortkit.graph.analysis.value_names import CHANNELS_LAST
from ortkit.graph.io.text import from_text
from ortkit.passes.catalog import PASSES
from ortkit.verify.compare import compare_outputs
from ortkit.verify.inputs.feeds import make_feeds
from tests.e2e.suites import run
from tests.golden.golden import FOLDER, Golden, cases

NAMES = [str(path.relative_to(FOLDER).with_suffix("")) for path in cases()]


def load(name: str) -> Golden:
    return Golden.parse((FOLDER / f"{name}.txt").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_the_text_is_what_the_pass_makes(name: str) -> None:
    case = load(name)
    made, _ = case.applied()
    assert made.text == case.text, "run scripts/update-golden and look at the difference"


@pytest.mark.parametrize("name", [name for name in NAMES if not load(name).not_run])
def test_both_texts_compute_the_same(name: str) -> None:
    pytest.importorskip("onnxruntime")
    case = load(name)
    _, model = case.applied()
    before, after = from_text(case.before), ir.to_proto(model)
    for feeds in make_feeds(before, 2):
        want = run(ir.to_proto(before), feeds)
        for value, first, second in zip(
            before.graph.outputs, want, run(after, feeds), strict=True
        ):
            judged = compare_outputs(value.name or "", first, second)
            assert judged.equal, judged


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("channels-last/")])
def test_a_value_named_for_its_layout_is_the_original_transposed(name: str) -> None:
    """Comparisons value by value restore `x` from `x/nhwc`, under that name alone."""
    pytest.importorskip("onnxruntime")
    case = load(name)
    _, made = case.applied()
    before, after = from_text(case.before), ir.to_proto(made)
    names = [node.output[0] for node in after.graph.node if node.output[0].endswith(CHANNELS_LAST)]
    originals = [name.removesuffix(CHANNELS_LAST) for name in names]
    model = ir.to_proto(before)
    for proto, wanted in ((model, originals), (after, names)):
        del proto.graph.output[:]
        proto.graph.output.extend(onnx.ValueInfoProto(name=each) for each in wanted)
    for feeds in make_feeds(before, 1) if names else ():
        found = run(after, feeds)
        for each, first, second in zip(originals, run(model, feeds), found, strict=True):
            usual = np.moveaxis(np.asarray(second), -1, 1)
            np.testing.assert_allclose(usual, first, rtol=1e-5, atol=1e-5, err_msg=each)


@pytest.mark.parametrize("name", NAMES)
def test_a_case_says_why(name: str) -> None:
    case = load(name)
    assert case.why, "begin the file with a comment that says why"
    assert Path(name).parent.name == case.passes.partition("{")[0]


@pytest.mark.parametrize("name", sorted(PASSES))
def test_a_pass_has_a_case_and_a_near_miss(name: str) -> None:
    counts = [load(each).rewrites for each in NAMES if each.startswith(f"{name}/")]
    assert any(counts), f"write tests/golden/{name}/<case>.txt"
    assert not all(counts), f"write a near miss into tests/golden/{name}"


def test_every_folder_is_a_pass() -> None:
    folders = {path.name for path in FOLDER.iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} <= set(PASSES)
