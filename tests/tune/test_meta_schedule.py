"""`ortkit tune --search meta-schedule`: schedules for known sizes, found, kept and dispatched."""

from __future__ import annotations

import ctypes
import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from ortkit.cli.main import run as ortkit_run
from ortkit.errors import KernelError
from ortkit.extend.check.op_check import check_op
from ortkit.extend.declare.find_ops import find_ops
from ortkit.extend.declare.variants import Form
from ortkit.extend.tvm.kernels import compile_tvm
from ortkit.extend.tvm.searched import SearchedKernel, searched_kernels
from ortkit.extend.tvm.traces import NAME, TracedSchedule, name_of, read_traced
from ortkit.kernels.link.linker import find_linker
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

pytest.importorskip("tvm.s_tir.meta_schedule")

OPS_FILE = """
import numpy as np
import ortkit
from tvm import te
from tvm.script import tirx as T


@ortkit.custom_op("tests.searched::Product")
def product(x: ortkit.Float32["m k"], w: ortkit.Float32["k n"]) -> ortkit.Float32["m n"]:
    return x @ w


@product.kernel("tvm", split="m")
def product_te(x, w, *, n):
    d = te.reduce_axis((0, x.shape[1]), "d")
    return te.compute((x.shape[0], n), lambda i, j: te.sum(x[i, d] * w[d, j], axis=d), "y")


@ortkit.custom_op("tests.searched::Scaled")
def scaled(x: ortkit.Float32["*rows n"], *, by: float = 2.0) -> ortkit.Float32["*rows n"]:
    return x * np.float32(by)


@scaled.kernel("tvm")
@T.prim_func(s_tir=True)
def scaled_tir(x: T.handle, by: T.float32, y: T.handle):
    a = T.int64()
    b = T.int64()
    rows = T.match_buffer(x, (a, b), "float32")
    out = T.match_buffer(y, (a, b), "float32")
    for i, j in T.grid(a, b):
        with T.sblock("y"):
            vi, vj = T.axis.remap("SS", [i, j])
            out[vi, vj] = rows[vi, vj] * by
"""
TARGET = Target().resolved()
SIZES = {"m": 16, "k": 24, "n": 32}
FLAGS = [f"--shape={name}={size}" for name, size in SIZES.items()]


@pytest.fixture
def ops_file(tmp_path: Path) -> Iterator[Path]:
    before = dict(OPS)
    path = tmp_path / "my_ops.py"
    path.write_text(OPS_FILE)
    yield path
    OPS.clear()
    OPS.update(before)


def kernels(path: Path, **sizes: int) -> tuple[SearchedKernel, ...]:
    notes: list[str] = []
    ops = [op for op in find_ops([str(path)]) if op.domain == "tests.searched"]
    found = searched_kernels(ops, TARGET, {**SIZES, "rows": 6, **sizes}, {}, notes)
    assert notes == []
    return tuple(found)


def keep(kernel: SearchedKernel, best: str, generator: str = "") -> None:
    place = RecordKey(processor(), TARGET.level, NAME, kernel.signature.key, kernel.bucket)
    record = Record(kernel.name, generator or kernel.generator, (), best, 2.0, 1)
    keep_database(TunedDatabase({place: record}))


def tuned(path: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, object]:
    assert ortkit_run(["tune", str(path), "--search", NAME, "--json", *flags]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def function_of(form: Form, text: str, folder: Path) -> Callable[..., None]:
    """Compile a kernel, and return what runs it on arrays, its units cut at some places."""
    traced = read_traced(text)
    assert traced is not None
    kernel = compile_tvm(form, TARGET, folder, traced=[traced])
    library = folder / "k.so"
    subprocess.run([*find_linker(), "-shared", "-o", library, kernel.artifact, "-lm"], check=True)
    function = getattr(ctypes.CDLL(str(library)), kernel.symbol)

    def run(arrays: list[np.ndarray], cuts: list[int]) -> None:
        (m, k), (_, n) = arrays[0].shape, arrays[1].shape
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in arrays]
        for begin, end in pairwise(cuts):
            assert function(*pointers, *(ctypes.c_int64(s) for s in (m, k, n, begin, end))) == 0

    return run


