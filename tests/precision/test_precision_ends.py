"""Inputs and outputs in half precision: kept or converted, named as before, verified."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest

import models
import ortkit
from ortkit.cli.main import run
from ortkit.errors import UserError
from ortkit.graph.io.open import open_model
from ortkit.optimization.options import Precision
from ortkit.precision.interface import LowerInterface, lowered_names, with_float_interface
from ortkit.rewrite.log import RewriteLog

HEADER = '<ir_version: 10, opset_import: ["" : 20]>'
MLP = f"""{HEADER} g (float[n, 8] x, int64[1] k) => (float[n, 8] y, float[n, 8] z, int64[1] j)
<float[8, 8] w> {{ h = MatMul(x, w)  z = Relu(h)  y = MatMul(z, w)  j = Identity(k) }}"""
BODY = f"""{HEADER} g (float[n] x, bool c) => (float[n] y) {{
  y = If (c) <then_branch = t () => (float[n] a) {{ a = Neg(x) }},
              else_branch = e () => (float[n] b) {{ b = Abs(x) }}>
}}"""
THROUGH = f"{HEADER} g (float[n] x, float[n] z) => (float[n] x, float[n] y) {{ y = Neg(z) }}"
UNUSED = f"{HEADER} g (float[n] x, float[n] z) => (float[n] y) {{ y = Neg(z) }}"
TWICE = f"{HEADER} g (float[n] x) => (float[n] y, float[n] y) {{ y = Neg(x) }}"
LARGE = f"""{HEADER} g (float[n, 8] x) => (float[n, 8] y, float[n, 8] big)
<float[8, 8] w, float[1] much> {{ y = MatMul(x, w)  p = Pow(x, x)  q = Abs(p)
  r = Add(q, much)  big = Mul(r, much) }}"""


def proto(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    made = onnx.parser.parse_model(text)
    del made.graph.initializer[:]
    made.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in weights.items()
    )
    return made


def weight(scale: float = 0.3) -> np.ndarray:
    return np.random.default_rng(0).normal(0, scale, (8, 8)).astype(np.float32)


def types(model: ir.Model) -> dict[str, str]:
    values = (*model.graph.inputs, *model.graph.outputs)
    return {value.name or "": value.dtype.name for value in values if value.dtype is not None}


def optimized(
    source: object, precision: Precision = "fp16", **options: object
) -> ortkit.Optimized:
    settings = {"target": "cuda", "kernels": "off", "precision_io": "convert", **options}
    return ortkit.optimize(source, ortkit.OptimizeOptions(precision=precision, **settings))  # type: ignore[arg-type]


def sound(made: ortkit.Optimized) -> None:
    verification = made.report.verification
    assert verification is not None
    assert verification.verdict == "yes", verification.reason


@pytest.mark.parametrize(("precision", "name"), [("fp16", "FLOAT16"), ("bf16", "BFLOAT16")])
def test_no_cast_is_left_where_all_is_half(precision: Precision, name: str) -> None:
    made = optimized(proto(MLP, w=weight()), precision)
    sound(made)
    wanted = {"x": name, "k": "INT64", "y": name, "z": name, "j": "INT64"}
    assert types(made.model) == wanted
    assert Counter(node.op_type for node in made.model.graph)["Cast"] == 0
    assert [str(dim) for dim in made.model.graph.inputs[0].shape or ()] == ["n", "8"]
    assert made.report.rewrites_by_pass()["lower-interface"] == 3
    onnx.checker.check_model(ir.to_proto(made.model), full_check=True)


def test_they_are_kept_unless_asked_for() -> None:
    made = optimized(proto(MLP, w=weight()), precision_io="keep")
    assert set(types(made.model).values()) == {"FLOAT", "INT64"}
    assert "lower-interface" not in made.report.rewrites_by_pass()


def lowered(text: str) -> tuple[ir.Model, RewriteLog]:
    model, log = open_model(proto(text)), RewriteLog()
    LowerInterface("fp16").run(model, log)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    return model, log


def run_once(model: ir.Model, **feeds: np.ndarray) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    content = ir.to_proto(model).SerializeToString()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"]).run(
        None, feeds
    )


@pytest.mark.parametrize(
    ("text", "names"),
    [(BODY, "x y"), (THROUGH, "x z y"), (UNUSED, "x z y")],
    ids=["read in a body", "an input that is an output", "an input that nothing reads"],
)
def test_every_kind_of_end(text: str, names: str) -> None:
    model, log = lowered(text)
    assert lowered_names(log.hits) == set(names.split())
    assert {types(model)[name] for name in names.split()} == {"FLOAT16"}
    x = np.array([1.5, -2.25], np.float16)
    feeds = {name: x for name in ("x", "z") if name in {v.name for v in model.graph.inputs}}
    if text == BODY:
        feeds["c"] = np.array(True)
    found = run_once(model, **feeds)
    wide = with_float_interface(model, lowered_names(log.hits))
    assert types(wide) == types(open_model(proto(text)))
    given = {key: v.astype(np.float32) if v.dtype == np.float16 else v for key, v in feeds.items()}
    for one, other in zip(found, run_once(wide, **given), strict=True):
        assert (one.dtype, other.dtype) == (np.float16, np.float32)
        np.testing.assert_array_equal(one, other)


def test_an_output_that_is_there_twice() -> None:
    model, log = open_model(proto(UNUSED)), RewriteLog()
    model.graph.outputs.append(model.graph.outputs[0])
    LowerInterface("fp16").run(model, log)
    assert [value.name for value in model.graph.outputs] == ["y", "y"]
    assert model.graph.outputs[0] is model.graph.outputs[1]


def test_an_input_with_a_default_stays() -> None:
    source = proto(f"{HEADER} g (float[2] x, float[2] w) => (float[2] y) {{ y = Add(x, w) }}")
    source.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2, np.float32), "w"))
    model = open_model(source)
    LowerInterface("fp16").run(model, RewriteLog())
    assert types(model) == {"x": "FLOAT16", "w": "FLOAT", "y": "FLOAT16"}


def test_an_output_beyond_float16_goes_back_and_is_named() -> None:
    much = np.array([3e4], np.float32)
    made = optimized(proto(LARGE, w=weight(), much=much))
    sound(made)
    assert types(made.model) == {"x": "FLOAT16", "y": "FLOAT16", "big": "FLOAT"}
    assert made.report.rolled_back == ("lower-interface:fp16:big",)


def test_a_transformer() -> None:
    made = optimized(models.build("bert", "tiny", "ts"))
    sound(made)
    assert not made.report.rolled_back
    assert "FLOAT" not in types(made.model).values()


def test_it_needs_a_precision() -> None:
    with pytest.raises(UserError, match="converted to half precision only"):
        ortkit.OptimizeOptions(target="cuda", precision_io="convert")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "m.onnx", tmp_path / "o.onnx"
    onnx.save(proto(MLP, w=weight()), path)
    command = ["optimize", str(path), "-o", str(out), "--target", "cuda", "--kernels", "off"]
    assert run([*command, "--precision-io", "convert"]) == 2
    assert "--precision-io" in capsys.readouterr().err
    assert run([*command, "--precision", "fp16", "--precision-io", "convert", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rewrites_by_pass"]["lower-interface"] == 3
    assert document["verification"]["verdict"] == "yes"
    types_there = {item.type.tensor_type.elem_type for item in onnx.load(out).graph.output}
    assert types_there == {onnx.TensorProto.FLOAT16, onnx.TensorProto.INT64}


def test_bisect_lowers_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(proto(MLP, w=weight()), path)
    command = ["bisect", str(path), "--kernels", "off", "--json", "--target", "cuda"]
    counts = []
    for precision in ("fp32", "fp16"):
        assert run([*command, "--precision", precision]) == 0
        counts.append(json.loads(capsys.readouterr().out)["rewrites"])
    assert counts[1] >= counts[0] + 3
