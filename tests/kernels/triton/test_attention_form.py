"""Bodies that are read as attention: what computes one, however its constants are written."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ortkit.custom_ops.forms.attention import read_attention
from ortkit.custom_ops.forms.attention_cuda import AttentionForm, Causal
from triton_attention import PLAIN, Case

CASE = Case(
    replace(PLAIN, heads=4, mask="chosen", fill=-5.0, causal="last", window=9, softcap=2.0), "b",
    keys="t", mask=("b", 1, 1, "t"), mask_dtype="bool",
)  # fmt: skip


def read(old: str, new: str) -> AttentionForm | None:
    """Read the case's body with one text in another's place."""
    signature = CASE.signature()
    assert old in signature.body
    found = read_attention(replace(signature, body=signature.body.replace(old, new, 1)))
    assert found is None or isinstance(found, AttentionForm)
    return found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y_3 = Constant <value: tensor = int64[4] {0,0,2,32}>",
         "y_3 = Constant <value_ints = [0, 0, 2, 32]>"),
        ("Reshape (x2, y_6)", "Reshape (x2, y_3)"),
    ],
    ids=["in another way", "once for both"],
)  # fmt: skip
def test_how_constants_are_written_does_not_matter(old: str, new: str) -> None:
    found = read(old, new)
    assert found is not None
    assert (found.scale, found.softcap) == (pytest.approx(32**-0.5, rel=1e-3), 2.0)
    assert found.causal == Causal(is_last=True, window=9)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Sub (y_34, y_33)", "Sub (y_33, y_34)"),
        ("Mul (y_27, y_25)", "Mul (y_27, y_22)"),
        ("Not (y_42)", "Not (y_39)"),
        ("{1,1,2,1,1}", "{1,2,1,1,1}"),
        ("Reshape (y_18, y_19)", "Reshape (y_14, y_19)"),
        ("perm: ints = [0, 1, 3, 2]", "perm: ints = [0, 1, 2, 3]"),
        ("Trilu <upper: int = 0> (y_36, y_41)", "Trilu <upper: int = 1> (y_36, y_41)"),
    ],
)
def test_what_computes_something_else_is_none(old: str, new: str) -> None:
    assert read(old, new) is None
