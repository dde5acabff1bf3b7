"""The original is run from the values at which an earlier run stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from small_models import model, random_weights

from ortkit.verify import rewrites
from ortkit.verify.pair import verify_models
from ortkit.verify.resumption import live_values, resume
from ortkit.verify.steps import give, prune

#: Two residual connections, a value that a branch reads, and one that nothing reads later.
TEXT = """g (float[n, 8] x, bool[1] flag) => (float[n, 8] y) {
  a = MatMul(x, w) b = Tanh(a) c = Add(b, a) d = Sigmoid(c)
  e = If (flag) <then_branch = t () => (float[n, 8] u) { u = Mul(d, b) },
                 else_branch = f () => (float[n, 8] v) { v = Identity(c) }>
  h = LAST(e) y = Add(h, a)
}"""


def made(last: str = "Abs") -> ir.Model:
    return model(TEXT.replace("LAST", last), {"w": random_weights(8, 8)})


@pytest.mark.parametrize(
    ("computed", "later", "live"),
    [
        ((), (), set()),
        (("b",), (), {"a", "b"}),
        (("d",), (), {"a", "b", "c", "d"}),
        (("e",), (), {"a", "e"}),
        (("e",), ("c", "h"), {"a", "c", "e"}),
        (("h", "b"), (), {"a", "h"}),
        (("y",), ("y",), {"y"}),
    ],
)
def test_what_is_live_after_a_run(
    computed: tuple[str, ...], later: tuple[str, ...], live: set[str]
) -> None:
    assert live_values(made(), computed, later) == live


def test_a_model_that_resumes_computes_what_is_new() -> None:
    resumed = made()
    resume(resumed, {"a", "b", "c", "d"})
    give(resumed, {"c", "e"})
    prune(resumed)
    assert [node.op_type for node in resumed.graph] == ["Identity", "If"]
    assert [value.name for value in resumed.graph.outputs] == ["c", "e"]
    names = {value.name for value in resumed.graph.inputs}
    assert names == {"x", "flag", "b/given", "c/given", "d/given"}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """The operators of each run of the original, when two values of 3 rows fit."""
    monkeypatch.setattr(rewrites, "value_bytes", lambda *_: 400)
    monkeypatch.setattr(rewrites, "bytes_of_values", lambda *_: dict.fromkeys("abcdehy", 100))
    found: list[list[str]] = []

    def noted(part: ir.Model, path: Path, weights: Path) -> Path:
        if path.stem == "expected":
            found.append([node.op_type for node in part.graph if node.op_type != "Identity"])
        return write_part(part, path, weights)

    write_part = rewrites.write_part
    monkeypatch.setattr(rewrites, "write_part", noted)
    yield found


def test_later_runs_do_not_begin_at_the_inputs(runs: list[list[str]]) -> None:
    found = verify_models(made(), made())
    assert found.verdict == "yes", found.reason
    assert set(found.values.compared) == set("abcdehy")
    assert "MatMul" in runs[0]
    assert len(runs) > 1
    assert all("MatMul" not in later for later in runs[1:])


def test_a_fault_after_the_first_run_is_found(runs: list[list[str]]) -> None:
    found = verify_models(made(), made("Relu"))
    assert found.verdict == "no"
    assert [each.name for each in found.values.wrong] == ["h"]
    assert "MatMul" not in runs[-1]


def test_values_that_take_much_memory_are_computed_again(
    runs: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewrites, "value_bytes", lambda *_: 150)
    assert verify_models(made(), made()).verdict == "yes"
    assert sum("MatMul" in each for each in runs) > 2


def test_a_model_of_constants_has_no_live_values() -> None:
    constant = model("g () => (float[2] y) { y = Abs(w) }", {"w": np.ones(2, np.float32)})
    assert live_values(constant, ["y"], []) == set()
