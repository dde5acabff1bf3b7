"""`ortkit tune` of kernels that users wrote in TE, and what `ops build` makes after it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest

from ortkit.cli.main import run as ortkit_run
from ortkit.errors import KernelError
from ortkit.extend.build.library import build_ops
from ortkit.extend.declare.find_ops import choose_ops, find_ops
from ortkit.extend.tvm import choices as tvm_choices
from ortkit.extend.tvm import schedule
from ortkit.extend.tvm.kernels import compile_tvm
from ortkit.extend.tvm.maker import Maker
from ortkit.extend.tvm.tuning import BACKEND, te_kernels
from ortkit.kernels.tuning.calibration import processor
from ortkit.kernels.tuning.database import (
    Record,
    RecordKey,
    TunedDatabase,
    keep_database,
    load_database,
)
from ortkit.runtime.python_ops import OPS
from ortkit.targets.target import Target
from ortkit.tune.kernels import _case as kernel_case
from ortkit.tune.region import TuningRegion

pytest.importorskip("tvm.te")

OPS_FILE = """
import numpy as np
import ortkit
from tvm import te


@ortkit.custom_op("tests.tuned::Centered")
def centered(x: ortkit.Float32["m n"], b: ortkit.Float32["n"]) -> ortkit.Float32["m n"]:
    return x - x.sum(-1, keepdims=True) + b


@centered.kernel("tvm", split="m", when="n % 2 == 0")
def centered_te(x, b):
    m, n = x.shape
    k = te.reduce_axis((0, n), "k")
    total = te.compute((m,), lambda i: te.sum(x[i, k], axis=k), "total")
    return te.compute((m, n), lambda i, j: x[i, j] - total[i] + b[j], "y")


@ortkit.custom_op("tests.tuned::Doubled")
def doubled(x: ortkit.Float32["*s"]) -> ortkit.Float32["*s"]:
    return x + x


def ordered(schedule):
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    schedule.vectorize(schedule.split(loop, [None, 8])[1])


@doubled.kernel("tvm", split="s", schedule=ordered)
def doubled_te(x):
    return te.compute(x.shape, lambda i: x[i] + x[i], "y")
"""
NEGATED = """
@ortkit.custom_op("tests.tuned::Negated")
def negated(x: ortkit.Float32["*s"]) -> ortkit.Float32["*s"]:
    return -x


@negated.kernel("tvm", split="s", dtypes=["float32"])
def negated_te(x):
    return te.compute(x.shape, lambda i: x[i] * -1.0, "y")
"""
TARGET = Target().resolved()


@pytest.fixture
def ops_file(tmp_path: Path) -> Iterator[Path]:
    before = dict(OPS)
    path = tmp_path / "my_ops.py"
    path.write_text(OPS_FILE)
    yield path
    OPS.clear()
    OPS.update(before)


def tuned(path: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, object]:
    assert ortkit_run(["tune", str(path), "--json", *flags]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def run(library: Path, x: np.ndarray, b: np.ndarray) -> np.ndarray:
    text = (
        '<ir_version: 10, opset_import: ["" : 20, "tests.tuned" : 1]> '
        "g (float[m,n] x, float[n] b) => (y) { y = tests.tuned.Centered(x, b) }"
    )
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(library))
    model = onnx.parser.parse_model(text).SerializeToString()
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, {"x": x, "b": b})[0]
    return found


def test_trials_are_kept_and_none_is_repeated(
    ops_file: Path,
    cache: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of kernels without a schedule of the user's; sizes that nobody gives are the usual ones."""
    monkeypatch.setattr(TuningRegion, "is_pending", False)
    first = tuned(ops_file, capsys, "--trials", "3", "--shape", "m=8")
    assert first["schema"] == "ortkit.tune/1"
    name = "tests.tuned::Centered float32 by centered_te (tvm) where n % 2 == 0"
    assert first["inputs"] == {f"{name}: x": [8, 512], f"{name}: b": [512]}
    second = tuned(ops_file, capsys, "--trials", "5", "--shape", "m=8")
    (region,) = second["regions"]  # type: ignore[misc]
    assert (region["op"], region["trials"], region["new_trials"]) == (name, 8, 5)
    ((place, record),) = load_database(cache / "tuned.json").records.items()
    assert (place.backend, place.bucket) == (BACKEND, "s0=8,s1=512")
    tried = [trial.choices for trial in record.trials]
    assert len(set(tried)) == len(tried) == 8
    assert "reassociate=1" in tried


