"""Steps of lowered models: each is held to its own quantization error."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from lowered_forms import (
    BLOCK,
    FORMS,
    ORIGINAL,
    ROWS,
    SIZE,
    Arrays,
    B,
    W,
    X,
    floats_of_eight,
    fours,
    halves_of_four,
    judged,
    model,
    ranges,
    results,
)

from ortkit.verify.exchange import write_feeds
from ortkit.verify.lowered.steps import lowered_steps
from ortkit.verify.verifier import Verifier


@pytest.mark.parametrize("form", FORMS)
def test_good_forms_are_explained(form: str, tmp_path: Path) -> None:
    nodes, arrays = FORMS[form]
    assert judged(tmp_path, ORIGINAL, model(nodes, arrays)) == {}


# ---- faults --------------------------------------------------------------------------------


def changed(array: np.ndarray, place: int, factor: float, more: int = 0) -> np.ndarray:
    """Change one element, or column."""
    made = array.copy()
    made[..., place] = made[..., place] * factor + more
    return made


def without(q: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """Set the largest weight of a column to zero."""
    made = q.copy()
    made[int(np.abs(W[:, 7]).argmax()), 7] = zero[7]
    return made


def of_eight_bits(form: str) -> list[tuple[str, str, dict[str, np.ndarray], str]]:
    held = FORMS[form][1]
    q, s, z = held["q"], held["s"], held["z"]
    return [
        (form, "a channel's scale", {"s": changed(s, 4, 1.03)}, "index 4 of axis 1"),
        (form, "one weight is zero", {"q": without(q, z)}, "index 7 of axis 1"),
        (form, "zero points off by one", {"z": z + z.dtype.type(1)}, ""),
        (form, "zero point off by two", {"z": changed(z, 9, 1, 2)}, "index 9 of axis 1"),
        (form, "bias dropped", {"b": np.zeros_like(B)}, ""),
        (form, "bias off", {"b": changed(B, 5, 1.05)}, "index 5 of axis 1"),
        (form, "scales of neighbours", {"s": np.roll(s, 1)}, ""),
        (form, "all scales", {"s": s * np.float32(1.01)}, "scale"),
    ]


def of_few_bits() -> list[tuple[str, str, dict[str, np.ndarray], str]]:
    q, s, z, _ = fours().values()
    swapped = q.copy()
    swapped[4] = q[4] >> 4 | q[4] << 4
    neighbours = s.reshape(SIZE, -1)[:, ::-1].reshape(-1)
    narrow = FORMS["bfloat16"][1]["w"]
    larger = changed(narrow, 3, 1.03).astype(ml_dtypes.bfloat16).astype(np.float32)
    return [
        ("4 bits", "halves of a row's bytes swapped", {"q": swapped}, "index 4 of axis 1"),
        ("4 bits", "zero points off by one", {"z": z ^ np.uint8(0x11)}, ""),
        ("4 bits", "a block's scale doubled", {"s": changed(s, 8, 2)}, "index 4 of axis 1"),
        ("4 bits", "blocks' scales of neighbours", {"s": neighbours}, ""),
        ("4 bits", "all scales", {"s": s * np.float32(1.15)}, "scale"),
        ("4 bits", "bias dropped", {"b": np.zeros_like(B)}, ""),
        ("4 bits", "2 bits", {"q": q & np.uint8(0xCC)}, ""),
        ("4 bits, blocks", "order", {"s": halves_of_four()["s"][::-1].copy()}, ""),
        ("float8", "a channel's scale", {"s": changed(floats_of_eight()["s"], 4, 1.2)}, "index 4"),
        ("float8", "bias dropped", {"b": np.zeros_like(B)}, ""),
        ("bfloat16", "a channel", {"w": larger}, "index 3 of axis 1"),
        ("both", "activations' scale", {"xt": ranges()["xs"] * np.float32(1.02)}, "scale"),
        ("operators", "results' zero point", {"mo": np.array(129, np.uint8)}, ""),
    ]


EIGHTS = ("dynamic", "apart", "integers", "weights", "both", "operators")
FAULTS = [*(fault for form in EIGHTS for fault in of_eight_bits(form)), *of_few_bits()]


@pytest.mark.parametrize(
    ("form", "wrong", "place"),
    [(form, wrong, place) for form, _, wrong, place in FAULTS],
    ids=[f"{form}: {name}" for form, name, *_ in FAULTS],
)
def test_faults_are_not(form: str, wrong: Arrays, place: str, tmp_path: Path) -> None:
    nodes, arrays = FORMS[form]
    found = judged(tmp_path, ORIGINAL, model(nodes, {**arrays, **wrong}))
    assert list(found) == ["y"]
    assert "times what rounding its weights may cost" in found["y"].reason
    assert place in found["y"].reason


def test_equal_weights_are_rounded_alike(tmp_path: Path) -> None:
    """A table of positions is mostly ones, each of which rounds up by the same amount."""
    table = np.where(np.arange(SIZE) % 8, 1, 0.3).astype(np.float32) * np.ones(
        (ROWS, 1), np.float32
    )
    scale = np.array(1 / 90.55, np.float32)
    original = model("y = Add(x, p)", {"p": table}, f"{ROWS}, {SIZE}", f"{ROWS}, {SIZE}")
    for part, is_good in ((1.0, True), (1.02, False)):
        arrays = {"q": np.round(table / scale).astype(np.uint8), "s": scale * np.float32(part)}
        nodes = "p = DequantizeLinear(q, s) y = Add(x, p)"
        candidate = model(nodes, arrays, f"{ROWS}, {SIZE}", f"{ROWS}, {SIZE}")
        folder = tmp_path / str(part)
        assert (judged(folder, original, candidate, X / 8) == {}) is is_good


def test_scales_of_the_wrong_axis_are_a_fault(tmp_path: Path) -> None:
    nodes, arrays = FORMS["weights"]
    found = judged(tmp_path, ORIGINAL, model(nodes.replace("axis = 1", "axis = 0"), arrays))
    assert list(found) == ["y"]


# ---- what is not explained -----------------------------------------------------------------


def test_the_accepted_error_is_the_limit_of_what_nothing_explains(tmp_path: Path) -> None:
    """Rows of 4-bit weights in an order of their own are read by no copy in float32."""
    order = np.arange(SIZE, dtype=np.int32) // BLOCK
    nodes = FORMS["4 bits"][0].replace("z, , b", "z, order, b")
    candidate = model(nodes, {**fours(), "order": order})
    found = lowered_steps(candidate, ORIGINAL, {})
    assert found.floats == {"y"}
    assert not found.explained
    assert not found.models
    wanted, given = (
        results(each, {"x": X})[0]["y"] for each in (ORIGINAL, model(*FORMS["4 bits"]))
    )
    for name, value in (("expected", wanted), ("actual", given)):
        write_feeds(tmp_path / name / "feeds", {"y": value})
    assert found.off(tmp_path, "feeds", 0.2) == {}
    assert found.off(tmp_path, "feeds", 0.01)["y"].reason.endswith(", 0.01 is allowed")


def test_steps_that_the_original_rounds_are_not_explained() -> None:
    quantized = model(*FORMS["weights"])
    assert not lowered_steps(model(*FORMS["dynamic"]), quantized, {}).explained
    assert not lowered_steps(quantized, quantized, {}).explained


def test_a_step_in_float32_is_not_lowered() -> None:
    assert lowered_steps(ORIGINAL, ORIGINAL, {}).floats == frozenset()


def test_a_fault_within_the_accepted_error_is_refused() -> None:
    nodes, arrays = FORMS["dynamic"]
    wrong = {**arrays, "s": changed(arrays["s"], 4, 1.05)}
    with Verifier(ORIGINAL, samples=1, shapes={"n": ROWS}) as verifier:
        good = verifier.check(model(nodes, arrays), stated=0.05)
        assert good.verdict == "yes", good.reason
        found = verifier.check(model(nodes, wrong), stated=0.05)
    assert found.verdict == "no"
    assert found.reason.startswith(
        "output 'y', computed from the original's values in float32: off"
    )
    assert found.reason.endswith("what rounding its weights may cost: index 4 of axis 1")
