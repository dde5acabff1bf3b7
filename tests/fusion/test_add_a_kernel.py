"""The anchor and the function on the page about adding a kernel are what it says."""

from __future__ import annotations

import re
from pathlib import Path

from ortkit.custom_ops.tvm.conv import one_axis
from region_models import HEAD, scope_of, search_of

from ortkit.fusion.regions.anchors import grown
from ortkit.fusion.regions.cost_model import Prediction
from ortkit.graph.io.text import from_text
from ortkit.kernels.anchor import Anchor
from ortkit.refusal import Refused

PAGE = Path(__file__).parents[2] / "docs" / "add-a-kernel.md"


PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.M)


def test_the_anchor_is_that_of_the_template() -> None:
    names = {"Anchor": Anchor, "match": one_axis.match}
    exec(compile(PROGRAMS[0], PAGE.name, "exec"), names)
    assert names["ANCHOR"] == one_axis.ANCHOR


def test_the_function_finds_its_operator() -> None:
    _, program = PROGRAMS
    names = {"epilogue_of": lambda *_: [], "predict": lambda *_: Prediction(9e6, 1e6)}
    exec(compile(f"from __future__ import annotations\n{program}", PAGE.name, "exec"), names)
    anchor = Anchor("cumsum", operators=(("", "CumSum"),))
    text = f"""{HEAD} g (float[n, 8] x) => (z) <int64[1] first = {{0}}> {{
        y = CumSum (x, first)  z = Neg (y) }}"""
    (taken,) = list(names["regions"](search_of(scope_of(from_text(text))), anchor))
    assert taken.region.kind == "cumsum"
    assert [node.op_type for node in taken.region.nodes] == ["CumSum"]
    assert taken.signature is not None
    search = search_of(scope_of(from_text(text)), lambda _: Refused("no kernel for it"))
    (left,) = names["regions"](search, anchor)
    assert (left.signature, left.reason) == (None, "no kernel for it")


class OneOperand:
    """A kernel for an operator with one operand."""

    def estimate(self, level: str) -> tuple[float, float]:
        del level
        return 9e6, 1e6


def test_an_operator_of_one_operand_may_be_an_anchor() -> None:
    anchor = Anchor("scaled", lambda _: OneOperand(), (("", "LpNormalization"),), must_pay=True)
    text = f"{HEAD} g (float[n, 8] x) => (z) {{ y = LpNormalization (x)  z = Relu (y) }}"
    (taken,) = grown(search_of(scope_of(from_text(text))), anchor)
    assert taken.signature is not None
    assert [node.op_type for node in taken.region.nodes] == ["LpNormalization", "Relu"]
