"""Attention's kernels on a GPU, against attention in float64 and against ONNX Runtime's ops."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from ortkit.errors import MissingDependencyError
from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library
from ortkit.kernels.link.linker import find_linker, find_shim
from ortkit.targets.target import Target
from tests.kernels.fused_model import fused_model
from tests.kernels.triton import packed_attention as packed
from tests.kernels.triton.triton_attention import CASES, SIZES, WHOLE, assert_close, feeds_of

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
#: Longer than a block by much: the loop over keys runs many times.
LONG = {"b": 2, "s": 1000, "t": 2048, "p": 2047}
#: numpy's arrays of bfloat16 are no inputs.
TESTED = [name for name in CASES if "bfloat16" not in name]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One library for all cases."""
    try:
        find_linker()
        find_shim()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("attention")
    signatures = [CASES[name].signature() for name in TESTED]
    cache, path = KernelCache(folder / "cache"), folder / "attention.so"
    built = build_library(signatures, Target("cuda", "sm_90"), path, "triton", cache)
    assert not built.refused
    return path


def session(name: str, library: Path | None) -> ort.InferenceSession:
    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("ortkit.fused.target", "cuda")
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1" if library else "0")
    if library is not None:
        options.register_custom_ops_library(str(library))
    model = fused_model(CASES[name].signature())
    return ort.InferenceSession(model, options, providers=["CUDAExecutionProvider"])


@pytest.mark.parametrize("name", TESTED)
def test_a_kernel_computes_attention(name: str, library: Path) -> None:
    case = CASES[name]
    opened = session(name, library)
    names = [value.name for value in opened.get_inputs()]
    for sizes in (SIZES, WHOLE, LONG):
        feeds = feeds_of(case, sizes)
        *present, found = opened.run(None, dict(zip(names, feeds, strict=True)))
        assert_close(np.asarray(found), case.expected(feeds))
        for made, wanted in zip(present, case.appended(feeds), strict=True):
            np.testing.assert_array_equal(made, wanted)


@pytest.mark.parametrize("name", [name for name in TESTED if name.startswith("a row of")])
def test_a_row_is_written_in_place(name: str, library: Path) -> None:
    """Past and present in one buffer, three steps."""
    case, opened = CASES[name], session(name, library)
    feeds = dict(
        zip([value.name for value in opened.get_inputs()], feeds_of(case, LONG), strict=True)
    )
    held = {
        key: ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(feed), "cuda", 0)
        for key, feed in feeds.items()
    }
    binding = opened.io_binding()
    for key, value in held.items():
        binding.bind_ortvalue_input(key, value)
    pasts = [value.name for value in opened.get_inputs() if value.name.startswith("past")]
    made = [value.name for value in opened.get_outputs()]
    for past, present in zip(pasts, made[:2], strict=True):
        binding.bind_ortvalue_output(present, held[past])
    binding.bind_output(made[2], "cpu")
    for step in range(3):
        for key in ("k", "v"):
            feeds[key] = (feeds[key] * (step + 1)).astype(feeds[key].dtype)
            held[key].update_inplace(feeds[key])
        opened.run_with_iobinding(binding)
        found = binding.get_outputs()[2].numpy()
        assert_close(found, case.expected(list(feeds.values())))
        for key, wanted in zip(pasts, case.appended(list(feeds.values())), strict=True):
            feeds[key] = wanted
            np.testing.assert_array_equal(held[key].numpy(), wanted)


@pytest.mark.parametrize("name", ["width 64, columns of one with a bias", "width 128"])
def test_rows_for_all_of_a_gpu(name: str, library: Path) -> None:
    """More rows than blocks of few: larger blocks, in variants of their own."""
    case, opened = CASES[name], session(name, library)
    names = [value.name for value in opened.get_inputs()]
    feeds = feeds_of(case, {"b": 3, "s": 3000, "t": 1100})
    (found,) = opened.run(None, dict(zip(names, feeds, strict=True)))
    assert_close(np.asarray(found), case.expected(feeds))


def test_without_keys_the_result_is_zero(library: Path) -> None:
    opened = session("width 64", library)
    names = [value.name for value in opened.get_inputs()]
    q, k, v = feeds_of(CASES["width 64"], {"b": 2, "s": 300, "t": 1})
    feeds = dict(zip(names, (q, k[:, :0], v[:, :0]), strict=True))
    (found,) = opened.run(None, feeds)
    assert not np.asarray(found).any()
    assert np.asarray(found).shape == q.shape


@pytest.mark.parametrize("name", ["causal", "added to all queries", "window to the last"])
def test_the_body_computes_the_same(name: str, library: Path) -> None:
    case = CASES[name]
    ours, body = session(name, library), session(name, None)
    names = [value.name for value in ours.get_inputs()]
    feeds = dict(zip(names, feeds_of(case, SIZES), strict=True))
    (found,), (wanted,) = ours.run(None, feeds), body.run(None, feeds)
    np.testing.assert_allclose(
        np.asarray(found, np.float32), np.asarray(wanted, np.float32), atol=1e-2
    )


@pytest.fixture(scope="module")
def packed_library(library: Path) -> Path:
    """One library for all cases of packed rows; `library` skips where none can be linked."""
    folder = library.parent / "packed"
    folder.mkdir()
    signatures = [packed.signature_of(case) for case in packed.CASES.values()]
    cache, path = KernelCache(folder / "cache"), folder / "packed.so"
    assert not build_library(signatures, Target("cuda", "sm_90"), path, "triton", cache).refused
    return path


@pytest.mark.parametrize("name", packed.CASES)
@pytest.mark.parametrize("samples", [1, 40], ids=["few", "many"])
def test_packed_rows_attend_to_rows_of_their_sample(
    name: str, samples: int, packed_library: Path
) -> None:
    case = packed.CASES[name]
    case = replace(case, kept=case.kept * samples)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("ortkit.fused.target", "cuda")
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    options.register_custom_ops_library(str(packed_library))
    model = fused_model(packed.signature_of(case))
    opened = ort.InferenceSession(model, options, providers=["CUDAExecutionProvider"])
    feeds = packed.feeds_of(case, np.random.default_rng(2))
    names = [value.name for value in opened.get_inputs()]
    (found,) = opened.run(None, dict(zip(names, feeds, strict=True)))
    assert_close(np.asarray(found), packed.expected(case, feeds))
