"""Blocks of convolution nets on CUDA, interpreted, against their function bodies."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fused_model import fused_model, random_input, session
from interpreter import Interpreter, numpy_dtype

from ortkit.fusion.conv.targets import CudaBlockFinder, describe_block
from ortkit.kernels.cuda import SHARED_BYTES, Condition
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent
from ortkit.kernels.triton.build import compile_step
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.templates import template_for
from ortkit.refusal import Refused

sys.path.insert(0, str(Path(__file__).parents[2] / "fusion"))
from conv_nets import Net, half
from region_models import scope_of


def signatures_of(
    proto: onnx.ModelProto, dtype: str = "float16"
) -> list[tuple[str, RegionSignature]]:
    scope = scope_of(ir.from_proto(half(proto, dtype)), kind="cuda")
    graph = scope.model.graph
    blocks = CudaBlockFinder.find(scope, graph)
    return [(block.kind, describe_block(scope, block).signature) for block in blocks]


def strided(net: Net, x: str) -> str:
    net_conv = net.conv(x, (24, 20), 3, strides=[2, 2], pads=[1, 0, 0, 1], dilations=[2, 1])
    return net.op("Relu", net_conv)


def deep(net: Net, x: str) -> str:
    """Many steps for few tiles, which several blocks share."""
    inner = net.op("Relu", net.conv(x, (24, 72), 3, strides=[2, 2]))
    for _ in range(2):
        pads = {"pads": [1, 1, 1, 1]}
        inner = net.op("Relu", net.op("Add", net.conv(inner, (72, 72), 3, **pads), inner))
    return inner


def residual(net: Net, x: str) -> str:
    inner = net.op("Relu", net.conv(x, (24, 40), 1))
    return net.op("Relu", net.op("Add", net.conv(inner, (40, 24), 1, bias=False), x))


def depthwise(net: Net, x: str) -> str:
    return net.silu(net.depthwise(x, 24, 5, 2))


def gated(net: Net, x: str) -> str:
    inner = net.gate(net.silu(net.depthwise(x, 24)), 24, 6)
    return net.conv(inner, (24, 40), 1)


def hard_gated(net: Net, x: str) -> str:
    """As a MobileNetV3 has it."""
    inner = net.op("HardSwish", net.depthwise(x, 24))
    mean = net.op("GlobalAveragePool", inner)
    hidden = net.op("Relu", net.conv(mean, (24, 8)))
    gate = net.op("HardSigmoid", net.conv(hidden, (8, 24)), alpha=1 / 6)
    return net.conv(net.op("Mul", gate, inner), (24, 40), 1)


def gated_without_biases(net: Net, x: str) -> str:
    """As exporters write layers whose biases are zero."""
    inner = net.depthwise(x, 24)
    mean = net.op("ReduceMean", inner, axes=[2, 3], keepdims=1)
    hidden = net.op("Relu", net.conv(mean, (24, 8), bias=False))
    gate = net.op("Sigmoid", net.conv(hidden, (8, 24), bias=False))
    return net.conv(net.op("Mul", gate, inner), (24, 40), 1)


def pooled(net: Net, x: str) -> str:
    inner = net.op("Relu", net.conv(x, (24, 24), 1))
    window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    inner = net.conv(net.op("MaxPool", inner, **window), (24, 16), 1)
    return net.op("GlobalAveragePool", net.op("Relu", inner))


def many_taps(net: Net, x: str) -> str:
    window = {"strides": [2, 3], "dilations": [1, 2], "pads": [2, 3, 1, 4]}
    return net.relu6(net.conv(x, (3, 24), 5, **window))


def mished(net: Net, x: str) -> str:
    inner = net.mish(net.conv(x, (24, 20), 3), "softplus")
    return net.mish(net.conv(inner, (20, 16)), "parts")


def patches(net: Net, x: str) -> str:
    return net.op("Relu", net.conv(x, (3, 40), 5, strides=[5, 5]))


NETS = {
    "strides, dilations and uneven pads": (strided, 24, {"conv"}),
    "a deep one": (deep, 24, {"conv"}),
    "a residual block": (residual, 24, {"conv"}),
    "a depthwise convolution": (depthwise, 24, {"depthwise_conv"}),
    "squeeze-and-excite": (gated, 24, {"depthwise_conv", "squeeze_excite", "conv"}),
    "hard gates": (hard_gated, 24, {"depthwise_conv", "squeeze_excite", "conv"}),
    "gates without biases": (
        gated_without_biases, 24, {"depthwise_conv", "squeeze_excite", "conv"}
    ),
    "poolings": (pooled, 24, {"conv", "max_pool", "global_mean"}),
    "a first layer": (
        lambda net, x: net.relu6(net.conv(x, (3, 24), 3, strides=[2, 2], pads=[1] * 4)), 3,
        {"conv"},
    ),
    "a first layer of many taps": (many_taps, 3, {"conv"}),
    "Mish of several nodes": (mished, 24, {"conv"}),
    "patches": (patches, 3, {"conv"}),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("batch", [2, "n"])
@pytest.mark.parametrize("name", NETS)
def test_blocks_compute_what_their_bodies_do(
    name: str, batch: int | str, interpreter: Interpreter
) -> None:
    build, channels, kinds = NETS[name]
    net = Net()
    proto = net.model((batch, channels, 11, 13), [build(net, "x")])
    found = signatures_of(proto)
    assert {kind for kind, _ in found} == kinds
    for kind, signature in found:
        check(kind, signature, interpreter)


@pytest.mark.parametrize("name", ["a depthwise convolution", "poolings"])
def test_images_of_too_many_elements_are_refused(name: str) -> None:
    """Positions within an image have 32 bits: 24 channels of 9,600 x 9,600 have more."""
    build, channels, _ = NETS[name]
    net = Net()
    found = dict(signatures_of(net.model((2, channels, 9600, 9600), [build(net, "x")])))
    signature = next(found[kind] for kind in ("depthwise_conv", "max_pool") if kind in found)
    template = template_for(signature)
    assert isinstance(template, Refused)
    assert "2^31" in template.reason
    (image, *others), (made,) = signature.inputs, signature.outputs
    batch, _, *rest = image.shape
    inputs = replace(image, shape=(batch, "h", *rest)), *others
    outputs = (replace(made, shape=(batch, "k", *made.shape[2:])),)
    sources = sources_of(replace(signature, inputs=inputs, outputs=outputs))
    assert not isinstance(sources, Refused), sources.reason
    bound = Condition(Extent(24 * 9600, ("h",)), at_most=2**31 - 1)
    assert all(bound in source.conditions for source in sources)


def windows(net: Net, x: str) -> str:
    """Windows that copies of boxes reach: padded, dilated, with strides."""
    inner = net.op("Relu", net.conv(x, (32, 24), 3, pads=[1, 1, 1, 1]))
    inner = net.op("Relu", net.conv(inner, (24, 32), 3, dilations=[2, 1], pads=[2, 0, 1, 2]))
    inner = net.op("Relu", net.conv(inner, (32, 40), 3, strides=[2, 2], pads=[1, 1, 1, 1]))
    return net.op("Relu", net.conv(inner, (40, 16), 1, strides=[2, 2]))


BOXED = {"windows": (windows, 32), "a residual block": (residual, 24), "a gate": (gated, 24)}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("batch", "is_shared"), [(5, False), ("n", False), (5, True)])
@pytest.mark.parametrize("name", BOXED)
def test_boxes_compute_what_bodies_do(
    name: str,
    batch: int | str,
    is_shared: bool,
    interpreter: Interpreter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ortkit.custom_ops.triton.conv import conv_tiles

    for name_ in (
        "_FEW_PIXELS",
        "_GATED_PIXELS",
        "_LEAST_CHANNELS",
        "_LEAST_DEPTH",
        "_LEAST_HALVES",
    ):
        monkeypatch.setattr(conv_tiles, name_, 0)
    if is_shared:
        for name_ in ("_SHARED_PIXELS", "_SHARED_STEPS"):
            monkeypatch.setattr(conv_tiles, name_, 0)
        monkeypatch.setattr(conv_tiles, "_LEAST_STEPS", 1)
    build, channels = BOXED[name]
    net = Net()
    steps = []
    for kind, signature in signatures_of(net.model((batch, channels, 9, 10), [build(net, "x")])):
        if kind == "conv":
            sources = sources_of(signature)
            assert not isinstance(sources, Refused)
            assert "conv_box_kernel" in sources[0].steps[0].text
            assert sources[0].architectures == (90,)
            steps.append(len(sources[0].steps))
            check(kind, signature, interpreter)
    assert max(steps) == 1 + (is_shared and name == "windows")


@pytest.mark.parametrize(
    ("images", "side", "channels", "depth", "taps", "tile"),
    [
        (1, 56, 128, 256, 1, None), (32, 56, 256, 64, 1, None), (32, 28, 240, 40, 1, None),
        (32, 14, 672, 112, 1, None), (32, 28, 128, 128, 1, (128, 128, 1)),
        (32, 14, 1024, 256, 1, (128, 128, 1)), (32, 7, 512, 512, 9, (128, 64, 1)),
        (16, 7, 512, 512, 9, (128, 64, 4)), (8, 7, 512, 512, 9, (128, 64, 8)),
        (1, 7, 512, 512, 9, None), (8, 14, 256, 256, 9, (128, 64, 4)),
        (8, 14, 256, 1024, 1, (128, 64, 1)), (8, 7, 512, 2048, 1, (128, 64, 4)),
    ],
)  # fmt: skip
def test_boxes_are_taken_where_they_were_faster(
    images: int,
    side: int,
    channels: int,
    depth: int,
    taps: int,
    tile: tuple[int, int, int] | None,
) -> None:
    from ortkit.custom_ops.triton.conv.conv_tiles import choose_box

    found = choose_box(images * side * side, channels, depth, taps)
    assert (None if found is None else (found.pixels, found.channels, found.split)) == tile


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_added", [False, True], ids=["", "sum"])
@pytest.mark.parametrize("follows", ["silu", "Gelu", "Mish"])
def test_what_follows_boxes_leaves_registers(follows: str, is_added: bool, tmp_path: Path) -> None:
    net = Net(opset=20)
    y = net.conv("x", (256, 256), 1)
    y = net.op("Add", y, "x") if is_added else y
    y = net.silu(y) if follows == "silu" else net.op(follows, y)
    ((_, signature),) = signatures_of(net.model((32, 256, 28, 28), [y]))
    sources = sources_of(signature)
    assert not isinstance(sources, Refused)
    assert "conv_box_kernel" in sources[0].steps[0].text
    made = compile_step(sources[0].steps[0], 90, tmp_path)
    usage = resources(made.cubin, tmp_path)
    assert (usage["STACK"], usage["LOCAL"]) == (0, 0)


def test_boxes_cover_with_few_pixels() -> None:
    from ortkit.custom_ops.triton.conv.conv_tma import box_of

    assert box_of(1, 1, 10_000, 128) == (1, 1, 128)
    for images, side in ((32, 7), (32, 14), (8, 28), (1, 56)):
        for pixels in (64, 128, 256):
            box = box_of(images, side, side, pixels)
            assert np.prod(box) == pixels
            sides = zip((images, side, side), box, strict=True)
            covered = pixels * np.prod([-(-n // b) for n, b in sides])
            assert covered <= 1.4 * max(images * side * side, pixels)


def test_a_deep_product_is_shared() -> None:
    net = Net()
    found = signatures_of(net.model((1, 24, 11, 13), [deep(net, "x")]))
    sources = [sources_of(signature) for _, signature in found]
    steps = [len(each[0].steps) for each in sources if not isinstance(each, Refused)]
    assert steps == [1, 2, 2]


def test_many_images_share_what_blocks_read(
    interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ortkit.custom_ops.triton.conv import squeeze_excite

    assert [squeeze_excite.units_of(images, 240) for images in (1, 8, 32, 1000)] == [2, 4, 16, 16]
    monkeypatch.setattr(squeeze_excite, "_BLOCKS", 1)
    monkeypatch.setattr(squeeze_excite, "_SMALL", 0)
    net = Net()
    for kind, signature in signatures_of(net.model((2, 24, 11, 13), [gated(net, "x")])):
        if kind == "squeeze_excite":
            assert squeeze_excite.units_of(2, 6) == 16
            check(kind, signature, interpreter)


@pytest.mark.parametrize("small", [0, 1 << 20], ids=["two launches", "one launch"])
@pytest.mark.parametrize(
    ("rows", "channels", "hidden"), [(1, 24, 1), (9, 600, 70), (130, 33, 9), (7, 1200, 300)]
)
def test_squeeze_and_excite(
    rows: int,
    channels: int,
    hidden: int,
    small: int,
    interpreter: Interpreter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Means of more rows, channels and hidden units than a block reads at once."""
    from ortkit.custom_ops.triton.conv import squeeze_excite

    monkeypatch.setattr(squeeze_excite, "_SMALL", small)
    net = Net()
    y = net.depthwise("x", channels)
    y = net.conv(net.gate(y, channels, hidden), (channels, 16), 1)
    found = dict(signatures_of(net.model((2, channels, rows, 3), [y])))
    signature = found["squeeze_excite"]
    sources = sources_of(signature)
    assert not isinstance(sources, Refused)
    assert len(sources[0].steps) == (1 if small else 2)
    is_early = bool(small) or hidden < 300
    texts = {step.early_text is not None for source in sources for step in source.steps}
    assert texts == {is_early}
    check("squeeze_excite", signature, interpreter)


