"""Each form computes its product, as far off as its bits say; trials leave the original alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from ortkit.precision.building import Builder, drop_unread, stand_in
from ortkit.precision.forms import BlockInt4, DynamicInt8, Form, RoundedBf16
from ortkit.precision.products import Product
from ortkit.precision.running import Runner, error_of, write_flags
from ortkit.precision.trials import FLAGS, switched_model
from ortkit.verify.exchange import write_feeds
from tests.precision.helpers import checked, floats, model_of, off_by, products_of, run

K, N = 96, 40
FORMS = [
    (DynamicInt8, 0.02),
    (lambda product: DynamicInt8(product, 7), 0.03),
    (lambda product: BlockInt4(product, 32), 0.15),
    (lambda product: BlockInt4(product, 64), 0.15),
    (RoundedBf16, 0.005),
]
PRODUCTS = {
    "MatMul": "y = MatMul(x, w)",
    "with a bias": "h = MatMul(x, w)  y = Add(h, b)",
    "Gemm": "y = Gemm(x, w, b)",
    "turned": "y = Gemm<transB = 1>(x, wt, row)",
}


def given() -> dict[str, np.ndarray]:
    w = floats(K, N, scale=K**-0.5)
    return {"w": w, "wt": np.ascontiguousarray(w.T), "b": floats(N), "row": floats(1, N)}


@pytest.mark.parametrize("text", PRODUCTS.values(), ids=PRODUCTS)
@pytest.mark.parametrize(("form", "most"), FORMS)
def test_forms_compute_the_product(
    form: Callable[[Product], Form], most: float, text: str
) -> None:
    model = model_of(f"g (float[5, {K}] x) => (float[5, {N}] y) {{ {text} }}", **given())
    x = floats(5, K, seed=1)
    (wanted,) = run(model, x=x)
    (product,) = products_of(model)
    build = Builder(model)
    made = form(product).emit(build)
    model.graph.insert_after(product.last, build.take())
    stand_in(product.last.outputs[0], made)
    drop_unread(model.graph, product.last)
    assert not any(node.op_type == "Gemm" for node in model.graph)
    (found,) = run(model, x=x)
    assert 0 < off_by(wanted, found) < most


CHAIN = """g (float[n, 64] x) => (float[n, 64] y) {
  h = MatMul(x, w)  a = Add(h, b)  c = MatMul(a, w)  r = Relu(c)  y = MatMul(r, w)
}"""
CONVOLUTIONS = """g (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y) {
  h = Conv(x, w)  r = Relu(h)  a = Conv(r, w)  y = Conv(a, w)
}"""


def chain() -> ir.Model:
    return model_of(CHAIN, w=floats(64, 64, scale=1 / 8), b=floats(64))


def test_flags_switch_each_product_alone(tmp_path: Path) -> None:
    model = chain()
    forms = [DynamicInt8(product) for product in products_of(model)]
    switched = switched_model(model, forms)
    x = floats(3, 64, seed=1)
    (wanted,) = run(model, x=x)

    def with_flags(*flags: bool) -> np.ndarray:
        return run(switched, **{"x": x, FLAGS: np.array(flags)})[0]

    np.testing.assert_array_equal(with_flags(False, False, False), wanted)
    alone = [off_by(wanted, with_flags(*(i == j for j in range(3)))) for i in range(3)]
    together = off_by(wanted, with_flags(True, True, True))
    assert all(0 < item < together for item in alone)
    # The model that was tried is as it was.
    np.testing.assert_array_equal(run(model, x=x)[0], wanted)


def test_a_convolution_that_reads_a_switched_one(tmp_path: Path) -> None:
    model = model_of(CONVOLUTIONS, w=floats(4, 4, 1, 1, scale=0.5))
    forms = [RoundedBf16(product) for product in products_of(model)]
    switched = switched_model(model, forms)
    x = floats(1, 4, 8, 8, seed=1)
    (wanted,) = run(model, x=x)
    (found,) = run(switched, **{"x": x, FLAGS: np.array([True, True, True])})
    assert 0 < off_by(wanted, found) < 0.02


def test_one_product_has_one_flag() -> None:
    model = model_of("g (float[n, 8] x) => (float[n, 8] y) { y = MatMul(x, w) }", w=floats(8, 8))
    forms = [DynamicInt8(product) for product in products_of(model)]
    checked(switched_model(model, forms))
    x = floats(2, 8)
    (found,) = run(switched_model(model, forms), **{"x": x, FLAGS: np.array([True])})
    assert 0 < off_by(x @ floats(8, 8), found) < 0.03


def test_own_errors_and_ranges_are_those_of_the_original_s_values(tmp_path: Path) -> None:
    model = chain()
    products = products_of(model)
    x = floats(3, 64, seed=1)
    write_feeds(tmp_path / "0", {"x": x})
    runner = Runner(tmp_path / "trials", [tmp_path / "0"])
    forms: list[Form] = [RoundedBf16(products[0]), DynamicInt8(products[0])]
    rounded, int8 = runner.errors(model, forms)
    w = floats(64, 64, scale=1 / 8)
    small = [each.astype(ml_dtypes.bfloat16).astype(np.float32) for each in (x, w)]
    assert rounded == pytest.approx(
        off_by(x @ w + floats(64), small[0] @ small[1] + floats(64)), rel=0.02
    )
    assert int8 > rounded
    ranges = runner.ranges(model, products)
    np.testing.assert_allclose(ranges["a"], np.abs(x).max(axis=0), rtol=1e-6)
    np.testing.assert_allclose(ranges["c"], np.abs(x @ w + floats(64)).max(axis=0), rtol=1e-4)


def test_trials_run_in_a_process_of_their_own(tmp_path: Path) -> None:
    model = chain()
    forms = [DynamicInt8(product) for product in products_of(model)]
    write_feeds(tmp_path / "0", {"x": floats(3, 64, seed=1)})
    runner = Runner(tmp_path / "trials", [tmp_path / "0"])
    switched = runner.save(switched_model(model, forms), "switched")
    plain, lowered = runner.with_flags(switched, [[False] * 3, [True] * 3], runner.sets)
    assert 0 < error_of(plain, lowered) < 0.1
    assert error_of(plain, plain) == 0.0
    write_flags(tmp_path / "flags", tmp_path / "0", [True] * 3)
    assert not (tmp_path / "flags" / "0_0.bin").exists()
