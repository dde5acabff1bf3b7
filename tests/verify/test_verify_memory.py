"""Processes of a verification take little more memory than the weights do."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import measured_child
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from small_models import proto, save

from ortkit.graph.io.open import open_model
from ortkit.graph.io.parts import share_weights, write_part
from ortkit.graph.io.save import save_model
from ortkit.runtime.ort import import_onnxruntime
from ortkit.verify import child, sessions
from ortkit.verify.limits import value_bytes
from ortkit.verify.pair import verify_models

MIB = 1 << 20
WIDTH, LAYERS = 1024, 16
WEIGHTS = LAYERS * WIDTH * WIDTH * 4


def layers() -> onnx.ModelProto:
    """Return a model with 64 MiB of weights inside of its file."""
    lines, weights = [], {}
    rng = np.random.default_rng(0)
    for i in range(LAYERS):
        lines.append(f"m{i} = MatMul({f'h{i - 1}' if i else 'x'}, w{i}) h{i} = Tanh(m{i})")
        drawn = rng.standard_normal((WIDTH, WIDTH), dtype=np.float32)
        weights[f"w{i}"] = drawn * np.float32(WIDTH**-0.5)
    body = "\n".join(lines)
    return proto(
        f"g (float[n, {WIDTH}] x) => (float[n, {WIDTH}] h{LAYERS - 1}) {{ {body} }}", weights
    )


class Peaks:
    """The most memory that each process took, in bytes."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def take(self) -> list[int]:
        """Return the peaks of all processes since the last call."""
        found = [int(line) << 10 for line in self.file.read_text(encoding="ascii").split()]
        self.file.unlink()
        return found


@pytest.fixture
def peaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Peaks:
    """Let processes that run sessions note their peaks."""
    monkeypatch.setattr(sessions, "run_settings", measured_child.run_settings)
    monkeypatch.setenv(measured_child.PEAKS, str(tmp_path / "peaks"))
    return Peaks(tmp_path / "peaks")


def test_a_process_takes_little_more_than_the_weights(tmp_path: Path, peaks: Peaks) -> None:
    """All values on the largest input set take 200 MiB, and are compared in parts."""
    small = proto(f"g (float[n, {WIDTH}] x) => (float[n, {WIDTH}] y) {{ y = Tanh(x) }}")
    tiny = save(tmp_path, "tiny", small)
    assert verify_models(tiny, tiny, samples=1, shapes={"n": 4}).verdict == "yes"
    base = max(peaks.take())
    path = save(tmp_path, "layers", layers())
    found = verify_models(path, path, samples=1, shapes={"n": 1600})
    assert (found.verdict, len(found.values.compared)) == ("yes", 2 * LAYERS)
    values = value_bytes(WEIGHTS, None)
    assert values < 2 * LAYERS * 1600 * WIDTH * 4 / 3
    # A part of the model holds a part of the weights, its values and what they are computed from.
    assert max(peaks.take()) - base < 1.5 * WEIGHTS + 2 * values


def test_a_limit_of_the_user_makes_smaller_parts(tmp_path: Path, peaks: Peaks) -> None:
    path = save(tmp_path, "layers", layers())
    assert verify_models(path, path, samples=1, shapes={"n": 512}).verdict == "yes"
    free = len(peaks.take())
    found = verify_models(path, path, samples=1, shapes={"n": 512}, memory_mib=256)
    assert found.verdict == "yes", found.reason
    limited = peaks.take()
    assert len(limited) > free
    assert max(limited) < 256 * MIB


def test_a_model_beyond_the_users_limit_names_the_flag() -> None:
    text = (
        "g (float[n] x) => (float[n] y) { c = ConstantOfShape(s) t = ReduceSum(c) y = Add(x, t) }"
    )
    built = ir.from_proto(proto(text, {"s": np.array([1 << 28])}))  # 1 GiB
    found = verify_models(built, built, memory_mib=512)
    assert found.verdict == "not possible"
    assert "--verify-memory" in found.fix


def test_values_are_a_part_of_the_weights_but_not_of_small_ones() -> None:
    assert value_bytes(0, None) == value_bytes(100 * MIB, None) == 64 * MIB
    assert value_bytes(2000 * MIB, None) == 300 * MIB
    assert value_bytes(0, 1000 * MIB) > 4 * value_bytes(0, 300 * MIB)
    assert 0 < value_bytes(2000 * MIB, 300 * MIB) < 16 * MIB


# ---- parts of models -----------------------------------------------------------------------


@pytest.mark.parametrize("external", [False, True])
def test_parts_share_one_data_file(tmp_path: Path, external: bool) -> None:
    path = save_model(ir.from_proto(layers()), tmp_path / "m.onnx", external_data=external).model
    model = open_model(path)
    (tmp_path / "parts").mkdir()
    folder = share_weights(model, tmp_path / "parts" / "shared.onnx")
    assert folder == (tmp_path if external else tmp_path / "parts")
    part = model.clone()
    part.graph.outputs[:] = [next(v for n in part.graph for v in n.outputs if v.name == "h3")]
    written = write_part(part, folder / "part.onnx", folder)
    assert written.stat().st_size < 64 << 10
    x = np.ones((2, WIDTH), np.float32)
    ort = import_onnxruntime()
    (expected,) = _session(ort, layers()).run(["h3"], {"x": x})
    (actual,) = ort.InferenceSession(written).run(None, {"x": x})
    np.testing.assert_array_equal(actual, expected)


def _session(ort: Any, model: onnx.ModelProto) -> Any:
    model.graph.output.append(onnx.ValueInfoProto(name="h3"))
    return ort.InferenceSession(model.SerializeToString())


def test_what_a_process_inherits_is_not_what_it_allocates() -> None:
    code = (
        "import numpy, ortkit.verify.child as child\n"
        "held = numpy.ones(400 << 20, numpy.uint8)\n"
        "child._limit_memory(256 << 20)\n"
        "more = numpy.ones(128 << 20, numpy.uint8)\n"
        "try:\n    numpy.ones(256 << 20, numpy.uint8)\n"
        "except MemoryError: print('limited')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("limited\n", "")


def test_a_full_disk_says_what_to_free() -> None:
    said = child._line(OSError(errno.ENOSPC, "No space left on device"))
    assert said == "No space left on device: free some space, or set TMPDIR"
