"""The Python API: keywords for common use, and messages that name parameters, not flags."""

from __future__ import annotations

import pytest

import ortkit
from ortkit.errors import UserError, naming_flags
from ortkit.graph.io.text import from_text

MODEL = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[n] x) => (float[n] y) { a = Identity (x) y = Tanh (a) }"""


def test_common_options_are_keywords() -> None:
    report = ortkit.optimize(from_text(MODEL), level=1, verify=False).report
    assert (report.level, report.verification) == (1, None)
    options = ortkit.OptimizeOptions(verify=False, kernels="off")
    report = ortkit.optimize(from_text(MODEL), options, level=3).report
    assert (report.level, report.verification) == (3, None)
    with pytest.raises(TypeError, match="'levle'"):
        ortkit.optimize(from_text(MODEL), levle=1)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("--verify-seconds: cannot be 0", "verify_seconds: cannot be 0"),
        ("give --inputs FILE.npz, or --shape NAME=SIZE", "give inputs, or shapes"),
        (
            "sizes such as --shape batch=1 --shape a.b=16 ...",
            "sizes such as shapes={'batch': 1, 'a.b': 16} ...",
        ),
        ("see `ortkit optimize --why X`", "see `ortkit optimize --why X`"),
        ("goes with verification, not --no-verify", "goes with verification, not verify=False"),
        ("a-b--c and --kernels off", "a-b--c and kernels off"),
    ],
)
def test_messages_name_parameters_or_flags(text: str, shown: str) -> None:
    assert str(UserError(text)) == shown
    with naming_flags():
        assert str(UserError(text)) == text
    assert str(UserError(text)) == shown


def test_an_error_of_the_options_names_the_parameter() -> None:
    with pytest.raises(UserError, match=r"^samples: cannot be 0"):
        ortkit.OptimizeOptions(samples=0)
