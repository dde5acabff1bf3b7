"""Damaged models: refused in one line, or accepted and then good enough to save and to run."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ortkit.errors import ModelError
from ortkit.graph.check.model import check_model
from ortkit.graph.io.framing import LARGE_BYTES
from ortkit.graph.io.open import open_model
from ortkit.graph.io.save import save_model
from ortkit.graph.io.text import format_text, parse_text

CASES = 1000
SAMPLE = 40


def tiny_model(weights: int = 6) -> onnx.ModelProto:
    """Return a small model with branches, a function, constants and symbolic sizes."""
    value = helper.make_tensor_value_info
    branches = [
        helper.make_graph(
            [helper.make_node("Mul", ["x", f"k{i}"], [f"b{i}"])],
            f"branch{i}",
            [],
            [value(f"b{i}", TensorProto.FLOAT, ["n", 2])],
            [numpy_helper.from_array(np.full(2, i, np.float32), f"k{i}")],
        )
        for i in range(2)
    ]
    nodes = [
        helper.make_node("If", ["c"], ["t"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("Twice", ["t"], ["u"], "call", domain="mine"),
        helper.make_node("Softmax", ["u"], ["s"], axis=-1),
        helper.make_node("Reshape", ["s", "shape"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["y"], "last"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, ["n", 2]), value("c", TensorProto.BOOL, [])],
        [value("y", TensorProto.FLOAT, ["n", weights // 2])],
        [
            numpy_helper.from_array(np.ones((2, weights // 2), np.float32), "w"),
            numpy_helper.from_array(np.array([-1, 2]), "shape"),
        ],
        value_info=[value("t", TensorProto.FLOAT, ["n", 2])],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]
    body = [helper.make_node("Add", ["a", "a"], ["b"])]
    function = helper.make_function("mine", "Twice", ["a"], ["b"], body, imports[:1])
    return helper.make_model(graph, opset_imports=imports, functions=[function], ir_version=10)


def damaged(data: bytes, seed: int, count: int) -> Iterator[bytes]:
    """Yield truncations and copies with 1 to 16 bits flipped."""
    rng = random.Random(seed)
    for index in range(count):
        if index % 3 == 0:
            yield data[: rng.randrange(len(data))]
            continue
        changed = bytearray(data)
        for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        yield bytes(changed)


def refusal(data: bytes) -> ModelError | None:
    """Open damaged bytes: None if they are accepted; any other exception is a failure."""
    try:
        model = open_model(data)
    except ModelError as error:
        line = str(error)
        assert line.isprintable(), repr(line)
        assert 20 < len(line) < 600
        assert error.fix
        return error
    check_model(model)
    return None


def test_damaged_models(tmp_path: Path) -> None:
    data = tiny_model().SerializeToString()
    assert refusal(data) is None
    accepted = [case for case in damaged(data, 0, CASES) if refusal(case) is None]
    # Names, numbers and descriptions may change without harm; most damage must not pass.
    assert 10 < len(accepted) < CASES // 4

    sample = random.Random(0).sample(accepted, min(SAMPLE, len(accepted)))
    for index, case in enumerate(sample):
        (tmp_path / f"{index}.in.onnx").write_bytes(case)
        saved = save_model(open_model(case), tmp_path / f"{index}.out.onnx")
        assert refusal(saved.model.read_bytes()) is None
    verdicts = load_in_runtime(tmp_path)
    assert len(verdicts) == 2 * len(sample)
    loaded = [index for index in range(len(sample)) if verdicts[f"{index}.in.onnx"]]
    assert loaded
    assert all(verdicts[f"{index}.out.onnx"] for index in loaded)


def load_in_runtime(folder: Path) -> dict[str, bool]:
    """Say of each model in `folder` whether ONNX Runtime loads it; a crash is a failure."""
    code = (
        "import sys, pathlib, onnxruntime as ort\n"
        "ort.set_default_logger_severity(4)\n"
        "for path in sorted(pathlib.Path(sys.argv[1]).glob('*.onnx')):\n"
        "    try: ort.InferenceSession(path, providers=['CPUExecutionProvider'])\n"
        "    except Exception: print(path.name, 0)\n"
        "    else: print(path.name, 1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-500:]
    lines = [line.split() for line in done.stdout.splitlines()]
    return {name: verdict == "1" for name, verdict in lines}


def test_damaged_models_whose_weights_stay_in_place() -> None:
    """The way over frames finds the same faults as the way through protobuf."""
    model = tiny_model(LARGE_BYTES * 5)
    data = model.SerializeToString()
    assert len(data) > 1 << 20
    # Damage to the weights themselves would go unseen; keep to the rest.
    start = data.index(model.graph.initializer[0].raw_data)
    end = start + len(model.graph.initializer[0].raw_data)
    rest = data[:start] + data[end:]
    for case in damaged(rest, 1, 60):
        whole = case[:start] + data[start:end] + case[start:] if len(case) > start else case
        refusal(whole)


def test_damaged_text() -> None:
    model = tiny_model()
    for suffix in (".onnxtxt", ".json", ".textproto"):
        data = format_text(model, suffix)
        for case in damaged(data, 2, 150):
            try:
                open_model(parse_text(case, suffix, "text"))
            except ModelError as error:
                assert str(error).isprintable(), repr(str(error))
