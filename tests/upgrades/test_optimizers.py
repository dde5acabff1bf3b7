"""`bisect --onnxruntime-optimizers`: the optimizer that does harm is named, and avoided."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from ortkit.errors import RunError, UserError
from ortkit.runtime.installation import Installation
from ortkit.runtime.workers.interleave import Schedule
from ortkit.upgrades.find import find_installations
from ortkit.upgrades.names import applied, words
from ortkit.upgrades.optimizers import BisectOptions, bisect_optimizers
from ortkit.upgrades.result import OPTION, OptimizerReport
from scripts.json_schemas import schemas
from tests.cli.test_cli_json import PAGE, misfits, paths
from tests.upgrades.planted import HEAD, planted, save, while_on

BRIEF = Schedule(rounds=3, processes=2)
#: microsoft/onnxruntime#32413: two rules that are right alone, wrong together (1.23 to 1.31).
IDENTITY = (
    HEAD
    + """g (float[4, 8] x) => (float[4, 8] y)
<float one = {1.0}, float other = {1.0}, float zero = {0.0}>
{ mid = Identity(x)  folded = Div(one, other)  wrapped = Mul(mid, folded)
  y = Add(wrapped, zero) }"""
)
#: microsoft/onnxruntime#27455: gamma of three dimensions (up to 1.24.2).
GAMMA = (
    HEAD
    + """g (float[2, 4, 4] x, float[2, 4, 4] y) => (float[2, 4, 4] z)
<float[1, 1, 4] scale = {1, 2, 3, 4}, float[4] bias = {1, 2, 3, 4}>
{ s = Add(x, y)  z = LayerNormalization<axis = -1>(s, scale, bias) }"""
)


def runtime(folder: Path, code: str = "") -> Installation:
    return find_installations([str(planted(folder, "9.8.7", code))])[0]


def bisected(model: Path, **given: object) -> OptimizerReport:
    return bisect_optimizers(model, BisectOptions(**{"schedule": None, **given}))  # type: ignore[arg-type]


def test_names_come_from_the_log_in_order() -> None:
    line = "x.cc:15 Apply] GraphTransformer {} modified: {} with status: OK\n"
    log = line.format("A", 0) + "noise\n" + line.format("B", 0) + line.format("A", 1)
    assert [(item.name, item.modified) for item in applied(log)] == [("A", True), ("B", False)]
    assert applied("nothing") == ()


def test_words_of_the_library_hold_the_rules() -> None:
    (installed,) = find_installations(["installed"])
    assert installed.library is not None
    found = words(installed.library, ["Pad_Fusion"])
    assert {"EliminateIdentity", "DivMulFusion", "MatMul_BatchNormalization_Fusion"} <= set(found)
    assert "Pad_Fusion" not in found


def test_a_sound_model(tmp_path: Path) -> None:
    found = bisected(save(tmp_path))
    assert (found.verdict, found.culprits, found.workaround) == ("sound", (), None)
    assert [level for level, _ in found.levels] == ["off", "basic", "extended", "all"]
    names = {optimizer.name: optimizer for optimizer in found.optimizers}
    assert names["ConstantFolding"].level == "basic" and names["ConstantFolding"].modified
    assert names["SkipLayerNormFusion"].level == "extended"
    assert names["NchwcTransformer"].level == "all"
    assert not all(item.can_be_disabled for item in found.optimizers)


@pytest.fixture(scope="module")
def guilty(tmp_path_factory: pytest.TempPathFactory) -> OptimizerReport:
    folder = tmp_path_factory.mktemp("guilty")
    code = while_on({"SkipLayerNormFusion"}, "values = [value + 1 for value in values]")
    return bisected(save(folder), onnxruntime=runtime(folder, code))


def test_one_that_changes_results_is_named_and_avoided(guilty: OptimizerReport) -> None:
    (culprit,) = guilty.culprits
    assert (guilty.verdict, guilty.version) == ("guilty", "9.8.7")
    assert (culprit.name, culprit.level, culprit.effect) == (
        "SkipLayerNormFusion", "extended", "different",
    )  # fmt: skip
    assert culprit.alone_off is not None and culprit.alone_off.outcome == "equal"
    assert "com.microsoft::SkipLayerNormalization 0 -> 1" in culprit.changes
    assert guilty.workaround is not None and guilty.workaround.tried.outcome == "equal"
    assert guilty.workaround.python == (
        f'options.add_session_config_entry("{OPTION}", "SkipLayerNormFusion")'
    )


#: ONNX Runtime runs the model and does not write its graph.
WRITES_NO_GRAPH = """
class InferenceSession(InferenceSession):
    def __init__(self, model, options, *args, **given):
        if options.optimized_model_filepath:
            raise RuntimeError("no graph is written")
        super().__init__(model, options, *args, **given)
