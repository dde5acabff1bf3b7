"""Kernels for CUDA in sessions: PTX written by hand, and Triton's where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from ortkit.errors import MissingDependencyError
from ortkit.kernels.cuda import Condition
from ortkit.kernels.link.linker import find_linker, find_shim, link_library
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.sizes import Extent
from ortkit.refusal import Refused
from ortkit.targets.target import Target
from tests.gpu import ptx_kernels
from tests.gpu.ptx_kernels import ADD_ROWS, DOUBLE_AND_ADD, expected
from tests.kernels.fused_model import bias_gelu, fused_model, random_input, unary

Array = np.ndarray[Any, np.dtype[Any]]
BOTH = pytest.mark.parametrize("signature", [ADD_ROWS, DOUBLE_AND_ADD], ids=lambda one: one.name)


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Links the kernels of ptx_kernels.kernels with its arguments."""

    def build(**settings: Any) -> Path:
        require_linker()
        made = ptx_kernels.kernels(tmp_path, **settings)
        path = tmp_path / "kernels.so"
        return link_library(list(made.values()), list(made), path, Target("cuda", "sm_80")).path

    yield build


def require_linker() -> None:
    try:
        find_linker()
        find_shim()
    except MissingDependencyError as error:
        pytest.skip(str(error))


def session(
    signature: RegionSignature,
    library: Path | None,
    *,
    target: str | None = "cuda",
    providers: tuple[str, ...] = ("CUDAExecutionProvider",),
    graph: bool = False,
) -> ort.InferenceSession:
    """A session with the model of one fused node, whose function is what the kernel stands for."""
    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if target is not None:
        options.add_session_config_entry("ortkit.fused.target", target)
    if library is not None:
        options.register_custom_ops_library(str(library))
    named = [
        (name, {"enable_cuda_graph": str(int(graph))}) if name.startswith("CUDA") else name
        for name in providers
    ]
    return ort.InferenceSession(fused_model(signature), options, providers=named)


def placed(session: ort.InferenceSession) -> dict[str, str]:
    """Op -> provider."""
    return {
        node.op_type: assigned.ep_name
        for assigned in session.get_provider_graph_assignment_info()
        for node in assigned.get_nodes()
    }


def feeds_of(a: int, b: int, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((a, b), (b,)))
    return {"X": x, "W": w}


def wanted(signature: RegionSignature, feeds: dict[str, Array]) -> Array:
    return expected(signature, feeds["X"], feeds["W"])


@BOTH
def test_a_kernel_computes_what_its_function_does(
    signature: RegionSignature, library: Callable[..., Path]
) -> None:
    with_kernel, without = session(signature, library()), session(signature, None)
    assert placed(with_kernel) == {signature.op_type: "CUDAExecutionProvider"}
    assert signature.op_type not in placed(without)
    for a, b in ((1, 1), (3, 129), (65535, 2), (7, 100_003), (0, 5), (5, 0)):
        feeds = feeds_of(a, b)
        (found,), (other,) = with_kernel.run(None, feeds), without.run(None, feeds)
        np.testing.assert_array_equal(found, wanted(signature, feeds))
        np.testing.assert_array_equal(found, other)


@BOTH
def test_a_kernel_is_captured_into_a_graph(
    signature: RegionSignature, library: Callable[..., Path]
) -> None:
    captured = session(signature, library(), graph=True)
    feeds = feeds_of(33, 1000)
    values = {
        name: ort.OrtValue.ortvalue_from_numpy(feed, "cuda", 0) for name, feed in feeds.items()
    }
    shape, dtype = feeds["X"].shape, np.float32
    out = ort.OrtValue.ortvalue_from_shape_and_type(shape, dtype, "cuda", 0)
    binding = captured.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_ortvalue_output("Y", out)
    for turn in range(6):  # two plain runs, one that is captured, replays
        feeds = feeds_of(33, 1000, turn)
        for name, value in values.items():
            value.update_inplace(feeds[name])
        captured.run_with_iobinding(binding)
        np.testing.assert_array_equal(out.numpy(), wanted(signature, feeds))


def test_sessions_and_threads(library: Callable[..., Path]) -> None:
    path = library()
    sessions = [session(item, path) for item in (ADD_ROWS, DOUBLE_AND_ADD) * 2]

    def work(number: int) -> None:
        signature = (ADD_ROWS, DOUBLE_AND_ADD)[number % 2]
        for turn in range(30):
            feeds = feeds_of(1 + number * 31, 700 + turn, turn)
            (found,) = sessions[number % 4].run(None, feeds)
            np.testing.assert_array_equal(found, wanted(signature, feeds))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


