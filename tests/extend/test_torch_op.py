"""Declared ops in PyTorch; needs torch."""

# ruff: noqa: F722, F821, UP037

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ortkit
from ortkit.errors import UserError
from ortkit.runtime.python_ops import OPS

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def ops() -> Iterator[dict[str, Any]]:
    before = dict(OPS)

    @ortkit.custom_op("tests.torch::Scaled")
    def scaled(x: ortkit.Float["*shape"], *, by: float = 1.0) -> ortkit.Float["*shape"]:
        return np.square(np.maximum(x, 0)) * np.asarray(by, x.dtype)

    @scaled.backward
    def scaled_backward(grad, x, *, by):
        return 2 * np.maximum(x, 0) * grad * np.asarray(by, x.dtype)

    @ortkit.custom_op("tests.torch::Linear", outputs=("y", "mask"))
    def linear(
        x: ortkit.Float["*b m"], w: ortkit.Float["m n"], b: ortkit.Float["n"] | None = None
    ) -> tuple[ortkit.Float["*b n"], ortkit.Bool["*b n"]]:
        y = x @ w if b is None else x @ w + b
        return y, y > 0

    @linear.backward
    def linear_backward(grad, _mask, x, w, b):
        rows = grad.reshape(-1, grad.shape[-1])
        down = x.reshape(-1, x.shape[-1]).T @ rows
        return grad @ w.T, down, None if b is None else rows.sum(0)

    yield {"scaled": scaled, "linear": linear, "f": scaled.torch(), "g": linear.torch()}
    OPS.clear()
    OPS.update(before)


def test_gradients_are_right(ops: dict[str, Any]) -> None:
    x, w, b = (
        torch.randn(*shape, dtype=torch.double, requires_grad=True)
        for shape in ((2, 3, 4), (4, 5), (5,))
    )
    assert torch.autograd.gradcheck(lambda t: ops["f"](t, by=3.0), (x,))
    assert torch.autograd.gradcheck(lambda *t: ops["g"](*t)[0], (x, w, b))
    assert torch.autograd.gradcheck(lambda *t: ops["g"](*t)[0], (x, w))


def test_torch_finds_nothing_wrong(ops: dict[str, Any]) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    torch.library.opcheck(ops["f"], (x,), {"by": 0.5})


def test_shapes_follow_from_the_declaration(ops: dict[str, Any]) -> None:
    x, w = torch.empty(2, 3, 4, device="meta"), torch.empty(4, 5, device="meta")
    y, mask = ops["g"](x, w)
    assert (y.shape, y.dtype, mask.dtype) == ((2, 3, 5), torch.float32, torch.bool)
    with pytest.raises(UserError, match="a size is"):
        ops["g"](x, torch.empty(3, 5, device="meta"))


def test_it_trains_and_exports_and_runs(ops: dict[str, Any]) -> None:
    from ortkit.extend.torch_op import translation

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)

        def forward(self, x):
            return ops["f"](self.layer(x), by=2.0)

    net, x = Net(), torch.randn(8, 4)
    net(x).sum().backward()
    assert net.layer.weight.grad is not None
    table = translation(ops["scaled"])
    program = torch.onnx.export(net, (x,), dynamo=True, custom_translation_table=table)
    model = program.model_proto
    (node,) = [one for one in model.graph.node if one.domain == "tests.torch"]
    assert node.op_type == "Scaled" and node.attribute[0].f == 2.0
    with ortkit.Session(model) as session:
        (found,) = session.run([x.numpy()]).values()
    np.testing.assert_allclose(found, net(x).detach().numpy(), rtol=1e-5)
