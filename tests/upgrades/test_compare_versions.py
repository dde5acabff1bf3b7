"""`compare --onnxruntime`: two versions side by side, what differs, and which node began it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ortkit.comparison.comparing import CompareOptions, compare_models
from ortkit.comparison.result import Comparison
from ortkit.runtime.intervals import Speedup
from ortkit.runtime.workers.interleave import Schedule
from ortkit.upgrades.find import find_installations, labels
from tests.upgrades.planted import OFF_BY_ONE, planted, save, while_on

BRIEF = Schedule(rounds=3, processes=2)
ALWAYS = "values = [value + 1 for value in values]"


def compared(model: Path, *named: str, schedule: Schedule = BRIEF) -> Comparison:
    found = find_installations(named)
    given = {"onnxruntimes": found, "labels": labels(found), "schedule": schedule}
    return compare_models([model], CompareOptions(threads=(1,), **given))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def different(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("different")
    return compared(save(folder), "installed", str(planted(folder, "9.8.7", OFF_BY_ONE)))


def test_versions_that_differ(different: Comparison) -> None:
    first, second = different.batches[0].rows
    assert (different.equality, second.equality) == ("different", "different")
    assert (first.row.onnxruntime, second.row.onnxruntime) == (different.version, "9.8.7")
    assert second.row.against == 1 and second.speedup is not None
    assert second.memory is not None and second.memory.peak
    assert second.to_json()["onnxruntime"] == "9.8.7"
    # The fault is none of a node: value by value both are equal, and that is said.
    assert second.first_node is not None and second.first_node.value == ""
    assert "both compute the same" in second.first_node.reason


@pytest.mark.slow
def test_versions_that_agree(tmp_path: Path) -> None:
    found = compared(save(tmp_path), "installed", str(planted(tmp_path, "9.8.7")))
    second = found.batches[0].rows[1]
    assert (found.equality, second.first_node) == ("equal", None)


@pytest.mark.slow
def test_the_first_node_that_differs_is_named(tmp_path: Path) -> None:
    """One version fails where a node that only it has is run."""
    code = """
class InferenceSession(InferenceSession):
    def run_with_ort_values(self, names, feeds, *rest):
        values = super().run_with_ort_values(names, feeds, *rest)
        for name, value in zip(names, values):
            if name.startswith("t") and value.data_type() == "tensor(float)":
                value.update_inplace(value.numpy() + 1)
        return values
    def run(self, *given):
        return [value * 2 for value in super().run(*given)]
"""
    model = save(tmp_path)
    levels = find_installations(["installed", str(planted(tmp_path, "9.8.7", code))])
    options = CompareOptions(
        onnxruntimes=levels, labels=labels(levels), schedule=BRIEF, optimizations=("basic",)
    )
    second = compare_models([model], options).batches[0].rows[1]
    assert second.first_node is not None and second.first_node.value == "t"
    assert second.first_node.ops == ("Add", "Add")


def test_at_the_terminal(
    call, different: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = different
    monkeypatch.setattr("ortkit.comparison.comparing.compare_models", lambda *_: found)
    flags = ("compare", save(tmp_path), "--threads", "1,2")
    done = call(*flags)
    assert (done.code, done.err) == (1, "")
    assert "row 2     model.onnx: ONNX Runtime 9.8.7" in done.out
    assert "-> 9.8.7: outputs different" in done.out
    assert "row 2     first node that differs: not found: value by value" in done.out
    rows = json.loads(call(*flags, "--json").out)["batches"][0]["rows"]
    assert rows[1]["first_node"]["value"] == "" and rows[0]["first_node"] is None
    # Equal, but slower than allowed.
    batch = different.batches[0]
    slower = Speedup(0.8, 0.78, 0.82, 0.95, "slower")
    row = replace(batch.rows[1], equality="equal", first_node=None, speedup=slower)
    found = replace(different, batches=(replace(batch, rows=(batch.rows[0], row)),))
    assert call(*flags).code == call(*flags, "--fail-slower", "30").code == 0
    done = call(*flags, "--fail-slower", "20")
    assert done.code == 1
    assert done.err == "ortkit: row 2 is slower than row 1 by 22.0 % or more; 20 % is allowed\n"


@pytest.mark.slow
def test_values_of_two_versions_side_by_side(call, tmp_path: Path) -> None:
    code = while_on({"NoSuchOptimizer"}, ALWAYS)
    named = f"installed,{planted(tmp_path, '9.8.7', code)}"
    done = call("compare", save(tmp_path), "--nodes", "--onnxruntime", named)
    assert done.code == 0, done.err
    assert "ONNX Runtime 9.8.7" in done.out and "no value diverges" in done.out


def test_what_cannot_be_compared_is_one_line(call, tmp_path: Path) -> None:
    model = save(tmp_path)
    for flags, said in (
        (("--onnxruntime", "0.0.1"), "--onnxruntime: 0.0.1 is not there; add --install"),
        (("--install",), "--install: fetches what --onnxruntime names"),
        (("--fail-slower", "-1"), "-1 is no percentage"),
        (("--onnxruntime", "installed,,"), "cannot read"),
    ):
        done = call("compare", model, *flags)
        assert (done.code, done.out) == (2, ""), flags
        assert said in done.err and done.err.count("\n") == 1


@pytest.mark.slow
def test_versions_from_the_package_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path / "cache"))
    from ortkit.errors import UserError

    try:
        find_installations(["1.24.2", "1.24.4"], install=True)
    except UserError as error:
        pytest.skip(f"not fetched: {error}")
    from tests.upgrades.test_optimizers import GAMMA

    found = compared(save(tmp_path, GAMMA), "1.24.4", "1.24.2")
    second = found.batches[0].rows[1]
    assert "gamma is expected to have 1 dimension" in second.problem
    assert second.first_node is not None
    assert second.first_node.ops[1] == "com.microsoft::SkipLayerNormalization"
