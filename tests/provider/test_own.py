"""OrtkitExecutionProvider in sessions of plain onnxruntime."""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

import models
import ortkit
from models.feeds import feeds
from ortkit import doctor
from ortkit.errors import UserError
from ortkit.kernels.build.library import missing_toolchain
from ortkit.provider.own import failures, planning
from ortkit.provider.own.ahead import compile_model
from ortkit.provider.own.options import NAME, OwnOptions
from ortkit.provider.registration import registered_providers

pytestmark = pytest.mark.skipif(missing_toolchain() is not None, reason="no kernel toolchain")

VERSION = tuple(map(int, ort.__version__.split(".")[:2]))

NORM = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 64] x, float[n, 64] z) => (float[n, 64] y) <float[1] half = {0.5}>
{ s = Add (x, z)  e = Erf (s)  m = Mul (e, half)  y = Softmax <axis = -1> (m) }
"""
BRANCHES = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 64] x, bool c) => (float[n, 64] y) {
  t = Relu (x)
  y = If (c) <
    then_branch = a () => (float[k, 64] p) { u = Exp (t)  v = Tanh (u)  p = Add (v, x) },
    else_branch = b () => (float[k, 64] q) { u2 = Exp (x)  v2 = Sin (u2)  q = Mul (v2, t) }
  >
}
"""
LOOP = """<ir_version: 10, opset_import: ["" : 20]>
g (float[8, 64] x, int64 count) => (float[8, 64] y) <bool yes = {1}> {
  y = Loop (count, yes, x) <
    body = b (int64 i, bool go, float[8, 64] s) => (bool go_on, float[8, 64] r)
    { go_on = Identity (go)  e = Tanh (s)  m = Mul (e, x)  r = Add (m, s) }
  >
}
"""


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Any:
    if NAME not in registered_providers():
        ortkit.register_provider()
    yield
    gc.collect()  # sessions of the tests
    ortkit.unregister_provider(NAME)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def session(model: onnx.ModelProto | Path, cache: Path, **options: str) -> ort.InferenceSession:
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    devices = [device for device in ort.get_ep_devices() if device.ep_name == NAME]
    given = {"cache_dir": str(cache), "level": "3", "strict": "1", **options}
    settings.add_provider_for_devices(devices, given)
    content = model if isinstance(model, Path) else model.SerializeToString()
    return ort.InferenceSession(content, settings)


def plain(model: onnx.ModelProto, given: dict[str, Any]) -> list[np.ndarray]:
    made = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(made.run(None, given))


def placed(made: ort.InferenceSession) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for part in made.get_provider_graph_assignment_info():
        found.setdefault(part.ep_name, []).extend(node.op_type for node in part.get_nodes())
    return found


def check(made: ort.InferenceSession, model: onnx.ModelProto, given: dict[str, Any]) -> None:
    for got, want in zip(made.run(None, given), plain(model, given), strict=True):
        scale = max(1.0, float(np.abs(want).max(initial=0)))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5 * scale)


def rows(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.standard_normal((count, 64), np.float32) for name in ("x", "z")}


def test_sizes_may_change_between_runs(cache: Path) -> None:
    model = parsed(NORM)
    made = session(model, cache)
    assert set(placed(made)) == {NAME}
    for count in (5, 1, 300, 0, 5):
        check(made, model, rows(count))


def test_plain_onnxruntime_asks_for_it_by_name(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if NAME not in ort.get_available_providers():
        pytest.skip("this ONNX Runtime takes such providers by their devices only")
    monkeypatch.setenv("ORTKIT_CACHE", str(cache))
    model = models.build("bert")
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    made = ort.InferenceSession(
        model.SerializeToString(), settings,
        providers=[(NAME, {"level": "3"}), "CPUExecutionProvider"],
    )  # fmt: skip
    assert made.get_providers()[0] == NAME
    check(made, model, feeds(model))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["llama", "decoder_kv", "control_flow", "lstm"])
def test_models(name: str, cache: Path) -> None:
    model = models.build(name)
    made = session(model, cache)
    assert placed(made)[NAME]
    check(made, model, feeds(model))


@pytest.mark.parametrize("condition", [True, False])
def test_groups_in_branches(condition: bool, cache: Path) -> None:
    model = parsed(BRANCHES)
    made = session(model, cache)
    assert {"Exp", "Tanh", "Sin"} <= set(placed(made)[NAME])
    for count in (3, 7):
        check(made, model, {"x": rows(count)["x"], "c": np.array(condition)})


