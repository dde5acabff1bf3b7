"""Predicted times of convolutions and matmuls: what is linear in which size, and what steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from conv_nets import Net
from ortkit.custom_ops.triton.gemm import gemv, split_k
from ortkit.custom_ops.tvm.conv.direct import runtime_ns, summed_ns
from ortkit.custom_ops.tvm.conv.winograd import winograd_ns
from region_models import accept, find, scope_of

from ortkit.fusion.conv.chains import find_chains
from ortkit.fusion.conv.cost import block_cost
from ortkit.fusion.regions.cost_model import CostModel, Prediction
from ortkit.fusion.regions.ort_costs import ORT_NS, ROW_NS
from ortkit.kernels.anchor import Anchor, ProductSizes
from ortkit.kernels.conv_anchor import ConvSizes
from ortkit.kernels.tuning.calibration import Calibration, machine, save_calibration

LARGE = ProductSizes(rows=2048, depth=1024, columns=1024, epilogue_ops=2)


def predict(anchor: Anchor, sizes: ProductSizes) -> Prediction | None:
    assert anchor.estimate is not None
    found = anchor.estimate("sm_90", sizes)
    return None if found is None else Prediction(*found)


def split(sizes: ProductSizes) -> Prediction | None:
    return predict(split_k.ANCHOR, sizes)


def batched(sizes: ProductSizes) -> Prediction | None:
    return predict(gemv.BATCHED, sizes)


def predict_products(sizes: ProductSizes) -> Prediction:
    found = predict(gemv.ANCHOR, sizes)
    assert found is not None
    return found


def convolved(before: int, after: int, side: int, batch: int = 1, taps: int = 9) -> ConvSizes:
    image = side, side
    return ConvSizes(
        (batch, before, *image), (batch, after, *image), (after, before, taps // 3, 3)
    )


def test_winograd_computes_whole_tiles() -> None:
    times = [winograd_ns(convolved(32, 64, side)) for side in (5, 8, 9)]
    assert times[0] == times[1] < times[2]


def test_winograd_reads_its_source_once_for_each_panel_of_filters() -> None:
    few, one_more, many = (winograd_ns(convolved(256, after, 32)) for after in (64, 65, 128))
    assert one_more - few > 2 * (many - one_more) / 63  # the first filter of a second panel


@pytest.mark.parametrize("cost", [winograd_ns, summed_ns])
def test_four_images_take_as_long_as_one_of_twice_the_side(cost) -> None:
    small, large = convolved(32, 64, 8, batch=4), convolved(32, 64, 16)
    assert cost(small) == pytest.approx(cost(large))


@pytest.mark.parametrize("cost", [winograd_ns, summed_ns])
def test_a_convolution_takes_as_long_for_each_image(cost) -> None:
    one, two, three = (cost(convolved(32, 64, 8, batch)) for batch in (1, 2, 3))
    assert three - two == pytest.approx(two - one)
    assert two < 2 * one  # the weights are read once


def test_a_full_convolution_is_linear_in_filters_and_channels() -> None:
    net = summed_ns(convolved(32, 64, 8))
    assert summed_ns(convolved(64, 64, 8)) == pytest.approx(2 * net)
    assert summed_ns(convolved(32, 128, 8)) == pytest.approx(2 * net)
    assert summed_ns(convolved(32, 64, 8, taps=18)) == pytest.approx(2 * net)


@pytest.mark.parametrize(
    ("image", "taps", "microarchitecture", "is_slow"),
    [
        ((1, 1500), 3, "zen4", True),
        ((1, 1500), 3, "", False),  # not measured there
        ((1, 500), 3, "zen4", False),
        ((1, 1500), 7, "zen4", False),
        ((30, 1500), 3, "zen4", False),
    ],
)
def test_onnx_runtime_is_slow_on_images_of_one_long_row_of_zen_4(
    image: tuple[int, int], taps: int, microarchitecture: str, is_slow: bool
) -> None:
    sizes = ConvSizes((1, 384, *image), (1, 384, *image), (384, 384, 1, taps))
    usual = runtime_ns(sizes)
    found = runtime_ns(replace(sizes, microarchitecture=microarchitecture))
    assert (found > 1.5 * usual) == is_slow


def test_a_block_with_twice_the_filters_takes_twice_as_long() -> None:
    """A 5x5 convolution, which is summed up tap by tap."""

    def costs(filters: int) -> tuple[float, float]:
        net = Net()
        first = net.op("Relu", net.conv("x", (32, 32)))
        last = net.conv(first, (32, filters), 5, pads=[2, 2, 2, 2])
        scope = scope_of(ir.from_proto(net.model((1, 32, 8, 8), [net.op("Relu", last)])))
        chains = find_chains(scope, scope.model.graph, accept)
        blocks = (block for chain in chains for block in chain.blocks)
        (found,) = (block_cost(scope, block) for block in blocks if block.kind == "conv")
        return found.before, found.after

    assert costs(128) == pytest.approx([2 * each for each in costs(64)])


@pytest.mark.parametrize(("kind", "factor"), [("conv", 2.0), ("winograd_conv", 1.0)])
def test_a_convolution_takes_what_was_measured_here(
    kind: str, factor: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTKIT_CACHE", str(tmp_path / "cache"))
    net = Net()
    net = net.model((1, 32, 8, 8), [net.conv(net.conv("x", (32, 48), 5, pads=[2] * 4), (48, 16))])
    scope = scope_of(ir.from_proto(net))
    (chain,) = find_chains(scope, scope.model.graph, accept)
    block = next(item for item in chain.blocks if item.kind == "conv")
    predicted = block_cost(scope, block)
    save_calibration(Calibration(kernels=((kind, 2.0),), machine=machine()))
    found = block_cost(scope, block)
    assert found.before == predicted.before
    assert found.after == pytest.approx(factor * predicted.after)


def test_products_of_one_row_read_their_weights_and_start_once() -> None:
    shape = replace(LARGE, rows=1, epilogue_ops=0)
    one, two = predict_products(shape), predict_products(replace(shape, columns=2048))
    four = predict_products(replace(shape, columns=4096))
    assert four.before_ns - two.before_ns == pytest.approx(2 * (two.before_ns - one.before_ns))
    assert four.after_ns - two.after_ns == pytest.approx(2 * (two.after_ns - one.after_ns))
    pair = predict_products(replace(shape, products=2))
    assert pair.before_ns == pytest.approx(2 * one.before_ns)  # launched twice
    assert pair.after_ns == pytest.approx(two.after_ns)  # launched once
    normed = predict_products(replace(shape, is_normed=True, epilogue_ops=3))
    fused = predict_products(replace(shape, epilogue_ops=3))
    assert normed.before_ns - fused.before_ns == pytest.approx(fused.before_ns - one.before_ns)
    assert fused.after_ns == one.after_ns < normed.after_ns


@pytest.mark.parametrize(
    ("depth", "columns", "epilogue_ops", "before", "after"),
    [
        (768, 2304, 0, 6.0, 3.8),
        (2048, 3072, 0, 9.1, 7.2),
        (2048, 2048, 1, 7.9, 5.3),
        (5632, 2048, 1, 13.5, 10.8),
    ],
)
def test_products_of_one_row_take_what_was_measured(
    depth: int, columns: int, epilogue_ops: int, before: float, after: float
) -> None:
    shape = ProductSizes(1, depth, columns, epilogue_ops=epilogue_ops, is_normed=not epilogue_ops)
    found = predict_products(shape)
    assert found.before_ns == pytest.approx(before * 1000, rel=0.1)
    assert found.after_ns == pytest.approx(after * 1000, rel=0.1)


def test_a_few_rows_gain_nothing() -> None:
    assert predict(gemv.ANCHOR, replace(LARGE, rows=2)) is None


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (2, (8250, 7150)),
        (4, (8250, 7150)),
        (10, (8315, 7155)),
        (16, (8380, 7160)),
        (128, (9480, 8060)),
        (129, None),
        (1, None),
        (None, None),
    ],
)
def test_split_k_is_what_was_measured_or_between(
    rows: int | None, expected: tuple[float, float] | None
) -> None:
    found = split(replace(LARGE, rows=rows, depth=3072, columns=768))
    assert found == (None if expected is None else Prediction(*expected))


@pytest.mark.parametrize(("depth", "columns"), [(2303, 768), (3 * 255, 255), (3 * 1281, 1281)])
def test_split_k_of_other_weights_was_not_measured(depth: int, columns: int) -> None:
    assert split(replace(LARGE, rows=16, depth=depth, columns=columns)) is None


def test_split_k_takes_the_times_of_the_nearest_weight() -> None:
    wide = replace(LARGE, rows=128, depth=4096, columns=1024)
    assert split(wide) == Prediction(11050, 9190)
    assert split(replace(wide, depth=4000)) == Prediction(11050, 9190)
    assert split(replace(wide, depth=1536, columns=384)) == Prediction(7100, 5540)


def test_sizes_that_are_not_known_are_taken_for_several() -> None:
    def total(found: list[Prediction | None]) -> tuple[float, float]:
        each = [item for item in found if item is not None]
        return sum(one.before_ns for one in each), sum(one.after_ns for one in each)

    known = [predict(gemv.ANCHOR, replace(LARGE, rows=rows)) for rows in (128, 512, 2048, 8192)]
    assert total([predict(gemv.ANCHOR, replace(LARGE, rows=None))]) == pytest.approx(total(known))
    head = replace(LARGE, rows=128, depth=128, columns=128)
    counts = [batched(replace(head, count=count)) for count in (4, 32)]
    assert total([batched(replace(head, count=None))]) == pytest.approx(total(counts))


def test_tiles_that_run_at_once_take_the_time_of_one() -> None:
    """132 tiles of 64 x 128 keep every multiprocessor of an H100 busy once."""
    deep = replace(LARGE, rows=11 * 64, depth=4096, epilogue_ops=1)
    fewer, all_ = (predict(gemv.ANCHOR, replace(deep, columns=count * 128)) for count in (11, 12))
    more = predict(gemv.ANCHOR, replace(deep, columns=13 * 128))
    assert fewer is not None
    assert all_ is not None
    assert more is not None
    assert fewer.after_ns == all_.after_ns < more.after_ns
    assert fewer.before_ns < all_.before_ns


def test_a_transpose_that_a_product_takes_as_it_is_costs_nothing() -> None:
    def before(perm: list[int]) -> float:
        text = f"""<ir_version: 9, opset_import: ["" : 18]> g (float[64, 64, 64] x) => (y) {{
            a = Sin (x)  b = Exp (a)  t = Transpose <perm = {perm}> (b)  y = MatMul (t, t) }}"""
        scope = scope_of(ir.from_proto(onnx.parser.parse_model(text)))
        (found,) = find(scope, accept, CostModel)
        nodes = [node.op_type for node in found.region.nodes]
        assert nodes == ["Sin", "Exp", "Transpose"]
        return found.prediction.before_ns

    assert before([0, 2, 1]) < before([1, 0, 2])


@pytest.mark.parametrize(
    ("norm", "rows"),
    [
        ("LayerNormalization (x, one)", 64 * 32),
        ("LayerNormalization <axis = 1> (x, one)", 64),
        ("Softmax (x)", 64 * 32),
        ("Softmax <axis = 1> (x)", 64 * 16),
    ],
)
def test_onnx_runtime_takes_time_for_each_row_of_a_norm(norm: str, rows: int) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 23]>
        g (float[64, 32, 16] x, float[1] one) => (y) {{ y = {norm} }}"""
    (found,) = find(scope_of(ir.from_proto(onnx.parser.parse_model(text))), accept, CostModel)
    op = norm.split()[0]
    expected = Calibration().node_ns + 64 * 32 * 16 * ORT_NS[op] + rows * ROW_NS[op]
    assert found.prediction.before_ns == pytest.approx(expected)


@pytest.mark.parametrize(("batch", "count"), [("n", 1), ("1", 1), ("64", 0)])
def test_norms_pay_for_one_sample_where_the_number_is_not_known(batch: str, count: int) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 23]>
        g (float[{batch}, 56, 56, 192] x, float[192] one) => (y) {{
            y = LayerNormalization (x, one) }}"""
    scope = scope_of(ir.from_proto(onnx.parser.parse_model(text)))
    found = find(scope, accept, CostModel)
    assert len([each for each in found if each.signature is not None]) == count