def test_schedules_are_proposed_once_and_others_by_the_next_run(ops_file: Path) -> None:
    product, _ = kernels(ops_file)
    first = product.propose({}, 5)
    tried = dict(zip(first, (0.5, 3.0, None, 2.0, 1.0), strict=True))
    more = product.propose(tried, 5)
    (again, _) = kernels(ops_file)
    resumed = again.propose({**tried, "vector=32": 1.5}, 5)
    assert len({*first, *more}) == 10
    assert len({*first, *resumed}) == 10
    for text in (*first, *resumed):
        read = read_traced(text)
        assert read is not None
        assert read.sizes == {"m": 8, "k": 24, "n": 32}
        assert str(read) == text
        assert name_of(text) == read.name == f"{NAME} m=8,k=24,n=32 {text.split()[2]}"


def test_of_a_small_space_nothing_is_proposed_again(ops_file: Path) -> None:
    first: list[str] = []
    for size in (30, 100):
        product, _ = kernels(ops_file, m=1, k=2, n=2)
        new = product.propose(dict.fromkeys(first, 1.0), size)
        assert not {*new} & {*first}
        first += new
    assert len({*first}) == len(first)


@pytest.mark.parametrize("damage", [
    lambda text: text[:-9],
    lambda text: text.replace("m=8", "m=0"),
    lambda text: text.replace("m=8", "m=9,"),
    lambda text: f"{text} ",
    lambda text: text.replace(NAME, "vector=4"),
    lambda text: " ".join([*text.split()[:2], "00000000", text.split()[3]]),
])  # fmt: skip
def test_damaged_texts_are_none(damage: object) -> None:
    text = str(TracedSchedule({"m": 8}, [[], []]))
    assert read_traced(text) is not None
    assert read_traced(damage(text)) is None  # type: ignore[operator]


def test_each_row_is_computed_alike_however_work_is_cut(ops_file: Path, tmp_path: Path) -> None:
    """Also the rows behind the last whole block, and sizes that the schedule is not for."""
    product, _ = kernels(ops_file)
    (text,) = product.propose({}, 1)
    run, random = function_of(product.form, text, tmp_path), np.random.default_rng(0)
    for m, n in [(16, 32), (29, 32), (7, 32), (16, 40)]:
        x, w = (random.standard_normal(s).astype(np.float32) for s in ((m, 24), (24, n)))
        found = []
        for cuts in ([0, m], [0, 3, 5, m], [*range(m + 1)]):
            y = np.full((m, n), np.nan, np.float32)
            run([x, w, y], cuts)
            found.append(y)
        np.testing.assert_allclose(found[0], x @ w, atol=1e-4)
        times = np.zeros(m)  # that a row is written
        for cuts in pairwise([0, 3, 5, m]):
            y = np.full((m, n), np.nan, np.float32)
            run([x, w, y], [*cuts])
            times += ~np.isnan(y).any(axis=1)
        assert (times == 1).all()
        assert all((item == found[0]).all() for item in found)


