"""Verdicts, exit codes and the line on stderr, of `optimize`, `try` and `verify`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from ortkit.cli.verdicts import outcome_of
from ortkit.targets import cpu
from ortkit.verify.verification import Gap, Verdict, Verification

HEAD = '<ir_version: 10, opset_import: ["" : 20, "own" : 1]>\n'
PLAIN = "g (float[n, 8] x) => (float[n, 8] y) { a = Relu(x) y = Tanh(a) }"
PARTLY = """g (float[n, 8] x) => (float[n, 8] y, float[2] z) {
    y = Relu(x) z = RandomNormal <shape = [2]> () }"""
RANDOM = "g (float[n, 8] x) => (float[n, 8] y) { y = RandomNormalLike(x) }"
NEVER = """g (float[n] x) => (float[m] y)
    <int64[2] never = {-1, 1009}> { y = Reshape(x, never) }"""
UNKNOWN = "g (float[n] x) => (float[n] y) { y = own.Secret(x) }"

RANDOM_GAP = Gap("output 'z'", "it is random")
SILENT_GAP = Gap("output 'w'", "it is empty", fix="give --inputs FILE.npz")
HARDWARE_GAP = Gap("2 kernels", "for CUDA", needs_hardware=True)
ACCEPT = "--accept-unverified"


def save(folder: Path, text: str, name: str = "m.onnx") -> Path:
    onnx.save(onnx.parser.parse_model(HEAD + text), folder / name)
    return folder / name


# ---- from the verdict to the code ---------------------------------------------------------

CODES: list[tuple[Verdict | None, tuple[Gap, ...], bool, int, int]] = [
    # verdict, not compared, accepts, rewrites rolled back under --strict: code
    ("yes", (), False, 0, 0),
    ("yes", (), True, 0, 0),
    ("yes", (), False, 2, 1),
    (None, (), False, 0, 0),
    ("no", (), False, 0, 1),
    ("no", (), True, 0, 1),
    ("partly", (HARDWARE_GAP,), False, 0, 0),
    ("partly", (HARDWARE_GAP,), True, 0, 0),
    ("partly", (HARDWARE_GAP,), False, 1, 1),
    ("partly", (RANDOM_GAP,), False, 0, 3),
    ("partly", (RANDOM_GAP, HARDWARE_GAP), False, 0, 3),
    ("partly", (RANDOM_GAP, HARDWARE_GAP), True, 0, 0),
    ("partly", (RANDOM_GAP,), True, 1, 1),
    ("not possible", (), False, 0, 3),
    ("not possible", (), True, 0, 0),
    ("not possible", (), False, 1, 1),
]


@pytest.mark.parametrize(("verdict", "gaps", "accepts", "undone", "code"), CODES)
def test_the_code_follows_from_the_verdict(
    verdict: Verdict | None, gaps: tuple[Gap, ...], accepts: bool, undone: int, code: int
) -> None:
    found = None if verdict is None else Verification(verdict, "why", not_compared=gaps)
    outcome = outcome_of(found, accepts=accepts, objections=["undone"] * undone)
    assert outcome.code == code
    assert outcome.meaning
    assert bool(outcome.line) == (verdict not in ("yes", None))
    assert all(gap.what in outcome.line for gap in gaps)
    if code == 3:
        assert outcome.line.endswith(f"accept that with {ACCEPT}")


def test_the_line_names_what_to_give() -> None:
    partly = Verification("partly", "why", not_compared=(RANDOM_GAP, SILENT_GAP))
    assert outcome_of(partly, accepts=False).line == (
        "verified in part; not compared: output 'z' (it is random); output 'w' (it is empty); "
        "give --inputs FILE.npz; accept that with --accept-unverified"
    )
    never = Verification("not possible", "why", fix="give --shape NAME=SIZE")
    assert "not verified: why; give --shape NAME=SIZE; " in outcome_of(never, accepts=False).line
    hardware = Verification("partly", "why", not_compared=(HARDWARE_GAP,))
    line = outcome_of(hardware, accepts=False, elsewhere="`ortkit verify a b`").line
    assert line.endswith("complete it with `ortkit verify a b` on a machine that has it")


def test_many_things_are_counted() -> None:
    gaps = tuple(Gap(f"output {i}", "it is random") for i in range(9))
    line = outcome_of(Verification("partly", "", not_compared=gaps), accepts=False).line
    assert "output 5 and 3 more (it is random)" in line
    assert "output 6" not in line


# ---- optimize -----------------------------------------------------------------------------

ENDS = [
    # model, flags, code, what stderr says, whether a model is written
    (PLAIN, (), 0, "", True),
    (PLAIN, ("--strict", "--quiet"), 0, "", True),
    (PARTLY, (), 3, "not compared: output 'z' (it depends on random numbers)", True),
    (PARTLY, ("--quiet",), 3, "not compared: output 'z'", True),
    (PARTLY, ("--strict",), 3, "not compared: output 'z'", True),
    (PARTLY, (ACCEPT,), 0, "accepted by --accept-unverified", True),
    (PARTLY, ("--no-verify",), 0, "", True),
    (RANDOM, (), 3, "not verified: nothing was compared: ", True),
    (NEVER, (), 3, "give --inputs FILE.npz, or sizes such as --shape n=1", True),
    (NEVER, ("--quiet", "--strict"), 3, "ONNX Runtime does not run the original", True),
    (NEVER, (ACCEPT, "--quiet"), 0, "accepted by --accept-unverified", True),
    (UNKNOWN, (), 3, "ONNX Runtime does not load the original", True),
    (UNKNOWN, (ACCEPT,), 0, "accepted by --accept-unverified", True),
    (UNKNOWN, ("--no-verify",), 0, "", True),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("text", "flags", "code", "said", "is_written"), ENDS)
def test_how_optimize_ends(
    call, tmp_path: Path, text: str, flags: tuple[str, ...], code: int, said: str, is_written: bool
) -> None:
    model = save(tmp_path, text)
    done = call("optimize", model, "--kernels", "off", *flags)
    assert done.code == code, done.out + done.err
    assert done.err.count("\n") == (1 if said else 0)
    assert said in done.err
    assert model.with_name("m.opt.onnx").exists() == is_written
    if "--quiet" in flags:
        assert done.out == ""


def test_a_size_that_is_given_makes_it_possible(call, tmp_path: Path) -> None:
    text = """g (float[n] x) => (float[m, 1009] y)
        <int64[2] rows = {-1, 1009}> { y = Reshape(x, rows) }"""
    model = save(tmp_path, text)
    done = call("optimize", model, "--kernels", "off")
    assert (done.code, "--shape n=" in done.err) == (3, True)
    done = call("optimize", model, "--kernels", "off", "--shape", "n=2018")
    assert (done.code, done.err) == (0, "")


def test_outputs_without_numbers_are_not_compared(call, tmp_path: Path) -> None:
    text = """g (float[n, 8] x) => (float[n, 8] y, float[n, 8] w)
        <float minus = {-1}> { y = Relu(x) a = Abs(x) b = Sub(minus, a) w = Log(b) }"""
    model = save(tmp_path, text)
    done = call("verify", model, model)
    assert done.code == 3
    assert "output 'w' (on the inputs tried it is absent, empty, NaN or infinite)" in done.err
    assert "give --inputs FILE.npz" in done.err


@pytest.mark.usefixtures("brief_timing")
def test_both_schemas_of_a_document(call, tmp_path: Path) -> None:
    model = save(tmp_path, PARTLY)
    done = call("optimize", model, "--kernels", "off", "--json", "--report", tmp_path / "r.json")
    assert (done.code, done.err.count("\n")) == (3, 1)
    new = json.loads(done.out)
    assert new["schema"] == "ortkit.optimize/2"
    assert new["verification"]["verdict"] == "partly"
    (gap,) = new["verification"]["not_compared"]
    assert gap == {
        "what": "output 'z'",
        "reason": "it depends on random numbers",
        "fix": "",
        "needs_hardware": False,
    }
    assert new["exit"] == {"code": 3, "meaning": "verified in part"}
    assert json.loads((tmp_path / "r.json").read_text())["exit"] == new["exit"]
    done = call("optimize", model, "--kernels", "off", "--json", "--json-schema", "1")
    old = json.loads(done.out)
    assert (done.code, old["schema"]) == (3, "ortkit.optimize/1")
    assert old["verification"]["verdict"] == "yes"
    assert set(new) - set(old) == {"exit"}
    gone = set(new["verification"]) - set(old["verification"])
    sets = {"input_sets", "dropped_sets"}
    assert gone == {"not_compared", "fix", "values", "notes", "batch", "guards", *sets}
    for command in ("verify", "try"):
        given = (model, model) if command == "verify" else (model, "--seconds", "60")
        old = json.loads(call(command, *given, "--json", "--json-schema", "1").out)
        assert old["schema"] == f"ortkit.{command}/1"
        assert old.get("checked", old)["verdict"] == "yes"
        assert "exit" not in old
    done = call("optimize", model, "--json-schema", "1")
    assert (done.code, "there is no JSON document; add --json" in done.err) == (2, True)


# ---- kernels ------------------------------------------------------------------------------


CHAIN = "g (float[n, 64] x) => (float[n, 64] y) { a = Tanh(x) b = Exp(a) y = Erf(b) }"


@pytest.fixture
def every_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take regions of any size and gain: small models have none that pay."""
    from ortkit.fusion.regions import cost_model

    monkeypatch.setattr(cost_model, "MINIMUM_GAIN", -np.inf)
    monkeypatch.setattr(cost_model, "MINIMUM_SAVED_NS", -np.inf)
    monkeypatch.setattr(cost_model, "MINIMUM_POINTS", 0)


