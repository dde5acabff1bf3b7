"""Try an installed ortkit: `wheel_smoke.py bare|cpu ORTKIT FOLDER`; exits 1 with a reason.

`bare` has no runtime: what needs none must work, what needs one must say so in one line. `cpu`
optimizes a small model and runs it with its kernel library.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def main(mode: str, command: str, folder: Path) -> None:
    """Run the checks of a mode."""
    where = Path(importlib.import_module("ortkit").__file__ or "")
    _check("site-packages" in where.parts, f"ortkit is imported from {where}")
    _check(_run(command, "--help").returncode == 0, "--help fails")
    _check(_run(command, "--version").stdout.startswith("ortkit "), "--version fails")
    model = folder / "model.onnx"
    onnx.save(build(), model)
    if mode == "bare":
        _bare(command, model)
    else:
        _cpu(command, model)
    print(f"  {mode}: ok")


def build() -> onnx.ModelProto:
    """Return a matrix product with bias and an erf-GELU, and something to remove."""
    generator = np.random.default_rng(0)
    weights = {
        "w": generator.standard_normal((64, 96)),
        "b": generator.standard_normal(96),
        "root": np.array(np.sqrt(2)),
        "one": np.array(1.0),
        "half": np.array(0.5),
    }
    steps = (
        ("MatMul", ["x", "w"], "m"),
        ("Identity", ["m"], "i"),
        ("Add", ["i", "b"], "a"),
        ("Div", ["a", "root"], "d"),
        ("Erf", ["d"], "e"),
        ("Add", ["e", "one"], "p"),
        ("Mul", ["a", "p"], "t"),
        ("Mul", ["t", "half"], "y"),
    )
    graph = helper.make_graph(
        [helper.make_node(op, inputs, [output]) for op, inputs, output in steps],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 96])],
        [numpy_helper.from_array(np.asarray(w, np.float32), n) for n, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _bare(command: str, model: Path) -> None:
    done = _run(command, "optimize", str(model))
    said = done.stderr.strip().splitlines()
    print("\n".join(f"  | {line}" for line in said))
    _check(done.returncode == 2, f"optimize exits with {done.returncode} without a runtime")
    _check(len(said) == 1 and "pip install" in said[0], "it does not say what to install")
    done = _run(command, "optimize", "--no-verify", "--kernels", "off", str(model))
    _check(done.returncode == 0, f"--no-verify --kernels off fails: {done.stderr}")
    _check(_run(command, "inspect", str(model)).returncode == 0, "inspect fails")


def _cpu(command: str, model: Path) -> None:
    done = _run(command, "optimize", str(model))
    _check(done.returncode == 0, f"optimize fails: {done.stderr}")
    _check("verified  yes" in done.stdout, f"not verified: {done.stdout}")
    done = _run(command, "memory", str(model))
    _check("arena Cpu" in done.stdout, f"the arena is not found: {done.stdout}{done.stderr}")
    _alike(model)
    optimized, library = model.with_name("model.opt.onnx"), model.with_name("model.opt.ops.so")
    _check(library.exists(), f"no kernel library: {done.stdout}")
    import onnxruntime as ort

    feeds = {"x": np.random.default_rng(1).standard_normal((7, 64)).astype(np.float32)}
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(library))
    wanted = ort.InferenceSession(model).run(None, feeds)[0]
    for name, session in (
        ("with its library", ort.InferenceSession(optimized, options)),
        ("without it", ort.InferenceSession(optimized)),
    ):
        error = np.abs(session.run(None, feeds)[0] - wanted).max()
        print(f"  {name}: largest difference {error:.1e}")
        _check(error < 1e-4, f"wrong results {name}")


def _alike(model: Path) -> None:
    """Check that the checkout, which hides the wheel from `python -m`, does the same."""
    other = model.with_name("alike.onnx")
    arguments = ("optimize", str(model), "--no-verify", "-o", str(other))
    done = subprocess.run(
        (sys.executable, "-m", "ortkit", *arguments), cwd=Path(__file__).parents[1],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    _check(done.returncode == 0, f"python -m ortkit fails in the checkout: {done.stderr}")
    wanted = model.with_name("model.opt.ops.so").read_bytes()
    _check(other.with_name("alike.ops.so").read_bytes() == wanted, "other kernels in the checkout")


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _check(holds: bool, reason: str) -> None:
    if not holds:
        sys.exit(f"wheel smoke: {reason}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
