"""Ops that are defined in Python, on a GPU: their library in a session, and in PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

from ortkit.errors import MissingDependencyError
from ortkit.extend.build.library import build_ops
from ortkit.kernels.link.linker import find_linker, find_shim
from ortkit.targets.target import Target
from tests.example_ops import example_ops

HEAD = '<ir_version: 10, opset_import: ["" : 20, "ortkit.examples" : 1]> '
RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def ops() -> Iterator[dict[str, Any]]:
    pytest.importorskip("triton")
    with example_ops() as declared:
        yield declared


@pytest.fixture(scope="module")
def library(ops: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        find_linker()
        find_shim()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    pytest.importorskip("tvm")  # which the ops have kernels in, too
    path = tmp_path_factory.mktemp("ops") / "ops.so"
    chosen = [ops[name] for name in ("BiasSoftmax", "MatrixProduct", "ResidualLayerNorm")]
    build_ops(chosen, path, cuda=Target("cuda", "sm_90"), dtypes=["float32"])
    return path


def run(library: Path, text: str, *providers: str, **feeds: np.ndarray) -> list[np.ndarray]:
    import onnxruntime as ort

    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(library))
    model = onnx.parser.parse_model(HEAD + text).SerializeToString()
    session = ort.InferenceSession(model, options, providers=[*providers])
    return session.run(None, feeds)


def test_attributes_sizes_and_optional_inputs(library: Path, ops: dict[str, Any]) -> None:
    """With rows that a written kernel takes, and some that only the generated one does."""
    cuda = "CUDAExecutionProvider"
    x, r = (RANDOM.standard_normal((3, 5, 768)).astype(np.float32) for _ in range(2))
    w, b = (RANDOM.standard_normal(768).astype(np.float32) for _ in range(2))
    text = (
        "g (float[a,b,c] x, float[a,b,c] r, float[c] w, float[c] b) => (y, t) "
        "{ y, t = ortkit.examples.ResidualLayerNorm <epsilon = 0.5> (x, r, w, b) }"
    )
    found = run(library, text, cuda, x=x, r=r, w=w, b=b)
    for one, want in zip(found, ops["ResidualLayerNorm"](x, r, w, b, epsilon=0.5), strict=True):
        np.testing.assert_allclose(one, want, atol=1e-4)
    text = "g (float[a,b] x) => (y) { y = ortkit.examples.BiasSoftmax(x) }"
    for columns in (5, 4000, 20_000):
        x = RANDOM.standard_normal((2, columns)).astype(np.float32)
        (found,) = run(library, text, cuda, x=x)
        np.testing.assert_allclose(found, ops["BiasSoftmax"](x), rtol=1e-4)


def test_beside_nodes_on_the_cpu(library: Path) -> None:
    """The same library has the kernel for the CPU."""
    x = np.eye(4, dtype=np.float32)
    text = "g (float[a,b] x) => (y) { y = ortkit.examples.MatrixProduct(x, x) }"
    for provider in ("CUDAExecutionProvider", "CPUExecutionProvider"):
        np.testing.assert_array_equal(run(library, text, provider, x=x)[0], x)


def test_tensors_of_torch(ops: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch has no CUDA")
    softmax = ops["BiasSoftmax"].torch(kernels="always")
    for columns in (7, 768, 20_000):
        x, b = torch.randn(3, columns, device="cuda"), torch.randn(columns, device="cuda")
        torch.testing.assert_close(softmax(x, b), torch.softmax(x + b, -1))
    with pytest.raises(Exception, match="its tensors are on cuda:0 and on cpu"):
        softmax(x, b.cpu())
    x = torch.randn(3, 7, device="cuda", requires_grad=True)
    y = x.detach().clone().requires_grad_()
    softmax(x).square().sum().backward()
    torch.softmax(y, -1).square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
