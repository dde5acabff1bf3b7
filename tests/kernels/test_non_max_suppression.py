"""NonMaxSuppression beside ONNX Runtime's kernel: the same boxes in the same order."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from fused_model import fused_model, session, tensor
from ortkit.custom_ops.tvm.detection import non_max_suppression

from ortkit.graph.io.open import open_model
from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library, refusal
from ortkit.kernels.link.linker import link_library
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.tvm.backend import TvmBackend
from ortkit.targets import cpu
from ortkit.targets.target import Target
from ortkit.verify.kernels.check import check_kernels
from ortkit.verify.kernels.ops_selection import NonMaxSuppression
from ortkit.verify.kernels.verdicts import Verdicts

LEVELS = [level for level in ("x86-64-v3", "x86-64-v4") if cpu.runs_here(level)]
pytestmark = pytest.mark.skipif(not LEVELS, reason="there is no kernel for other levels")
# Around vectors of 8 and 16, words of 64, counted lists (192), and images with a table (1,024).
BOXES = (0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 191, 192, 193, 400, 1025)
INFINITE = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32)
Feeds = dict[str, np.ndarray]


def selection(
    *, has_threshold: bool = True, is_center: bool = False, names: tuple[str, str] = ("b", "n")
) -> RegionSignature:
    """A selection whose limits are inputs; `names` are those of the boxes' sizes."""
    inputs = [tensor("boxes", *names, 4), tensor("scores", "b", "c", "n")]
    inputs += [tensor("most", 1, dtype="int64"), tensor("iou")]
    inputs += [tensor("threshold", 1)] if has_threshold else []
    given = ", ".join(spec.name for spec in inputs)
    text = (
        f'<opset_import: ["" : 17]> f ({given}) => (y) {{ '
        f"y = NonMaxSuppression <center_point_box = {int(is_center)}> ({given}) }}"
    )
    rows = tensor("y", "found", 3, dtype="int64")
    return RegionSignature("non_max_suppression", text, tuple(inputs), (rows,))


def made_up(seed: int, *, has_threshold: bool) -> Feeds:
    """Boxes and scores of all kinds: equal ones, flipped ones, huge, tiny, and none at all."""
    random = np.random.default_rng(seed)
    images, classes = int(random.integers(seed % 40 != 0, 4)), int(random.integers(1, 7))
    count = int(random.choice(BOXES))
    shape = (images, count, 4)
    boxes = [
        random.standard_normal(shape),
        random.integers(0, 4, shape),
        random.random(shape) * [10, 10, 6, 6],
        random.integers(-3, 4, shape) * 1e19,
        random.random(shape) * 1e-20,
    ][seed % 5].astype(np.float32)
    scores = random.standard_normal((images, classes, count)).astype(np.float32)
    if seed % 3 == 0:
        scores = np.rint(scores * 2).astype(np.float32) * random.choice(np.float32([0.5, -0.5]))
    for array in (boxes, scores):
        if array.size and random.random() < 0.4:
            many = int(random.choice([1, 3, array.size]))
            where = random.integers(0, array.size, many)
            array.reshape(-1)[where] = random.choice(INFINITE, many)
    feeds: Feeds = {
        "boxes": boxes, "scores": scores,
        "most": np.array([random.choice([-5, 0, 1, 2, 5, 100, 2**62])]),
        "iou": np.array(random.choice([0, 1, 0.5, 1 / 3, 0.25, random.random()]), np.float32),
    }  # fmt: skip
    if has_threshold:
        feeds["threshold"] = np.array([random.choice([-1, 0, 0.5, *INFINITE])], np.float32)
    return feeds


@dataclass(frozen=True)
class Pair:
    """A kernel and its body, each in a session of ONNX Runtime."""

    kernel: ort.InferenceSession
    body: ort.InferenceSession


def pair(
    signature: RegionSignature, level: str, folder: Path, cache: KernelCache, threads: int = 1
) -> Pair:
    library = build_library([signature], Target("cpu", level), folder / "ops.so", cache=cache)
    assert library.library is not None, library.refused
    text = fused_model(signature)
    return Pair(session(text, folder / "ops.so", threads), session(text))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("has_threshold", [False, True])
@pytest.mark.parametrize("is_center", [False, True])
def test_the_same_boxes(
    level: str, has_threshold: bool, is_center: bool, tmp_path: Path, cache: KernelCache
) -> None:
    signature = selection(has_threshold=has_threshold, is_center=is_center)
    sessions = pair(signature, level, tmp_path, cache, threads=2)
    for seed in range(130):
        feeds = made_up(seed, has_threshold=has_threshold)
        (want,), (got,) = sessions.body.run(None, feeds), sessions.kernel.run(None, feeds)
        assert np.array_equal(got, want), f"seed {seed}"


