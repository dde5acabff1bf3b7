"""Regions of int8 convolutions for CUDA, with their constants and operands."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from qdq_nets import NETS, Net

from ortkit.fusion.conv.targets import CudaBlockFinder, describe_block
from ortkit.kernels.signature import RegionSignature

sys.path.insert(0, str(Path(__file__).parents[1] / "fusion"))
from region_models import scope_of


@dataclass(frozen=True)
class Region:
    """A signature and its constants, which are its last inputs."""

    signature: RegionSignature
    constants: tuple[np.ndarray, ...]


def regions_of(proto: onnx.ModelProto) -> list[Region]:
    scope = scope_of(ir.from_proto(proto), kind="cuda")
    blocks = CudaBlockFinder.find(scope, scope.model.graph)
    assert {block.kind for block in blocks} == {"int8_conv"}
    return [
        Region(renamed(made.signature), tuple(np.asarray(each) for each in made.weights))
        for made in (describe_block(scope, block) for block in blocks)
    ]


def renamed(signature: RegionSignature) -> RegionSignature:
    specs = enumerate(signature.inputs)
    inputs = tuple(replace(spec, name=f"i{number}") for number, spec in specs)
    return replace(signature, inputs=inputs)


def regions(name: str, batch: int | str, height: int = 10, width: int = 12) -> list[Region]:
    build, channels = NETS[name]
    net = Net()
    output = build(net, "x", channels)
    found = regions_of(net.model([batch, channels, height, width], output))
    assert len(found) == sum(node.op_type == "Conv" for node in net.nodes)
    return found


def feeds_of(region: Region, batch: int) -> list[np.ndarray]:
    random = np.random.default_rng(7)
    specs = region.signature.inputs[: -len(region.constants)]
    shapes = [[size if isinstance(size, int) else batch for size in spec.shape] for spec in specs]
    made = [
        random.integers(0, 256, shape).astype(np.uint8) if spec.dtype == "uint8"
        else random.normal(0, 2, shape).astype(np.float32)
        for spec, shape in zip(specs, shapes, strict=True)
    ]  # fmt: skip
    return [*made, *region.constants]
