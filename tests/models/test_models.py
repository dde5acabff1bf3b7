"""Every model in every spelling is valid, runs at two sizes, and means the same thing."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import models
from models import __main__ as command
from ortkit.errors import UserError

CASES = [(name, s) for name in models.BUILDERS for s in models.spellings(name)]
SIZES = (
    {"batch": 1, "sequence": 16, "past": 4, "height": 32, "width": 32},
    {"batch": 2, "sequence": 7, "past": 9, "height": 48, "width": 32},
)


@cache
def tiny(name: str, spelling: str) -> onnx.ModelProto:
    return models.build(name, spelling=spelling)


@cache
def session(name: str, spelling: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    model = tiny(name, spelling).SerializeToString()
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(name: str, spelling: str, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return session(name, spelling).run(None, feeds)


def channels_last(array: np.ndarray) -> np.ndarray:
    return np.moveaxis(array, 1, -1) if array.ndim == 4 else array


@pytest.mark.parametrize(("name", "spelling"), CASES)
def test_valid_and_runs_at_two_sizes(name: str, spelling: str) -> None:
    model = tiny(name, spelling)
    onnx.checker.check_model(model, full_check=True)
    for seed, sizes in enumerate(SIZES):
        one, other = (
            run(name, spelling, models.feeds(model, seed=s, **sizes)) for s in (seed, seed + 9)
        )
        for got in one:
            assert np.isfinite(got).all()
        assert any(a.shape != b.shape or (a != b).any() for a, b in zip(one, other, strict=True))
        floats = [got for got in one if got.dtype == np.float32 and got.size]
        assert floats
        assert all(1e-2 < got.std() < 1e2 for got in floats)


@pytest.mark.parametrize(("name", "spelling"), CASES)
def test_same_arguments_same_bytes(name: str, spelling: str) -> None:
    again = models.build(name, spelling=spelling)
    assert again.SerializeToString() == tiny(name, spelling).SerializeToString()
    other = models.build(name, spelling=spelling, seed=1)
    assert other.SerializeToString() != again.SerializeToString()
    assert [n.op_type for n in other.graph.node] == [n.op_type for n in again.graph.node]


@pytest.mark.parametrize("name", models.BUILDERS)
def test_every_spelling_means_the_same(name: str) -> None:
    spellings = models.spellings(name)
    first = tiny(name, spellings[0])
    feeds = models.feeds(first, seed=3, **SIZES[1])
    want = run(name, spellings[0], feeds)
    for spelling in spellings[1:]:
        given = dict(feeds)
        if spelling == "keras":
            given = {k: channels_last(v) for k, v in feeds.items()}
        for got, expected in zip(run(name, spelling, given), want, strict=True):
            if spelling == "keras":
                expected = channels_last(expected)
            np.testing.assert_allclose(got, expected, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("name", models.BUILDERS)
def test_spellings_differ(name: str) -> None:
    spellings = models.spellings(name)
    assert {"dynamo", "ts"} <= set(spellings)
    texts = {tuple((n.op_type, len(n.input)) for n in tiny(name, s).graph.node) for s in spellings}
    assert len(texts) == len(spellings)


def test_dynamo_keeps_constants_as_initializers_and_ts_as_nodes() -> None:
    for name in models.BUILDERS:
        dynamo, ts = (tiny(name, s) for s in ("dynamo", "ts"))
        assert all(n.op_type != "Constant" for n in dynamo.graph.node), name
        assert all(t.data_type == onnx.TensorProto.FLOAT for t in ts.graph.initializer), name
        assert (dynamo.opset_import[0].version, dynamo.ir_version) == (20, 10)
        assert (ts.opset_import[0].version, ts.ir_version) == (17, 8)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"name": "bret"}, "bert"),
        ({"name": "bert", "spelling": "morse"}, "dynamo"),
        ({"name": "bert", "size": "huge"}, "tiny"),
    ],
)
def test_what_there_is_not(arguments: dict[str, str], names: str) -> None:
    with pytest.raises(UserError) as caught:
        models.build(**arguments)
    assert names in str(caught.value)


def test_command_line(tmp_path, capsys) -> None:
    path = tmp_path / "m.onnx"
    assert command.main(["bert", "--spelling", "ts", "-o", str(path)]) == 0
    assert onnx.load(path).SerializeToString() == tiny("bert", "ts").SerializeToString()
    assert command.main(["--list"]) == 0
    assert all(name in capsys.readouterr().out for name in ("bert",))
    assert command.main(["bert", "-o", str(tmp_path / "none" / "m.onnx")]) == 2
    assert "cannot write" in capsys.readouterr().err
