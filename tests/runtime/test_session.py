"""What a session takes and gives back, and what it says about what it does not take."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import ortkit
from ortkit.errors import MissingDependencyError, ModelError, RunError, UserError
from tests.runtime import session_models as models

ONES = np.ones((2, 4), np.float32)


def session(text: str, **settings: Any) -> ortkit.Session:
    return ortkit.Session(models.model(text), "cpu", threads=1, **settings)


class Foreign:
    """An array of another library: DLPack and nothing else."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@dataclass
class Batch:
    x: np.ndarray
    z: np.ndarray


@pytest.mark.parametrize(
    "feeds",
    [
        {"x": ONES, "z": ONES},
        {"z": ONES, "x": ONES},
        [ONES, ONES],
        (ONES, ONES),
        Batch(ONES, ONES),
        {"x": ONES.tolist(), "z": Foreign(ONES)},
        {"x": onnxruntime.OrtValue.ortvalue_from_numpy(ONES), "z": ONES.astype(">f4")},
        {"x": np.ones((4, 2), np.float32).T, "z": [[1, 1, 1, 1], [1, 1, 1, 1]]},
    ],
    ids=["dict", "other order", "list", "tuple", "dataclass", "dlpack", "ortvalue", "layout"],
)
def test_feeds_of_any_form(feeds: object) -> None:
    with session(models.ADD) as one:
        for _ in range(2):  # the second time without checks
            found = one.run(feeds)
            assert list(found) == ["y"]
            np.testing.assert_array_equal(found["y"], 2 * ONES)


def test_the_only_input_needs_no_name() -> None:
    with session(models.TANH) as one:
        for feeds in (ONES, [ONES], {"x": ONES}, ONES.tolist()):
            np.testing.assert_allclose(one.run(feeds)["y"], np.tanh(ONES), rtol=1e-6)