def test_what_was_found_is_built_and_tested(
    ops_file: Path, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    product, scaled = kernels(ops_file)
    plain = check_op(product.form.op)
    for kernel in (product, scaled):
        (text,) = kernel.propose({}, 1)
        keep(kernel, text)
        found = check_op(kernel.form.op)
        assert [str(fault) for fault in found.faults] == []
        library = tmp_path / f"{kernel.form.op.name}.so"
        build = ["ops", "build", kernel.form.op.id, "--from", str(ops_file), "-o", str(library)]
        assert ortkit_run([*build, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["ops"][0]["notes"] == []
        (cache / "tuned.json").unlink()
        before = library.read_bytes()
        assert ortkit_run([*build, "--json"]) == 0
        capsys.readouterr()
        assert before != library.read_bytes()
    keep(product, product.propose({}, 1)[0])
    assert check_op(product.form.op).kernels == plain.kernels + 1


@pytest.mark.parametrize("what", ["version", "steps"])
def test_a_schedule_that_cannot_be_used_is_said(
    ops_file: Path, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    product, _ = kernels(ops_file)
    (text,) = product.propose({}, 1)
    if what == "version":
        keep(product, text, f"{NAME} apache-tvm-0.1 0123")
    else:
        read = read_traced(text)
        assert read is not None
        steps = [["GetSBlock", [], ["absent", "main"], ["b0"]]]
        keep(product, str(replace(read, trace=[steps, []])))
    library = tmp_path / "ops.so"
    build = ["ops", "build", product.form.op.id, "--from", str(ops_file), "-o", str(library)]
    assert ortkit_run([*build, "--json"]) == 0
    (note,) = json.loads(capsys.readouterr().out)["ops"][0]["notes"]
    assert "m=8,k=24,n=32" in note["note"]
    assert "tune it again" in note["note"]


def test_trials_are_kept_exported_and_merged(
    ops_file: Path,
    cache: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "found.json"
    ops_file.write_text(OPS_FILE.partition('@ortkit.custom_op("tests.searched::Scaled")')[0])
    first = tuned(ops_file, capsys, "--trials=4", *FLAGS, "--db", str(file))
    assert first["trials"] == 4
    second = tuned(ops_file, capsys, "--trials=2", *FLAGS)
    (place,) = (
        item for item in load_database(cache / "tuned.json").records if item.backend == NAME
    )
    assert place.bucket == "m=8,k=24,n=32"
    record = load_database(cache / "tuned.json").records[place]
    tried = [trial.choices for trial in record.trials]
    assert len(set(tried)) == len(tried) == second["regions"][-1]["trials"]  # type: ignore[index]
    assert second["regions"][-1]["kernels"] is None  # type: ignore[index]
    assert sum(read_traced(one) is not None for one in tried) >= 3
    tuned(ops_file, capsys, "--trials=0", *FLAGS, "--db", str(tmp_path / "known.json"))
    assert load_database(tmp_path / "known.json") == load_database(cache / "tuned.json")
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path / "other"))
    merged = tuned(ops_file, capsys, "--trials=0", "--merge", str(file), *FLAGS)
    assert merged["trials"] == 0
    exported = load_database(file).records[place]
    assert load_database(tmp_path / "other" / "tuned.json").records[place] == exported
    assert {one.choices for one in exported.trials} < {*tried}


def test_sizes_come_from_inputs(
    ops_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = {"x": np.zeros((3, 2, 40)), "w": np.zeros((40, 9))}
    np.savez(tmp_path / "x.npz", **arrays)
    ops_file.write_text(
        OPS_FILE.partition('@ortkit.custom_op("tests.searched::Product")')[0]
        + OPS_FILE[OPS_FILE.index('@ortkit.custom_op("tests.searched::Scaled")') :]
    )
    found = tuned(ops_file, capsys, "--trials=0", "--inputs", str(tmp_path / "x.npz"))
    assert [6, 40] in found["inputs"].values()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ([], "meta-schedule needs numbers for all sizes, and m, k, n are not known"),
        (["--shape=m=8", "--shape=k=0", "--shape=n=1"], "it is not for the sizes m=8, k=0, n=1"),
        ([*FLAGS, "--shape=columns=8"], "no kernel has a size 'columns'; known: m, k, n"),
        (["--target=cuda", *FLAGS, "--shape=rows=2"], "tuned for this machine's processor"),
    ],
)
def test_what_cannot_be_searched_is_one_line(
    ops_file: Path, capsys: pytest.CaptureFixture[str], flags: list[str], problem: str
) -> None:
    assert ortkit_run(["tune", str(ops_file), "--search", NAME, *flags]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert problem in line


def test_models_are_not_searched_that_way(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ortkit_run(["tune", str(model), "--search", NAME]) == 2
    assert "kernels that users wrote" in capsys.readouterr().err


def test_functions_that_it_has_no_space_for_have_a_problem(
    ops_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    product, _ = kernels(ops_file)
    monkeypatch.setattr(type(product.search), "next", lambda *_: 1 // 0)
    with pytest.raises(KernelError, match="meta-schedule failed: ZeroDivisionError"):
        product.propose({}, 1)
