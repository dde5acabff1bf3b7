"""What no type checker has seen: each setting, given anything, is taken or refused in one line."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import ortkit
from ortkit.errors import UserError
from ortkit.runtime.settings import SessionSettings

MODEL = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
    g (float[n] x) => (float[n] y) { y = Tanh(x) }""")
ANYTHING = (
    3, -1, 1.5, "x", "", None, True, b"x", [], {}, (1, 2), [None], [3], {"a": "b"}, {3: 4},
    {"batch": -1}, 2**70, float("nan"), np.int64(2), object(), "\0",
)  # fmt: skip
SETTINGS = [
    *((SessionSettings, field.name) for field in fields(SessionSettings)),
    *((ortkit.OptimizeOptions, field.name) for field in fields(ortkit.OptimizeOptions)),
]


@pytest.mark.parametrize(("kind", "name"), SETTINGS, ids=lambda one: getattr(one, "__name__", one))
def test_a_setting_may_be_given_anything(kind: Any, name: str) -> None:
    for value in ANYTHING:
        try:
            kind(**{name: value})
        except UserError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"config": 3}, "config: cannot be 3; give names and values"),
        ({"trust": "no"}, "trust: cannot be 'no'; give True or False"),
        ({"kernels": 3}, "kernels: cannot be 3; give auto, never, require or a path"),
        ({"threads": "2"}, "threads: cannot be '2'; give a number"),
        ({"free_dimensions": {"n": "2"}}, "free_dimensions, 'n': '2' is no size"),
        ({"free_dimensions": {2: 2}}, "free_dimensions, 2: 2 is no size"),
        ({"libraries": [3]}, "libraries, 3: no such file; check the path"),
    ],
)
def test_a_session_says_what_is_wrong(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        ortkit.Session(MODEL, "cpu", **settings)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"extra_passes": (ortkit.RecogniseOps,)}, "RecogniseOps'> is no pass; give instances"),
        ({"extra_passes": ("drop-unused",)}, "extra_passes: 'drop-unused' is no pass"),
        ({"shapes": {"n": "2"}}, "shapes, 'n': '2' is no size"),
        ({"shapes": {"n": -1}}, "shapes, 'n': -1 is no size"),
        ({"progress": None}, "progress: is of type NoneType"),
    ],
)
def test_options_say_what_is_wrong(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        ortkit.OptimizeOptions(**options)
    assert said in str(caught.value)


def test_what_the_caller_changes_later_changes_no_setting() -> None:
    config = {"session.intra_op.allow_spinning": "0"}
    settings = SessionSettings(config=config)
    config.clear()
    assert settings.config == {"session.intra_op.allow_spinning": "0"}


def test_paths_and_counts_that_are_none(tmp_path: Path) -> None:
    plain = ortkit.OptimizeOptions(kernels="off", verify=False)
    optimized = ortkit.optimize(MODEL, plain)
    for path in (None, 3, "\0", b"x"):
        with pytest.raises(UserError, match="is no path"):
            optimized.save(path)  # type: ignore[arg-type]
        with pytest.raises(UserError, match="is no path"):
            optimized.save_sources(path)  # type: ignore[arg-type]
    with ortkit.Session(MODEL, "cpu") as session:
        for runs in (None, "2", -1, 1.5):
            with pytest.raises(UserError, match="is no number of runs"):
                session.warmup(np.zeros(3, np.float32), runs=runs)  # type: ignore[arg-type]


def test_ids_that_no_rewrite_has_are_told() -> None:
    plain = ortkit.OptimizeOptions(kernels="off", verify=False, level=1)
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
        g (float[n] x) => (float[n] y) { t = Identity(x)  y = Tanh(t) }""")
    (hit, *_) = ortkit.optimize(model, plain).report.hits
    denied = frozenset({hit.id, f"{hit.id}s"})
    report = ortkit.optimize(
        model, ortkit.OptimizeOptions(kernels="off", verify=False, level=1, denied=denied)
    ).report
    assert hit.id not in {item.id for item in report.hits}
    assert report.denied_in_vain == (f"{hit.id}s",)