@pytest.mark.parametrize(
    ("batch", "channels", "hidden", "launches", "is_early"),
    [
        (1, 120, 32, 1, True), (1, 960, 240, 2, True), (8, 120, 32, 1, True),
        (8, 960, 240, 2, False), (32, 480, 20, 2, False), ("n", 64, 8, 2, True),
    ],
)  # fmt: skip
def test_few_blocks_of_squeeze_and_excite_start_early(
    batch: int | str, channels: int, hidden: int, launches: int, is_early: bool
) -> None:
    net = Net()
    y = net.depthwise("x", channels)
    y = net.conv(net.gate(y, channels, hidden), (channels, 16), 1)
    found = dict(signatures_of(net.model((batch, channels, 7, 7), [y])))
    sources = sources_of(found["squeeze_excite"])
    assert not isinstance(sources, Refused)
    assert len(sources[0].steps) == launches
    assert (sources[0].steps[0].early_text is not None) == is_early
    if batch == "n":
        assert all(step.early_text is None for step in sources[1].steps)


@pytest.mark.parametrize("name", ["a residual block", "gates without biases", "poolings"])
def test_bfloat16(name: str, interpreter: Interpreter) -> None:
    build, channels, kinds = NETS[name]
    net = Net()
    found = signatures_of(net.model((2, channels, 11, 13), [build(net, "x")]), "bfloat16")
    assert {kind for kind, _ in found} == kinds
    for kind, signature in found:
        feeds = [random_input(spec, {}) for spec in wide(signature).inputs]
        narrow = [feed.astype(numpy_dtype("bfloat16")) for feed in feeds]
        names = [spec.name for spec in signature.inputs]
        given = [feed.astype(np.float32) for feed in narrow]
        theirs = session(fused_model(wide(signature)))
        (want, *_) = theirs.run(None, dict(zip(names, given, strict=True)))
        (got, *_) = interpreter.run(signature, narrow, 0)
        largest = np.abs(want).max()
        error = np.abs(got.astype(np.float32) - want).max()
        assert error <= 4 * 2**-8 * max(largest, 1), f"{kind}: {error}"


