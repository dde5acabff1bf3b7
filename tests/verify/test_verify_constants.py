"""What only the constants of a model lead to: rows of tables, lengths that it names, labels."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from small_models import model, random_weights

from ortkit.verify.pair import verify_models
from ortkit.verify.verifier import Verifier

F = np.float32
BFLOAT16 = ml_dtypes.bfloat16
TABLE = random_weights(30_000, 8)


def embedding(table: np.ndarray) -> ir.Model:
    text = "g (int64[n, s] ids) => (float[n, s, 8] y) { e = Gather(w, ids) y = Tanh(e) }"
    return model(text, {"w": table})


@pytest.mark.parametrize("row", [12_345, 29_998])
@pytest.mark.parametrize("keeps_names", [True, False])
def test_one_wrong_row_of_a_table_is_found(row: int, keeps_names: bool) -> None:
    other = TABLE.copy()
    other[row, 2] += 0.01
    with Verifier(embedding(TABLE)) as verifier:
        found = verifier.check(embedding(other), keeps_names=keeps_names)
        assert found.verdict == "no"
        assert f"near row {row} of its table" in found.reason
        assert verifier.check(embedding(TABLE.copy())).verdict == "yes"


def test_rows_in_another_order_with_their_indices_are_no_fault() -> None:
    order = np.random.default_rng(0).permutation(len(TABLE))
    place = np.argsort(order)
    nodes = "i = Gather(p, ids) e = Gather(w, i) y = Tanh(e)"
    text = f"g (int64[n, s] ids) => (float[n, s, 8] y) {{ {nodes} }}"
    other = model(text, {"w": TABLE[order], "p": place})
    assert verify_models(embedding(TABLE), other).verdict == "yes"


def test_rows_of_a_table_may_be_off_by_roundings() -> None:
    other = TABLE * F(1 + 2.0**-22)
    assert not np.array_equal(other, TABLE)
    assert verify_models(embedding(TABLE), embedding(other)).verdict == "yes"


def projection(weight: np.ndarray) -> ir.Model:
    kind = weight.dtype.name
    text = f"g ({kind}[n, s, 64] x) => ({kind}[n, s, 8] y) {{ y = MatMul(x, w) }}"
    return model(text, {"w": weight})


@pytest.mark.parametrize(("half", "good"), [(np.float16, "yes"), (BFLOAT16, "partly")])
def test_one_weight_in_half_precision_that_is_off_is_found(half: type, good: str) -> None:
    weight = random_weights(64, 8).astype(half)
    off, up = weight.copy(), np.random.default_rng(1).integers(0, 2, weight.shape, bool)
    rounded = np.nextafter(weight, np.where(up, 9, -9).astype(half))
    at = np.unravel_index(np.abs(weight).argmax(), weight.shape)
    off[at] *= half(1.03)
    with Verifier(projection(weight)) as verifier:
        found = verifier.check(projection(off))
        assert found.verdict == "no"
        assert f"near row {at[0]} of its constant" in found.reason
        assert verifier.check(projection(rounded)).verdict == good


@pytest.mark.parametrize("seed", range(4))
def test_weights_in_bfloat16_may_all_be_a_step_off(seed: int) -> None:
    """ONNX Runtime runs neither model: both are compared in float32, as rounded to bfloat16."""
    generator = np.random.default_rng(seed)
    weight = generator.standard_normal((64, 8)).astype(BFLOAT16)
    up = generator.integers(0, 2, weight.shape, bool)
    other = np.nextafter(weight, np.where(up, 9, -9).astype(BFLOAT16))
    found = verify_models(projection(weight), projection(other))
    assert found.verdict == "partly", found.reason


def test_one_quantized_weight_that_is_off_is_found() -> None:
    generator = np.random.default_rng(0)
    weight = generator.integers(-127, 128, (64, 8)).astype(np.int8)
    off = weight.copy()
    off[5, 3] += 1
    text = "f = DequantizeLinear(w, scale) h = Transpose(f) i = Transpose(h) y = MatMul(x, i)"
    header = "g (float[n, s, 64] x) => (float[n, s, 8] y)"
    made = [
        model(f"{header} {{ {text} }}", {"w": each, "scale": F(0.01)}) for each in (weight, off)
    ]
    with Verifier(made[0]) as verifier:
        found = verifier.check(made[1])
        assert "near row 5 of its constant" in found.reason
        assert verifier.check(made[0].clone()).verdict == "yes"


X = "g (float[n, s, 4] x) => (float[n, s, 4] y)"
SIZES = {
    "zero": np.array([0]), "end": np.array([4096]), "one": np.array(1), "axis": np.array([1]),
    "nothing": np.array(0), "limit": np.array(256), "none": F(0),
}  # fmt: skip
BEYOND = {
    "a slice of 4,096": "p = Slice(x, zero, end, axis) y = Tanh(p)",
    "a mask beyond 256": (
        "h = Shape(x) n = Gather(h, one) r = Range(nothing, n, one) c = Less(r, limit)"
        " u = Unsqueeze(c, minus) m = Where(u, x, none) y = Tanh(m)"
    ),
}


@pytest.mark.parametrize("name", BEYOND)
def test_a_limit_on_lengths_that_only_the_candidate_has_is_found(name: str) -> None:
    weights = {key: each for key, each in SIZES.items() if key in BEYOND[name]}
    weights |= {"minus": np.array([-1])} if "minus" in BEYOND[name] else {}
    original, candidate = (
        model(f"{X} {{ y = Tanh(x) }}", {}),
        model(f"{X} {{ {BEYOND[name]} }}", weights),
    )
    assert verify_models(original, candidate).verdict == "no"


def test_labels_that_a_loss_ignores_are_among_those_made() -> None:
    inputs = "float[n, 5, d] x, int64[n, d] t"
    text = f"g ({inputs}) => (float y) {{{{ y = SoftmaxCrossEntropyLoss{{}}(x, t) }}}}"
    original = model(text.format("<ignore_index = -100>"))
    assert verify_models(original, original).verdict == "yes"
    assert verify_models(original, model(text.format(""))).verdict == "no"


def test_one_weight_in_half_precision_that_is_off_is_found_without_names() -> None:
    weight = random_weights(64, 8).astype(np.float16)
    off, scaled = weight.copy(), weight.copy()
    off[9, 4] = off[9, 4] * np.float16(1.02) + np.float16(1e-3)
    scaled[:, 5] *= np.float16(0.7)
    text = "g (float16[n, s, 64] x) => (float16[n, s, 8] y) { BODY y = Relu(OF) }"
    plain, renamed = "a = MatMul(x, w)", "b = MatMul(x, v)"
    with Verifier(
        model(text.replace("BODY", plain).replace("OF", "a"), {"w": weight})
    ) as verifier:
        other = text.replace("BODY", renamed).replace("OF", "b")
        assert verifier.check(model(other, {"v": off})).verdict == "no"
        assert verifier.check(model(other, {"v": weight})).verdict == "yes"
    factors = np.where(np.arange(8) == 5, 0.7, 1).astype(np.float16)
    body = f"{plain} c = Mul(a, f)"
    original = model(text.replace("BODY", body).replace("OF", "c"), {"w": weight, "f": factors})
    assert verify_models(original, model(other, {"v": scaled})).verdict == "yes"
