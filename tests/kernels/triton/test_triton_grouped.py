"""GroupQueryAttention over caches, by Triton's interpreter, beside float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from grouped_attention import FORMS, PROMPTS, TOKENS, Form, Run
from interpreter import Interpreter

from ortkit.kernels.triton.generate import sources_of
from ortkit.refusal import Refused

_NEAR = {"float16": 3e-3, "bfloat16": 2.5e-2}
#: Inputs and outputs with the caches; packed inputs are fewer.
_OUT = 1, 2


def _past(form: Form) -> tuple[int, int]:
    names = [spec.name for spec in form.signature().inputs]
    return names.index("pk"), names.index("pv")


def check(interpreter: Interpreter, form: Form, run: Run, *, shared: bool) -> None:
    """Results are near; rows that are not written stay, or are 0 where caches are apart."""
    feeds, past = form.feeds(run), _past(form)
    places = dict(zip(_OUT, past, strict=True)) if shared else {}
    got = interpreter.run(form.signature(), feeds, shared=places)
    want = form.expected(feeds)
    counted = ~np.isnan(want[0])
    near = _NEAR[form.dtype]
    found = np.asarray(got[0], np.float64)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[counted], want[0][counted], rtol=near, atol=near)
    for number, at in zip(_OUT, past, strict=True):
        made = np.asarray(got[number], np.float64)
        for sample in range(len(run.past)):
            first = int(feeds[past[1] + 1][sample]) + 1 - run.rows
            first = max(first, 0)
            end = min(first + run.rows, made.shape[2])
            np.testing.assert_allclose(
                made[sample, :, first:end],
                want[number][sample, :, first:end],
                rtol=near,
                atol=near,
            )
            old = np.asarray(feeds[at], np.float64)[sample]
            assert (made[sample, :, :first] == old[:, :first]).all()
            rest = old[:, end:] if shared else 0.0
            assert (made[sample, :, end:] == rest).all()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", FORMS)
def test_tokens(form: str, interpreter: Interpreter) -> None:
    for number, run in enumerate(TOKENS):
        check(interpreter, FORMS[form], run, shared=number % 2 == 0)
    check(interpreter, FORMS[form], TOKENS[-2], shared=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", FORMS)
def test_prompts(form: str, interpreter: Interpreter) -> None:
    for number, run in enumerate(PROMPTS):
        check(interpreter, FORMS[form], run, shared=number % 2 == 0)


def large_blocks(form: Form) -> int:
    """The number of the variant of many rows on Hopper."""
    sources = sources_of(form.signature())
    assert not isinstance(sources, Refused)
    (number,) = (i for i, source in enumerate(sources) if source.architectures is not None)
    return number


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", FORMS)
def test_prompts_in_large_blocks(form: str, interpreter: Interpreter) -> None:
    """What lies behind a sample's keys is no number, and is not read as one."""
    number = large_blocks(FORMS[form])
    for run in (Run(140, (5,), 150), Run(130, (0, 300), 430), *PROMPTS[2:4]):
        feeds, past = FORMS[form].feeds(run), _past(FORMS[form])
        want = FORMS[form].expected(feeds)[0]
        for sample, length in enumerate(feeds[past[1] + 1]):
            for at in past:
                feeds[at][sample, :, max(int(length) + 1 - run.rows, 0) :] = np.nan
        shared = dict(zip(_OUT, past, strict=True))
        got = np.asarray(interpreter.run(
            FORMS[form].signature(), feeds, variant=number, shared=shared
        )[0], np.float64)  # fmt: skip
        counted, near = ~np.isnan(want), _NEAR[FORMS[form].dtype]
        assert counted.any()
        np.testing.assert_allclose(got[counted], want[counted], rtol=near, atol=near)


def test_which_prompts_are_copied_in_boxes() -> None:
    found = {}
    for name, form in FORMS.items():
        sources = sources_of(form.signature())
        assert not isinstance(sources, Refused)
        found[name] = sources[large_blocks(form)].steps[-1].is_gluon
    assert {name for name, is_copied in found.items() if not is_copied} == {
        "sink", "norms, neighbours",
    }  # fmt: skip


def test_lengths_that_do_not_fit_write_nothing_else(interpreter: Interpreter) -> None:
    """The interpreter checks the bytes around each tensor; results are numbers."""
    form = Form()
    for rows in (1, 70):
        for length in (-9, -1, 700, 2**31 - 2):
            feeds = form.feeds(Run(rows, (5, 5), 80))
            feeds[3] = np.array([length, rows + 4], np.int32)
            got = interpreter.run(form.signature(), feeds, shared={1: 1, 2: 2})
            want = form.expected([*feeds[:3], np.array([rows + 4] * 2), *feeds[4:]])
            np.testing.assert_allclose(
                np.asarray(got[0][1], np.float64), want[0][1], rtol=3e-3, atol=3e-3
            )


def test_rows_of_a_prompt_that_a_cache_has_no_room_for_are_not_written(
    interpreter: Interpreter,
) -> None:
    """The interpreter checks the bytes around each tensor; samples lie behind each other."""
    form = Form()
    feeds = form.feeds(Run(70, (0, 0), 40))
    feeds[3], feeds[4] = np.array([39, 39], np.int32), np.array(40, np.int32)
    got = interpreter.run(form.signature(), feeds, shared={1: 1, 2: 2})
    # Without an earlier row, as many first rows as there is room for.
    want = form.expected([feeds[0][:, :40], *feeds[1:]])
    for number in _OUT:
        made = np.asarray(got[number], np.float64)
        np.testing.assert_allclose(made, want[number], rtol=3e-3, atol=3e-3)


def test_no_rows_at_all(interpreter: Interpreter) -> None:
    """Caches of their own get the old rows."""
    form = Form()
    feeds = form.feeds(Run(0, (5,), 5))
    got = interpreter.run(form.signature(), feeds)
    for number in _OUT:
        assert (got[number] == feeds[number]).all()


def test_what_is_refused() -> None:
    sizes = sources_of(replace(Form(), heads=130, groups=1).signature())
    assert isinstance(sizes, Refused)
    assert isinstance(sources_of(replace(Form(), scale=-1.0).signature()), Refused)