def wide(signature: RegionSignature) -> RegionSignature:
    """The same region in float32: nothing in its body has a type."""
    inputs, outputs = (
        tuple(replace(spec, dtype="float32") for spec in each)
        for each in (signature.inputs, signature.outputs)
    )
    return replace(signature, inputs=inputs, outputs=outputs)


@pytest.mark.parametrize("pixels", [1, 49, 200, 784, 5000, 12544, 401_408])
@pytest.mark.parametrize(("taps", "is_gated"), [(1, False), (1, True), (9, False)])
def test_tiles_fit(pixels: int, taps: int, is_gated: bool) -> None:
    from ortkit.custom_ops.triton.conv.conv_tiles import choose_tile

    for channels in (1, 24, 33, 512, 4096):
        for depth in (3, 16, 72, 512, 4096):
            tile = choose_tile(pixels, channels, depth, taps, is_gated)
            sizes = (tile.pixels, tile.channels, tile.depth)
            assert all(size >= 16 and size & (size - 1) == 0 for size in sizes)
            held = (tile.pixels + tile.channels) * tile.depth * 2 * tile.stages
            assert held <= min(SHARED_BYTES.values())
            assert tile.split == 1 or not is_gated


@pytest.mark.parametrize(
    ("side", "channels", "depth", "taps", "is_gated", "tile"),
    [
        (28, 128, 128, 9, False, (64, 16, 128, 1)), (14, 256, 256, 9, False, (64, 32, 128, 4)),
        (7, 512, 512, 9, False, (64, 32, 128, 8)), (28, 512, 128, 1, False, (64, 64, 128, 1)),
        (14, 1024, 512, 1, False, (64, 32, 128, 1)), (14, 256, 1024, 1, False, (16, 32, 256, 1)),
        (14, 512, 1024, 1, False, (64, 16, 128, 1)), (7, 2048, 512, 1, False, (64, 16, 128, 1)),
        (7, 512, 2048, 1, False, (64, 32, 128, 8)), (14, 200, 80, 1, False, (32, 32, 128, 1)),
        (28, 40, 120, 1, True, (32, 32, 128, 1)), (7, 160, 960, 1, True, (16, 32, 256, 1)),
        (14, 112, 480, 1, True, (16, 16, 128, 1)), (56, 64, 64, 9, False, (64, 32, 64, 1)),
    ],
)  # fmt: skip
def test_tiles_of_one_image_are_those_that_were_fastest(
    side: int,
    channels: int,
    depth: int,
    taps: int,
    is_gated: bool,
    tile: tuple[int, int, int, int],
) -> None:
    from ortkit.custom_ops.triton.conv.conv_tiles import choose_tile

    found = choose_tile(side * side, channels, depth, taps, is_gated)
    assert (found.pixels, found.channels, found.depth, found.split) == tile


