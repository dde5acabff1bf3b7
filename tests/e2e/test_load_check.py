"""A result that ONNX Runtime does not load is never written."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import onnx
import onnx.parser
import pytest

from ortkit import CheckError, OptimizeOptions, optimize
from ortkit.cli.main import run
from ortkit.errors import RunError
from ortkit.rewrite.passes import NodePass, Pass
from ortkit.rewrite.site import Site
from ortkit.verify.loads import Loads, try_to_load

ort = pytest.importorskip("onnxruntime")
TEXT = """<ir_version: 10, opset_import: ["" : 20]>
g (float[n, 4] x) => (float[n, 4] y, float[n, 4] z) {
  a = Relu(x)   i = Identity(a)   b = Neg(i)   y = Abs(b)   z = Softplus(b)
}"""
RANDOM = """<ir_version: 10, opset_import: ["" : 20]>
g (float[2, 4] x) => (float[2, 4] y) {
  a = Relu(x)   i = Identity(a)   b = Neg(i)   r = RandomNormalLike(b)   y = Add(r, b)
}"""
#: ONNX Runtime refuses each: types that do not fit, a wrong perm, a shape that cannot be.
DOES_NOT_LOAD = {
    "types": "(float[2] x, int64[2] n) => (float[2] y) { y = Add(x, n) }",
    "perm": "(float[2, 3] x) => (float[3, 2] y) { y = Transpose<perm = [0, 2]>(x) }",
    "axis": "(float[2, 3] x) => (float[2, 3] y) { t = Relu(x)  y = Concat<axis = 5>(t, t) }",
}
FOREIGN = """<ir_version: 10, opset_import: ["" : 20, "own" : 1]>
g (float[2] x) => (float[2] y) { i = Identity(x)  s = own.Secret(i)  y = Relu(s) }"""
NO_KERNEL = """<ir_version: 10, opset_import: ["" : 22]>
g (bfloat16[2, 3, 8, 8] x, bfloat16[4, 3, 3, 3] w) => (bfloat16[2, 4, 6, 6] y) {
  y = Conv(x, w)
}"""


@dataclass(frozen=True)
class NegToNothing(NodePass):
    """Puts an operator in that no runtime has."""

    name: ClassVar[str] = "neg-to-nothing"
    ops: ClassVar[Sequence[str]] = ("Neg",)

    def rewrite(self, site: Site) -> None:
        if site.claim("nothing"):
            site.scope.import_domain("nowhere", 1)
            site.replace(site.op("Nothing", [site.input(0)], domain="nowhere"))


@dataclass(frozen=True)
class NegToSub(NodePass):
    """A rewrite that is right."""

    name: ClassVar[str] = "neg-to-sub"
    ops: ClassVar[Sequence[str]] = ("Neg",)

    def rewrite(self, site: Site) -> None:
        if site.claim("subtract"):
            x = site.input(0)
            site.replace(site.op("Sub", [site.op("Sub", [x, x]), x]))


@dataclass(frozen=True)
class SoftplusToSigmoid(NodePass):
    """A rewrite that is wrong."""

    name: ClassVar[str] = "softplus-to-sigmoid"
    ops: ClassVar[Sequence[str]] = ("Softplus",)

    def rewrite(self, site: Site) -> None:
        if site.claim("wrong"):
            site.replace(site.op("Sigmoid", [site.input(0)]))


def save(folder: Path, text: str) -> Path:
    path = folder / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def command(*arguments: str | Path) -> int:
    return run(["optimize", *map(str, arguments), "--kernels", "off"])


@pytest.mark.parametrize("text", [TEXT, RANDOM], ids=["not verified", "random outputs"])
def test_a_rewrite_that_keeps_the_result_from_loading_is_rolled_back(text: str) -> None:
    options = OptimizeOptions(extra_passes=(NegToNothing(),), kernels="off", verify=text is RANDOM)
    optimized = optimize(onnx.parser.parse_model(text), options)
    assert optimized.report.rolled_back == ("neg-to-nothing:nothing:b",)
    assert optimized.report.load_check == "yes"
    kept = [node.op_type for node in optimized.model.graph]
    assert "Neg" in kept
    assert "Identity" not in kept


@pytest.mark.parametrize("wrong", [False, True], ids=["all right", "one rewrite wrong"])
def test_what_is_left_after_a_rollback_at_load_is_verified(
    wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is verified is not what is written, so that only loading shows it."""

    def refuse_sub(model: Path, library: Path | None = None) -> Loads:
        ops = {node.op_type for node in onnx.load(model).graph.node}
        return Loads("", "Sub is not there" if "Sub" in ops else "")

    monkeypatch.setattr("ortkit.optimization.load_stage.try_to_load", refuse_sub)
    passes: tuple[Pass, ...] = (NegToSub(), SoftplusToSigmoid()) if wrong else (NegToSub(),)
    options = OptimizeOptions(target="cuda", precision="bf16", extra_passes=passes, kernels="off")
    optimized = optimize(onnx.parser.parse_model(TEXT), options)
    found = optimized.report.verification
    rolled_back = ("softplus-to-sigmoid:wrong:z",) if wrong else ()
    assert optimized.report.rolled_back == (*rolled_back, "neg-to-sub:subtract:b")
    assert found is not None
    assert found.verdict in ("yes", "partly"), found.reason
    assert found.outputs
    assert optimized.report.load_check == "yes"
    assert [node.op_type for node in optimized.model.graph if node.op_type in ("Neg", "Sub")] == [
        "Neg"
    ]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("body", DOES_NOT_LOAD.values(), ids=DOES_NOT_LOAD)
