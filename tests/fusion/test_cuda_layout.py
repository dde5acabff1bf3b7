"""Which layout convolutions are advised to have on CUDA, and that sessions follow it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from conv_nets import Net, half
from region_models import scope_of

import ortkit
from ortkit.fusion.conv.cuda_layout import OPTIONS, advise, beside_convolutions
from ortkit.kernels.metadata import CUDA_OPTIONS_KEY
from ortkit.runtime.layout_advice import advised
from ortkit.runtime.targets import CPU, CUDA, Provider


def dense(*, channels: int = 32, group: int = 1, size: int | str = 12) -> onnx.ModelProto:
    """Five convolutions of 3x3, each with a ReLU."""
    net, x = Net(), "x"
    for _ in range(5):
        pads = [1, 1, 1, 1]
        x = net.op("Relu", net.conv(x, (channels, channels), 3, group=group, pads=pads))
    return net.model((1, channels, size, size), [x])


def reason_of(proto: onnx.ModelProto) -> tuple[dict[str, str], str]:
    found = advise([scope_of(ir.from_proto(proto))])
    return found.options, found.reason


def test_dense_convolutions_in_half_precision_have_their_channels_innermost() -> None:
    options, reason = reason_of(half(dense()))
    assert options == OPTIONS
    assert reason == "5 convolutions of which 100 % gain by it"


@pytest.mark.parametrize(
    ("proto", "reason"),
    [
        (dense(), "only 0 % of the work is in half precision over multiples of 8 channels"),
        (half(dense(channels=12)), "only 0 % of the work"),
        (half(dense(group=32)), "100 % of the work is in grouped convolutions"),
        (half(Net().model((1, 3, 8, 8), ["x"])), "0 convolutions are left to ONNX Runtime"),
    ],
    ids=["float32", "odd channels", "depthwise", "none"],
)
def test_others_stay_as_they_are(proto: onnx.ModelProto, reason: str) -> None:
    options, said = reason_of(proto)
    assert not options
    assert said.startswith(reason)


def test_regions_are_not_made_between_convolutions_that_are_turned() -> None:
    scope = scope_of(ir.from_proto(half(dense())))
    assert {node.op_type for node in beside_convolutions(scope)} == {"Relu"}


@dataclass(frozen=True)
class _Told:
    options: dict[str, str]
    metadata: str
    provider: str = CUDA


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (_Told({}, "fuse_conv_bias=1,prefer_nhwc=1"), {"fuse_conv_bias": "1", "prefer_nhwc": "1"}),
        (_Told({"prefer_nhwc": "0"}, "fuse_conv_bias=1,prefer_nhwc=1"), {"prefer_nhwc": "0"}),
        (_Told({"device_id": "0"}, "prefer_nhwc=1"), {"prefer_nhwc": "1", "device_id": "0"}),
        (_Told({}, "gpu_mem_limit=1,prefer_nhwc=1"), {"prefer_nhwc": "1"}),
        (_Told({}, "prefer_nhwc=/etc"), {}),
        (_Told({}, "prefer_nhwc,,=,a=b=c"), {}),
        (_Told({}, "prefer_nhwc=1", CPU), {}),
    ],
)
def test_sessions_take_the_advice_unless_they_are_told(
    told: _Told, expected: dict[str, str]
) -> None:
    given = advised(Provider(told.provider, told.options), {CUDA_OPTIONS_KEY: told.metadata})
    assert dict(given.options) == expected


def test_the_advice_is_in_the_model_and_in_the_report() -> None:
    options = ortkit.OptimizeOptions(target="cuda", kernels="off", verify=False)
    made = ortkit.optimize(half(dense(size="s")), options)
    assert made.model.metadata_props[CUDA_OPTIONS_KEY] == "fuse_conv_bias=1,prefer_nhwc=1"
    assert made.report.to_json()["provider_options"] == OPTIONS
    again = ortkit.optimize(
        made.model, ortkit.OptimizeOptions(target="cpu", kernels="off", verify=False)
    )
    assert again.report.provider_options == {}
    with ortkit.Session(made.model, "cpu") as session:
        feeds = {"x": np.zeros((1, 32, 8, 8), np.float16)}
        assert session.run(feeds)[made.model.graph.outputs[0].name or ""].shape == (1, 32, 8, 8)
