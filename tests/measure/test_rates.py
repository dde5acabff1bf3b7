"""Heavy operators that `ortkit calibrate` times: both chains compute the same, by both kernels."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import onnx
import pytest

from ortkit.kernels.tuning.calibration import Calibration
from ortkit.measure.rates import SHORT, Heavy, heavy_operators
from ortkit.targets.catalog import load
from ortkit.targets.target import Target

HEAVY = {operator.kind: operator for operator in heavy_operators(Target("cpu", "x86-64-v4"))}


def outputs(model: onnx.ModelProto) -> np.ndarray:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = ort.InferenceSession(model.SerializeToString(), options)
    (found,) = session.run(None, {"x0": np.ones(1, np.float32)})
    return np.asarray(found)


def test_products_and_four_kinds_of_convolutions_are_timed() -> None:
    convolutions = {"pointwise_conv", "winograd_conv", "conv", "depthwise_conv"}
    assert set(HEAVY) == {"product", *convolutions}
    below = {operator.kind for operator in heavy_operators(Target("cpu", "x86-64-v2"))}
    assert below == convolutions  # there are no products of that level


@pytest.mark.parametrize("kind", HEAVY)
def test_both_chains_compute_the_same(kind: str) -> None:
    heavy = HEAVY[kind]
    ours = heavy.chain(SHORT, is_ours=True)
    function = heavy.signature.function()
    function.domain, function.name = "ortkit.fused", heavy.signature.op_type
    ours.functions.append(function)
    given, want = outputs(ours), outputs(heavy.chain(SHORT, is_ours=False))
    if heavy.is_image:
        given = given.transpose(0, 3, 1, 2)
    np.testing.assert_allclose(given, want, rtol=0, atol=1e-5 * np.abs(want).max())
    chain = heavy.chain(heavy.long, is_ours=False)
    assert sum(node.op_type == heavy.node[0] for node in chain.graph.node) == heavy.long > 5


def test_a_long_chain_takes_a_millisecond_longer() -> None:
    for heavy in HEAVY.values():
        assert (heavy.long - SHORT) * heavy.predicted[0] >= 1e6


@pytest.mark.parametrize("kind", HEAVY)
def test_the_template_of_the_kind_takes_it(kind: str) -> None:
    names = {"product": "gemm.fp32", "conv": "conv.direct"}
    module = names.get(kind, f"conv.{kind.removesuffix('_conv')}")
    templates = Target().traits.templates
    assert module in templates
    matched = {
        name: load(f"ortkit.custom_ops.tvm.{name}:match")(HEAVY[kind].signature)
        for name in templates[: templates.index(module) + 1]
    }
    assert hasattr(matched[module], "lower")
    assert not any(hasattr(found, "lower") for name, found in matched.items() if name != module)


def test_what_was_predicted_is_a_factor_of_one() -> None:
    heavy: Heavy = HEAVY["conv"]
    before, after = heavy.predicted
    assert heavy.factor(before, after) == pytest.approx(1)
    assert heavy.factor(2 * before, 2 * after) == pytest.approx(1)  # of a slower machine
    assert heavy.factor(before, 3 * after) == pytest.approx(3)


def test_times_are_corrected_by_kind() -> None:
    found = Calibration(kernels=(("conv", 1.75),))
    assert found.corrected("conv", (3.0, 2.0)) == (3.0, 3.5)
    assert found.corrected("product", (3.0, 2.0)) == (3.0, 2.0)


@pytest.mark.parametrize("factor", [0.82, 1.06, 1.17])
def test_what_predictions_are_off_by_at_single_sizes_corrects_none(factor: float) -> None:
    """These are factors of the machine whose rates the predictions have."""
    found = Calibration(kernels=(("conv", factor),))
    assert found.corrected("conv", (3.0, 2.0)) == (3.0, 2.0)


def test_factors_that_differ_little_correct_alike() -> None:
    """Another measurement of one machine, a hundredth off, moves no prediction by three."""
    factors = [0.5 * 1.01**step for step in range(140)]
    times = [
        Calibration(kernels=(("conv", each),)).corrected("conv", (3.0, 2.0))[1] for each in factors
    ]
    steps = [after / before for before, after in pairwise(times)]
    assert max(steps) < 1.021
    assert min(steps) >= 1 - 1e-12
    assert times[0] == pytest.approx(2.0 * factors[0])
    assert times[-1] == pytest.approx(2.0 * factors[-1])