def test_groups_in_loops(cache: Path) -> None:
    model = parsed(LOOP)
    made = session(model, cache)
    assert {"Tanh", "Mul", "Add"} <= set(placed(made)[NAME])
    for count in (0, 1, 5):
        check(made, model, {"x": rows(8)["x"], "count": np.array(count)})


def test_runs_at_the_same_time(cache: Path) -> None:
    model = parsed(NORM)
    made = session(model, cache)
    wanted = [plain(model, rows(count, count))[0] for count in range(1, 9)]
    wrong: list[int] = []

    def work(count: int) -> None:
        for _ in range(50):
            (got,) = made.run(None, rows(count, count))
            if not np.allclose(got, wanted[count - 1], rtol=1e-4, atol=1e-5):
                wrong.append(count)

    threads = [threading.Thread(target=work, args=(count,)) for count in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_several_sessions_have_their_own_kernels(cache: Path) -> None:
    texts = [NORM, NORM.replace("0.5", "0.25"), NORM.replace("Erf", "Tanh"), BRANCHES]
    made = [(parsed(text), session(parsed(text), cache)) for text in texts]
    for model, one in [*made, *reversed(made)]:
        given: dict[str, Any] = rows(6)
        if model.graph.input[1].name == "c":
            given = {"x": given["x"], "c": np.array(True)}
        check(one, model, given)


class Tanhs(ortkit.ExecutionProvider):
    """Takes nodes by kernels: they stay in the graph that the next provider is asked about."""

    name = "TanhsExecutionProvider"
    kernels = {("", "Tanh", 13): np.tanh}


def test_nodes_that_another_provider_has_are_not_claimed(
    cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = parsed(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[n, 16] x, float[n, 16] z) => (float[n, 16] y) {
          a = Add (x, z)  m = Mul (a, x)  s = Softmax (m)
          w = MatMul (s, k)  t = Tanh (w)  u = Mul (t, z)  v = Add (u, x)  y = Softmax (v)
        }"""
    )
    weight = np.random.default_rng(2).standard_normal((16, 16), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "k"))
    ortkit.register_provider(Tanhs())
    try:
        settings = ort.SessionOptions()
        settings.log_severity_level = 2
        settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        for name, given in (
            (Tanhs.name, {}),
            (NAME, {"cache_dir": str(cache), "level": "3", "strict": "1", "verbosity": "2"}),
        ):
            devices = [device for device in ort.get_ep_devices() if device.ep_name == name]
            settings.add_provider_for_devices(devices, given)
        made = ort.InferenceSession(model.SerializeToString(), settings)
        found = placed(made)
        assert found[Tanhs.name] == ["Tanh"]
        assert found[NAME] == ["Add", "Mul", "Softmax"]  # of the two groups the first
        assert "TanhsExecutionProvider has one of its nodes" in capfd.readouterr().err
        check(made, model, {name: each[:, :16] for name, each in rows(5).items()})
        del made
    finally:
        ortkit.unregister_provider(Tanhs.name)


def test_sizes_that_do_not_fit_are_refused(cache: Path) -> None:
    made = session(parsed(NORM), cache)
    given = rows(4)
    with pytest.raises(Exception, match="a size is not n, as it was in the model"):
        made.run(None, {"x": given["x"], "z": given["z"][:3]})


def test_constants_are_dropped_where_they_are_baked(cache: Path) -> None:
    """Only x is an input of the group: its trace names what it reads."""
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[n, 64] x) => (float[n, 64] y) <float[64] scale = {%s}>
    { y = LayerNormalization <axis = -1> (x, scale) }""" % ", ".join("2" for _ in range(64))  # noqa: UP031
    model = parsed(text)
    made = session(model, cache)
    assert placed(made) == {NAME: ["LayerNormalization"]}
    check(made, model, {"x": rows(9)["x"]})


@pytest.mark.skipif(VERSION < (1, 25), reason="providers trace from ONNX Runtime 1.25 on")
def test_its_kernels_are_in_the_trace(cache: Path, tmp_path: Path) -> None:
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.enable_profiling = True
    settings.profile_file_prefix = str(tmp_path / "trace")
    devices = [device for device in ort.get_ep_devices() if device.ep_name == NAME]
    settings.add_provider_for_devices(devices, {"cache_dir": str(cache), "level": "3"})
    made = ort.InferenceSession(parsed(NORM).SerializeToString(), settings)
    made.run(None, rows(8))
    events = json.loads(Path(made.end_profiling()).read_text(encoding="utf-8"))
    ours = [event for event in events if "region" in event.get("args", {})]
    assert ours, [item["name"] for item in events]
    assert ours[0]["args"]["region"] == "y"
    assert "Erf" in ours[0]["args"]["nodes"]


def test_it_has_no_options_that_change_while_a_session_lives(cache: Path) -> None:
    made = session(parsed(NORM), cache)
    with pytest.raises(Exception, match=f"{NAME} has no dynamic options"):
        made.set_ep_dynamic_options({"level": "2"})
    check(made, parsed(NORM), rows(2))


def test_levels_and_kernels_may_be_turned_off(cache: Path) -> None:
    for options in ({"level": "1"}, {"kernels": "off"}):
        assert NAME not in placed(session(parsed(NORM), cache, **options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levle": "2"}, "there is no option 'levle'; did you mean 'level'"),
        ({"level": "4"}, "option level is '4'; use 0 to 3"),
        ({"kernels": "triton"}, "option kernels is 'triton'; use auto, off, tvm"),
        ({"strict": "maybe"}, "option strict is 'maybe'; use 0 or 1"),
        ({"strict": "true"}, "option strict is 'true'; use 0 or 1"),
        ({"verbosity": "-1"}, "option verbosity is '-1'; use 0 to 2"),
    ],
)
def test_options_that_are_wrong(
    options: dict[str, str],
    message: str,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UserError, match=message):
        OwnOptions.of(options)
    # onnxruntime in Python prints the error and goes on without the provider.
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path))
    assert NAME not in session(parsed(NORM), cache, **options).get_providers()
    (one,) = failures.read(tmp_path / "provider")
    assert message in one.message


