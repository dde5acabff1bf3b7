"""What a report says of refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ortkit import OptimizeOptions, optimize
from ortkit.graph.io.text import from_text
from ortkit.optimization.report import MissGroup
from ortkit.rewrite.passes import NodePass
from ortkit.rewrite.site import Site


@dataclass(frozen=True)
class RefuseAlways(NodePass):
    """Refuse at every Split and Relu, for a reason that depends on the operator."""

    name = "refuse-always"
    ops: ClassVar[Sequence[str]] = ("Split", "Relu")

    def rewrite(self, site: Site) -> None:
        site.miss(f"no {site.node.op_type}")


def test_alike_refusals_are_one_and_any_output_names_a_node() -> None:
    model = from_text(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[n, 8] x) => (float[n, 4] y, float[n, 4] z)
        { a, b = Split <axis = 1, num_outputs = 2> (x)  y = Relu (a)  c = Tanh (b)  z = Relu (c) }
        """
    )
    options = OptimizeOptions(
        level=0, passes="drop-unused", extra_passes=(RefuseAlways(),), verify=False
    )
    report = optimize(model, options).report
    relu = MissGroup("refuse-always", "Relu 'y'", "no Relu", 2)
    split = MissGroup("refuse-always", "Split 'a'", "no Split", 1)
    assert report.why("relu") == (relu,)
    assert report.why("refuse") == (split, relu)
    assert report.why("b") == (split,)
    assert report.why("z") == (MissGroup("refuse-always", "Relu 'z'", "no Relu", 1),)
    assert report.why("c") == ()
    assert [miss.outputs for miss in report.missed("split")] == [("a", "b")]


def test_a_slip_is_told_from_what_was_not_refused() -> None:
    model = from_text(
        """<ir_version: 10, opset_import: ["" : 20]>
        g (float[n, 8] x) => (float[n, 8] y) { a = Identity (x) hidden = Tanh (a)
            y = Relu (hidden) }"""
    )
    report = optimize(model, OptimizeOptions(verify=False, kernels="off")).report
    assert report.unknown("wholly new") == "" and report.unknown("Reluu") == "Relu"
    assert (
        report.unknown("hiden") == "hidden" and report.unknown("drop-identiti") == "drop-identity"
    )
    for known in ("hidden", "tanh", "fuse-softmax", "Identity", "y"):
        assert report.unknown(known) is None
    assert [hit.node for hit in report.done("identity")] == ["Identity 'a'"]


def test_regions_are_named_by_what_is_in_them() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]>
        g (float[n, 64] x) => (float[n, 64] y) { a = Tanh (x) b = Mul (a, x) y = Abs (b) }"""
    report = optimize(from_text(text), OptimizeOptions(verify=False)).report
    (region,) = report.regions
    assert report.regions_of("abs") == report.regions_of("y") == (region,)
    assert report.regions_of("Softmax") == ()
    assert bool(report.why("abs")) == (region.emitted_as is None)
