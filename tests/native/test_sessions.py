"""Many sessions, several libraries: what meets in one process and in one session."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library
from ortkit.kernels.signature import DOMAIN, RegionSignature
from ortkit.targets.target import Target
from tests.kernels.fused_model import bias_gelu, fused_model, random_input, session, unary

GELU, TANH = bias_gelu("n", 8), unary("Tanh")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kernel libraries: "gelu" and "tanh" with one op each, "both" with these two."""
    folder = tmp_path_factory.mktemp("libraries")
    contents = {"gelu": [GELU], "tanh": [TANH], "both": [GELU, TANH]}
    for name, signatures in contents.items():
        build_library(signatures, Target(), folder / f"{name}.so", cache=KernelCache(folder))
    return {name: folder / f"{name}.so" for name in contents}


def model_of_both() -> bytes:
    model = onnx.load_from_string(fused_model(GELU))
    other = onnx.load_from_string(fused_model(TANH))
    node = model.graph.node.add()
    node.CopyFrom(other.graph.node[0])
    node.name, node.input[0], node.output[0] = "tanh", "W", "Z"
    for values, added, name in (
        (model.graph.input, other.graph.input[0], "W"),
        (model.graph.output, other.graph.output[0], "Z"),
    ):
        values.add().CopyFrom(added)
        values[-1].name = name
    model.graph.input[-1].type.tensor_type.shape.dim[0].dim_param = "m"
    model.functions.extend(other.functions)
    return model.SerializeToString()


def feeds_of(signature: RegionSignature, size: int = 3) -> dict[str, np.ndarray]:
    return {spec.name: random_input(spec, {"n": size}) for spec in signature.inputs}


@pytest.mark.parametrize(
    "names",
    ["gelu tanh", "tanh gelu", "both", "both gelu", "gelu both", "both both", "gelu tanh gelu"],
)
def test_libraries_of_one_session_share_its_domain(
    names: str, libraries: dict[str, Path], tmp_path: Path
) -> None:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    for name in names.split():
        options.register_custom_ops_library(str(libraries[name]))
    loaded = ort.InferenceSession(model_of_both(), options, providers=["CPUExecutionProvider"])
    feeds = feeds_of(GELU) | {"W": np.linspace(-2, 2, 5, dtype=np.float32)}
    gelu, tanh = loaded.run(None, feeds)
    events = json.loads(Path(loaded.end_profiling()).read_text())
    ran = {event["args"]["op_name"] for event in events if event["cat"] == "Node"}
    assert ran == {GELU.op_type, TANH.op_type}, "the kernels, not the functions"
    wanted = session(fused_model(GELU)).run(None, feeds_of(GELU))[0]
    np.testing.assert_allclose(gelu, wanted, rtol=0, atol=2**-20)
    np.testing.assert_allclose(tanh, np.tanh(feeds["W"]), rtol=0, atol=2**-22)


@pytest.mark.parametrize(("length", "fits"), [(400, True), (500, False)])
def test_long_names_are_told_apart_or_refused(length: int, fits: bool, tmp_path: Path) -> None:
    long = [replace(each, name="n" * length) for each in (GELU, unary("Exp"))]
    path = tmp_path / "long.so"
    build_library(long, Target(), path, cache=KernelCache(tmp_path))
    options = ort.SessionOptions()
    if fits:
        options.register_custom_ops_library(str(path))
        for each in long:
            assert options.get_session_config_entry(f"{DOMAIN}::{each.op_type}")
        return
    with pytest.raises(Exception, match="the name is too long"):
        options.register_custom_ops_library(str(path))


def test_options_may_get_another_library_after_a_session_was_made(
    libraries: dict[str, Path],
) -> None:
    options = ort.SessionOptions()
    options.register_custom_ops_library(str(libraries["gelu"]))
    first = ort.InferenceSession(fused_model(GELU), options)
    options.register_custom_ops_library(str(libraries["tanh"]))
    second = ort.InferenceSession(fused_model(TANH), options)
    del options
    third = session(fused_model(GELU), libraries["both"])
    feeds = feeds_of(GELU)
    np.testing.assert_array_equal(first.run(None, feeds)[0], third.run(None, feeds)[0])
    assert np.isfinite(second.run(None, feeds_of(TANH))[0]).all()


def test_a_library_comes_and_goes_with_its_session(libraries: dict[str, Path]) -> None:
    def mapped() -> bool:
        return str(libraries["gelu"]) in Path("/proc/self/maps").read_text()

    feeds = feeds_of(GELU)
    results = []
    for _ in range(20):
        loaded = session(fused_model(GELU), libraries["gelu"])
        assert mapped()
        results.append(loaded.run(None, feeds)[0])
        del loaded
        assert not mapped()
    for result in results:
        np.testing.assert_array_equal(result, results[0])


def test_sessions_of_several_libraries_are_made_and_run_in_threads(
    libraries: dict[str, Path],
) -> None:
    models = {"gelu": GELU, "tanh": TANH, "both": GELU}
    expected = {
        name: session(fused_model(of), libraries[name]).run(None, feeds_of(of, 3000))[0]
        for name, of in models.items()
    }
    wrong: list[str] = []

    def work(name: str) -> None:
        for _ in range(5):
            loaded = session(fused_model(models[name]), libraries[name], threads=2)
            for _ in range(5):
                found = loaded.run(None, feeds_of(models[name], 3000))[0]
                if not np.array_equal(found, expected[name]):
                    wrong.append(name)

    workers = [threading.Thread(target=work, args=(name,)) for name in (*models, *models)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_one_session_is_run_by_several_threads_at_once(libraries: dict[str, Path]) -> None:
    loaded = session(fused_model(GELU), libraries["gelu"], threads=2)
    sizes = (1, 7, 500, 20_000)
    expected = {size: loaded.run(None, feeds_of(GELU, size))[0] for size in sizes}
    wrong: list[int] = []

    def work(size: int) -> None:
        results = [loaded.run(None, feeds_of(GELU, size))[0] for _ in range(30)]
        wrong.extend(size for each in results if not np.array_equal(each, expected[size]))

    workers = [threading.Thread(target=work, args=(size,)) for size in (*sizes, *sizes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_two_fused_nodes_of_one_session_may_run_at_once(libraries: dict[str, Path]) -> None:
    options = ort.SessionOptions()
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.inter_op_num_threads = options.intra_op_num_threads = 2
    options.register_custom_ops_library(str(libraries["both"]))
    loaded = ort.InferenceSession(model_of_both(), options, providers=["CPUExecutionProvider"])
    feeds = feeds_of(GELU, 20_000) | {"W": np.linspace(-2, 2, 100_000, dtype=np.float32)}
    first = loaded.run(None, feeds)
    np.testing.assert_allclose(first[1], np.tanh(feeds["W"]), rtol=0, atol=2**-22)
    for _ in range(20):
        for one, other in zip(first, loaded.run(None, feeds), strict=True):
            np.testing.assert_array_equal(one, other)
