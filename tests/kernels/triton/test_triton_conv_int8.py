"""Int8 convolutions on CUDA, interpreted, against their bodies; and their machine code."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from fused_model import fused_model, session
from interpreter import Interpreter
from qdq_nets import NETS, Net, pooled
from qdq_regions import Region, feeds_of, regions, regions_of

from ortkit.errors import InternalError
from ortkit.fusion.conv.targets import CudaBlockFinder, describe_block
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.triton.build import compile_step, write_images
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.unsigned import interpretable, unsigned_functions, unsigned_ptx
from ortkit.refusal import Refused

sys.path.insert(0, str(Path(__file__).parents[2] / "fusion"))
from region_models import scope_of


def check(
    region: Region, interpreter: Interpreter, batch: int, variant: int, shift: int = 0
) -> None:
    signature, feeds = region.signature, feeds_of(region, batch)
    names = [spec.name for spec in signature.inputs]
    wanted = session(fused_model(signature)).run(None, dict(zip(names, feeds, strict=True)))
    got = interpreter.run(signature, feeds, variant, shift=shift)
    for one, other in zip(got, wanted, strict=True):
        if one.dtype != np.uint8:
            np.testing.assert_allclose(one, other, rtol=2e-6, atol=1e-6)
            continue
        off = np.abs(one.astype(np.int32) - other)
        # The interpreter rounds twice in what is one operation for a GPU.
        assert off.max() <= 1
        assert (off > 0).mean() < 1e-3
        assert len(np.unique(other)) > 8, "nothing that would show an error"


@pytest.mark.parametrize("batch", [1, 3, "n"])
@pytest.mark.parametrize("name", NETS)
def test_kernels_compute_what_bodies_do(
    name: str, batch: int | str, interpreter: Interpreter
) -> None:
    for region in regions(name, batch):
        sources = sources_of(region.signature)
        assert not isinstance(sources, Refused), sources.reason
        for number, source in enumerate(sources):
            size = batch if isinstance(batch, int) else 2
            check(region, interpreter, size, number, shift=0 if source.is_aligned else 1)


def test_a_pooling_of_bytes_stays_in_nhwc(interpreter: Interpreter) -> None:
    net = Net()
    output = pooled(net, "x", 16)
    scope = scope_of(ir.from_proto(net.model([2, 16, 9, 11], output)), kind="cuda")
    blocks = CudaBlockFinder.find(scope, scope.model.graph)
    assert [block.kind for block in blocks] == ["int8_conv", "max_pool", "int8_conv"]
    signature = describe_block(scope, blocks[1]).signature
    sources = sources_of(signature)
    assert not isinstance(sources, Refused), sources.reason
    for low in (0, 200):
        x = np.random.default_rng(low).integers(low, 256, (2, 9, 11, 48)).astype(np.uint8)
        (wanted,) = session(fused_model(signature)).run(None, {signature.inputs[0].name: x})
        for number, source in enumerate(sources):
            shift = 0 if source.is_aligned else 1
            (got,) = interpreter.run(signature, [x], number, shift=shift)
            np.testing.assert_array_equal(got, wanted)


def is_boxed(signature: RegionSignature) -> bool:
    sources = sources_of(signature)
    assert not isinstance(sources, Refused), sources.reason
    return "conv_int8_box_kernel" in sources[0].steps[0].text


def test_boxes_are_for_images_of_zeros_around() -> None:
    boxed = {name: [is_boxed(region.signature) for region in regions(name, 4)] for name in NETS}
    assert boxed == {
        "pads that are not 0": [False], "a residual block": [True, True, True],
        "more channels": [True, True], "strides, dilations and odd channels": [False, False],
        "strides of two": [True, True],
        "float32 between": [False, False], "a first layer": [False],
        "a first layer with strides": [False], "a first layer of many taps": [False],
    }  # fmt: skip


def kernels_of(signature: RegionSignature) -> list[str]:
    sources = sources_of(signature)
    assert not isinstance(sources, Refused), sources.reason
    known = re.compile(r"\n    (\w+_kernel)\(")
    return [known.findall(source.steps[-1].text)[-1] for source in sources]


def test_blocks_go_on_where_each_has_several_tiles() -> None:
    boxes, going_on, gathered = (
        "conv_int8_box_kernel",
        "conv_int8_hopper_kernel",
        "conv_int8_kernel",
    )
    for name, number in (("a residual block", 2), ("more channels", 0), ("more channels", 1)):
        found = {
            batch: kernels_of(regions(name, batch, 28, 28)[number].signature)
            for batch in (8, 2048, "n")
        }
        assert found == {
            8: [boxes, gathered, gathered], 2048: [going_on, gathered, gathered],
            "n": [boxes, going_on, gathered, gathered],
        }  # fmt: skip
    assert kernels_of(regions("a residual block", 2048, 28, 28)[1].signature)[0] == boxes


def test_an_image_is_rounded_where_it_is_read(interpreter: Interpreter) -> None:
    """Numbers between two bytes, halves among them, and those far from all."""
    (region,) = regions("a first layer with strides", 2)
    signature, feeds = region.signature, feeds_of(region, 2)
    assert signature.inputs[0].dtype == "float32"
    image = (np.arange(feeds[0].size, dtype=np.float32) * 0.25 - 200).reshape(feeds[0].shape)
    image[0, 0, 0, :6] = np.inf, -np.inf, 3e38, -3e38, 1e-45, -0.0
    # A power of two keeps halves.
    scale = next(n for n, each in enumerate(signature.inputs) if each.dtype == "float32" and n)
    feeds[0], feeds[scale] = image, np.array(0.5, np.float32)
    # What is around an image need not be what 0 is rounded to.
    feeds[scale + 1] = np.array(97, np.uint8)
    names = [spec.name for spec in signature.inputs]
    wanted = session(fused_model(signature)).run(None, dict(zip(names, feeds, strict=True)))
    for number in range(2):
        got = interpreter.run(signature, feeds, number)
        np.testing.assert_array_equal(got[0], wanted[0])


def test_an_image_whose_bytes_others_read_is_rounded_before() -> None:
    net = Net()
    rounded = net.bytes("x", 0.02, 128)
    made = net.bytes(net.op("Relu", net.conv(rounded, (24, 3, 7, 7), pads=[3] * 4)), 0.2, 0)
    assert regions_of(net.model([2, 3, 9, 9], made))[0].signature.inputs[0].dtype == "float32"
    net.op("Neg", rounded)
    both = net.op("Concat", made, net.nodes[-1].output[0], axis=1)
    assert regions_of(net.model([2, 3, 9, 9], both))[0].signature.inputs[0].dtype == "uint8"


@pytest.mark.parametrize("architecture", [80, 89, 90, 120])
def test_machine_code_multiplies_unsigned_by_signed_bytes(
    architecture: int, tmp_path: Path
) -> None:
    found = {
        "boxes": regions("a residual block", 64, 28, 28)[2].signature,
        "gathered": regions("pads that are not 0", 64, 28, 28)[0].signature,
        "going on": regions("a residual block", 2048, 28, 28)[2].signature,
        "in steps": regions("more channels", 2048, 28, 28)[1].signature,
        "first": regions("a first layer with strides", 64, 28, 28)[0].signature,
    }
    for kind, signature in found.items():
        sources = sources_of(signature)
        assert not isinstance(sources, Refused)
        for source in sources:
            if source.architectures is not None and architecture not in source.architectures:
                continue
            made = [compile_step(step, architecture, tmp_path) for step in source.steps][-1]
            assert re.search(r"mma\S*\.s32\.u8\.s8", made.ptx), kind
            assert not re.search(r"mma\S*\.s8\.s8", made.ptx), kind


def test_what_was_read_is_given_back_behind_a_fence(tmp_path: Path) -> None:
    """Copies into shared memory would overtake reads of it otherwise, in some runs."""
    sources = sources_of(regions("a residual block", 2048, 28, 28)[2].signature)
    assert not isinstance(sources, Refused)
    (step,) = sources[0].steps
    assert step.is_gluon
    text = compile_step(step, 90, tmp_path).ptx
    after = text.rpartition("ld.shared.v4")[2].partition("mbarrier.arrive")[0]
    assert "fence.proxy.async" in after
    assert text.count("ld.shared.v4") == 4


def test_gpus_whose_products_are_others_run_ptx(tmp_path: Path) -> None:
    """On sm_100 a descriptor in memory says which types are multiplied."""
    sources = sources_of(regions("pads that are not 0", 64, 28, 28)[0].signature)
    assert not isinstance(sources, Refused)
    made = write_images(sources, (100,), tmp_path)
    assert [item.architecture for item in made.left_out] == [100]
    assert {image.architecture for image in made.images if image.is_ptx} == {80}


def test_other_products_are_left_alone() -> None:
    assert "u8.s8" in unsigned_ptx("wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {}")
    with pytest.raises(InternalError, match="without products"):
        unsigned_ptx("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {}")
    own = "@triton.jit\ndef unsigned_dot(a, b, acc):\n    return tl.dot(a, b, acc)\n"
    assert interpretable(own) == own


def test_the_interpreter_has_all_functions_of_bytes() -> None:
    heads = re.compile(r"^(?:@.*|def .*)$", re.MULTILINE)
    texts = [f"x = 1\n\n\n{unsigned_functions()}\n\n\ny = 2\n"]
    texts.append(interpretable(texts[0]))
    assert [heads.findall(text) for text in texts] == [heads.findall(texts[0])] * 2
    assert ["asm" in text for text in texts] == [True, False]


@pytest.mark.parametrize("batch", [2, "n"])
def test_bytes_that_are_too_many_saturate(batch: int | str, interpreter: Interpreter) -> None:
    """Sums far beyond what a byte stands for, with factors up to those of whole numbers."""
    for region in regions("a residual block", batch):
        signature, feeds = region.signature, feeds_of(region, 2)
        for factor in (1e-3, 1e3, 1e5, 3e5, 1e6, 3e6, 1e7, 3e7, 1e8, 1e12):
            scaled = [
                feed * np.float32(factor) if spec.dtype == "float32" and feed.size > 1 else feed
                for spec, feed in zip(signature.inputs, feeds, strict=True)
            ]
            names = [spec.name for spec in signature.inputs]
            wanted = session(fused_model(signature)).run(
                None, dict(zip(names, scaled, strict=True))
            )
            sources = sources_of(signature)
            assert not isinstance(sources, Refused), sources.reason
            for number in range(len(sources)):
                got = interpreter.run(signature, scaled, number)
                for one, other in zip(got, wanted, strict=True):
                    assert np.abs(one.astype(np.int32) - other).max() <= 1
                    assert factor < 1 or {0, 255} & set(np.unique(other))