@pytest.mark.parametrize(
    ("settings", "size", "reason"),
    [
        (
            {"conditions": (Condition(Extent(1, ("s1",)), 16),)},
            (2, 17),
            "its CUDA kernel does not take tensors of these sizes",
        ),
        ({}, (65536, 1), "its CUDA kernel would need 65536 blocks along axis 1"),
    ],
    ids=["condition", "blocks"],
)
def test_sizes_that_do_not_fit(
    settings: dict[str, Any], size: tuple[int, int], reason: str, library: Callable[..., Path]
) -> None:
    one = session(ADD_ROWS, library(**settings))
    with pytest.raises(Exception, match=f"ortkit.fused::{ADD_ROWS.op_type}: {reason}"):
        one.run(None, feeds_of(*size))
    feeds = feeds_of(2, 16)
    np.testing.assert_array_equal(one.run(None, feeds)[0], wanted(ADD_ROWS, feeds))


def test_an_address_that_does_not_fit(library: Callable[..., Path]) -> None:
    torch = pytest.importorskip("torch")
    one = session(ADD_ROWS, library(aligned=True))
    room = torch.zeros(64, dtype=torch.uint8, device="cuda")
    w = torch.ones(4, device="cuda")
    for offset, reason in ((4, "is no multiple of 16"), (2, "is no multiple of its elements")):
        binding = one.io_binding()
        address = room.data_ptr() + offset
        binding.bind_input("X", "cuda", 0, np.float32, (2, 4), address)
        binding.bind_input("W", "cuda", 0, np.float32, (4,), w.data_ptr())
        binding.bind_output("Y", "cuda", 0)
        with pytest.raises(Exception, match=f"tensor 'X' begins at an address that {reason}"):
            one.run_with_iobinding(binding)


def test_code_that_the_driver_refuses(library: Callable[..., Path]) -> None:
    with pytest.raises(Exception, match="CUDA_ERROR_INVALID_PTX") as error:
        session(ADD_ROWS, library(broken=True))
    assert f"ortkit.fused::{ADD_ROWS.op_type}: cuModuleLoadDataEx failed with" in str(error.value)


@pytest.mark.parametrize(
    ("target", "providers", "is_kernel"),
    [
        (None, ("CUDAExecutionProvider",), True),
        ("cuda", ("CUDAExecutionProvider",), True),
        ("cpu", ("CUDAExecutionProvider",), False),
        ("cpu", ("CPUExecutionProvider",), False),
    ],
)
def test_which_sessions_get_the_kernel(
    target: str | None,
    providers: tuple[str, ...],
    is_kernel: bool,
    library: Callable[..., Path],
) -> None:
    one = session(ADD_ROWS, library(), target=target, providers=providers)
    assert (ADD_ROWS.op_type in placed(one)) == is_kernel
    feeds = feeds_of(3, 5)
    np.testing.assert_array_equal(one.run(None, feeds)[0], wanted(ADD_ROWS, feeds))


@pytest.mark.alone
def test_nothing_stays_of_sessions_that_are_gone(library: Callable[..., Path]) -> None:
    from ortkit.runtime.memory.devices import device_memory

    path = library()

    def free() -> int:
        return device_memory(0).free

    def use() -> None:
        one = session(DOUBLE_AND_ADD, path)
        feeds = feeds_of(100, 1000)
        np.testing.assert_array_equal(one.run(None, feeds)[0], wanted(DOUBLE_AND_ADD, feeds))

    keep = session(ADD_ROWS, path)
    for _ in range(3):
        use()
    before = free()
    for _ in range(40):
        use()
    assert before - free() < 4 << 20
    feeds = feeds_of(2, 3)
    np.testing.assert_array_equal(keep.run(None, feeds)[0], wanted(ADD_ROWS, feeds))


# ---- Triton
@pytest.mark.parametrize(
    ("signature", "sizes"),
    [
        (bias_gelu("n", 768), {"n": 1}),
        (bias_gelu("n", 768), {"n": 4097}),
        (bias_gelu("n", "m"), {"n": 33, "m": 129}),
        (unary("Exp"), {"n": 100_001}),
    ],
    ids=["one row", "known columns", "named columns", "one size"],
)
def test_a_kernel_by_triton(
    signature: RegionSignature, sizes: dict[str, int], tmp_path: Path
) -> None:
    from ortkit.kernels.triton.backend import TritonBackend

    backend = TritonBackend()
    missing: Refused | None = backend.available()
    if missing is not None:
        pytest.skip(missing.reason)
    require_linker()
    target = Target("cuda", "sm_80,sm_90")
    kernel = backend.compile(signature, target, tmp_path)
    path = link_library([kernel], [signature], tmp_path / "kernels.so", target).path
    with_kernel, without = session(signature, path), session(signature, None)
    assert placed(with_kernel) == {signature.op_type: "CUDAExecutionProvider"}
    feeds = {spec.name: random_input(spec, sizes) for spec in signature.inputs}
    (found,), (other,) = with_kernel.run(None, feeds), without.run(None, feeds)
    np.testing.assert_allclose(found, other, rtol=2e-6, atol=2e-6)
