"""A fused node in ONNX Runtime: the kernel with the library, the inlined function without it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from fused_model import bias_gelu, fused_model, random_input, session, tensor

from ortkit.kernels.build.library import LibraryBuild
from ortkit.kernels.signature import DOMAIN, RegionSignature

Build = Callable[..., LibraryBuild]
HEAD = '<opset_import: ["" : 20]>'


def library_of(build: Build, *signatures: RegionSignature) -> Path:
    library = build(*signatures).library
    assert library is not None
    return library.path


def run(
    model: bytes, library: Path | None, feeds: dict[str, np.ndarray], threads: int = 1
) -> list[np.ndarray]:
    return session(model, library, threads).run(None, feeds)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("columns", [1, 7, 16, 37, 768])
def test_same_results_with_and_without_the_library(
    columns: int, threads: int, build: Build
) -> None:
    signature = bias_gelu("batch", "seq", columns)
    path, model = library_of(build, signature), fused_model(signature)
    with_library, without = session(model, path, threads), session(model, None, threads)
    for batch, seq in ((1, 1), (2, 3), (1, 257), (0, 5), (3, 0), (4, 128)):
        feeds = {
            spec.name: random_input(spec, {"batch": batch, "seq": seq})
            for spec in signature.inputs
        }
        (found,), (expected,) = with_library.run(None, feeds), without.run(None, feeds)
        assert found.shape == (batch, seq, columns)
        # 2 epsilons of the largest value: |x| stays below 16 here.
        np.testing.assert_allclose(found, expected, rtol=0, atol=2**-23 * 16)


def test_the_kernel_runs_with_the_library_and_the_function_without(build: Build) -> None:
    signature = bias_gelu("n", 8)
    other = f"{HEAD} f (X, B) => (Y) {{ S = Add (X, B)  Y = Neg (S) }}"
    model = fused_model(signature, onnx.parser.parse_function(other))
    feeds = {"X": np.full((2, 8), 20, np.float32), "B": np.zeros(8, np.float32)}
    assert run(model, library_of(build, signature), feeds)[0].tolist() == [[20.0] * 8] * 2
    assert run(model, None, feeds)[0].tolist() == [[-20.0] * 8] * 2


@pytest.mark.parametrize("size", [1, 15, 16, 17, 31, 1021, 100_003])
def test_one_dense_axis_of_unknown_size(size: int, build: Build) -> None:
    body = f"{HEAD} f (X, Z) => (Y) {{ S = Add (X, Z)  Y = Tanh (S) }}"
    inputs = (tensor("X", "n"), tensor("Z", "n"))
    signature = RegionSignature("dense", body, inputs, (tensor("Y", "n"),))
    path, model = library_of(build, signature), fused_model(signature)
    feeds = {spec.name: random_input(spec, {"n": size}) for spec in inputs}
    (one,), (two,) = run(model, path, feeds), run(model, path, feeds, threads=2)
    np.testing.assert_array_equal(one, two)
    np.testing.assert_allclose(one, np.tanh(feeds["X"] + feeds["Z"]), rtol=0, atol=2**-22)


# Which dims of [b, h, q, k] the second operand has; each makes another nest of axes.
@pytest.mark.sampled(4)
@pytest.mark.parametrize("mask", ["b11k", "1hq1", "b1q1", "11qk", "b1qk", "1h1k", "1111"])
@pytest.mark.parametrize("sizes", [{"b": 2, "q": 3, "k": 5}, {"b": 3, "q": 33, "k": 61}])
def test_broadcasts_in_between(mask: str, sizes: dict[str, int], build: Build) -> None:
    full: tuple[int | str, ...] = ("b", 6, "q", "k")
    shape = tuple(dim if letter != "1" else 1 for dim, letter in zip(full, mask, strict=True))
    body = f"{HEAD} f (X, M) => (Y) {{ Y = Sub (X, M) }}"
    inputs = (tensor("X", *full), tensor("M", *shape))
    signature = RegionSignature("masked", body, inputs, (tensor("Y", *full),))
    feeds = {spec.name: random_input(spec, sizes) for spec in inputs}
    for threads in (1, 2):
        (found,) = run(fused_model(signature), library_of(build, signature), feeds, threads)
        np.testing.assert_array_equal(found, feeds["X"] - feeds["M"])


def test_several_outputs_and_several_ops_in_one_library(build: Build) -> None:
    body = f"{HEAD} f (X, B) => (S, Y) {{ S = Add (X, B)  Y = Gelu (S) }}"
    shape = ("n", 24)
    two = RegionSignature(
        "both",
        body,
        (tensor("X", *shape), tensor("B", 24)),
        (tensor("S", *shape), tensor("Y", *shape)),
    )
    one = bias_gelu(*shape)
    path = library_of(build, two, one)
    feeds = {spec.name: random_input(spec, {"n": 9}) for spec in two.inputs}
    total, gelu = run(fused_model(two), path, feeds)
    np.testing.assert_array_equal(total, feeds["X"] + feeds["B"])
    np.testing.assert_array_equal(gelu, run(fused_model(one), path, feeds)[0])


def test_sizes_of_outputs_are_known_or_named_before_a_run(build: Build) -> None:
    signature = bias_gelu("batch", "seq", 8)
    path = library_of(build, signature)
    outputs = session(fused_model(signature), path).get_outputs()
    assert outputs[0].shape == ["batch", "seq", 8]
    # The model may know more than the region, or have other names.
    model = onnx.load_from_string(fused_model(signature))
    dims = model.graph.input[0].type.tensor_type.shape.dim
    dims[0].dim_value, dims[1].dim_param = 4, "length"
    assert session(model.SerializeToString(), path).get_outputs()[0].shape == [4, "length", 8]


def test_a_nameless_size_gets_a_name_of_its_own(build: Build) -> None:
    signature = bias_gelu("n", 8)
    path = library_of(build, signature)
    model = onnx.load_from_string(fused_model(signature))
    model.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    model.graph.input.add().CopyFrom(model.graph.input[0])
    model.graph.input[-1].name = "X2"
    model.graph.output.add().CopyFrom(model.graph.output[0])
    model.graph.output[-1].name = "Y2"
    node = model.graph.node.add()
    node.CopyFrom(model.graph.node[0])
    node.input[0], node.output[0], node.name = "X2", "Y2", "other"
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    both = session(model.SerializeToString(), path)
    names = [output.shape[0] for output in both.get_outputs()]
    assert all(isinstance(name, str) for name in names)
    assert names[0] != names[1], "equal names promise equal sizes"
    feeds = {"X": np.ones((2, 8), "f"), "X2": np.ones((5, 8), "f"), "B": np.zeros(8, "f")}
    assert [value.shape for value in both.run(None, feeds)] == [(2, 8), (5, 8)]


@pytest.mark.parametrize(
    ("x", "b", "reason"),
    [
        ((2, 3), (8,), "input 'X' has rank 2, expected 3"),
        ((2, 3, 7), (8,), "input 'X' has size 7 in dim 2, expected 8"),
        ((2, 3, 8), (1,), "input 'B' has size 1 in dim 0, expected 8"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused(
    x: tuple[int, ...], b: tuple[int, ...], reason: str, build: Build
) -> None:
    signature = bias_gelu("batch", "seq", 8)
    path = library_of(build, signature)
    model = onnx.load_from_string(fused_model(signature))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    loaded = session(model.SerializeToString(), path)
    with pytest.raises(Exception, match="INVALID_ARGUMENT") as error:
        loaded.run(None, {"X": np.zeros(x, "f"), "B": np.zeros(b, "f")})
    assert f"{DOMAIN}::{signature.op_type}: {reason}" in str(error.value)


def test_sizes_that_must_agree_are_compared(build: Build) -> None:
    body = f"{HEAD} f (X, Z) => (Y) {{ Y = Add (X, Z) }}"
    signature = RegionSignature(
        "sum", body, (tensor("X", "n"), tensor("Z", "n")), (tensor("Y", "n"),)
    )
    path = library_of(build, signature)
    model = onnx.load_from_string(fused_model(signature))
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "m"
    loaded = session(model.SerializeToString(), path)
    with pytest.raises(Exception, match="input 'Z' has size 3 in dim 0, and 'n' is 2 elsewhere"):
        loaded.run(None, {"X": np.zeros(2, "f"), "Z": np.zeros(3, "f")})


def test_another_element_type_is_refused_when_the_session_is_made(build: Build) -> None:
    signature = bias_gelu("n", 8)
    path = library_of(build, signature)
    model = onnx.load_from_string(fused_model(signature))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    with pytest.raises(Exception, match=r"[Tt]ype"):
        session(model.SerializeToString(), path)


def test_sessions_may_be_made_and_run_in_many_threads_at_once(build: Build) -> None:
    signature = bias_gelu("n", 64)
    path, model = library_of(build, signature), fused_model(signature)
    feeds = {spec.name: random_input(spec, {"n": 300}) for spec in signature.inputs}
    results: list[np.ndarray] = []

    def work() -> None:
        loaded = session(model, path, threads=2)
        results.extend(loaded.run(None, feeds)[0] for _ in range(10))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == 40
    for result in results:
        np.testing.assert_array_equal(result, results[0])
