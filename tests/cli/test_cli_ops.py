"""`ortkit ops`: list, show, test and build, from a file, a module and an installed package."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest

from ortkit.runtime.python_ops import OPS

SOURCE = '''
import numpy as np
import onnxscript
import ortkit
from onnxscript import opset20 as op


@ortkit.custom_op("tests.cli::Double")
def double(x: ortkit.Float["*shape"]) -> ortkit.Float["*shape"]:
    """Twice the input."""
    return x + x


@double.body
@onnxscript.script()
def double_body(x):
    return op.{function}(x, x)


@ortkit.custom_op("tests.cli::Plain", version=2)
def plain(x: ortkit.Float["n"], *, by: float = 2.0) -> ortkit.Float["n"]:
    return x * np.asarray(by, x.dtype)
'''


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Path]:
    before, modules = dict(OPS), set(sys.modules)
    path = tmp_path / "my_ops.py"
    path.write_text(SOURCE.replace("{function}", "Add"))
    yield path
    OPS.clear()
    OPS.update(before)
    for name in set(sys.modules) - modules:
        if "my_ops" in name or "my_package" in name:
            del sys.modules[name]


def test_list_and_show(call, source: Path) -> None:
    done = call("ops", "list", "--from", str(source))
    assert done.code == 0
    assert "tests.cli::Double" in done.out and "reference, body" in done.out
    assert "by = 2.0" in done.out
    done = call("ops", "show", "Double", "--from", str(source))
    assert "Twice the input." in done.out and "Add (x, x)" in done.out
    assert f"{source}:" in done.out


def test_a_right_op_passes(call, source: Path) -> None:
    done = call("ops", "test", "Double", "Plain", "--from", str(source), "--dtype", "float32")
    assert (done.code, done.err) == (0, "")
    assert "tests.cli::Double: right" in done.out
    assert "tests.cli::Plain: note: no body, so no kernel" in done.out


def test_a_wrong_op_is_one_line_for_each_fault(call, source: Path) -> None:
    source.write_text(SOURCE.replace("{function}", "Mul"))
    given = ("ops", "test", "Double", "--from", str(source), "--dtype", "float32")
    done = call(*given)
    assert done.code == 1
    lines = [line for line in done.out.splitlines() if ": body: y: off by" in line]
    assert lines and all(line.startswith("tests.cli::Double") for line in lines)
    assert "tests.cli::Double: wrong" in done.out
    done = call(*given, "--json")
    assert done.code == 1
    (op,) = json.loads(done.out)["ops"]
    assert {fault["what"] for fault in op["check"]["faults"]} == {"body", "kernel"}


def test_build_writes_a_library_for_any_onnxruntime(call, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "ops.so"
    given = ("Double", "--from", str(source), "--dtype", "float32", "-o", str(out))
    done = call("ops", "build", *given)
    assert (done.code, done.err) == (0, "")
    assert "tests.cli::Double; 1 kernel, " in done.out
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(out))
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20, "tests.cli" : 1]> '
        "g (float[n] x) => (float[n] y) { y = tests.cli.Double(x) }"
    )
    session = ort.InferenceSession(model.SerializeToString(), options)
    np.testing.assert_array_equal(session.run(None, {"x": np.float32([1, 2])})[0], [2, 4])


def test_build_for_gpus_too(call, source: Path, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    out = tmp_path / "ops.so"
    given = ("Double", "--from", str(source), "--dtype", "float32", "-o", str(out), "--json")
    done = call("ops", "build", *given, "--target", "cuda", "--arch", "sm_90")
    assert (done.code, done.err) == (0, "")
    (op,) = json.loads(done.out)["ops"]
    assert op["built"] == ["float32", "float32"] and op["refused"] == []
    assert op["kernels"] == [] and op["has_backward"] is False
    assert b"tests.cli::Double" in out.read_bytes() and b".target sm_80" in out.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "Dubble"), "no op is called 'Dubble'; did you mean 'Double'?"),
        (("build", "Plain", "-o", "x.so"), "tests.cli::Plain: it has no body"),
        (("test", "--dtype", "float23"), "--dtype: 'float23' is no element type"),
        (("list", "--from", "no.py"), "--from no.py: no such file"),
        (("list", "--from", "no_module_of_this_name"), "there is no module"),
        (("build", "Double", "-o", "no/x.so"), "there is no folder 'no'"),
        (("build", "Double", "-o", "x.so", "--cpu", "z80"), "z80"),
        (("build", "Double", "-o", "x.so", "--arch", "sm_90"), "--arch needs --target cuda"),
        (
            ("build", "Double", "-o", "x.so", "--target", "cuda", "--arch", "sm_1"),
            "no kernels can be built for the GPU architecture 'sm_1'",
        ),
    ],
)
def test_bad_input_is_one_line(call, source: Path, arguments: tuple[str, ...], message: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    done = call("ops", *arguments, "--from", str(source))
    assert done.code == 2
    assert message in done.err and done.err.count("\n") == 1
    assert done.out == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import ortkit\nraise RuntimeError('no way')", "RuntimeError: no way"),
        ("def (", "SyntaxError"),
        ("import ortkit\n@ortkit.custom_op('a::B')\ndef f(x): ...", "a::B: x is not annotated"),
    ],
)
def test_a_source_that_fails_is_one_line(call, source: Path, text: str, message: str) -> None:
    source.write_text(text)
    done = call("ops", "list", "--from", str(source))
    assert done.code == 2
    assert message in done.err and done.err.count("\n") == 1


def test_an_installed_package_ships_ops(
    call, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_package.py").write_text(SOURCE.replace("{function}", "Add"))
    info = tmp_path / "my_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ortkit.ops]\nmine = my_package\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    done = call("ops", "list")
    assert done.code == 0 and "tests.cli::Double" in done.out
    (tmp_path / "my_package-1.0.dist-info" / "entry_points.txt").write_text(
        "[ortkit.ops]\nmine = my_package_that_is_gone\n"
    )
    done = call("ops", "list")
    assert done.code == 2 and "entry point mine = my_package_that_is_gone" in done.err


def test_a_source_is_not_written_over(call, source: Path) -> None:
    before = source.read_bytes()
    done = call("ops", "build", "Double", "--from", source, "-o", source)
    assert (done.code, source.read_bytes()) == (2, before)
    assert "is read; name another file" in done.err