@pytest.mark.parametrize("flags", [(), ("--no-verify",), ("--level", "3")], ids=" ".join)
def test_an_original_that_does_not_load_is_one_line(
    body: str, flags: Sequence[str], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv("ORTKIT_PASS_ERRORS")
    source = save(tmp_path, f'<ir_version: 10, opset_import: ["" : 20]> g {body}')
    before = sorted(tmp_path.iterdir())
    assert command(source, *flags) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "ONNX Runtime does not load the model: " in line
    assert str(source) in line
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(RunError, match="does not load the model"):
        optimize(source, OptimizeOptions(verify="--no-verify" not in flags, kernels="off"))


@pytest.mark.parametrize("text", [FOREIGN, NO_KERNEL], ids=["foreign op", "no kernel here"])
@pytest.mark.parametrize("flags", [(), ("--no-verify",)], ids=" ".join)
def test_what_cannot_be_loaded_here_is_written_and_said_to_be_unchecked(
    text: str, flags: Sequence[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, made = save(tmp_path, text), tmp_path / "made.onnx"
    command(source, "-o", made, "--json", *flags)
    report = json.loads(capsys.readouterr().out)
    assert report["load_check"].startswith("not checked: ONNX Runtime here does not load the orig")
    # What there is no kernel for in its own type is compared in float32.
    verdict = "not possible" if text is FOREIGN else "partly"
    assert flags or report["verification"]["verdict"] == verdict
    assert len(onnx.load(made).graph.node) == (2 if text is FOREIGN else 1)


def test_a_result_that_loads_with_no_rewrite_either_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if saving itself were broken."""

    def save_wrongly(model: object, path: Path, **_: object) -> None:
        save(
            path.parent,
            TEXT.replace("Abs(b)", "own.Abs(b)").replace('"" : 20', '"" : 20, "own" : 1'),
        ).rename(path)

    source = save(tmp_path, TEXT)
    monkeypatch.setattr("ortkit.optimization.workspace.save_model", save_wrongly)
    with pytest.raises(CheckError, match="no result loads in ONNX Runtime"):
        optimize(source, OptimizeOptions(kernels="off", verify=False))


def test_without_onnxruntime_the_report_says_so(tmp_path: Path) -> None:
    """In a process in which it cannot be found."""
    source = save(tmp_path, TEXT)
    code = f"""
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "onnxruntime" else find(name, *rest)
from ortkit.cli.main import run
sys.exit(run(["optimize", {str(source)!r}, "--no-verify", "--kernels", "off", "--json"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["load_check"] == "not checked: onnxruntime is not installed"


def test_loading_in_text_and_without_optimizations(tmp_path: Path) -> None:
    text = tmp_path / "m.onnxtxt"
    text.write_text(TEXT)
    assert try_to_load(text).is_good
    bad = try_to_load(save(tmp_path, FOREIGN))
    assert "own:Secret" in bad.plain and "own:Secret" in bad.deployed
    assert bad.lacks_operators
