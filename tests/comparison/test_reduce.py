"""`ortkit reduce`: what is left of a model, and that every step of the way is a model."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from models.catalog import build
from ortkit.comparison.reduce import Limits, Reduction, reduce_model
from ortkit.errors import ModelError, UserError
from ortkit.graph.io.open import open_model
from ortkit.verify.inputs.feeds import make_feeds

HEAD = '<ir_version: 10, opset_import: ["" : 21, "f" : 1]>'


def saved(text: str, path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(f"{HEAD} {text}"), path)
    return path


def long_model(path: Path, nodes: int, bad: int) -> Path:
    """Write a model of layers with skips and shape arithmetic, with one Erf among its nodes."""
    random = np.random.default_rng(0)
    lines, value, other = [], "x", "x"
    for i in range(nodes):
        if i == bad:
            lines.append(f"v{i} = Erf({value})")
        elif i % 5 == 0:
            lines.append(f"v{i} = Add({value}, {other})")
            other = value
        elif i % 5 == 3:
            lines.append(f"v{i} = MatMul({value}, w)")
        else:
            lines.append(f"v{i} = {random.choice(['Sin', 'Tanh', 'Abs', 'Neg'])}({value})")
        value = f"v{i}"
    body = "\n".join(lines)
    weight = "<float[4, 4] w = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}>"
    return saved(f"g (float[n, 4] x) => (float[n, 4] {value}) {weight} {{ {body} }}", path)


def reduced(model: Path, command: str, output: Path, **settings: object) -> Reduction:
    feeds = make_feeds(open_model(model), 1)[0]
    return reduce_model(model, command, output, feeds=feeds, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("bad", "jobs"), [(0, 1), (137, 2), (299, 1)])
def test_one_node_of_300_is_left(bad: int, jobs: int, tmp_path: Path) -> None:
    model = long_model(tmp_path / "a.onnx", 300, bad)
    output = tmp_path / "out.onnx"
    found = reduced(model, "grep -q Erf", output, jobs=jobs)
    left = onnx.load(output)
    assert [node.op_type for node in left.graph.node] == ["Erf"]
    assert (found.nodes_before, found.nodes_after) == (300, 1)
    assert found.stopped == ""
    assert found.bytes_after == 0
    assert found.checks < 100


def test_a_chain_that_the_check_wants_whole_is_bypassed(tmp_path: Path) -> None:
    """Erf must still read what Exp made, whatever was between them."""
    between = " ".join(f"v{i} = Sin(v{i - 1})" for i in range(1, 3))
    text = f"g (float[2] x) => (float[2] y) {{ v0 = Exp(x) {between} y = Erf(v2) }}"
    model = saved(text, tmp_path / "a.onnx")
    script = Path(__file__).with_name("erf_reads_exp.py")
    found = reduced(model, f"{sys.executable} {script}", tmp_path / "out.onnx", jobs=2)
    left = [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node]
    assert left == ["Exp", "Erf"]
    assert next(item.step for item in found.taken) == "nodes bypassed"


def test_sizes_stand_in_as_numbers(tmp_path: Path) -> None:
    """A made-up shape would not run: what computed it must become a constant."""
    body = """s = Shape(x) two = Constant <value = int64[1] {2}>() t = Div(s, two)
    u = Concat <axis = 0>(t, two) a = Sin(x) b = Reshape(a, u) c = Tanh(b) y = Abs(c)"""
    model = saved(f"g (float[8] x) => (float[4, 2] y) {{ {body} }}", tmp_path / "a.onnx")
    script = tmp_path / "check.py"
    script.write_text(
        "import sys, numpy as np, onnxruntime as ort\n"
        "options = ort.SessionOptions()\n"
        "options.log_severity_level = 4\n"
        "session = ort.InferenceSession(sys.argv[1], options)\n"
        "feeds = {i.name: np.ones(i.shape, np.float32) for i in session.get_inputs()}\n"
        "session.run(None, feeds)\n"
        "sys.exit(b'Reshape' not in open(sys.argv[1], 'rb').read())\n"
    )
    command = f"{sys.executable} {script} {{}}"
    found = reduced(model, command, tmp_path / "out.onnx", jobs=2)
    left = onnx.load(tmp_path / "out.onnx")
    assert [node.op_type for node in left.graph.node] == ["Reshape"]
    assert [item.name for item in left.graph.input] == ["a"]
    assert found.nodes_after == 1


def test_branches_and_functions_are_taken_out(tmp_path: Path) -> None:
    text = """g (float[2] x, bool c) => (float[2] y) { a = Sin(x) i = If (c) <
    then_branch = t () => (float[2] p) { k = Cos(a) p = f.deep(k) },
    else_branch = e () => (float[2] q) { q = Abs(a) }> y = Tanh(i) }
    <domain: "f", opset_import: ["" : 21]> deep (b) => (d) { m = Exp(b) d = Erf(m) }"""
    model = saved(text, tmp_path / "a.onnx")
    reduced(model, "grep -q Erf", tmp_path / "out.onnx")
    left = onnx.load(tmp_path / "out.onnx")
    assert [node.op_type for node in left.graph.node] == ["Erf"]
    assert not left.functions


def test_weights_become_small(tmp_path: Path) -> None:
    """The check wants a weight: its sizes go down together with those that depend on them."""
    model = tmp_path / "a.onnx"
    onnx.save(build("bert", "tiny", "ts"), model)
    command = f"{sys.executable} {Path(__file__).with_name('has_weighted_matmul.py')} {{}}"
    found = reduced(model, command, tmp_path / "out.onnx", jobs=2)
    left = onnx.load(tmp_path / "out.onnx")
    assert [node.op_type for node in left.graph.node] == ["MatMul"]
    assert found.bytes_after <= 64
    assert found.bytes_before > 1000 * found.bytes_after


def test_every_model_that_is_checked_is_valid(tmp_path: Path) -> None:
    model = long_model(tmp_path / "a.onnx", 40, 20)
    kept = tmp_path / "kept"
    kept.mkdir()
    command = f"cp {{}} {kept}/$$.onnx && grep -q Erf {{}}"
    found = reduced(model, command, tmp_path / "out.onnx")
    copies = list(kept.glob("*.onnx"))
    assert len(copies) == found.checks > 5
    for path in copies:
        onnx.checker.check_model(onnx.load(path, load_external_data=False))


def test_limits(tmp_path: Path) -> None:
    model = long_model(tmp_path / "a.onnx", 100, 50)
    out = tmp_path / "out.onnx"
    found = reduced(model, "grep -q Erf", out, limits=Limits(checks=4))
    assert found.stopped == "checks"
    assert found.checks <= 5
    assert len(onnx.load(out).graph.node) == found.nodes_after < 100
    found = reduced(model, "grep -q Erf", out, limits=Limits(seconds=0))
    assert (found.stopped, found.nodes_after) == ("time", 100)
    with pytest.raises(UserError, match=r"does not end within 0\.2 seconds"):
        reduced(model, "sleep 9;", out, limits=Limits(check_seconds=0.2))


def test_what_cannot_be_reduced(tmp_path: Path) -> None:
    model = long_model(tmp_path / "a.onnx", 3, 1)
    out = tmp_path / "out.onnx"
    with pytest.raises(UserError, match=r"the check ends with 1 on the model as it is"):
        reduced(model, "grep -q Nothing", out)
    assert not out.exists()
    with pytest.raises(UserError, match="0 checks at a time"):
        reduced(model, "true", out, jobs=0)
    with pytest.raises(ModelError):
        reduce_model(tmp_path / "none.onnx", "true", out)


def run_cli(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ortkit", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command(tmp_path: Path) -> None:
    model = long_model(tmp_path / "a.onnx", 30, 7)
    done = run_cli("reduce", str(model), "--check", "grep -q Erf", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "ortkit.reduce/1"
    assert document["nodes_after"] == 1
    assert Path(document["output"]) == tmp_path / "a.reduced.onnx"
    assert Path(document["output"]).is_file()
    done = run_cli("reduce", str(model), "--check", "grep -q None")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "Traceback" not in done.stderr


def heed_interruptions() -> None:
    """Shells let what they start in the background ignore them, and that is inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_interruption_keeps_the_smallest(tmp_path: Path) -> None:
    model = long_model(tmp_path / "a.onnx", 60, 30)
    out, started = tmp_path / "out.onnx", tmp_path / "started"
    # It hangs as soon as half of the nodes are gone.
    command = f"grep -q Erf {{}} && (grep -q v59 {{}} || (touch {started}; sleep 60))"
    words = [sys.executable, "-m", "ortkit", "reduce", str(model), "--check", command, "-o", out]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heed_interruptions
    ) as process:
        deadline = time.monotonic() + 60
        while not started.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        try:
            printed, said = process.communicate(timeout=30)
        finally:
            process.kill()  # where it has ended this does nothing
    assert process.returncode == 130, said
    assert b"interrupted" in printed
    assert any(node.op_type == "Erf" for node in onnx.load(out).graph.node)
