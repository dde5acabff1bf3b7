"""Bad input is one line and a code; nothing is written and nothing is traced."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import onnx
import onnx.parser
import pytest

from ortkit.cli import main
from ortkit.cli.feeds import blaming_made_up
from ortkit.errors import InternalError, LoadError, RunError
from ortkit.runtime.options import explained

READERS = {
    "optimize": ("FILE", "--no-verify", "--kernels", "off"),
    "inspect": ("FILE",),
    "diff": ("FILE", "FILE"),
    "verify": ("FILE", "FILE"),
    "bisect": ("FILE",),
    "try": ("FILE", "--seconds", "2"),
}
BAD_FILES = ("missing", "folder", "empty", "text", "truncated", "random")


@pytest.fixture
def bad(tmp_path: Path, folder: Path) -> Path:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("not a model\n" * 40, encoding="utf-8")
    whole = (folder / "bert.onnx").read_bytes()
    (tmp_path / "truncated").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "random").write_bytes(bytes(range(256)) * 7)
    return tmp_path


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_one_line_and_code_2(command: str, name: str, call, bad: Path) -> None:
    before = sorted(bad.rglob("*"))
    path = bad / name
    done = call(command, *(path if text == "FILE" else text for text in READERS[command]))
    assert done.code == 2, done.err
    assert done.out == ""
    assert done.err.startswith(f"ortkit: {path}: ")
    assert done.err.count("\n") == 1, done.err
    assert "Traceback" not in done.err
    assert sorted(bad.rglob("*")) == before


@pytest.mark.parametrize("command", [*READERS, "reduce"])
@pytest.mark.parametrize("path", [".", "/"])
def test_a_folder_without_a_name_is_one_line(command: str, path: str, call) -> None:
    given = {**READERS, "reduce": ("FILE", "--check", "true")}[command]
    done = call(command, *(path if text == "FILE" else text for text in given))
    assert done.code == 2, done.err
    assert done.err.startswith(f"ortkit: {path}: is a folder")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("optimise", "x.onnx"), "did you mean 'optimize'?"),
        (("inspect", "x.onnx", "--shap", "a=1"), "did you mean '--shape'?"),
        (("passes", "list", "--jsn"), "did you mean '--json'?"),
        (("passes", "sow", "x"), "did you mean 'show'?"),
        (("verify", "a", "b", "--sample=3"), "did you mean '--samples'?"),
        (("optimize", "x.onnx", "--kernels", "of"), "did you mean 'off'?"),
        (("verify", "a", "b", "--verify", "ful"), "did you mean 'full'?"),
        (("passes", "show", "drop-identiy"), "did you mean 'drop-identity'?"),
        ((), "required"),
    ],
)
def test_usage_errors_suggest_the_near_name(given: tuple[str, ...], said: str, call) -> None:
    done = call(*given)
    assert done.code == 2
    assert said in done.err
    assert "choose from" not in done.err
    assert done.out == ""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("inspect", "SMALL", "--shape", "m=3"), "the model has no size 'm'"),
        (("inspect", "SMALL", "--shape", "n"), "write NAME=SIZE"),
        (("inspect", "SMALL", "--shape", "n=-1"), "write NAME=SIZE"),
        (("verify", "SMALL", "SMALL", "--samples", "0"), "--samples"),
        (("verify", "SMALL", "SMALL", "--samples", "2", "--verify", "full"), "drop one of them"),
        (("bisect", "SMALL", "--samples", "2", "--verify", "quick"), "drop one of them"),
        (("optimize", "SMALL", "--samples", "2", "--verify", "full"), "drop one of them"),
        (("optimize", "SMALL", "--arch", "sm_90"), "drop it, or use --target cuda"),
        (("optimize", "SMALL", "--target", "cuda", "--cpu", "x86-64-v3"), "or use --target cpu"),
        (
            ("optimize", "SMALL", "--no-verify", "--verify", "full"),
            "--verify: goes with",
        ),
        (
            ("optimize", "SMALL", "--no-verify", "--samples", "2"),
            "--samples: goes with",
        ),
        (("optimize", "SMALL", "--no-verify", "--verify-seconds", "5"), "goes with verification"),
        (
            ("optimize", "SMALL", "--verify-seconds", "0"),
            "--verify-seconds: cannot be 0",
        ),
        (("verify", "SMALL", "SMALL", "--verify-seconds", "-1"), "--verify-seconds: cannot be -1"),
        (("try", "SMALL", "--verify-seconds", "nan"), "--verify-seconds: cannot be nan"),
        (("verify", "SMALL", "SMALL", "--shape", "m=3"), "no input has a size named 'm'"),
        (("verify", "SMALL", "SMALL", "--inputs", "no.npz"), "no.npz: no such file"),
        (("verify", "SMALL", "SMALL", "--library", "no.so"), "no such file"),
        (("try", "SMALL", "--seconds", "0"), "--seconds: cannot be 0; give 2 or more"),
        (("try", "SMALL", "--seconds", "nan"), "--seconds: cannot be nan"),
        (("reduce", "SMALL", "--check", "true", "--seconds", "nan"), "--seconds: cannot be nan"),
        (("reduce", "SMALL", "--check", "true", "--checks", "-1"), "--checks: cannot be -1"),
        (("bisect", "SMALL", "--passes", "nothing"), "there is no pass 'nothing'"),
        (("optimize", "SMALL", "--report", "SMALL"), "small.onnx: is read; name another file"),
        (("optimize", "SMALL", "--in-place", "--report", "SMALL"), "small.onnx: is read"),
        (("optimize", "SMALL", "-o", "a.onnx", "--report", "a.onnx"), "is written by --output"),
        (("run", "SMALL", "--outputs", "SMALL"), "--outputs"),
        (("reduce", "SMALL", "--check", "true", "-o", "SMALL"), "small.onnx: is read"),
        (("run", "SMALL", "--threads", str(1 << 40)), "no number of threads"),
        (("optimize", "SMALL", "--max-opset", "6"), "--max-opset: no model is raised to opset 6"),
        (("optimize", "SMALL", "--max-opset", "26"), "use 7 to 25"),
        (("optimize", "SMALL", "--keep-source", "SMALL"), "is no folder; name a folder"),
        (("optimize", "SMALL", "--dump-passes", "SMALL"), "is no folder; name a folder"),
        (("optimize", "SMALL", "--ops", "no.py"), "--ops no.py: no such file"),
        (("compare", "SMALL", "--optimizations", "some"), "optimizations: 'some' is not known"),
    ],
)
def test_bad_values_say_what_to_do(given, said: str, call, folder: Path) -> None:
    done = call(*(folder / "small.onnx" if text == "SMALL" else text for text in given))
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert done.err.count("\n") == 1


def test_a_file_without_ops_is_no_source_of_them(
    call, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "none.py").write_text("x = 1\n", "utf-8")
    # Other tests of this process may have declared some.
    monkeypatch.setattr("ortkit.extend.declare.find_ops.declared_ops", lambda: ())
    done = call("optimize", folder / "small.onnx", "--ops", tmp_path / "none.py")
    assert (done.code, done.out) == (2, "")
    assert done.err == f"ortkit: --ops {tmp_path / 'none.py'}: declares no op\n"


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 2, "out of memory"),
        (OSError(errno.ENOSPC, "No space left on device", "x"), 2, "x: No space left"),
        (OSError(errno.ENOSPC, "No space left", "from", None, "to"), 2, "to: No space left; free"),
        (OSError(errno.EFBIG, "File too large", "from", None, "to"), 2, "to: File too large; ra"),
        (OSError(errno.EDQUOT, "Quota exceeded"), 2, "some space, or set TMPDIR"),
        (ModuleNotFoundError("No module named 'onnx'", name="onnx"), 2, "onnx is not installed"),
        (InternalError("broken"), 70, "This is a bug in ortkit"),
        (ZeroDivisionError("oops"), 70, "This is a bug in ortkit"),
        (ModuleNotFoundError("No module named 'ours'", name="ours"), 70, "This is a bug"),
        (BrokenPipeError(), 0, ""),
    ],
)
def test_what_is_raised_becomes_a_code(
    raised: BaseException, code: int, said: str, call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_arguments: object) -> int:
        raise raised

    monkeypatch.setattr("ortkit.cli.doctor.run", fail)
    monkeypatch.setattr(main.os, "dup2", lambda *_: None)
    done = call("doctor")
    assert done.code == code
    assert said in done.err
    assert ("Traceback" in done.err) == (code == 70)


def test_a_missing_runtime_says_what_to_install(
    call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ortkit.runtime.ort.importlib.util.find_spec", lambda _name: None)
    done = call("verify", folder / "small.onnx", folder / "small.onnx")
    assert done.code == 2
    assert done.err == 'ortkit: onnxruntime is not installed; pip install "ortkit[cpu]"\n'


def test_a_reader_that_leaves_is_no_error() -> None:
    command = [sys.executable, "-m", "ortkit", "passes", "list"]
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_version_and_module(call) -> None:
    import ortkit

    done = call("--version")
    assert (done.code, done.out) == (0, f"ortkit {ortkit.__version__}\n")


def test_inputs_that_were_made_up_are_not_the_models_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No tensor of one element becomes one of seven."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1] x) => (float[m] y) <int64[1] sizes = {7}> { y = Reshape(x, sizes) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    for command in ("run", "memory", "profile"):
        assert main.run([command, str(tmp_path / "m.onnx")]) == 2
        said = capsys.readouterr().err.strip()
        assert "give --inputs FILE.npz" in said
        assert "\n" not in said


def test_made_up_inputs_are_not_blamed_for_a_model_that_does_not_load(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    for kind, said in ((LoadError, ""), (RunError, "the inputs were made up: ")):
        model.write_bytes(onnx.parser.parse_model(SMALL).SerializeToString())
        error = explained(ValueError("bad"), loading=kind is LoadError)
        assert type(error) is kind
        with pytest.raises(kind) as caught, blaming_made_up(model, None):
            raise error
        assert caught.value.fix.startswith(said)
        assert bool(caught.value.fix) == bool(said)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_streams_may_be_closed(tmp_path: Path, closed: str) -> None:
    """What a command writes goes to its file, not to a file that got the stream's number."""
    (tmp_path / "m.onnx").write_bytes(onnx.parser.parse_model(SMALL).SerializeToString())
    command = f'"{sys.executable}" -m ortkit optimize m.onnx --level 1 -o out.onnx {closed}'
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, timeout=60, check=False)
    assert done.returncode == 0
    onnx.checker.check_model(onnx.load(tmp_path / "out.onnx"))


SMALL = '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) { y = Relu(x) }'
