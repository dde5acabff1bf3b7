"""What kernels do on a GPU with what they cannot do: a status, or the function's body."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import ortkit
from ortkit.kernels.link.linker import link_library
from ortkit.kernels.signature import RegionSignature
from ortkit.runtime.memory.devices import device_memory
from ortkit.targets.target import Target
from tests.gpu import ptx_kernels
from tests.gpu.ptx_kernels import ADD_ROWS, DOUBLE_AND_ADD
from tests.gpu.test_gpu_kernels import feeds_of, placed, require_linker, session, wanted
from tests.kernels.fused_model import fused_model, tensor

#: Positions of 32 bits end some time before.
BEYOND = 2**31 + 2**20
HALF = 2


@pytest.fixture
def library(tmp_path: Path) -> Callable[..., Path]:
    """Links one kernel, its images for an architecture."""

    def build(signature: RegionSignature, architecture: int = 80) -> Path:
        require_linker()
        kernel = ptx_kernels.kernels(tmp_path)[signature]
        images = tuple(replace(image, architecture=architecture) for image in kernel.images)
        made = replace(kernel, images=images)
        return link_library([made], [signature], tmp_path / "k.so", kernel.target).path

    return build


def test_a_kernel_for_later_gpus_only_leaves_the_node_to_its_function(
    library: Callable[..., Path],
) -> None:
    path = library(ADD_ROWS, architecture=990)
    one = session(ADD_ROWS, path)
    assert ADD_ROWS.op_type not in placed(one)
    feeds = feeds_of(3, 5)
    np.testing.assert_array_equal(one.run(None, feeds)[0], wanted(ADD_ROWS, feeds))
    options = ort.SessionOptions()
    options.add_session_config_entry("ortkit.fused.target", "cuda")
    options.register_custom_ops_library(str(path))
    noted = options.get_session_config_entry(f"ortkit.fused::{ADD_ROWS.op_type}@left_out")
    assert noted.startswith("no image for sm_")
    assert noted.endswith(f"of kernel {ADD_ROWS.key}: the function body runs")


@pytest.mark.parametrize("signature", [ADD_ROWS, DOUBLE_AND_ADD], ids=lambda one: one.name)
def test_new_shapes_are_captured_anew(
    signature: RegionSignature, library: Callable[..., Path]
) -> None:
    path = library(signature)
    model = onnx.load_from_string(fused_model(signature))
    with ortkit.Session(model, "cuda", kernels=path, cuda_graph=True) as one:
        for turn in range(3):
            for a, b in ((2, 3), (7, 1000), (1, 1), (40, 129)):
                feeds = feeds_of(a, b, turn)
                np.testing.assert_array_equal(one.run(feeds)["Y"], wanted(signature, feeds))


def test_scratch_memory_that_is_not_there(library: Callable[..., Path]) -> None:
    """Inputs and outputs are the caller's; the arena has no room for what lies between."""
    torch = pytest.importorskip("torch")
    rows, columns = 64, 1 << 20  # 256 MiB of scratch
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("ortkit.fused.target", "cuda")
    options.register_custom_ops_library(str(library(DOUBLE_AND_ADD)))
    limited = [("CUDAExecutionProvider", {"gpu_mem_limit": str(64 << 20)})]
    inference_session = ort.InferenceSession(
        fused_model(DOUBLE_AND_ADD), options, providers=limited
    )

    def run(a: int, b: int) -> float:
        x, w, y = (torch.ones(shape, device="cuda") for shape in ((a, b), (b,), (a, b)))
        torch.cuda.synchronize()
        binding = inference_session.io_binding()
        for name, value in (("X", x), ("W", w)):
            shape, address = tuple(value.shape), value.data_ptr()
            binding.bind_input(name, "cuda", 0, np.float32, shape, address)
        binding.bind_output("Y", "cuda", 0, np.float32, (a, b), y.data_ptr())
        inference_session.run_with_iobinding(binding)
        return float(y.sum())

    for _ in range(2):
        with pytest.raises(Exception, match=r"(?i)memory"):
            run(rows, columns)
        assert run(4, 256) == 3 * 4 * 256


def test_sizes_beyond_32_bits(tmp_path: Path) -> None:
    """One tensor of more than 2^31 elements through the variant with positions of 64 bits."""
    from ortkit.kernels.triton.backend import TritonBackend

    if (missing := TritonBackend().available()) is not None:
        pytest.skip(missing.reason)
    require_linker()
    signature = RegionSignature(
        "beyond",
        '<opset_import: ["" : 20]> f (X) => (Y) { A = Neg (X)  Y = Abs (A) }',
        (tensor("X", "n", dtype="float16"),),
        (tensor("Y", "n", dtype="float16"),),
    )
    target = Target("cuda", "sm_80,sm_90")
    kernel = TritonBackend().compile(signature, target, tmp_path)
    path = link_library([kernel], [signature], tmp_path / "kernels.so", target).path
    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("ortkit.fused.target", "cuda")
    options.register_custom_ops_library(str(path))
    torch = pytest.importorskip("torch")
    inference_session = ort.InferenceSession(
        fused_model(signature), options, providers=["CUDAExecutionProvider"]
    )
    if device_memory(0).free < 3 * HALF * BEYOND:
        pytest.skip("the GPU has too little free memory")
    for size in (64, BEYOND, 2**31 + 1):
        # ONNX Runtime's own Expand fails at such sizes, so the tensor is torch's.
        x = torch.full((size,), -2.5, dtype=torch.float16, device="cuda")
        y = torch.zeros_like(x)
        torch.cuda.synchronize()
        binding = inference_session.io_binding()
        binding.bind_input("X", "cuda", 0, np.float16, (size,), x.data_ptr())
        binding.bind_output("Y", "cuda", 0, np.float16, (size,), y.data_ptr())
        inference_session.run_with_iobinding(binding)
        assert bool((y == 2.5).all())
        del x, y, binding
