"""`ortkit optimize` killed at any moment: a whole model, and no temporaries after the next."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

SIZE = 64
HANG_SECONDS = 120


def model(number: int) -> onnx.ModelProto:
    """Return two layers that fuse into kernels, with weights by `number`."""
    rng = np.random.default_rng(number)
    nodes, tensors, value = [], [], "x"
    for i in range(2):
        weights = (rng.standard_normal((SIZE, SIZE)) / 8).astype(np.float32)
        tensors += [
            numpy_helper.from_array(weights, f"w{i}"),
            numpy_helper.from_array(rng.standard_normal(SIZE).astype(np.float32), f"b{i}"),
        ]
        nodes += [
            helper.make_node("MatMul", [value, f"w{i}"], [f"m{i}"]),
            helper.make_node("Add", [f"m{i}", f"b{i}"], [f"a{i}"]),
            helper.make_node("Sigmoid", [f"a{i}"], [f"s{i}"]),
            helper.make_node("Mul", [f"s{i}", f"a{i}"], [f"y{i}"]),
        ]
        value = f"y{i}"
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "layers",
        [info("x", TensorProto.FLOAT, ["n", SIZE])],
        [info(value, TensorProto.FLOAT, ["n", SIZE])],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@dataclass
class Place:
    """Folders of runs, and the two models that they optimize in turn."""

    root: Path

    @property
    def output(self) -> Path:
        return self.root / "out" / "out.onnx"

    def start(self, number: int, mark: str = "") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ortkit", "optimize", str(self.source(number)), "-o",
                   str(self.output), "--quiet"]  # fmt: skip
        own = {"TMPDIR": str(self.root / "tmp"), "ORTKIT_CACHE": str(self.root / "cache")}
        return subprocess.Popen(command, env={**os.environ, **own, "ORTKIT_TEST_MARK": mark})

    def run(self, number: int) -> None:
        assert self.start(number).wait(HANG_SECONDS) == 0

    def source(self, number: int) -> Path:
        return self.root / f"{number}.onnx"

    def result(self) -> np.ndarray:
        """Run the output in plain ONNX Runtime."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            str(self.output), options, providers=["CPUExecutionProvider"]
        )
        x = np.linspace(-1, 1, 3 * SIZE, dtype=np.float32).reshape(3, SIZE)
        return np.asarray(session.run(None, {"x": x})[0])

    def names(self) -> set[str]:
        return {path.name for path in self.output.parent.iterdir()}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("killed"))
    for name in ("out", "tmp", "cache"):
        (place.root / name).mkdir()
    for number in (1, 2):
        onnx.save(model(number), place.source(number), save_as_external_data=True,
                  location=f"{number}.onnx.data")  # fmt: skip
    return place


def marked(mark: str) -> list[int]:
    """Return the processes that have a mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def killed_at_random(place: Place, kills: int, seed: int) -> None:
    expected = {}
    for number in (1, 2):
        began = time.monotonic()
        place.run(number)
        seconds = time.monotonic() - began  # of the second, whose kernels are there already
        expected[number] = place.result()
    assert not np.array_equal(expected[1], expected[2])
    rng, was = random.Random(seed), 2
    for kill in range(kills):
        number, mark = 3 - was, uuid.uuid4().hex
        process = place.start(number, mark)
        try:
            process.wait(seconds * rng.random())
        except subprocess.TimeoutExpired:
            process.kill()
        process.wait()
        until = time.monotonic() + HANG_SECONDS
        while marked(mark) and time.monotonic() < until:
            time.sleep(0.02)
        assert marked(mark) == [], "a process outlives the run that started it"
        result = place.result()
        whose = [each for each, value in expected.items() if np.array_equal(result, value)]
        assert whose, f"kill {kill}: the output is neither the old model nor the new one"
        was = whose[0]
        stated = {
            entry.key: entry.value
            for entry in onnx.load(place.output, load_external_data=False).metadata_props
        }
        library = place.output.with_name(stated["ortkit.library"]).read_bytes()
        is_matching = hashlib.sha256(library).hexdigest() == stated["ortkit.library.sha256"]
        assert is_matching or was != number, f"kill {kill}: the new model lacks its library"
    # Of a run that was killed while it stored a kernel; the next one only reads the cache.
    (place.root / "cache" / "kernels" / ".ortkit-draft-0123456789abcdef.tmp").touch()
    place.run(1)
    (data,) = place.output.parent.glob("out.onnx.*.data")
    assert place.names() == {"out.onnx", "out.ops.so", data.name}
    assert list((place.root / "tmp").iterdir()) == []
    in_cache = [path.name for path in (place.root / "cache").rglob("*")]
    assert [name for name in in_cache if name.startswith(".") or name.endswith(".tmp")] == []


def test_kills_at_random_moments(place: Place) -> None:
    killed_at_random(place, 3, seed=0)


@pytest.mark.slow
def test_fifty_kills_at_random_moments(place: Place) -> None:
    killed_at_random(place, 50, seed=1)
