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
    from ortkit.extend.torch.op import translation

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
    (node,) = [item for item in model.graph.node if item.domain == "tests.torch"]
    assert node.op_type == "Scaled" and node.attribute[0].f == 2.0
    with ortkit.Session(model) as session:
        (found,) = session.run([x.numpy()]).values()
    np.testing.assert_allclose(found, net(x).detach().numpy(), rtol=1e-5)


SQUARE = '<opset_import: ["" : 20]> f <by: float = 1.0> (x) => (y) { '
SQUARE += "a = Constant <value_float: float = @by> () b = CastLike(a, x) r = Relu(x) "
SQUARE += "s = Mul(r, r) y = Mul(s, b) }"


def forget_afterwards(name: str) -> ortkit.CustomOp:
    """An op with a reference that counts its calls, and nothing else."""

    @ortkit.custom_op(f"tests.torch::{name}")
    def op(x: ortkit.Float["*shape"], *, by: float = 1.0) -> ortkit.Float["*shape"]:
        CALLS.append(name)
        return np.square(np.maximum(x, 0)) * np.asarray(by, x.dtype)

    return op


CALLS: list[str] = []


def test_tensors_run_on_the_kernel_and_not_on_the_reference(ops: dict[str, Any]) -> None:
    pytest.importorskip("tvm")
    op = forget_afterwards("Kernel")
    op.body(SQUARE)
    call = op.torch(kernels="always")
    CALLS.clear()
    for shape in ((), (7,), (0, 3), (2, 3, 5), (300, 4000)):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            x = torch.randn(shape).to(dtype)
            want = torch.relu(x.float()).square() * 3
            torch.testing.assert_close(call(x, by=3.0).float(), want, rtol=1e-2, atol=1e-2)
    assert call(torch.randn(4, 6).T).shape == (6, 4)  # not dense
    assert CALLS == []


def test_gradients_of_the_body(ops: dict[str, Any]) -> None:
    op = forget_afterwards("Derived")
    op.body(SQUARE)
    call = op.torch(kernels="never")
    x = torch.randn(2, 5, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: call(t, by=3.0), (x,))
    torch.library.opcheck(call, (x,), {"by": 0.5})
    call(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * torch.relu(x.detach()))


def test_gradients_of_the_body_are_compiled(ops: dict[str, Any]) -> None:
    op = forget_afterwards("Compiled")
    op.body(SQUARE)
    call = op.torch(kernels="never")
    compiled = torch.compile(lambda t: call(t, by=3.0) * 2, backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 5, requires_grad=True)
    compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, 12 * torch.relu(x.detach()))


def test_kernels_are_asked_for_where_there_is_none(ops: dict[str, Any]) -> None:
    call = forget_afterwards("Always").torch(kernels="always")
    with pytest.raises(UserError, match="no kernel for this call on cpu: it has neither a body"):
        call(torch.ones(3))
    with pytest.raises(UserError, match="kernels is 'perhaps'"):
        forget_afterwards("Perhaps").torch(kernels="perhaps")


def test_without_a_kernel_the_reference_computes(ops: dict[str, Any]) -> None:
    call = forget_afterwards("Plain").torch()
    CALLS.clear()
    for dtype in (torch.float32, torch.bfloat16):
        torch.testing.assert_close(
            call(torch.tensor([-1, 3]).to(dtype)), torch.tensor([0, 9]).to(dtype)
        )
    assert CALLS == ["Plain"] * 2


def test_bodies_without_a_derivative_say_so(ops: dict[str, Any]) -> None:
    op = forget_afterwards("Odd")
    op.body('<opset_import: ["" : 20]> f <by: float = 1.0> (x) => (y) { y = HardSigmoid(x) }')
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(UserError, match="there is no gradient: its body has HardSigmoid"):
        op.torch(kernels="never")(x).sum().backward()


BODIES = {
    "t = Add(x, w) y = Softmax <axis = -1> (t)": lambda x, w: torch.softmax(x + w, -1),
    "y = LayerNormalization(x, w)": lambda x, w: torch.nn.functional.layer_norm(x, (4,), w),
    "t = Transpose <perm = [1, 0]> (x) u = Transpose(t) y = MatMul(u, t)":
        lambda x, w: x @ x.T,
    "a = Constant <value_ints = [-1]> () m = ReduceMean(x, a) y = Sub(x, m)":
        lambda x, w: x - x.mean(-1, keepdim=True),
    "a = Constant <value_ints = [0]> () m = ReduceMax <keepdims = 0> (x, a) y = Div(x, m)":
        lambda x, w: x / x.amax(0),
    "s = Constant <value_ints = [0, 2, -1]> () r = Reshape(x, s) "
    "a = Constant <value_ints = [1]> () t = ReduceSum <keepdims = 0> (r, a) y = Tanh(t)":
        lambda x, w: torch.tanh(x.reshape(3, 2, 2).sum(1)),
    "b = Constant <value_ints = [3]> () e = Constant <value_ints = [-9]> () "
    "a = Constant <value_ints = [1]> () d = Constant <value_ints = [-1]> () "
    "y = Slice(x, b, e, a, d)": lambda x, w: x.flip(1),
    "p, q = Split <axis = 1, num_outputs = 2> (x) y = Concat <axis = 0> (q, p)":
        lambda x, w: torch.cat([x[:, 2:], x[:, :2]]),
    "i = Constant <value_ints = [-1, 0]> () y = Gather <axis = 1> (x, i)":
        lambda x, w: x[:, [-1, 0]],
    "z = Constant <value_float = 0.1> () y = Clip(x, z)": lambda x, w: x.clamp(min=0.1),
    "y = Gelu <approximate = \"tanh\"> (x)":
        lambda x, w: torch.nn.functional.gelu(x, approximate="tanh"),
    "g = Greater(x, w) n = Neg(x) y = Where(g, x, n)": lambda x, w: torch.where(x > w, x, -x),
    "y = Cast <to = 1> (x)": lambda x, w: x.float(),
}  # fmt: skip


@pytest.mark.parametrize("text", list(BODIES))
def test_bodies_are_what_torch_computes(text: str, ops: dict[str, Any]) -> None:
    """And what ONNX Runtime does."""
    import onnx
    import onnx.parser
    import onnxruntime as ort

    from ortkit.extend.torch.body import compute_body

    body = onnx.parser.parse_function(f'<opset_import: ["" : 20]> f (x, w) => (y) {{ {text} }}')
    x, w = torch.randn(3, 4), torch.randn(4)
    (found,) = compute_body(body, [x, w], {}, "test")
    torch.testing.assert_close(found, BODIES[text](x, w))
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[a,b] x, float[b] w) => (float[] y) {'
        f" {text} }}"
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    session = ort.InferenceSession(model.SerializeToString())
    want = session.run(None, {"x": x.numpy(), "w": w.numpy()})[0]
    np.testing.assert_allclose(found.numpy(), want, rtol=1e-4, atol=1e-5)


def test_more_than_one_thread(ops: dict[str, Any]) -> None:
    """Parts of the work of one call run side by side, and give the same."""
    pytest.importorskip("tvm")
    op = forget_afterwards("Parallel")
    op.body(SQUARE)
    call = op.torch(kernels="always")
    x = torch.randn(3_000_001)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(call(x))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found) and torch.equal(found[0], torch.relu(x).square())