@pytest.fixture
def fused(tmp_path: Path, every_region: None) -> tuple[Path, Path]:
    """Return a model and what is made of it, with a kernel library beside it."""
    pytest.importorskip("tvm")
    from ortkit.cli.main import run

    model = save(tmp_path, CHAIN)
    made = tmp_path / "made.onnx"
    command = ["optimize", str(model), "-o", str(made), "--level", "3", "--no-verify", "--quiet"]
    assert run(command) == 0
    assert made.with_name("made.ops.so").exists()
    return model, made


def test_kernels_that_ran_are_a_yes(call, fused: tuple[Path, Path]) -> None:
    done = call("verify", *fused)
    assert (done.code, done.err) == (0, "")


def test_kernels_without_their_library_are_no_yes(call, fused: tuple[Path, Path]) -> None:
    fused[1].with_name("made.ops.so").unlink()
    done = call("verify", *fused)
    assert done.code == 3
    assert "1 kernel (the kernel library made.ops.so is not beside the model: their" in done.err
    assert "--library FILE.so" in done.err


def test_a_library_of_another_model_is_no_yes(
    call, fused: tuple[Path, Path], tmp_path: Path
) -> None:
    from ortkit.cli.main import run

    other = save(tmp_path, CHAIN.replace("Exp", "Sin"), "other.onnx")
    assert run(["optimize", str(other), "--level", "3", "--no-verify", "--quiet"]) == 0
    done = call("verify", *fused, "--library", tmp_path / "other.opt.ops.so")
    assert done.code == 3
    assert "1 kernel (the library has none for them)" in done.err


