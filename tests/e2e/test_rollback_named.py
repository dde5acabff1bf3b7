"""Wrong rewrites that verification names are rolled back without a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx
import onnx.parser
import pytest

from ortkit import OptimizeOptions, optimize
from ortkit.optimization.report import Report
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site
from ortkit.verify.verification import Verification
from ortkit.verify.verifier import Verifier

LAYERS, MIDDLE = 40, 20


@dataclass(frozen=True)
class Replace(NodePass):
    """Writes another operator for one; which it may be is a field."""

    name: ClassVar[str] = "replace"
    ops: ClassVar[Sequence[str]] = ("Relu", "Abs", "Neg")
    rows: tuple[tuple[str, str, str], ...] = ()
    """The rule, the operator, and the one that is written for it."""

    def rewrite(self, site: Site) -> None:
        for rule, old, new in self.rows:
            if site.node.op_type == old and site.claim(rule):
                site.replace(site.op(new, [site.input(0)]))
                return


@dataclass(frozen=True)
class MoveNeg(NodePass):
    """Writes the ceiling of -x for -floor(x), which is right."""

    name: ClassVar[str] = "move-neg"
    ops: ClassVar[Sequence[str]] = ("Neg",)

    def rewrite(self, site: Site) -> None:
        value = site.input(0)
        before = None if value is None else value.producer()
        if before is not None and before.op_type == "Floor" and site.claim("floor"):
            site.replace(site.op("Ceil", [site.op("Neg", [before.inputs[0]])]))


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return where each verdict is noted."""
    found: list[str] = []
    real = Verifier.check

    def check(self: Verifier, *args: object, **options: object) -> Verification:
        verification = real(self, *args, **options)  # type: ignore[arg-type]
        found.append(verification.verdict)
        return verification

    monkeypatch.setattr(Verifier, "check", check)
    return found


def chain(*lines: str) -> onnx.ModelProto:
    """Return many layers of which each has something to rewrite, with lines in the middle."""
    layers = [
        f"i{i} = Identity(h{i - 1}) t{i} = Tanh(i{i}) h{i} = Mul(t{i}, c)" for i in range(LAYERS)
    ]
    layers[0] = "h0 = Tanh(x)"
    layers[MIDDLE] = f"{' '.join(lines)} h{MIDDLE} = Add(m, h{MIDDLE - 1})"
    text = (
        '<ir_version: 10, opset_import: ["" : 20]> g (float[n, 4] x) => (float[n, 4] y)'
        f" <float[1] c = {{1.5}}> {{ {' '.join(layers)} y = Add(h{LAYERS - 1}, x) }}"
    )
    return onnx.parser.parse_model(text)


def run(model: onnx.ModelProto, *passes: NodePass) -> Report:
    return optimize(model, OptimizeOptions(extra_passes=passes, kernels="off")).report


def test_one_wrong_rewrite_among_many_takes_two_verifications(verdicts: list[str]) -> None:
    wrong = Replace(rows=(("wrong", "Relu", "Abs"),))
    report = run(chain("m = Relu(h19)"), wrong)
    assert report.rolled_back == ("replace:wrong:m",)
    assert len(report.hits) >= LAYERS - 2
    assert verdicts == ["no", "yes"]


def test_several_wrong_rewrites_are_named_at_once(verdicts: list[str]) -> None:
    wrong = Replace(rows=(("wrong", "Relu", "Abs"),))
    report = run(chain("a = Relu(h3)", "b = Relu(h11)", "k = Sub(a, b)", "m = Relu(k)"), wrong)
    assert sorted(report.rolled_back) == [f"replace:wrong:{name}" for name in "abm"]
    assert verdicts == ["no", "yes"]


def test_the_wrong_one_of_two_rewrites_of_a_node_is_found(verdicts: list[str]) -> None:
    """Both name the value: each is tried."""
    rows = (("right", "Abs", "Relu"), ("wrong", "Relu", "Neg"))
    report = run(chain("p = Exp(h19)", "m = Abs(p)"), Replace(rows=rows))
    assert report.rolled_back == ("replace:wrong:m",)
    assert verdicts == ["no", "yes", "yes"]


def test_a_wrong_value_that_a_right_rewrite_took_away_is_named_next(verdicts: list[str]) -> None:
    """The first to be named is the right one, which is put back."""
    wrong = Replace(rows=(("wrong", "Abs", "Floor"),))
    report = run(chain("a = Abs(h19)", "m = Neg(a)"), wrong, MoveNeg())
    assert report.rolled_back == ("replace:wrong:a",)
    assert verdicts == ["no", "no", "yes"]


def test_where_no_rewrite_has_the_name_those_of_its_step_are_tried(verdicts: list[str]) -> None:
    """What negates twice goes, `m` with it: the sum that reads it is wrong."""
    wrong = Replace(rows=(("wrong", "Abs", "Neg"),))
    report = run(chain("a = Abs(h19)", "m = Neg(a)"), wrong)
    assert report.rolled_back == ("replace:wrong:a",)
    assert verdicts == ["no", "yes", "no", "yes"]


def test_what_verification_cannot_name_is_searched_for(
    verdicts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ortkit.optimization.rollback.suspects", lambda *_: [])
    wrong = Replace(rows=(("wrong", "Relu", "Abs"),))
    report = run(chain("m = Relu(h19)"), wrong)
    assert report.rolled_back == ("replace:wrong:m",)
    assert len(verdicts) > 5
