"""`ortkit bundle triton`: the folder, its configuration, and the library as Triton loads it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import ortkit
from ortkit.cli.main import run
from ortkit.errors import UserError
from ortkit.integrations.proto_text import Enum, proto_text
from ortkit.integrations.triton import TritonOptions, bundle
from tests.integrations.needed import needs
from tests.runtime.foreign import fused_model, untrusted_model

ROOT = Path(__file__).parents[2]
#: One kernel; its rows are independent in X, and B has none.
MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 24] X, float[24] B) => (float[n, 24] Y) {
  s = Add(X, B)  t = Tanh(s)  e = Exp(t)  Y = Mul(e, s)
}
"""
ROWS = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 24] X, int64[n] I) => (float[n, 24] Y, float[n] M) {
  A = Abs(X)  T = Tanh(A)  Y = Exp(T)  F = Cast<to = 1>(I)  M = Neg(F)
}
"""
MIXED = """<ir_version: 8, opset_import: ["" : 17]>
g (float[n, 24] X) => (float[n, 24] Y) <int64[1] zero = {0}> {
  S = ReduceSum(X, zero)  Y = Add(X, S)
}
"""
TEXTS = """<ir_version: 8, opset_import: ["" : 17]>
g (string[n] X) => (string[n] Y) { Y = Identity(X) }
"""
WRAPPED = """<ir_version: 8, opset_import: ["" : 17]>
g (seq(float[n]) X) => (float[m] Y) { Y = ConcatFromSequence<axis = 0>(X) }
"""


def saved(text: str, path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(text), path)
    return path


@pytest.fixture(scope="module")
def optimized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = ortkit.optimize(
        onnx.parser.parse_model(MODEL), ortkit.OptimizeOptions(level=3, verify=False)
    )
    assert made.library is not None
    path = tmp_path_factory.mktemp("triton") / "curve.opt.onnx"
    made.save(path)
    return path


def field(config: str, name: str) -> list[str]:
    return re.findall(rf"^ *{name}: (.*)$", config, re.MULTILINE)


def test_the_folder_has_what_triton_reads(optimized: Path, tmp_path: Path) -> None:
    found = bundle(optimized, tmp_path / "models", TritonOptions(threads=2, instances=3))
    names = sorted(str(path.relative_to(tmp_path)) for path in found.files)
    assert names == [
        "models/curve/1/model.onnx",
        "models/curve/1/model.ops.so",
        "models/curve/config.pbtxt",
        "models/curve/warmup/input0",
        "models/curve/warmup/input1",
    ]
    assert list(tmp_path.rglob("*.tmp")) == []
    config = (tmp_path / "models/curve/config.pbtxt").read_text("utf-8")
    assert "needs ONNX Runtime 1.24 or later" in config
    assert field(config, "op_library_filename") == [f'"{tmp_path}/models/curve/1/model.ops.so"']
    assert field(config, "max_batch_size") == ["0"]
    assert any("input 'B'" in note for note in found.notes)
    assert field(config, "string_value") == ['"2"']
    assert "instance_group {\n  count: 3\n  kind: KIND_CPU\n}" in config
    # The bundle is a model with its library, for sessions of ours as well.
    with ortkit.Session(
        tmp_path / "models/curve/1/model.onnx", "cpu", kernels="require"
    ) as session:
        assert not session.runs_bodies


def test_the_least_version_is_that_of_the_library() -> None:
    header = (ROOT / "custom_ops" / "native" / "ort_abi.h").read_text("utf-8")
    (version,) = re.findall(r"kApiVersion = (\d+);", header)
    from ortkit.integrations.triton import LEAST_ONNXRUNTIME

    assert f"1.{version}" == LEAST_ONNXRUNTIME


def test_the_server_may_see_the_repository_elsewhere(optimized: Path, tmp_path: Path) -> None:
    options = TritonOptions(name="g", mount=PurePosixPath("/mnt/models"))
    found = bundle(optimized, tmp_path, options)
    assert found.library == "/mnt/models/g/1/model.ops.so"


def test_rows_that_are_independent_are_batched(tmp_path: Path) -> None:
    found = bundle(saved(ROWS, tmp_path / "rows.onnx"), tmp_path / "models")
    assert (found.max_batch, found.library, found.notes) == (8, "", ())
    assert field(found.config, "dims") == ["24", "1", "24", "1", "24", "1"]
    assert found.config.count("reshape {") == 2  # of I and M, which are scalars without a batch
    assert field(found.config, "max_queue_delay_microseconds") == ["100"]
    assert {*found.warmup.values()} == {(1, 24), (1,)}


def test_rows_that_are_not_independent_are_not_batched(tmp_path: Path) -> None:
    model = saved(MIXED, tmp_path / "mixed.onnx")
    found = bundle(model, tmp_path / "models")
    assert (found.max_batch, field(found.config, "dims")) == (
        0,
        ["-1", "24", "-1", "24", "1", "24"],
    )
    assert "dynamic_batching" not in found.config
    assert "requests are not batched: ReduceSum 'S'" in found.notes[0]
    asked = bundle(model, tmp_path / "models", TritonOptions(name="asked", max_batch=4))
    assert asked.max_batch == 4
    assert "without a proof" in asked.notes[0]


def test_warm_up_has_inputs_that_the_model_runs_on(optimized: Path, tmp_path: Path) -> None:
    found = bundle(optimized, tmp_path, sizes={"n": 5})
    assert found.warmup == {"X": (5, 24), "B": (24,)}
    feeds = {
        name: np.fromfile(found.folder / "warmup" / f"input{i}", np.float32).reshape(shape)
        for i, (name, shape) in enumerate(found.warmup.items())
    }
    with ortkit.Session(found.folder / "1" / "model.onnx", "cpu") as session:
        assert session.run(feeds)["Y"].shape == (5, 24)


def test_strings_have_their_length_before_them(tmp_path: Path) -> None:
    found = bundle(saved(TEXTS, tmp_path / "texts.onnx"), tmp_path / "models", sizes={"n": 1})
    data = (found.folder / "warmup" / "input0").read_bytes()
    assert int.from_bytes(data[:4], "little") == len(data) - 4
    assert "TYPE_STRING" in found.config


def test_weights_beside_the_model_come_along(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    model = fused_model(tmp_path, {}, "weights.bin")
    found = bundle(model, tmp_path / "models", TritonOptions(kernels=False))
    assert found.folder / "1" / "weights.bin" in found.files
    with ortkit.Session(found.folder / "1" / "model.onnx", "cpu", kernels="never") as session:
        assert session.run({"a": np.ones((4, 1024), np.float32)})["c"].max() == 2


def test_a_library_from_elsewhere_is_not_bundled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, mark = untrusted_model(tmp_path, monkeypatch)
    with pytest.raises(UserError, match="was not built by this user on this machine"):
        bundle(model, tmp_path / "models")
    assert not mark.exists()
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (TritonOptions(name="a/b"), "name: 'a/b' is no name"),
        (TritonOptions(name=".hidden"), "no name"),
        (TritonOptions(mount=PurePosixPath("models")), "give the absolute path"),
        (TritonOptions(instances=0), "one at least"),
        (TritonOptions(max_batch=-1), "max_batch -1: is no number"),
        (TritonOptions(threads=-2), "threads -2: cannot be negative"),
        (TritonOptions(delay_us=-5), "delay -5: cannot be negative"),
        (TritonOptions(max_batch=4), "the first axis of input 'B' is not the batch"),
    ],
)
def test_bad_options_write_nothing(
    optimized: Path, tmp_path: Path, options: TritonOptions, said: str
) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        bundle(optimized, tmp_path / "models", options)
    assert not (tmp_path / "models").exists()


def test_what_is_there_is_not_replaced(optimized: Path, tmp_path: Path) -> None:
    (tmp_path / "curve").mkdir()
    with pytest.raises(UserError, match="is there already"):
        bundle(optimized, tmp_path)
    assert [*(tmp_path / "curve").iterdir()] == []


def test_sequences_are_refused(tmp_path: Path) -> None:
    model = saved(WRAPPED, tmp_path / "sequence.onnx")
    with pytest.raises(UserError, match="Triton serves tensors"):
        bundle(model, tmp_path / "models")
    assert not (tmp_path / "models").exists()


def test_names_are_escaped() -> None:
    assert proto_text({"a": 'x"\\\n\u00e9', "b": [True, Enum("ON")], "c": {}}) == (
        'a: "x\\042\\134\\012\\303\\251"\nb: true\nb: ON\nc {\n}\n'
    )


def test_the_command_says_what_it_wrote(
    optimized: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bundle", "triton", str(optimized), "--repository", str(tmp_path), "--mount", "/m"]
    assert run([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["library"] == "/m/curve/1/model.ops.so"
    assert document["least_onnxruntime"] == "1.24"
    assert run([*words, "--name", "again"]) == 0
    said = capsys.readouterr().out
    assert "/m/again/1/model.ops.so" in said
    assert "ONNX Runtime 1.24 or later" in said


def test_a_c_program_registers_the_library_as_triton_does(optimized: Path, tmp_path: Path) -> None:
    """Triton's backend passes `op_library_filename` to the deprecated RegisterCustomOpsLibrary."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    program = tmp_path / "deploy"
    source = ROOT / "tests" / "native" / "deploy.c"
    subprocess.run([*compiler.split(), "-std=c11", source, "-o", program, "-ldl"], check=True)
    found = bundle(optimized, tmp_path / "models")
    (library,) = (json.loads(text) for text in field(found.config, "op_library_filename"))
    spec = find_spec("onnxruntime")
    assert spec is not None
    assert spec.origin is not None
    (runtime,) = (Path(spec.origin).parent / "capi").glob("libonnxruntime.so.*")
    generator = np.random.default_rng(0)
    feeds = {
        "B": generator.standard_normal(24, np.float32),
        "X": generator.standard_normal((7, 24), np.float32),
    }
    model = found.folder / "1" / "model.onnx"
    done = subprocess.run(
        [program, runtime, model, library, "24", "2", "1"],
        input=b"".join(value.tobytes() for value in feeds.values()), capture_output=True,
        env={"PATH": "/nowhere", "ORT_DISABLE_TELEMETRY": "1"}, cwd="/", check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    for each in np.frombuffer(done.stdout, np.float32).reshape(2, 7, 24):
        with ortkit.Session(model, "cpu", kernels="require") as session:
            np.testing.assert_array_equal(each, session.run(feeds)["Y"])


def parsed(config: str) -> Any:
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    return text_format.Parse(config, model_config_pb2.ModelConfig())


@pytest.mark.slow
@needs("tritonclient", extra="triton-server")
def test_tritons_own_schema_takes_the_configuration(optimized: Path, tmp_path: Path) -> None:
    config = parsed(bundle(optimized, tmp_path).config)
    assert (config.name, config.backend) == ("curve", "onnxruntime")
    assert [*config.model_operations.op_library_filename] == [f"{tmp_path}/curve/1/model.ops.so"]
    (warmup,) = config.model_warmup
    assert [*warmup.inputs["X"].dims] == [1, 24]
    odd = 'a "name"\\ of \u00e9\n'
    model = onnx.parser.parse_model(ROWS)
    model.graph.input[0].name = model.graph.node[0].input[0] = odd
    onnx.save(model, tmp_path / "rows.onnx")
    batched = parsed(bundle(tmp_path / "rows.onnx", tmp_path / "models").config)
    assert batched.input[0].name == odd
    assert [*batched.input[1].dims] == [1]
    assert batched.input[1].HasField("reshape")
    assert batched.HasField("dynamic_batching")
    with pytest.raises(Exception, match="no field named"):
        parsed("max_batches: 3\n")
