"""`ortkit provider test` and the pytest plugin, on providers right, wrong, broken and slow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest

from ortkit.cli.main import run
from ortkit.errors import UserError
from ortkit.provider.conformance.cases import chosen, difference, node_tests
from ortkit.provider.conformance.conform import ConformanceOptions, conform
from ortkit.provider.conformance.subject import Subject
from ortkit.provider.conformance.verdict import Conformance

ROOT = Path(__file__).parents[2]
MODULE = "tests.provider.conformance_providers"


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def judged(name: str, pattern: str = "test_[ar][be][sl]*", seconds: float = 60.0) -> Conformance:
    """Judge test_abs and test_relu, and a few more."""
    options = ConformanceOptions(pattern=pattern, sample=None, jobs=1, seconds=seconds)
    return conform(Subject(f"{MODULE}:{name}"), options)


def statuses(found: Conformance) -> dict[str, str]:
    return {
        verdict.case: verdict.status
        for verdict in found.verdicts
        if verdict.case in ("test_abs", "test_relu")
    }


def test_a_provider_that_is_right_conforms() -> None:
    found = judged("Right")
    assert found.provider == "RightExecutionProvider"
    assert statuses(found) == {"test_abs": "right", "test_relu": "right"}
    assert found.faults == ()
    assert found.by_operator()["Abs"]["right"] == 1
    claimed = {verdict.case: verdict.claimed for verdict in found.verdicts}
    assert claimed["test_abs"] == ("Abs",)


def test_wrong_results_are_found() -> None:
    found = judged("Wrong")
    assert statuses(found) == {"test_abs": "wrong", "test_relu": "right"}
    (fault,) = found.faults
    assert "output 'y': " in fault.detail
    assert "differ, at (" in fault.detail


def test_errors_have_their_message() -> None:
    found = judged("Failing")
    assert statuses(found) == {"test_abs": "error", "test_relu": "error"}
    assert all("this chip is not soldered" in fault.detail for fault in found.faults)


def test_a_crash_is_of_its_case_alone() -> None:
    found = judged("Deadly")
    assert statuses(found) == {"test_abs": "crash", "test_relu": "right"}
    assert found.faults[0].detail.startswith("killed by SIGABRT")


def test_what_hangs_is_a_crash() -> None:
    found = judged("Hanging", "test_[ar][be][sl]", seconds=2.0)
    assert statuses(found) == {"test_abs": "crash"}
    assert found.faults[0].detail == "no answer in 2 s"


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        ("no_such_module:Provider", "'no_such_module' is not imported"),
        (f"{MODULE}:Nothing", "has no 'Nothing'"),
        ("NoSuchExecutionProvider", "there is no provider 'NoSuchExecutionProvider'"),
        (f"{MODULE}:np", "register_provider got a value of type module"),
    ],
)
def test_what_is_no_provider_is_refused(subject: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        conform(Subject(subject), ConformanceOptions(jobs=1))


def test_no_case_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["provider", "test", "CPUExecutionProvider", "--only", "nothing*"]) == 2
    assert "no case matches 'nothing*'" in capsys.readouterr().err


def test_the_command_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["provider", "test", f"{MODULE}:Wrong", "--only", "test_abs", "--jobs", "1"]
    assert run(arguments) == 1
    shown = capsys.readouterr().out
    assert "1 wrong" in shown
    assert "conforms  no" in shown
    assert run([*arguments, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["counts"]["wrong"] == 1
    assert document["conforms"] is False
    assert document["cases"][0]["claimed"] == ["Abs"]


def test_a_sample_is_the_same_each_time_and_spread() -> None:
    names = [f"test_{index:03}" for index in range(100)]
    assert chosen(names, "", 10) == chosen(names, "", 10)
    assert chosen(names, "", 10) == names[::10]
    assert chosen(names, "test_00*", 10) == names[:10]
    assert chosen(names, "test_00*", 4) == [names[0], names[2], names[5], names[7]]
    assert chosen(names, "", None) == names


@pytest.mark.parametrize(
    ("got", "want", "text"),
    [
        (np.array([1.0, 2.0]), np.array([1.0, 2.0]), ""),
        (np.array([1.0, np.nan]), np.array([1.0, np.nan]), ""),
        (np.array([np.inf]), np.array([np.inf]), ""),
        (np.array([np.inf]), np.array([-np.inf]), "1 of 1 differ, at (0,): inf, not -inf"),
        (np.array([np.inf]), np.array([1e300]), "1 of 1 differ"),
        (np.array([1.0, np.nan]), np.array([1.0, 2.0]), "1 of 2 differ, at (1,): nan, not 2.0"),
        (np.array([1.0]), np.array([1.0], np.float32), "float64, not float32"),
        (np.array([2**62 + 1]), np.array([2**62]), "1 of 1 differ"),
        (np.array(1.0), np.array([1.0]), "shape (), not (1,)"),
        (np.array(3), np.array(4), "1 of 1 differ, at (): 3, not 4"),
        ([np.array(1)], [np.array(1)], ""),
        ([np.array(1)], [np.array(1), np.array(1)], "not a sequence of the same length"),
        ([np.array(1)], [np.array(2)], "1 of 1 differ"),
        (None, None, ""),
        (None, np.array(1), "None, not array(1)"),
        (np.array(["a"], object), np.array(["a"], object), ""),
        (np.array(["a"], object), np.array(["b"], object), "other texts"),
    ],
)
def test_differences(got: object, want: object, text: str) -> None:
    found = difference(got, want, 1e-3, 1e-7)  # type: ignore[arg-type]
    assert found == text if not text else found.startswith(text)


PLUGIN_MODULE = "ortkit.provider.conformance.pytest_plugin"
PLUGIN = f"""
import pytest