@pytest.mark.parametrize("has_threshold", [False, True])
@pytest.mark.parametrize("is_center", [False, True])
def test_the_reference(
    has_threshold: bool, is_center: bool, tmp_path: Path, cache: KernelCache
) -> None:
    signature = selection(has_threshold=has_threshold, is_center=is_center)
    body, tried = pair(signature, LEVELS[0], tmp_path, cache).body, 0
    for seed in range(100):
        feeds = made_up(seed, has_threshold=has_threshold)
        if not has_threshold and np.isnan(feeds["scores"]).any():
            continue  # these have no order
        wide = [x.astype(np.float64) if x.dtype == np.float32 else x for x in feeds.values()]
        with np.errstate(all="ignore"):
            (got,) = NonMaxSuppression._run(
                None,  # type: ignore[arg-type]
                *wide,
                *([] if has_threshold else [None]),
                center_point_box=int(is_center),
            )
        assert np.array_equal(got, body.run(None, feeds)[0]), f"seed {seed}"
        tried += 1
    assert tried > 50


def test_many_boxes_of_a_class(tmp_path: Path, cache: KernelCache) -> None:
    sessions = pair(selection(is_center=True), LEVELS[-1], tmp_path, cache)
    random = np.random.default_rng(3)
    feeds: Feeds = {
        "boxes": (random.random((1, 8400, 4)) * [640, 640, 90, 90]).astype(np.float32),
        "scores": random.random((1, 3, 8400)).astype(np.float32),
        "most": np.array([2**62]),
        "iou": np.array(0.5, np.float32),
        "threshold": np.array([0.1], np.float32),
    }
    (want,), (got,) = sessions.body.run(None, feeds), sessions.kernel.run(None, feeds)
    assert len(want) > 600
    assert np.array_equal(got, want)


def test_what_onnx_runtime_refuses(tmp_path: Path, cache: KernelCache) -> None:
    sessions = pair(selection(names=("b", "m")), LEVELS[-1], tmp_path, cache)
    feeds = made_up(1, has_threshold=True)
    wrong = [{**feeds, "iou": np.array(iou, np.float32)} for iou in (-0.1, 1.1, np.nan)] + [
        {**feeds, "boxes": np.zeros((len(feeds["scores"]), 3, 4), np.float32)}
    ]
    assert feeds["scores"].shape[2] != 3
    for each in wrong:
        for one in (sessions.kernel, sessions.body):
            with pytest.raises(Exception, match=r"iou_threshold|do not fit|spatial_dimension"):
                one.run(None, each)


def test_no_kernel_for_other_levels() -> None:
    refused = refusal(selection(), Target("cpu", "x86-64-v2"))
    assert refused is not None
    assert "no selection of boxes for x86-64-v2" in refused.reason


FAULTS = {
    "overlap at the threshold": ("_CMP_GT_OQ", "_CMP_GE_OQ"),
    "the last of equal scores": ("(0xffffffffu - (uint32_t)number)", "(uint32_t)number"),
    "one box too few": ("< task->most ? MORE", "< task->most - 1 ? MORE"),
    "the table of another box": ("lanes << i % 64", "lanes << (i + 1) % 64"),
    "another edge": ("found.y_min = box[1] - half_height", "found.y_min = box[1] - half_width"),
    "rows of another class": ("data[3 * i + 1] = label", "data[3 * i + 1] = 0"),
}


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_faults_are_found_when_kernels_are_run_alone(
    fault: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = non_max_suppression._SOURCE.read_text("utf-8")
    if fault is not None:
        right, wrong = FAULTS[fault]
        changed = text.replace(right, wrong)
        assert changed != text
        (tmp_path / "wrong.c").write_text(changed, "utf-8")
        monkeypatch.setattr(non_max_suppression, "_SOURCE", tmp_path / "wrong.c")
    signature, target = selection(is_center=True), Target("cpu", LEVELS[-1])
    kernel = TvmBackend().compile(signature, target, tmp_path)
    library = link_library([kernel], [signature], tmp_path / "ops.so", target).path
    model = open_model(onnx.ModelProto.FromString(fused_model(signature)))
    report = check_kernels(
        model, library, seconds=8.0, verdicts=Verdicts(tmp_path, library.name, {})
    )
    (row,) = report.rows
    assert row.verdict == ("passed" if fault is None else "failed"), row