def test_failures_are_recorded_and_strict_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> object:
        raise ValueError("no plan today")

    monkeypatch.setattr(planning, "plan", broken)
    model = parsed(NORM)
    made = session(model, tmp_path, strict="0")
    assert set(placed(made)) == {"CPUExecutionProvider"}
    check(made, model, rows(3))
    (one,) = failures.read(tmp_path / "provider")
    assert one.message == "ValueError: no plan today"
    with pytest.raises(Exception, match="no plan today"):
        session(model, tmp_path, strict="1")
    assert len(failures.read(tmp_path / "provider")) == 2
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path))
    found = [item for item in doctor._provider() if item.name == "failures"]
    assert [one.state for one in found] == ["broken", "broken"]
    assert "a model in memory: ValueError: no plan today" in found[0].value
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path / "empty"))
    assert [one.value for one in doctor._provider()][1:] == ["none recorded"]


def test_records_of_failures_are_bounded_and_readable(tmp_path: Path) -> None:
    assert failures.read(tmp_path) == []
    for index in range(failures.KEPT + 3):
        failures.record(tmp_path, "model.onnx", f"failure {index}")
    found = failures.read(tmp_path)
    assert [item.message for item in found] == [
        f"failure {i}" for i in range(3, failures.KEPT + 3)
    ]
    (tmp_path / failures.FILE).write_text("no json\n[]\n", encoding="utf-8")
    assert failures.read(tmp_path) == []
    failures.record(tmp_path / "file", "", "x")  # made where it is not
    (tmp_path / "plain").write_text("")
    failures.record(tmp_path / "plain", "", "x")  # no folder: nothing is kept, nothing raised


def test_a_cache_that_cannot_be_written_costs_no_group(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "provider").touch()  # no folder, as where a disk can only be read
    model = parsed(NORM)
    made = session(model, tmp_path)
    assert NAME in placed(made)
    check(made, model, rows(3))
    assert f"the cache is not used: {tmp_path / 'provider'} cannot be written" in caplog.text


@pytest.mark.parametrize("end", ["y = Div (e, s)", "l = Log (s)  y = Sub (x, l)"])
def test_a_softmax_without_its_maximum_keeps_its_infinities(end: str, cache: Path) -> None:
    model = parsed(f"""<ir_version: 8, opset_import: ["" : 18]>
        g (float[b, 64] x) => (float[b, 64] y) <int64[1] axes = {{-1}}>
        {{ e = Exp (x)  s = ReduceSum <keepdims = 1> (e, axes)  {end} }}""")
    x = rows(4)["x"]
    x[0, 3], x[1], x[2, 5] = np.inf, -np.inf, np.nan
    [got], [want] = session(model, cache).run(None, {"x": x}), plain(model, {"x": x})
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-5)


