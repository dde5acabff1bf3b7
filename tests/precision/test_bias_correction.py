"""What rounding weights shifts on average is taken back in the bias."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from ortkit.precision.bias_correction import find_means
from ortkit.precision.building import Builder, drop_unread, stand_in
from ortkit.precision.forms import BlockInt4, DynamicInt8, Form
from ortkit.precision.running import Runner
from ortkit.precision.static import StaticInt8
from ortkit.precision.weight_quantization import by_blocks, shift
from ortkit.verify.exchange import write_feeds
from tests.precision.helpers import floats, model_of, products_of, run

GEMM = "g (float[n, 96] x) => (float[n, 8] y) { y = Gemm(x, w, b) }"
CONV = "g (float[n, 6, 9, 9] x) => (float[n, 4, m, k] y) { y = Conv<group = 2>(x, w) }"


def means_of(model: ir.Model, folder: Path, *sets: np.ndarray) -> dict[str, np.ndarray]:
    for number, x in enumerate(sets):
        write_feeds(folder / str(number), {"x": x})
    runner = Runner(folder / "trials", [folder / str(number) for number in range(len(sets))])
    return find_means(runner, model, products_of(model))


def replaced(model: ir.Model, form: Form) -> ir.Model:
    build = Builder(model)
    made = form.emit(build)
    model.graph.insert_after(form.product.last, build.take())
    stand_in(form.product.last.outputs[0], made)
    drop_unread(model.graph, form.product.last)
    return model


def test_means_are_of_all_input_sets(tmp_path: Path) -> None:
    model = model_of(GEMM, w=floats(96, 8), b=floats(8))
    one, other = floats(5, 96), floats(3, 96, seed=1) + 2
    found = means_of(model, tmp_path, one, other)["y"]
    np.testing.assert_allclose(found, (one.mean(axis=0) + other.mean(axis=0)) / 2, rtol=1e-5)
    images = floats(2, 6, 9, 9) + 1
    conv = model_of(CONV, w=floats(4, 3, 3, 3))
    found = means_of(conv, tmp_path / "images", images)["y"]
    np.testing.assert_allclose(found, images.mean(axis=(0, 2, 3)), rtol=1e-4)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_products_of_positive_values_get_more_exact(kind: str, tmp_path: Path) -> None:
    weight, x = floats(96, 8), np.abs(floats(500, 96, seed=1)) + 1

    def error(means: np.ndarray | None) -> float:
        model = model_of(GEMM, w=weight, b=floats(8))
        (product,) = products_of(model)
        form: Form = DynamicInt8(product, means=means)
        if kind == "int4":
            form = BlockInt4(product, means=means)
        (found,) = run(replaced(model, form), x=x)
        return float(np.abs((found - x @ weight - floats(8)).mean(axis=0)).max())

    means = means_of(model_of(GEMM, w=weight, b=floats(8)), tmp_path, x)["y"]
    assert error(means) < 0.3 * error(None)


def test_convolutions_in_groups_get_more_exact(tmp_path: Path) -> None:
    weight = floats(4, 3, 3, 3)
    # The groups differ, so that one's means would not do for the other.
    x = np.abs(floats(4, 6, 9, 9, seed=1)) + np.float32([5, 4, 3, 0, 0, 0]).reshape(1, 6, 1, 1)
    (wanted,) = run(model_of(CONV, w=weight), x=x)
    ranges = {"x": (0.0, float(x.max())), "y": (float(wanted.min()), float(wanted.max()))}

    def error(means: np.ndarray | None) -> float:
        model = model_of(CONV, w=weight)
        (product,) = products_of(model)
        form = StaticInt8(product, ranges, "minmax", bits=7, means=means)
        (found,) = run(replaced(model, form), x=x)
        return float(np.abs((found - wanted).mean(axis=(0, 2, 3))).max())

    means = means_of(model_of(CONV, w=weight), tmp_path, x)["y"]
    assert error(means) < 0.5 * error(None)


def test_products_without_a_bias_stay_without_one() -> None:
    model = model_of("g (float[n, 96] x) => (float[n, 8] y) { y = MatMul(x, w) }", w=floats(96, 8))
    (product,) = products_of(model)
    replaced(model, DynamicInt8(product, means=np.ones(96)))
    (node,) = model.graph
    assert len(node.inputs) == 3


def test_shifts_of_exact_weights_are_none() -> None:
    weight = floats(8, 3)
    assert (shift(weight, weight, np.ones(8)) == 0).all()
    blocks = by_blocks(floats(70, 3), 32)
    assert blocks.widened(70).shape == (70, 3)
