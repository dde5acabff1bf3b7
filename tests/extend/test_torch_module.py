"""`ortkit.optimize(torch_module, args)`; needs torch."""

# ruff: noqa: F722, F821

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
def square() -> Iterator[Any]:
    before = dict(OPS)

    @ortkit.custom_op("tests.module::Square")
    def square(x: ortkit.Float["*shape"]) -> ortkit.Float["*shape"]:
        return np.square(np.maximum(x, 0))

    square.body('<opset_import: ["" : 20]> f (x) => (y) { r = Relu(x) y = Mul(r, r) }')
    yield square.torch()
    OPS.clear()
    OPS.update(before)


def net(square: Any) -> Any:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 16)
            self.drop = torch.nn.Dropout(0.5)

        def forward(self, x, *, scale=None):
            y = self.drop(square(self.layer(x)))
            return y if scale is None else y * scale

    return Net()


def test_a_module_is_exported_and_optimized(square: Any) -> None:
    """In evaluation mode, and its own mode comes back; the declared op stays one node."""
    module = net(square)
    x = torch.randn(4, 8)
    found = ortkit.optimize(module, (x,), dynamic_shapes=({0: "batch"},))
    assert module.training and module.drop.training
    assert found.report.verification is not None
    assert found.report.verification.verdict == "yes"
    assert ("tests.module", "Square") in [(n.domain, n.op_type) for n in found.model.graph]
    module.eval()
    with ortkit.Session(found.model) as session:
        for rows in (4, 7):
            x = torch.randn(rows, 8)
            (y,) = session.run([x.numpy()]).values()
            np.testing.assert_allclose(y, module(x).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_inputs_by_name_and_options(square: Any) -> None:
    x, scale = torch.randn(2, 8), torch.tensor(3.0)
    options = ortkit.OptimizeOptions(level=0, verify=False)
    found = ortkit.optimize(net(square), x, options, kwargs={"scale": scale})
    assert found.report.verification is None
    assert len(found.model.graph.inputs) == 2


def test_a_module_that_torch_cannot_export(square: Any) -> None:
    class Odd(torch.nn.Module):
        def forward(self, x):
            return x.numpy().tolist() if float(x.sum()) > 0 else undefined

    with pytest.raises(UserError, match="torch cannot export the module") as caught:
        ortkit.optimize(Odd(), (torch.ones(3),))
    assert "\n" not in str(caught.value)


def test_a_module_without_inputs(square: Any) -> None:
    with pytest.raises(UserError, match="example inputs, and there are none"):
        ortkit.optimize(net(square))


def test_what_is_for_modules_only() -> None:
    for arguments, options in (
        ((torch.ones(3),), {}), ((None,), {"kwargs": {}}), ((None,), {"dynamic_shapes": {}}),
    ):  # fmt: skip
        with pytest.raises(UserError, match="for PyTorch modules, and this is bytes"):
            ortkit.optimize(b"", *arguments, **options)


def test_what_torch_says_of_a_graph_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    """It prints the graph that it cannot trace."""

    class Guarded(torch.nn.Module):
        def forward(self, x):
            return x + 1 if x.sum().item() > 0 else x

    with pytest.raises(UserError) as caught:
        ortkit.optimize(Guarded(), torch.randn(3))
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_function_is_no_module() -> None:
    with pytest.raises(UserError, match=r"put it into the forward of a torch\.nn\.Module"):
        ortkit.optimize(lambda x: x + 1, torch.randn(3))