@pytest.mark.skipif(cpu.machine() != "x86-64", reason="x86-64 has levels")
def test_kernels_for_another_processor_are_hardware(
    call, fused: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A level that no shim knows: every machine is of a lower one.
    monkeypatch.setitem(cpu.LEVELS, "x86-64-v4", cpu.LEVELS["x86-64-v4-amx"] + 1)
    model, made = fused
    flags = ("--level", "3", "--cpu", "x86-64-v4")
    done = call("optimize", model, "-o", made, *flags)
    assert done.code == 0, done.err
    assert "verified  partly" in done.out
    line = done.err.splitlines()[-1]
    assert "need a processor of level" in line
    assert f"complete it with `ortkit verify {model} {made}` on a machine that has it" in line
    done = call("verify", model, made)
    assert (done.code, "complete it with the same command" in done.err) == (0, True)
    done = call("optimize", model, "-o", made, *flags, "--json")
    assert json.loads(done.out)["exit"]["meaning"].endswith("hardware that this machine has not")


@pytest.mark.usefixtures("every_region")
def test_kernels_for_cuda_are_hardware_without_cuda(call, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    from ortkit.runtime.targets import device_count

    if device_count():
        pytest.skip("this machine has CUDA")
    model = save(tmp_path, CHAIN)
    done = call("optimize", model, "--target", "cuda", "--arch", "sm_90", "--level", "3")
    assert done.code == 0, done.err
    assert "1 kernel (they are for CUDA, and this machine has no " in done.err
    assert "`ortkit verify " in done.err
    assert model.with_name("m.opt.ops.so").exists()


# ---- try and verify -----------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("brief_timing")
@pytest.mark.parametrize(
    ("text", "flags", "code", "said"),
    [
        (PARTLY, (), 3, "not compared: output 'z'"),
        (PARTLY, (ACCEPT,), 0, "accepted by --accept-unverified"),
        (NEVER, (), 3, "give --inputs FILE.npz, or sizes such as --shape n=1"),
    ],
)
def test_how_try_and_verify_end(
    call, tmp_path: Path, text: str, flags: tuple[str, ...], code: int, said: str
) -> None:
    model = save(tmp_path, text)
    for given in (("verify", model, model), ("try", model, "--seconds", "60", "--level", "1")):
        done = call(*given, *flags)
        assert (done.code, done.err.count("\n")) == (code, 1), done.err
        assert said in done.err


def test_verify_says_no_on_stderr_too(call, tmp_path: Path) -> None:
    first = save(tmp_path, PLAIN)
    second = save(tmp_path, PLAIN.replace("Tanh", "Sigmoid"), "other.onnx")
    for flags in ((), ("--json",), (ACCEPT,)):
        done = call("verify", first, second, *flags)
        assert done.code == 1
        assert done.err.startswith("ortkit: the results differ: output 'y'")


@pytest.mark.usefixtures("brief_timing")
def test_no_time_left_names_the_flag(
    call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ortkit.trial.trial._LEAST_SECONDS", 59.99)
    done = call("try", save(tmp_path, PLAIN), "--seconds", "60", "--level", "0")
    assert done.code == 3
    assert "no time is left for it; give more time with --seconds S" in done.err
