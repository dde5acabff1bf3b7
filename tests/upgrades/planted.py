"""ONNX Runtimes in folders: the installed one with a fault planted, without any network."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import onnx
import onnx.parser
import onnxruntime

HEAD = '<ir_version: 9, opset_import: ["" : 17]>\n'
#: Constants are folded; Add and LayerNormalization become one node at level extended.
MODEL = (
    HEAD
    + """g (float[2, 4, 16] x) => (float[2, 4, 16] y)
<float[1] one = {1.0}, float[16] scale = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1},
 float[16] bias = {0,1,2,3,4,5,6,7,8,9,1,2,3,4,5,6}>
{ two = Add(one, one)  s = Mul(x, two)  t = Add(s, x)
  y = LayerNormalization<axis = -1>(t, scale, bias) }"""
)
#: Every output is one more.
OFF_BY_ONE = """
class InferenceSession(InferenceSession):
    def run(self, *given):
        return [value + 1 for value in super().run(*given)]
"""
#: ... while an optimizer is on; NAME, EFFECT and LEVEL are put in.
WHILE_ON = """
import time
class InferenceSession(InferenceSession):
    def __init__(self, model, options, disabled_optimizers=(), **given):
        super().__init__(model, options, disabled_optimizers=list(disabled_optimizers), **given)
        off = set(disabled_optimizers)
        try:
            key = "optimization.disable_specified_optimizers"
            off |= set(options.get_session_config_entry(key).split(";"))
        except RuntimeError:
            pass
        level = options.graph_optimization_level
        is_on = int(level) > int(GraphOptimizationLevel.ORT_ENABLE_BASIC)
        self.BAD = is_on and not off & {NAMES}
    def run(self, *given):
        values = super().run(*given)
        if self.BAD:
            EFFECT
        return values
"""


def planted(folder: Path, version: str, code: str = "") -> Path:
    """Make a folder with the installed ONNX Runtime, under another version and with more code."""
    source = Path(onnxruntime.__file__).parent
    target = folder / version / "onnxruntime"

    def link(one: str, other: str) -> None:
        os.symlink(one, other)  # noqa: PTH211

    shutil.copytree(source, target, copy_function=link, ignore=shutil.ignore_patterns("*.pyc"))
    own = target / "__init__.py"
    text = own.read_text("utf-8")
    own.unlink()
    own.write_text(f"{text}\n__version__ = {version!r}\n{code}", "utf-8")
    return target.parent


def while_on(names: set[str], effect: str) -> str:
    """Return code that does something after each run while all of these optimizers are on."""
    own = f"is_bad_{'_'.join(sorted(names))}"
    code = WHILE_ON.replace("{NAMES}", repr(names)).replace("EFFECT", effect)
    return code.replace("BAD", own)


def save(folder: Path, text: str = MODEL, name: str = "model.onnx") -> Path:
    """Write a model."""
    onnx.save(onnx.parser.parse_model(text), folder / name)
    return folder / name
