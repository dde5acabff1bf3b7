"""GroupQueryAttention over caches: the kernel beside ONNX Runtime's, and where it refuses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import onnxruntime as ort
import pytest
from fused_model import fused_model, session, tensor
from ortkit.custom_ops.forms.attention_grouped import GroupedForm, read_grouped

from ortkit.kernels.build.cache import KernelCache
from ortkit.kernels.build.library import build_library
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.value_sizes import value_sizes
from ortkit.refusal import Refused
from ortkit.targets import cpu
from ortkit.targets.target import Target
from ortkit.verify.kernels.reference import Reference

HERE = [level for level in ("x86-64-v3", "x86-64-v4") if cpu.runs_here(level)] or ["native"]
POSITIONS = 512


@dataclass(frozen=True)
class Form:
    """An attention of `heads` that share `groups` of keys."""

    heads: int = 8
    groups: int = 2
    width: int = 32
    window: int = -1
    half: int = 16
    """Of rotated columns; 0 for none."""
    is_packed: bool = True
    more: str = ""
    """Further attributes."""
    total: tuple[int, ...] = ()
    """The shape of the number of keys, as the model says."""

    def signature(self) -> RegionSignature:
        kv = self.groups * self.width
        columns = self.heads * self.width
        inputs = [tensor("q", "b", "s", columns + (2 * kv if self.is_packed else 0))]
        if not self.is_packed:
            inputs += [tensor("k", "b", "s", kv), tensor("v", "b", "s", kv)]
        inputs += [tensor(name, "b", self.groups, "p", "w") for name in ("past_k", "past_v")]
        inputs += [tensor("lengths", "b", dtype="int32")]
        inputs.append(tensor("total", *self.total, dtype="int32"))
        if self.half:
            inputs += [tensor(name, POSITIONS, self.half) for name in ("cos", "sin")]
        given = [spec.name for spec in inputs]
        if self.is_packed:
            given[1:1] = ['""', '""']
        text = (
            f'<opset_import: ["" : 20, "com.microsoft" : 1]> '
            f"f ({', '.join(spec.name for spec in inputs)}) => (y, k2, v2) {{ "
            f"y, k2, v2 = com.microsoft.GroupQueryAttention <num_heads = {self.heads}, "
            f"kv_num_heads = {self.groups}, do_rotary = {int(self.half > 0)}, "
            f"local_window_size = {self.window}{self.more}> ({', '.join(given)}) }}"
        )
        caches = (tensor(name, "b", self.groups, size, self.width)
                  for name, size in (("k2", "?1"), ("v2", "?2")))  # fmt: skip
        outputs = tensor("y", "b", "s", columns), *caches
        return RegionSignature("attention", text, tuple(inputs), outputs)

    def feeds(self, run: Run) -> dict[str, np.ndarray]:
        random = np.random.default_rng(7)
        sizes = {"b": len(run.past), "s": run.rows, "p": run.cache, "w": self.width}
        found: dict[str, np.ndarray] = {}
        for spec in self.signature().inputs:
            shape = [sizes[size] if isinstance(size, str) else size for size in spec.shape]
            found[spec.name] = random.standard_normal(shape).astype(np.float32)
        if self.half:
            angles = np.arange(POSITIONS)[:, None] * 0.7 ** np.arange(self.half)
            found["cos"], found["sin"] = (
                np.asarray(of(angles), np.float32) for of in (np.cos, np.sin)
            )
        found["lengths"] = np.array([past + run.rows - 1 for past in run.past], np.int32)
        found["total"] = np.full(self.total, max(run.past) + run.rows, np.int32)
        return found


@dataclass(frozen=True)
class Run:
    """New rows over caches: how many rows each sample has before, and has room for."""

    rows: int
    past: tuple[int, ...]
    cache: int


FORMS = {
    "packed": Form(),
    "apart": Form(heads=4, groups=4, half=0, is_packed=False),
    "window": Form(heads=6, groups=1, width=96, half=48, window=7),
    "some columns rotated": Form(heads=3, groups=3, width=80, half=16, is_packed=False),
    "many share": Form(heads=20, groups=2, width=16, half=8),
    "neighbours rotated": Form(width=48, half=16, more=", rotary_interleaved = 1"),
    "capped": Form(heads=4, groups=2, width=256, window=9, more=", softcap = 2.5"),
}
RUNS = (
    Run(1, (0,), 0), Run(1, (5,), 5), Run(1, (300,), 300), Run(2, (33,), 33), Run(5, (0,), 0),
    Run(70, (0, 0), 0), Run(40, (150,), 200), Run(1, (40, 7), 40), Run(1, (17,), 20),
)  # fmt: skip


def sessions(
    form: Form, level: str, folder: Path, cache: KernelCache, threads: int = 1
) -> tuple[ort.InferenceSession, ort.InferenceSession]:
    """Ours and ONNX Runtime's."""
    signature = form.signature()
    made = build_library([signature], Target("cpu", level), folder / "k.so", cache=cache)
    assert made.library is not None, made.refused
    model = fused_model(signature)
    plain = onnx.inliner.inline_local_functions(onnx.load_from_string(model))
    return session(model, made.library.path, threads), session(plain.SerializeToString())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", HERE)
@pytest.mark.parametrize("form", FORMS)
def test_results(form: str, level: str, tmp_path: Path, cache: KernelCache) -> None:
    """Rows are near, and caches equal but for roundings of a rotation."""
    of = FORMS[form]
    ours, theirs = sessions(of, level, tmp_path, cache, threads=2)
    for run in RUNS:
        feeds = of.feeds(run)
        got, want = ours.run(None, feeds), theirs.run(None, feeds)
        for one, other in zip(got, want, strict=True):
            # Rows that are behind what was read are what they happen to be in ONNX Runtime.
            end = max(run.past) + run.rows if one.ndim == 4 and len(run.past) == 1 else None
            one, other = (each[:, :, :end] if end else each for each in (one, other))
            np.testing.assert_allclose(one, other, rtol=0, atol=4e-6, err_msg=str(run))


