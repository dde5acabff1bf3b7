"""Inputs of fused functions are called what they are, and keys do not depend on that."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortkit import OptimizeOptions
from ortkit.fusion.plan import compile_regions
from ortkit.fusion.regions.cost_model import gain_refusal
from ortkit.graph.io.text import from_text
from ortkit.kernels.build.library import LibraryBuild
from ortkit.optimization.passes import pipeline_of, rewrite_options
from ortkit.targets.target import Target

HEAD = '<ir_version: 10, opset_import: ["" : 23]>'


def inputs_of(text: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the inputs of the fused function of a model; no kernel is compiled."""
    built = LibraryBuild(None, (), (), 0, "", 0.0)
    monkeypatch.setattr("ortkit.fusion.plan.build_library", lambda *_, **__: built)
    options = OptimizeOptions(verify=False)
    model = from_text(HEAD + text)
    result = pipeline_of(options).run(model, rewrite_options(options))
    compile_regions(result.scopes, Path("unused"), "tvm", Target(), options.count)
    (function,) = model.functions.values()
    return [value.name or "" for value in function.inputs]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            "g (float[64, 512] x, float[64, 512] r) => (float[64, 512] y)"
            " <float[512] s = {SCALE}, float[512] b = {BIAS}> {"
            " a = Add(x, r) y = LayerNormalization(a, s, b) }",
            ["x", "x_2", "scale", "bias"],
        ),
        (
            "g (float[64, 512] x, bool[64, 512] c, float[64, 512] z) => (float[64, 512] y)"
            " { a = Tanh(x) w = Where(c, a, z) y = Abs(w) }",
            ["x", "condition", "x_2"],
        ),
    ],
)
def test_inputs_are_called_what_they_are(
    text: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for word, number in (("SCALE", "0.5"), ("BIAS", "2")):
        text = text.replace(word, ", ".join([number] * 512))
    assert sorted(inputs_of(text, monkeypatch)) == sorted(names)


def test_a_predicted_gain_is_less_than_what_it_is_held_against() -> None:
    assert gain_refusal(0.0999, 0.1) == "predicted to gain 9 %, less than 10 %"
    assert gain_refusal(-0.004, 0.1) == "predicted to gain 0 %, less than 10 %"
    assert gain_refusal(-0.19, 0.1) == "predicted to gain nothing: 19 % slower as one kernel"
