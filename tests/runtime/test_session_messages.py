"""What ONNX Runtime says of CUDA, as one line without its sources; texts of 1.31.1 on an H100."""

from __future__ import annotations

import pytest

from ortkit.errors import RunError
from ortkit.runtime.options import explained, message
from ortkit.runtime.targets import option_hint

_OPTIONS = (
    "/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_execution_provider_info.cc:63 static "
    "onnxruntime::CUDAExecutionProviderInfo onnxruntime::CUDAExecutionProviderInfo::"
    "FromProviderOptions(const onnxruntime::ProviderOptions&) [ONNXRuntimeError] : 1 : FAIL : "
    "provider_options_utils.h:"
)
_ARENA = (
    "[ONNXRuntimeError] : 1 : FAIL : /onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:360 "
    "void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, onnxruntime::Stream*) "
)


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            f'{_OPTIONS}182 Parse Unknown provider option: "cudnn_conv_algo_serch".\n\n',
            'Unknown provider option: "cudnn_conv_algo_serch".',
        ),
        (
            f'{_OPTIONS}187 Parse Failed to parse provider option "device_id": '
            "cuda_execution_provider_info.cc:71 operator() Invalid device ID: 9, must be between "
            "0 (inclusive) and 1 (exclusive).\n",
            'Failed to parse provider option "device_id": Invalid device ID: 9, must be between '
            "0 (inclusive) and 1 (exclusive).",
        ),
        (
            "Error in execution: CUDA failure 900: operation not permitted when stream is "
            "capturing ; GPU=0 ; hostname=vm ; file=/onnxruntime_src/onnxruntime/core/providers/"
            "cuda/cuda_graph.cc ; line=82 ; expr=cudaGraphLaunch(graph_exec, stream_); ",
            "Error in execution: CUDA failure 900: operation not permitted when stream is "
            "capturing",
        ),
        (
            "/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_call.cc:154 std::conditional_t"
            "<THRW, void, onnxruntime::common::Status> onnxruntime::CudaCall(ERRTYPE, const char*,"
            " const char*, SUCCTYPE, const char*, const char*, int) [with ERRTYPE = cudaError; "
            "bool THRW = true; SUCCTYPE = cudaError; std::conditional_t<THRW, void, common::Status"
            "> = void] CUDA failure 2: out of memory ; GPU=0 ; hostname=vm ; file=x.cc ; line=1",
            "CUDA failure 2: out of memory",
        ),
    ],
)
def test_only_the_problem_is_left(said: str, line: str) -> None:
    assert message(RuntimeError(said)) == line


@pytest.mark.parametrize(
    "said",
    [
        "Available memory of 66060288 is smaller than requested bytes of 268435456",
        "Failed to allocate memory for requested buffer of size 214748364800",
    ],
)
def test_lack_of_device_memory_is_named(said: str) -> None:
    error = explained(RuntimeError(_ARENA + said))
    assert isinstance(error, RunError)
    assert error.problem == f"out of memory: {said}"


def test_the_near_option_is_named() -> None:
    said = message(RuntimeError(f'{_OPTIONS}182 Parse Unknown provider option: "gpu_mem_limt".'))
    assert option_hint(said) == "did you mean 'gpu_mem_limit'?"