def test_caches_are_written_in_place(tmp_path: Path, cache: KernelCache) -> None:
    """Rows before and behind the new ones stay as they are."""
    of, run = Form(), Run(3, (5,), 64)
    ours, theirs = sessions(of, HERE[-1], tmp_path, cache)
    results = []
    for one in (ours, theirs):
        values = {
            name: ort.OrtValue.ortvalue_from_numpy(array.copy())
            for name, array in of.feeds(run).items()
        }
        binding = one.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_output("y")
        for name, past in (("k2", "past_k"), ("v2", "past_v")):
            binding.bind_ortvalue_output(name, values[past])
        one.run_with_iobinding(binding)
        found = [binding.get_outputs()[0], values["past_k"], values["past_v"]]
        results.append([np.array(value.numpy()) for value in found])
    for got, want in zip(*results, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=4e-6)


@pytest.mark.parametrize("declared", [(), (1,)])
def test_the_total_is_a_scalar_or_one_element(
    declared: tuple[int, ...], tmp_path: Path, cache: KernelCache
) -> None:
    """Whatever the model says of it; of several elements it is refused."""
    of = Form(total=declared)
    ours, theirs = sessions(of, HERE[-1], tmp_path, cache)
    feeds = of.feeds(Run(2, (5,), 5))
    # A scalar where the model has a vector is refused by ONNX Runtime itself.
    for shape in {declared, (1,)}:
        feeds["total"] = np.reshape(feeds["total"], shape)
        for got, want in zip(ours.run(None, feeds), theirs.run(None, feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=4e-6)
    for shape in ((2,), (1, 1)):
        feeds["total"] = np.resize(feeds["total"], shape)
        for one in (ours, theirs):
            with pytest.raises(Exception, match="total"):
                one.run(None, feeds)


@pytest.mark.parametrize("window", [-1, 3])
def test_short_prompts_beside_others(window: int, tmp_path: Path, cache: KernelCache) -> None:
    """Rows behind a prompt see what is left of their window, and are zeros where nothing is."""
    of = Form(window=window)
    ours, theirs = sessions(of, HERE[-1], tmp_path, cache)
    for rows in (9, 40):  # in parts of one row, and of several
        feeds = of.feeds(Run(rows, (0, 0), 0))
        feeds["lengths"] = np.array([4, rows - 1], np.int32)
        for got, want in zip(ours.run(None, feeds), theirs.run(None, feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=4e-6)


@pytest.mark.parametrize(
    ("run", "changed"),
    [
        (Run(1, (5,), 5), {"lengths": [9]}),
        (Run(1, (5,), 5), {"lengths": [-1]}),
        (Run(1, (5,), 5), {"total": 9}),
        (Run(3, (5,), 5), {"lengths": [1]}),
        (Run(3, (5, 5), 5), {}),
        (Run(1, (POSITIONS,), POSITIONS), {}),
        (Run(1, (5,), 5), {"past_k": np.zeros((1, 2, 5, 16), np.float32)}),
    ],
)
def test_what_does_not_fit_ends_the_run(
    run: Run, changed: dict[str, object], tmp_path: Path, cache: KernelCache
) -> None:
    """As in ONNX Runtime."""
    of = Form()
    feeds = of.feeds(run)
    for name, value in changed.items():
        feeds[name] = np.asarray(value, feeds[name].dtype)
    for one in sessions(of, HERE[-1], tmp_path, cache):
        with pytest.raises(Exception, match=r"."):
            one.run(None, feeds)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", FORMS)
def test_the_reference_is_what_onnx_runtime_computes(form: str) -> None:
    of = FORMS[form]
    model = fused_model(of.signature())
    plain = onnx.inliner.inline_local_functions(onnx.load_from_string(model))
    theirs, reference = session(plain.SerializeToString()), Reference(of.signature().function())
    for run in (Run(1, (5,), 5), Run(9, (0, 0), 0), Run(4, (3,), 3)):
        feeds = of.feeds(run)
        wide = [x.astype(np.float64) if x.dtype == np.float32 else x for x in feeds.values()]
        for got, want in zip(reference(wide), theirs.run(None, feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=4e-6)


def test_sizes_of_caches_follow_from_a_value() -> None:
    first, second = value_sizes(Form().signature())
    assert (first.symbol, second.symbol) == ("?1", "?2")
    assert Form().signature().inputs[first.tensor].name == "total"
    unknown = replace(
        Form().signature(), inputs=tuple(
            replace(spec, shape=("n",)) if spec.name == "total" else spec
            for spec in Form().signature().inputs
        )
    )  # fmt: skip
    assert value_sizes(unknown) == ()


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (Form(more=", softcap = -30.0"), "softcap"),
        (Form(more=", smooth_softmax = 1"), "smooth_softmax"),
        (Form(more=", sliding_window_cache = 1"), "sliding_window_cache"),
        (Form(width=24, half=8), "multiple of 16"),
        (Form(half=4), "rotates 8 columns"),
        (Form(heads=3, groups=2), "do not fit"),
    ],
)
def test_refused(form: Form, reason: str) -> None:
    found = read_grouped(form.signature())
    assert isinstance(found, Refused)
    assert reason in found.reason
    assert isinstance(read_grouped(Form().signature()), GroupedForm)