"""


@pytest.mark.slow
def test_a_graph_that_cannot_be_written_is_a_note(tmp_path: Path) -> None:
    code = while_on({"SkipLayerNormFusion"}, "values = [value + 1 for value in values]")
    found = bisected(save(tmp_path), onnxruntime=runtime(tmp_path, code + WRITES_NO_GRAPH))
    assert [(culprit.name, culprit.changes) for culprit in found.culprits] == [
        ("SkipLayerNormFusion", ())
    ]
    assert any("no graph is written" in note for note in found.notes)


@pytest.mark.slow
def test_two_of_which_each_alone_does_harm_are_both_named(tmp_path: Path) -> None:
    effect = "values = [value + 1 for value in values]"
    code = while_on({"SkipLayerNormFusion"}, effect) + while_on({"ConstantFolding"}, effect)
    found = bisected(save(tmp_path), onnxruntime=runtime(tmp_path, code))
    assert sorted(item.name for item in found.culprits) == [
        "ConstantFolding",
        "SkipLayerNormFusion",
    ]
    assert all(
        culprit.alone_off is not None and culprit.alone_off.is_bad for culprit in found.culprits
    )
    assert found.workaround is not None and found.workaround.tried.outcome == "equal"


@pytest.mark.slow
def test_what_no_optimizer_causes_is_said(tmp_path: Path) -> None:
    code = while_on({"NoSuchOptimizer"}, "values = [value + 1 for value in values]")
    found = bisected(save(tmp_path), onnxruntime=runtime(tmp_path, code))
    assert (found.verdict, found.culprits) == ("not found", ())
    assert "optimizers off that can be switched off" in found.reason


@pytest.mark.slow
def test_a_crash_is_an_outcome_like_others(tmp_path: Path) -> None:
    code = while_on({"ConstantFolding"}, "import os; os.abort()")
    found = bisected(save(tmp_path), onnxruntime=runtime(tmp_path, code))
    assert [culprit.name for culprit in found.culprits] == ["ConstantFolding"]
    assert "signal 6" in found.culprits[0].reason
    assert found.workaround is not None and found.workaround.tried.outcome == "equal"


@pytest.mark.slow
def test_one_that_slows_is_named(tmp_path: Path) -> None:
    code = while_on({"ConstantFolding"}, "time.sleep(0.02)")
    found = bisected(save(tmp_path), onnxruntime=runtime(tmp_path, code), schedule=BRIEF)
    (culprit,) = found.culprits
    assert (culprit.name, culprit.effect) == ("ConstantFolding", "slower")
    assert culprit.speedup is not None and culprit.speedup.direction == "faster"
    assert found.workaround is not None and found.workaround.tried.outcome == "equal"


@pytest.mark.parametrize("text", [IDENTITY, GAMMA], ids=["32413", "27455"])
def test_known_faults_of_onnxruntime(text: str, tmp_path: Path) -> None:
    found = bisected(save(tmp_path, text))
    if found.verdict == "sound":
        pytest.skip(f"ONNX Runtime {found.version} has no such fault")
    (culprit,) = found.culprits
    assert found.workaround is not None and found.workaround.tried.outcome == "equal"
    if text == IDENTITY:
        # Either of the two rules cures it; the other is what it takes.
        assert culprit.group == "Level1_RuleBasedTransformer"
        assert {culprit.name, *culprit.needs} == {"EliminateIdentity", "DivMulFusion"}
    else:
        assert culprit.name == "SkipLayerNormFusion"


def test_what_cannot_be_searched_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no optimizers"):
        bisected(save(tmp_path), level="off")
    random = HEAD + "g () => (float[4] y) { y = RandomNormal<shape = [4]>() }"
    with pytest.raises(UserError, match="every output is random, empty, NaN or infinite"):
        bisected(save(tmp_path, random))
    np.savez(tmp_path / "x.npz", x=np.ones((2, 4, 17), np.float32))
    with pytest.raises(UserError):
        bisected(save(tmp_path), inputs=tmp_path / "x.npz")
    never = HEAD + "g (float[2] x) => (float[3] y) { y = org.none.Never(x) }"
    never = never.replace('["" : 17]', '["" : 17, "org.none" : 1]')
    with pytest.raises(RunError, match="Never"):
        bisected(save(tmp_path, never))


def test_at_the_terminal(
    call, guilty: OptimizerReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[BisectOptions] = []

    def found(_: Path, options: BisectOptions) -> OptimizerReport:
        asked.append(options)
        return guilty

    monkeypatch.setattr("ortkit.upgrades.optimizers.bisect_optimizers", found)
    model = save(tmp_path)
    flags = ("bisect", model, "--onnxruntime-optimizers", "--no-timing", "--threads", "2")
    done = call(*flags, "--onnxruntime", "installed", "--optimizations", "extended")
    assert (done.code, done.err) == (1, "")
    assert (asked[0].level, asked[0].threads, asked[0].schedule) == ("extended", 2, None)
    assert asked[0].onnxruntime is not None
    for said in (
        "culprit   SkipLayerNormFusion (level extended)",
        "off alone: outputs equal",
        "avoid     options.add_session_config_entry",
        "ONNX Runtime 9.8.7 in ",
    ):
        assert said in done.out
    content = json.loads(call(*flags, "--json").out)
    section = PAGE.read_text("utf-8").partition("\n### bisect --onnxruntime-optimizers\n")[2]
    known = set(re.findall(r"^\| `([^`]+)` \|", section.partition("\n### ")[0], re.MULTILINE))
    assert set(paths(content, known)) - known == set()
    assert {re.split(r"[.\[{]", path)[0] for path in known} == set(content)
    assert list(misfits(content, schemas()["bisect---onnxruntime-optimizers.json"])) == []
    for more, said in (
        (("--level", "1"), "--level: does not go with --onnxruntime-optimizers"),
        (("--install",), "--install: fetches what --onnxruntime names"),
        (("--onnxruntime", "installed,installed"), "is named twice"),
    ):
        refused = call(*flags, *more)
        assert (refused.code, refused.out) == (2, "") and said in refused.err
    done = call("bisect", model, "--no-timing")
    assert done.code == 2 and "goes with --onnxruntime-optimizers only" in done.err