def test_compiled_ahead_of_time(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from ortkit.cli.main import run

    monkeypatch.setenv("ORTKIT_CACHE", str(cache))
    model = models.build("bert")
    onnx.save(model, tmp_path / "bert.onnx")
    assert run(["compile-provider", str(tmp_path / "bert.onnx"), "--level", "3"]) == 0
    assert "verified  yes" in capsys.readouterr().out
    made = onnx.load(tmp_path / "bert_ctx.onnx")
    assert [node.op_type for node in made.graph.node].count("EPContext") > 3
    check(session(made, cache), model, feeds(model))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(Exception, match="was not built by this user on this machine"):
        session(made, cache)
    check(session(made, cache, trust="1"), model, feeds(model))


def test_large_weights_ahead_of_time_lie_in_files_named_by_content(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ortkit.provider.own.ahead._MOST_INSIDE", 1000)
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[n, 512] x) => (float[n, 64] y)
    { a = Sigmoid (x)  b = Exp (a)  c = Mul (a, b)  y = MatMul (c, w) }"""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "made.onnx.data").touch()  # of another program
    output, weights = tmp_path / "out" / "made.onnx", []
    for seed in (0, 1, 1):
        net = parsed(text)
        values = np.random.default_rng(seed).standard_normal((512, 64)).astype(np.float32)
        net.graph.initializer.append(onnx.numpy_helper.from_array(values, "w"))
        onnx.save(net, tmp_path / "net.onnx")
        made = compile_model(
            tmp_path / "net.onnx", output, {"level": "3", "cache_dir": str(cache)}
        )
        assert made.is_equal
        assert made.weights is not None
        assert re.fullmatch(r"made\.onnx\.[0-9a-f]{16}\.data", made.weights.name)
        weights.append(made.weights.name)
        names = {path.name for path in output.parent.iterdir()}
        assert names == {"made.onnx", "made.onnx.data", made.weights.name}
        used = session(output, cache)
        x = np.ones((2, 512), np.float32)
        expected = ort.InferenceSession(tmp_path / "net.onnx").run(None, {"x": x})[0]
        np.testing.assert_allclose(used.run(None, {"x": x})[0], expected, rtol=1e-4)
    assert weights[0] != weights[1] == weights[2]


def test_results_keep_their_places_ahead_of_time(tmp_path: Path, cache: Path) -> None:
    # ONNX Runtime hands over a node's results in an order of its own: here the model's own first.
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[n, 512] x, float[512, 8] w) => (float[n, 512] r, float[n, 8] m)
    { a = Sigmoid (x)  m = MatMul (a, w)  b = Exp (a)  r = Erf (b) }"""
    onnx.save(parsed(text), tmp_path / "model.onnx")
    options = {"level": "3", "cache_dir": str(cache)}
    made = compile_model(tmp_path / "model.onnx", tmp_path / "made.onnx", options)
    assert made.groups == 1
    assert made.is_equal


def test_what_cannot_be_compiled_ahead_of_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ortkit.cli.main import run

    text = """<ir_version: 10, opset_import: ["" : 20]>
        g (float[2, 8] x) => (float[2, 8] y) { y = Relu (x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "net.onnx")
    net = str(tmp_path / "net.onnx")
    assert run(["compile-provider", net]) == 2
    assert "no group of nodes pays" in capsys.readouterr().err
    assert run(["compile-provider", net, "--output", net]) == 2
    assert "would be written over" in capsys.readouterr().err
    assert run(["compile-provider", net, "--option", "levle=3"]) == 2
    assert "did you mean 'level'" in capsys.readouterr().err
    assert run(["compile-provider", net, "-o", str(tmp_path / "no" / "x.onnx")]) == 2
    assert "there is no such folder" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.onnx"]


def test_the_page_about_it_runs(tmp_path: Path, cache: Path) -> None:
    """Its Python, in order, where the page's command has run on a model."""
    if NAME not in ort.get_available_providers():
        pytest.skip("this ONNX Runtime takes such providers by their devices only")
    page = Path(__file__).parents[2] / "docs" / "guides" / "provider.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    scripts = [block for block in blocks if "pytest" not in block]
    assert len(scripts) == 4
    for block in blocks:
        compile(block, str(page), "exec")
    onnx.save(models.build("bert"), tmp_path / "model.onnx")
    surroundings = {**os.environ, "ORTKIT_CACHE": str(cache)}
    command = ["compile-provider", "model.onnx", "-o", "model_ctx.onnx", "--level", "3"]
    placed = 'assert session.get_providers()[0] == "OrtkitExecutionProvider"'
    for arguments in (["-m", "ortkit", *command], ["-c", "\n".join([*scripts, placed])]):
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=surroundings, check=False,
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