@pytest.mark.onnx_node_cases("{MODULE}:Deadly", only="test_[ar][be][sl]*", sample=None)
def test_conformance(onnx_node_case):
    onnx_node_case.check()
"""


def test_the_pytest_plugin(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(PLUGIN, encoding="utf-8")
    known = {entry.value for entry in entry_points(group="pytest11")}
    named = [] if PLUGIN_MODULE in known else ["-p", PLUGIN_MODULE]
    command = [
        sys.executable, "-m", "pytest", *named, "-q", "-rA", "--rootdir", str(tmp_path),
        "-c", os.devnull, "-p", "no:cacheprovider", "--strict-markers",
        str(tmp_path / "test_it.py"),
    ]  # fmt: skip
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=surroundings, capture_output=True, text=True, check=False
    )
    said = done.stdout
    assert done.returncode == 1, said + done.stderr
    assert "PASSED" in said
    passed = [line for line in said.splitlines() if line.startswith("PASSED")]
    assert any("test_conformance[test_relu]" in line for line in passed)
    assert "1 failed" in said
    assert "crash: killed by SIGABRT" in said
    assert "skipped" in said  # what it does not claim


def test_our_provider_conforms() -> None:
    options = ConformanceOptions(sample=16, jobs=2)
    found = conform(Subject("OrtkitExecutionProvider", options={"level": "3"}), options)
    assert found.faults == (), [(fault.case, fault.detail) for fault in found.faults]
    assert found.counts["right"] > 2


@pytest.mark.slow
def test_our_provider_conforms_in_all_cases() -> None:
    options = ConformanceOptions(sample=None, jobs=2)
    found = conform(Subject("OrtkitExecutionProvider", options={"level": "3"}), options)
    assert found.faults == (), [(fault.case, fault.detail) for fault in found.faults]
    assert len(found.verdicts) >= 1884
    assert found.counts["right"] > 300


def test_cases_come_from_the_cache_of_the_same_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(kind: str) -> list[str]:
        made.append(kind)
        return ["a case"]

    made: list[str] = []
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path))
    monkeypatch.setattr("onnx.backend.test.loader.load_model_tests", load)
    assert [node_tests(), node_tests()] == [["a case"]] * 2
    assert made == ["node"]
    monkeypatch.setattr("onnx.__version__", "0.0")
    assert node_tests() == ["a case"]
    assert made == ["node"] * 2
