"""A lowering that raises is left out of the run, with a reason."""

from __future__ import annotations

import onnx_ir as ir
import pytest

import ortkit
from ortkit.precision.gains import Gain
from ortkit.rewrite.failures import PassError
from tests.precision.helpers import checked, floats, model_of

MLP = "g (float[n, 64] x) => (float[n, 64] y) { a = MatMul(x, w) r = Tanh(a) y = MatMul(r, v) }"
#: Where choosing, rewriting and measuring may raise.
PLACES = (
    "ortkit.precision.choosing.find_products", "ortkit.precision.forms.by_column",
    "ortkit.precision.lowering.lower_products", "ortkit.precision.lowering.accuracies",
)  # fmt: skip


@pytest.fixture(autouse=True)
def always_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ortkit.precision.choosing.measure_gains",
        lambda _switched, chained, *_: [Gain(10.0, 4.0)] * len(chained),
    )


def lowered() -> ortkit.Optimized:
    weights = {name: floats(64, 64, seed=ord(name), scale=1 / 8) for name in "wv"}
    options = ortkit.OptimizeOptions(precision="int8", kernels="off")
    return ortkit.optimize(model_of(MLP, **weights), options)


def fail(*_: object, **__: object) -> object:
    raise KeyError("no\nsuch value")


@pytest.mark.parametrize("place", PLACES)
def test_a_lowering_that_raises_leaves_the_model_in_float32(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ORTKIT_PASS_ERRORS")
    monkeypatch.setattr(place, fail)
    found = lowered()
    checked(found.model)
    report, precision = found.report, found.report.precision
    assert [node.op_type for node in found.model.graph] == ["MatMul", "Tanh", "MatMul"]
    assert all(
        value.dtype == ir.DataType.FLOAT for value in found.model.graph.initializers.values()
    )
    assert [failed.name for failed in report.failed_passes] == ["precision"]
    assert "precision failed and was left out: KeyError" in report.failed_passes[0].text
    assert precision is not None
    assert precision.lowered == 0
    (note,) = [each for each in precision.notes if "KeyError" in each]
    assert note.startswith("nothing is lowered: KeyError: ")
    assert "\n" not in note
    assert report.verification is not None
    assert report.verification.verdict == "yes"


def test_tests_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PLACES[-1], fail)
    with pytest.raises(PassError, match="precision"):
        lowered()