@pytest.mark.parametrize(
    ("feeds", "problem"),
    [
        ({"x": ONES}, "input 'z' missing"),
        ({}, "inputs 'x', 'z' missing"),
        (None, "inputs 'x', 'z' missing"),
        ({"x": ONES, "zz": ONES}, "there is no input 'zz', did you mean 'z'?"),
        ({"x": ONES, "z": ONES.astype(np.float64)}, "input 'z' is float64; cast=True"),
        ({"x": ONES, "z": np.array([["a"] * 4])}, "input 'z' is str"),
        ({"x": ONES, "z": ONES[0]}, "input 'z' has shape [4]"),
        ({"x": ONES, "z": ONES[:, :3]}, "input 'z' has shape [2, 3]"),
        ({"x": ONES, "z": ONES[:1]}, "size 'n' is 2 in 'x' and 1 in 'z'"),
        ([ONES, ONES, ONES], "3 inputs are given"),
        (7, "a int says not which input it is for"),
        ({"x": ONES, "z": [[1, 2], [3]]}, "input 'z'"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(feeds: object, problem: str) -> None:
    with session(models.ADD) as one:
        with pytest.raises(UserError) as caught:
            one.run(feeds)
        assert problem in str(caught.value)
        assert "\n" not in str(caught.value)
        # The session is as good as before.
        assert one.run({"x": ONES, "z": ONES})["y"].shape == (2, 4)


def test_the_signature_is_part_of_the_answer() -> None:
    with session(models.ADD) as one, pytest.raises(UserError) as caught:
        one.run({"x": ONES})
    assert caught.value.fix == "the model takes x: float32[n, 4], z: float32[n, 4]"


def test_types_are_converted_on_request_only() -> None:
    with session(models.ADD) as one:
        found = one.run({"x": ONES.astype(np.float64), "z": ONES.astype(np.int8)}, cast=True)
        assert found["y"].dtype == np.float32
    with session(models.INTEGERS) as one:
        assert one.run(np.array([3], np.int64), cast=True)["y"].dtype == np.int32
        with pytest.raises(UserError, match="values beyond int32"):
            one.run(np.array([2**40], np.int64), cast=True)
        with pytest.raises(UserError, match="is float32"):
            one.run(np.array([1.5], np.float32), cast=True)
        with pytest.raises(UserError, match="out of bounds"):
            one.run([2**40])


def test_masks_are_not_lost_in_silence() -> None:
    with session(models.TANH) as one, pytest.raises(UserError, match="is masked"):
        one.run(np.ma.masked_less(ONES, 2))


def test_a_changed_shape_is_checked_again() -> None:
    with session(models.ADD) as one:
        one.run({"x": ONES, "z": ONES})
        with pytest.raises(UserError, match="size 'n'"):
            one.run({"x": ONES, "z": ONES[:1]})


def test_types_that_numpy_lacks() -> None:
    x = np.array([1.5, -2.25, 3.0], ml_dtypes.bfloat16)
    with session(models.BFLOAT16) as one:
        found = one.run({"x": x})
        assert found["y"].dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(found["y"], x)
        np.testing.assert_array_equal(found["z"], x.astype(np.float32))
        assert list(one.run(x, ["z"])) == ["z"]


def test_strings_sequences_optionals_and_defaults() -> None:
    with session(models.STRINGS) as one:
        assert one.run(np.array(["a", "bc"]))["y"].tolist() == ["a", "bc"]
    with session(models.SEQUENCE) as one:
        found = one.run({"x": [np.ones(2, np.float32), np.zeros(1, np.float32)]})
        assert found["y"].tolist() == [1, 1, 0]
    with session(models.OPTIONAL) as one:
        assert not one.run({})["y"]
        assert one.run({"x": np.ones(2, np.float32)})["y"]
    with session(models.DEFAULT) as one:
        assert one.run({"x": np.zeros(4, np.float32)})["y"].tolist() == [1, 2, 3, 4]
        assert one.run({"x": np.zeros(4, np.float32), "w": [5, 6, 7, 8]})["y"][0] == 5


def test_outputs_by_name() -> None:
    with session(models.TWO_OUTPUTS) as one:
        assert list(one.run(ONES)) == ["y", "s"]
        assert list(one.run(ONES, ["s"])) == ["s"]
        with pytest.raises(UserError, match="there is no output 'q'"):
            one.run(ONES, ["q"])
        with pytest.raises(UserError, match="feeds come first"):
            one.run(None, {"x": ONES})  # type: ignore[arg-type]


def test_nan_is_refused_where_that_was_asked_for() -> None:
    bad = ONES.copy()
    bad[0, 1] = np.nan
    with session(models.TANH, check_finite=True) as one:
        one.run(ONES)
        with pytest.raises(UserError, match="1 of 8 values are NaN or infinite"):
            one.run(bad)
    with session(models.TANH) as one:
        assert np.isnan(one.run(bad)["y"]).sum() == 1


def test_a_failing_run_is_one_line() -> None:
    with session(models.BAD_RESHAPE) as one:
        with pytest.raises(RunError) as caught:
            one.run({"x": np.ones(3, np.float32), "s": [4]})
        assert "Reshape" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert "onnxruntime_src" not in str(caught.value)


def test_no_memory_is_said_so_and_the_session_lives_on() -> None:
    with session(models.HUGE) as one:
        with pytest.raises(RunError, match="out of memory"):
            one.run({"s": [2**23, 2**22]})
        assert one.run({"s": [1, 2]})["y"].shape == (1, 2)


def test_threads_share_a_session() -> None:
    with session(models.ADD) as one:
        wrong: list[object] = []

        def work(number: int) -> None:
            x = np.full((number + 1, 4), number, np.float32)
            found = [one.run({"x": x, "z": x})["y"] for _ in range(200)]
            wrong.extend(y for y in found if not np.array_equal(y, 2 * x))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


def test_runs_in_the_background() -> None:
    with session(models.TANH) as one:
        waiting = [one.run_async(np.full((1, 4), i, np.float32)) for i in range(8)]
        for number, future in enumerate(waiting):
            assert future.result()["y"][0, 0] == pytest.approx(np.tanh(number), rel=1e-6)
        with pytest.raises(UserError, match="missing"):
            one.run_async({}).result()


def test_a_closed_session_says_so() -> None:
    one = session(models.TANH)
    one.run(ONES)
    one.close()
    one.close()
    for call in (lambda: one.run(ONES), lambda: one.run_async(ONES), one.placement):
        with pytest.raises(UserError, match="the session is closed"):
            call()
    assert "closed" in repr(one)


@pytest.mark.parametrize("form", ["path", "text path", "bytes", "proto", "ir", "link"])
def test_models_of_any_form(form: str, tmp_path: Path) -> None:
    proto = models.model(models.TANH)
    onnx.save(proto, tmp_path / "m.onnx")
    (tmp_path / "m.onnxtxt").write_text(models.TANH)
    (tmp_path / "link.onnx").symlink_to(tmp_path / "m.onnx")
    source = {
        "path": tmp_path / "m.onnx",
        "text path": str(tmp_path / "m.onnxtxt"),
        "bytes": proto.SerializeToString(),
        "proto": proto,
        "ir": ir.from_proto(proto),
        "link": tmp_path / "link.onnx",
    }[form]
    with ortkit.Session(source) as one:
        np.testing.assert_allclose(one.run(ONES)["y"], np.tanh(ONES), rtol=1e-6)
        assert one.twin(threads=1).run(ONES)["y"].shape == (2, 4)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("missing.onnx", "no such file"),
        (b"", "empty"),
        (b"\x00" * 40, "no ONNX model"),
        (12, "int is no model"),
    ],
)
def test_what_is_no_model(source: Any, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        ortkit.Session(source)


def test_a_model_that_onnxruntime_refuses() -> None:
    broken = models.model(models.TANH)
    broken.graph.node[0].op_type = "NoSuchOp"
    with pytest.raises((ModelError, RunError), match="NoSuchOp"):
        ortkit.Session(broken)


def test_providers_are_never_dropped_in_silence() -> None:
    proto = models.model(models.TANH)
    with pytest.raises(MissingDependencyError, match="no CUDAExecutionProvider"):
        ortkit.Session(proto, "cuda")
    with ortkit.Session(proto, "cuda", fallback=True) as one:
        assert one.providers == ("CPUExecutionProvider",)
        assert "CUDAExecutionProvider: left out" in one.notes[0]
    for target, problem in (
        ("cudda", "did you mean 'cuda'"),
        (["cpu", "CPUExecutionProvider"], "named twice"),
        ([("cpu", {"arena": 1})], "takes no options"),
        ("", "is no execution provider"),
    ):
        with pytest.raises(UserError, match=problem):
            ortkit.Session(proto, target)  # type: ignore[arg-type]
    with ortkit.Session(proto, ["cpu"]) as one:
        assert [(placed.op, placed.provider) for placed in one.placement()] == [
            ("Tanh", "CPUExecutionProvider")
        ]


@pytest.mark.parametrize(
    "setting",
    [
        {"optimized_model": "no/such/folder/m.onnx"},
        {"trace_prefix": "no/such/folder/trace"},
        {"threads": -1},
        {"optimizations": "most"},
        {"cuda_graph": True},
    ],
)
def test_settings_that_are_none(setting: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        ortkit.Session(models.model(models.TANH), "cpu", **setting)


def test_settings_reach_onnxruntime(tmp_path: Path) -> None:
    with session(
        models.TANH, deterministic=True, optimizations="off", memory_arena=False,
        config={"session.disable_prepacking": "1"}, free_dimensions={"n": 2},
        optimized_model=tmp_path / "written.onnx", parallel=True, inter_op_threads=2,
    ) as one:  # fmt: skip
        options = one.onnxruntime.get_session_options()
        assert options.use_deterministic_compute
        assert options.inter_op_num_threads == 2
        assert options.intra_op_num_threads == 1
        assert not options.enable_cpu_mem_arena
        assert options.get_session_config_entry("session.disable_prepacking") == "1"
        assert one.inputs[0].shape == (2, 4)
    assert (tmp_path / "written.onnx").is_file()


def test_warmup() -> None:
    with session(models.TANH) as one:
        one.warmup(ONES, runs=2)
        with pytest.raises(UserError, match="give warmup feeds"):
            one.warmup()
        with one.twin(free_dimensions={"n": 1}) as fixed:
            fixed.warmup(runs=1)
