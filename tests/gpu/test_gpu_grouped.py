"""GroupQueryAttention over caches on a GPU: tokens and prompts, beside float64."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import onnxruntime as ort
import pytest

from ortkit.errors import MissingDependencyError
from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library
from ortkit.kernels.link.linker import find_linker, find_shim
from ortkit.targets.target import Target
from tests.kernels.fused_model import fused_model
from tests.kernels.triton.grouped_attention import FORMS, PROMPTS, TOKENS, Form, Run

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
#: numpy's arrays of bfloat16 are no inputs.
TESTED = [name for name in FORMS if FORMS[name].dtype == "float16"]
LONG = Run(1, (2047,), 2100), Run(300, (0,), 300), Run(260, (300, 17), 600)
_NEAR = 4e-3


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One library for all forms."""
    try:
        find_linker()
        find_shim()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("grouped")
    signatures = [FORMS[name].signature() for name in TESTED]
    cache, path = KernelCache(folder / "cache"), folder / "grouped.so"
    built = build_library(signatures, Target("cuda", "sm_90"), path, "triton", cache)
    assert not built.refused
    return path


def opened(form: Form, library: Path | None, *, graph: bool = False) -> ort.InferenceSession:
    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("ortkit.fused.target", "cuda")
    model = fused_model(form.signature())
    if library is None:
        inlined = onnx.inliner.inline_local_functions(onnx.load_from_string(model))
        model = inlined.SerializeToString()
    else:
        options.register_custom_ops_library(str(library))
    provider = ("CUDAExecutionProvider", {"enable_cuda_graph": "1" if graph else "0"})
    return ort.InferenceSession(model, options, providers=[provider])


def by_name(form: Form, run: Run) -> dict[str, np.ndarray]:
    names = [spec.name for spec in form.signature().inputs]
    return dict(zip(names, form.feeds(run), strict=True))


def in_place(
    session: ort.InferenceSession, feeds: dict[str, np.ndarray]
) -> tuple[ort.IOBinding, dict[str, ort.OrtValue]]:
    """A binding whose caches lie where those before lie, and what is bound."""
    binding, held = session.io_binding(), {}
    for name, feed in feeds.items():
        device = "cpu" if name == "total" else "cuda"
        held[name] = ort.OrtValue.ortvalue_from_numpy(np.array(feed, order="C"), device, 0)
        binding.bind_ortvalue_input(name, held[name])
    for past, present in (("pk", "k2"), ("pv", "v2")):
        binding.bind_ortvalue_output(present, held[past])
    y = np.zeros((*feeds["q"].shape[:2], session_columns(session)), np.float16)
    held["y"] = ort.OrtValue.ortvalue_from_numpy(y, "cuda", 0)
    binding.bind_ortvalue_output("y", held["y"])
    return binding, held


def session_columns(session: ort.InferenceSession) -> int:
    return int(session.get_outputs()[0].shape[-1])


def check(form: Form, run: Run, got: list[np.ndarray]) -> None:
    feeds = form.feeds(run)
    want = form.expected(feeds)
    counted = ~np.isnan(want[0])
    found = [np.asarray(each, np.float64) for each in got]
    np.testing.assert_allclose(
        found[0][counted], want[0][counted], rtol=_NEAR, atol=_NEAR, err_msg=str(run)
    )
    lengths = by_name(form, run)["lengths"]
    for made, wanted in zip(found[1:], want[1:], strict=True):
        for sample, length in enumerate(lengths):
            end = min(int(length) + 1, made.shape[2])
            np.testing.assert_allclose(
                made[sample, :, :end], wanted[sample, :, :end], rtol=_NEAR, atol=_NEAR
            )


@pytest.mark.parametrize("name", TESTED)
def test_results(name: str, library: Path) -> None:
    form = FORMS[name]
    session = opened(form, library)
    for number, run in enumerate((*TOKENS, *PROMPTS, *LONG)):
        feeds = by_name(form, run)
        if number % 2 and max(run.past) + run.rows <= run.cache:
            if number % 4 == 1:
                # As some builders have it, which ONNX Runtime takes for a scalar.
                feeds["total"] = feeds["total"].reshape(1)
            binding, held = in_place(session, feeds)
            session.run_with_iobinding(binding)
            check(form, run, [held[each].numpy() for each in ("y", "pk", "pv")])
        else:
            check(form, run, session.run(None, feeds))


@pytest.mark.parametrize("name", TESTED)
def test_many_rows(name: str, library: Path) -> None:
    """As large blocks take them; what lies behind a sample's keys is no number."""
    form = FORMS[name]
    samples = -(-17_000 // (1800 * form.heads))
    rows = 17_000 // (samples * form.heads) + 1
    run = Run(rows, (0, 5, 170, *[33] * samples)[:samples], rows + 200)
    feeds = by_name(form, run)
    want = form.expected([*feeds.values()])[0]
    for sample, past in enumerate(run.past):
        feeds["pk"][sample, :, past:] = feeds["pv"][sample, :, past:] = np.nan
    session = opened(form, library)
    binding, held = in_place(session, feeds)
    session.run_with_iobinding(binding)
    counted = ~np.isnan(want)
    found = held["y"].numpy().astype(np.float64)
    np.testing.assert_allclose(found[counted], want[counted], rtol=_NEAR, atol=_NEAR)


def test_a_captured_token_takes_all_lengths(library: Path) -> None:
    """One graph, captured with few keys, is replayed with many; nothing is captured again."""
    form = FORMS["eight share"]
    session = opened(form, library, graph=True)
    runs = [Run(1, (past,), 640) for past in (3, 64, 200, 619)]
    feeds = by_name(form, runs[0])
    feeds["total"] = np.array(640, np.int32)
    binding, held = in_place(session, feeds)
    for run in runs:
        new = by_name(form, run)
        for key in ("q", "pk", "pv", "lengths"):
            held[key].update_inplace(np.ascontiguousarray(new[key]))
        session.run_with_iobinding(binding)
        check(form, run, [held[each].numpy() for each in ("y", "pk", "pv")])


@pytest.mark.parametrize("name", ["packed", "window", "some columns rotated", "capped", "sink"])
def test_results_are_those_of_the_operator(name: str, library: Path) -> None:
    """Whatever both count: windows end, and columns are rotated, where ONNX Runtime's do."""
    form = FORMS[name]
    ours, theirs = opened(form, library), opened(form, None)
    # ONNX Runtime's rows of long prompts with a sink and a window are off themselves.
    runs = (TOKENS[4], TOKENS[6], PROMPTS[1], *([] if form.has_sink else [LONG[1]]))
    for run in runs:
        feeds = by_name(form, run)
        got = []
        for session in (ours, theirs):
            if max(run.past) + run.rows <= run.cache:
                binding, held = in_place(session, feeds)
                session.run_with_iobinding(binding)
                got.append(held["y"].numpy())
            else:
                got.append(session.run(None, feeds)[0])
        np.testing.assert_allclose(*got, rtol=_NEAR, atol=_NEAR, err_msg=str(run))