def test_a_library_is_built_after_what_was_found(
    ops_file: Path, cache: Path, tmp_path: Path
) -> None:
    (op,) = choose_ops(find_ops([str(ops_file)]), ["tests.tuned::Centered"])
    (kernel,) = te_kernels([op], TARGET)
    x = np.random.default_rng(0).standard_normal((37, 150)).astype(np.float32)
    found = {}
    for choices in ("", "vector=32,unroll=2", "reassociate=1", "wings=2"):
        place = RecordKey(processor(), TARGET.level, BACKEND, kernel.signature.key, "s0=64,s1=256")
        record = Record(kernel.name, "g", (), choices, 2.0, 1)
        keep_database(TunedDatabase({place: record}))
        library = tmp_path / f"{len(found)}.so"
        assert build_ops([op], library).library is not None
        found[choices] = (library.read_bytes(), run(library, x, x[0]))
        np.testing.assert_allclose(found[choices][1], op(x, x[0]), atol=1e-4)
    assert found["wings=2"][0] == found[""][0] != found["vector=32,unroll=2"][0]
    assert (found["vector=32,unroll=2"][1] == found[""][1]).all()
    # Sums in another order have other last bits.
    assert (found["reassociate=1"][1] != found[""][1]).any()


def test_loops_are_as_chosen(ops_file: Path) -> None:
    (op,) = choose_ops(find_ops([str(ops_file)]), ["tests.tuned::Centered"])
    (kernel,) = te_kernels([op], TARGET)

    def loops(choices: tvm_choices.Choices) -> list[str]:
        text = Maker(kernel.form, TARGET.level, choices).function().script()
        return re.findall(r"T\.(?:unroll|vectorized)\(T\.int64\((\d+)\)\)", text)

    assert loops(tvm_choices.DEFAULTS) == ["16"]
    assert loops(tvm_choices.Choices(vector=32, unroll=4)) == ["4", "32"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("n", [2, 126])
def test_every_choice_computes_the_same(
    ops_file: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    from ortkit.extend.tvm import tuning

    (op,) = choose_ops(find_ops([str(ops_file)]), ["tests.tuned::Centered"])
    x = np.random.default_rng(n).standard_normal((5, n)).astype(np.float32)
    for number, choices in enumerate(("vector=64,unroll=8", "vector=4,unroll=2,reassociate=1")):
        monkeypatch.setattr(tuning, "chosen_for", lambda *_, c=choices: c)
        library = tmp_path / f"{number}.so"
        build_ops([op], library)
        np.testing.assert_allclose(run(library, x, x[0]), op(x, x[0]), atol=1e-4)


def test_choices_that_are_none_are_refused(ops_file: Path, tmp_path: Path) -> None:
    (op,) = choose_ops(find_ops([str(ops_file)]), ["tests.tuned::Centered"])
    (kernel,) = te_kernels([op], TARGET)
    with pytest.raises(KernelError, match="no kernel is known as 'wings=2'"):
        compile_tvm(kernel.form, TARGET, tmp_path, "wings=2")
    assert tvm_choices.read_choices("vector=3") is None


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--target", "cuda"], "tuned for this machine's processor"),
        (["--runner", "ray"], "tuned for this machine's processor"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    ops_file: Path, capsys: pytest.CaptureFixture[str], flags: list[str], problem: str
) -> None:
    assert ortkit_run(["tune", str(ops_file), *flags]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert problem in line


def test_sizes_that_a_kernel_is_not_for_leave_it_out(
    ops_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tuned(ops_file, capsys, "--trials", "1", "--shape", "n=7")
    assert found["regions"] == []
    assert "it is not for the sizes m=512, n=7" in str(found["notes"])


def test_a_size_that_is_the_only_one_is_a_long_one(ops_file: Path) -> None:
    ops_file.write_text(OPS_FILE + NEGATED)
    ops = find_ops([str(ops_file)])
    assert [item.form.op.name for item in te_kernels(ops, TARGET)] == ["Centered", "Negated"]
    (kernel,) = te_kernels(choose_ops(ops, ["tests.tuned::Negated"]), TARGET)
    assert "reassociate" not in kernel.parameters
    assert kernel_case(kernel, {}, 0.5).sizes == (65_536,)
    assert kernel_case(kernel, {"s": 7}, 0.5).sizes == (7,)


def test_a_file_without_such_kernels_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "none.py"
    path.write_text("x = 1\n")
    assert ortkit_run(["tune", str(path)]) == 2
    assert "no op has a kernel in TE" in capsys.readouterr().err
    assert ortkit_run(["tune", str(tmp_path / "missing.py")]) == 2
    assert "no such file" in capsys.readouterr().err


def test_what_the_schedule_cannot_do_is_said(
    ops_file: Path,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The kernel is right all the same."""

    def refused(*_: object) -> None:
        raise ValueError("Traceback\n  the loop is not parallel\n")

    monkeypatch.setattr(schedule, "_in_lanes", refused)
    library = tmp_path / "ops.so"
    flags = ["ops", "build", "tests.tuned::Centered", "--from", str(ops_file), "-o", str(library)]
    assert ortkit_run(flags) == 0
    note = "y is computed without vectors: the loop is not parallel"
    assert note in " ".join(capsys.readouterr().out.split())
    assert ortkit_run([*flags, "--json"]) == 0
    (op,) = json.loads(capsys.readouterr().out)["ops"]
    assert [item["note"] for item in op["notes"]] == [note]
    x = np.random.default_rng(0).standard_normal((6, 34)).astype(np.float32)
    np.testing.assert_allclose(
        run(library, x, x[0]), x - x.sum(-1, keepdims=True) + x[0], atol=1e-4
    )
