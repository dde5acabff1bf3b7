"""Models of 8-bit weights where ONNX Runtime's own products saturate: a processor without VNNI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ortkit.targets.cpu import _cpu_flags, runs_here, saturates_products
from scripts.benches import hidden

pytestmark = pytest.mark.skipif(not runs_here("x86-64-v3"), reason="this machine has no AVX2")

#: Runs in a process that may see less of its processor than this one.
_CHILD = """
import json, sys
from pathlib import Path
import numpy as np, onnx, onnxruntime as ort
from onnx import numpy_helper, parser
from ortkit.targets import cpu
flags = cpu._cpu_flags()
hidden = {flag for flag in flags if flag.startswith(("avx512", "avx_vnni", "amx"))}
cpu._cpu_flags = lambda: flags - hidden
import ortkit

folder, body = Path(sys.argv[1]), sys.argv[2]
model = parser.parse_model(
    '<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>'
    'g (float[n, 64] x) => (float[n, 48] y) { q = QuantizeLinear(x, s, z) ' + body + '}'
)
w = np.random.default_rng(1).integers(-127, 128, (64, 48)).astype(np.int8)
w[:, 0], w[:, 1] = -128, 127
held = {
    "w": w, "u": (w.astype(np.int16) + 128).astype(np.uint8), "m": np.uint8(128),
    "s": np.float32(1), "z": np.uint8(0), "v": np.int8(0), "f": np.float32(8192),
}
read = {name for node in model.graph.node for name in node.input}
model.graph.initializer.extend(
    numpy_helper.from_array(np.asarray(held[name]), name) for name in sorted(read & held.keys())
)
made = ortkit.optimize(model, ortkit.OptimizeOptions())
made.save(folder / "m.onnx")
x = np.concatenate([np.full((1, 64), 255), np.random.default_rng(2).integers(0, 256, (5, 64))])
x = x.astype(np.float32)
(got,) = ortkit.Session(folder / "m.onnx").run({"x": x}).values()
sums = x.astype(np.int64) @ w.astype(np.int64)
wanted = np.clip(np.rint(sums / 8192) + 128, 0, 255).astype(np.float32) * 8192 - 128 * 8192
runs = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
print(json.dumps({
    "verdict": made.report.verification.verdict, "rolled back": made.report.rolled_back,
    "kernels": sum(node.op_type.startswith("int8_product") for node in made.model.graph),
    "is exact": bool(np.array_equal(got, wanted)),
    "ONNX Runtime is exact": bool(np.array_equal(runs.run(None, {"x": x})[0], wanted)),
}))
"""
_END = "y = DequantizeLinear(r, f, m)"
BODIES = {
    "QOperator": f"r = QLinearMatMul(q, s, z, w, s, v, f, m) {_END}",
    "QDQ": "a = DequantizeLinear(q, s, z) b = DequantizeLinear(w, s, v) p = MatMul(a, b) "
    f"r = QuantizeLinear(p, f, m) {_END}",
    "unsigned weights": "a = DequantizeLinear(q, s, z) b = DequantizeLinear(u, s, m) "
    f"p = MatMul(a, b) r = QuantizeLinear(p, f, m) {_END}",
}


@pytest.mark.parametrize("name", BODIES)
def test_kernels_stay_and_are_exact(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not saturates_products():
        if "cpuid_fault" not in _cpu_flags():
            pytest.skip("this processor has VNNI, and cpuid does not fault")
        monkeypatch.setenv("LD_PRELOAD", os.environ.get("LD_PRELOAD", ""))
        hidden.hide_avx512(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(tmp_path), BODIES[name]],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("ONNX Runtime is exact") == (name == "unsigned weights")
    assert found == {"verdict": "yes", "rolled back": [], "kernels": 1, "is exact": True}