def test_blocks_share_a_deep_filter_of_one_tap(
    interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ortkit.custom_ops.triton.conv import conv_tiles

    monkeypatch.setattr(conv_tiles, "_DEEP", 512)
    monkeypatch.setattr(conv_tiles, "_MANY_STEPS", 4)
    net = Net()
    inner = net.op("Relu", net.conv("x", (24, 520), 1))
    y = net.op("Relu", net.op("Add", net.conv(inner, (520, 24), 1), "x"))
    _, (kind, signature) = signatures_of(net.model((2, 24, 10, 11), [y]))
    sources = sources_of(signature)
    assert not isinstance(sources, Refused)
    assert [len(source.steps) for source in sources] == [2, 1]
    check(kind, signature, interpreter)


@pytest.mark.parametrize(
    ("batch", "side", "channels", "is_light"),
    [(1, 14, 256, True), (1, 7, 512, True), (2, 7, 512, True), (4, 7, 512, False)],
)
def test_sums_of_a_block_each_let_the_next_launch_begin(
    batch: int, side: int, channels: int, is_light: bool
) -> None:
    net = Net()
    y = net.op("Relu", net.conv("x", (channels, channels), 3, pads=[1, 1, 1, 1]))
    ((_, signature),) = signatures_of(net.model((batch, channels, side, side), [y]))
    sources = sources_of(signature)
    assert not isinstance(sources, Refused)
    first, added = sources[0].steps
    assert (first.is_light, added.is_light) == (False, is_light)


@pytest.mark.parametrize(
    ("batch", "channels", "is_streamed"), [(1, 512, True), (1, 256, False), (32, 512, False)]
)
def test_weights_that_are_read_once_leave_the_cache_first(
    batch: int, channels: int, is_streamed: bool
) -> None:
    net = Net()
    y = net.op("Relu", net.conv("x", (channels, 512), 1))
    ((_, signature),) = signatures_of(net.model((batch, channels, 7, 7), [y]))
    sources = sources_of(signature)
    assert not isinstance(sources, Refused)
    steps = [source.steps[0] for source in sources]
    assert any(step.has_eviction_policy for step in steps) == is_streamed
    assert all(("'evict_first'" in step.text) == step.has_eviction_policy for step in steps)


def test_such_weights_have_a_policy_in_the_code(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    net = Net()
    y = net.op("Relu", net.conv("x", (512, 512), 1))
    ((_, signature),) = signatures_of(net.model((1, 512, 7, 7), [y]))
    sources = sources_of(signature)
    assert not isinstance(sources, Refused)
    made = compile_step(sources[0].steps[0], 90, tmp_path)
    assert "createpolicy.fractional.L2::evict_first" in made.ptx
    loads = re.findall(r"cp\.async\.cg\S*", made.ptx)
    assert 0 < sum("cache_hint" in load for load in loads) < len(loads)
    assert ".version 8.0" in compile_step(sources[0].steps[0], 80, tmp_path).ptx


def resources(cubin: bytes, folder: Path) -> dict[str, int]:
    """What one block of a kernel takes, as `cuobjdump` says."""
    triton = pytest.importorskip("triton")
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    said = subprocess.run([tool, "-res-usage", path], check=True, capture_output=True, text=True)
    return {name: int(number) for name, number in re.findall(r"(STACK|LOCAL):(\d+)", said.stdout)}


def check(kind: str, signature: RegionSignature, interpreter: Interpreter) -> None:
    feeds = [random_input(spec, {"n": 2}) / 4 for spec in signature.inputs]
    feeds = [feed.astype(np.float16) for feed in feeds]
    names = [spec.name for spec in signature.inputs]
    wanted = session(fused_model(signature)).run(None, dict(zip(names, feeds, strict=True)))
    sources = sources_of(signature)
    assert not isinstance(sources, Refused), sources.reason
    for number in range(len(sources)):
        got = interpreter.run(
            signature, feeds, number, shift=0 if sources[number].is_aligned else 2
        )
        for one, other in zip(got, wanted, strict=True):
            largest = np.abs(other.astype(np.float64)).max()
            error = np.abs(one.astype(np.float64) - other).max()
            assert error <= 4 * 2**-11 * max(largest, 1), f"{kind}, variant {number}: {error}"
