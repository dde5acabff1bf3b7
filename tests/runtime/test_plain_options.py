"""`ortkit.session_options`: what other hosts make their sessions with."""

from __future__ import annotations

import base64
import shutil
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import ortkit
from ortkit.errors import ModelError, RunError, UserError
from ortkit.kernels.signature import DOMAIN
from tests.runtime.foreign import compile_foreign, embedded, fused_model, stated

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 256] x, float[256] b) => (float[n, 256] y) {
  s = Add(x, b)  t = Tanh(s)  e = Exp(t)  y = Mul(e, s)
}
"""
FEEDS = {"x": np.ones((64, 256), np.float32), "b": np.full(256, 0.5, np.float32)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = ortkit.optimize(
        onnx.parser.parse_model(TEXT), ortkit.OptimizeOptions(level=3, verify=False)
    )
    assert made.library is not None
    path = tmp_path_factory.mktemp("plain") / "m.onnx"
    made.save(path)
    return path


def runs_kernel(path: Path, options: onnxruntime.SessionOptions) -> bool:
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, FEEDS)
    s = 1.5 * np.ones((64, 256), np.float32)
    np.testing.assert_allclose(y, np.exp(np.tanh(s)) * s, rtol=1e-5)
    assigned = session.get_provider_graph_assignment_info()
    return any(node.domain == DOMAIN for each in assigned for node in each.get_nodes())


@pytest.mark.filterwarnings("error")
def test_a_plain_session_runs_kernels(saved: Path) -> None:
    options = ortkit.session_options(saved, target="cpu")
    assert type(options) is onnxruntime.SessionOptions
    assert runs_kernel(saved, options)


@pytest.mark.filterwarnings("error")
def test_the_library_inside_a_model_is_registered(tmp_path: Path) -> None:
    made = ortkit.optimize(
        onnx.parser.parse_model(TEXT),
        ortkit.OptimizeOptions(level=3, verify=False),
    )
    made.save(tmp_path / "m.onnx", embed_library=True)
    assert not list(tmp_path.glob("*.so"))
    assert runs_kernel(tmp_path / "m.onnx", ortkit.session_options(str(tmp_path / "m.onnx")))


def test_onnxruntime_options_are_set(saved: Path) -> None:
    level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options = ortkit.session_options(
        saved, intra_op_num_threads=3, graph_optimization_level=level, logid="here"
    )
    assert (options.intra_op_num_threads, options.logid) == (3, "here")
    assert options.graph_optimization_level == level


def test_what_is_not_said_stays_as_onnxruntime_has_it(saved: Path) -> None:
    plain, ours = onnxruntime.SessionOptions(), ortkit.session_options(saved, kernels="never")
    for name in dir(plain):
        if isinstance(getattr(type(plain), name), property):
            assert getattr(ours, name) == getattr(plain, name), name


def test_kernels_may_be_left_out(saved: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        options = ortkit.session_options(saved, kernels="never")
    assert not runs_kernel(saved, options)


def test_a_library_that_is_lost_is_a_warning(saved: Path, tmp_path: Path) -> None:
    alone = shutil.copy(saved, tmp_path / "m.onnx")
    with pytest.warns(UserWarning, match=r"m.onnx: .*function bodies run instead") as found:
        options = ortkit.session_options(alone)
    assert [each.filename for each in found] == [__file__]
    assert not runs_kernel(alone, options)
    with pytest.raises(RunError, match="name another library"):
        ortkit.session_options(alone, kernels="require")


@pytest.mark.parametrize("is_embedded", [False, True])
def test_a_library_from_elsewhere_needs_trust(
    is_embedded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("ORTKIT_TRUST", raising=False)
    mark = tmp_path / "was-loaded"
    (tmp_path / "elsewhere").mkdir()
    library = compile_foreign(tmp_path / "elsewhere", mark)
    inside = embedded(library, base64.b64encode(library.read_bytes()).decode())
    model = fused_model(tmp_path, inside if is_embedded else stated(library))
    if not is_embedded:
        shutil.copyfile(library, tmp_path / "m.ops.so")
    with pytest.warns(UserWarning, match="was not built by this user on this machine"):
        ortkit.session_options(model)
    assert not mark.exists()
    with pytest.warns(UserWarning, match="lacks 1 of the model's fused ops"):
        ortkit.session_options(model, trust=True)
    assert mark.exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"intra_op_num_thread": 1}, "intra_op_num_thread: .* use intra_op_num_threads"),
        ({"add_session_config_entry": 1}, "no such attribute"),
        ({"intra_op_num_threads": "many"}, "intra_op_num_threads: cannot be 'many'"),
        ({"kernels": 3}, "kernels: cannot be 3"),
        ({"trust": "yes"}, "trust: cannot be 'yes'"),
        ({"kernels": "nowhere.so"}, "no such file"),
    ],
)
def test_bad_options_are_one_line(saved: Path, given: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said) as raised:
        ortkit.session_options(saved, **given)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


def test_no_model_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nothing\.onnx"):
        ortkit.session_options(tmp_path / "nothing.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError, match=r"bad\.onnx"):
        ortkit.session_options(tmp_path / "bad.onnx")
