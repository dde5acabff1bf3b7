"""What two decoders' logits say about each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from ortkit.errors import CheckError
from ortkit.genai import agreement
from ortkit.genai.agreement import agreement_of, compare_decoders
from ortkit.genai.folder import read_folder
from ortkit.genai.layout import DecoderLayout, layout_of
from ortkit.refusal import Refused
from ortkit.runtime.opening import SessionPlan
from ortkit.verify.compare import ILL_CONDITIONED, OutputComparison
from ortkit.verify.verification import Gap, Verification, gaps_text
from tests.genai.folders import genai_folder

ROWS, WORDS, PROMPT = 12, 50, 4


@pytest.fixture
def logits() -> np.ndarray:
    return np.random.default_rng(1).normal(0, 3, (ROWS, WORDS)).astype(np.float32)


def noisy(logits: np.ndarray, by: float, seed: int = 2) -> np.ndarray:
    drawn = np.random.default_rng(seed).uniform(-by, by, logits.shape)
    return (logits + drawn).astype(np.float32)


def test_equal_logits(logits: np.ndarray) -> None:
    tokens = tuple(range(ROWS))
    found = agreement_of(logits, logits, noisy(logits, 0.01), tokens, PROMPT, has_text=True)
    assert found.agrees
    assert (found.top1, found.top5, found.divergence, found.logits_error) == (1, 1, 0, 0)
    assert found.same_greedy == found.decoded == ROWS - PROMPT
    assert found.perplexity is not None
    scores = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    expected = np.exp(-np.mean([scores[i, i + 1] for i in range(PROMPT - 1)]))
    assert found.perplexity == pytest.approx((expected, expected), rel=1e-5)


@pytest.mark.parametrize("whose", ["the original", "the original with perturbed values"])
def test_logits_that_are_no_numbers_agree_with_nothing(
    logits: np.ndarray, whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(name: str, *_: object, **__: object) -> tuple[tuple[int, ...], np.ndarray]:
        return tuple(range(ROWS)), np.full_like(logits, np.nan) if name == whose else logits

    monkeypatch.setattr(agreement, "_run", run)
    monkeypatch.setattr(agreement, "_perturbed", lambda plan, _: plan)
    layout = DecoderLayout("ids", "", "", "logits", (), WORDS, ROWS)
    plan = SessionPlan(tmp_path / "model.onnx")
    found = compare_decoders(plan, plan, layout, tmp_path, text=tuple(range(PROMPT)))
    assert found == Refused(f"logits of {whose} are NaN")


def test_another_token_is_told_from_a_tie(logits: np.ndarray) -> None:
    best = logits.argmax(1)
    expected, tied, other = logits.copy(), logits.copy(), logits.copy()
    second = (best[7] + 1) % WORDS
    expected[7, second] = expected[7, best[7]] - 0.01  # a tie, up to noise
    tied[7, second] = expected[7, best[7]] + 0.01
    other[7, second] = expected[7, best[7]] + 5
    tokens = tuple(range(ROWS))
    for actual, margin, agrees in ((tied, 0.01, True), (other, 8.0, False)):
        plain = expected.copy()
        plain[7, second] = plain[7, best[7]] - margin
        found = agreement_of(plain, actual, noisy(plain, 0.01), tokens, PROMPT)
        assert found.agrees == agrees
        assert found.same_greedy == 7 - PROMPT + 1
        assert found.top1 == pytest.approx(1 - 1 / ROWS)
        assert found.other_choices == (() if agrees else (7,))
        assert found.near_ties == ((7,) if agrees else ())
        assert found.largest_tie == pytest.approx(margin if agrees else 0, abs=1e-5)
        assert any("near ties" in line for line in found.lines) == agrees


def test_nan_of_a_result_does_not_agree(logits: np.ndarray) -> None:
    actual = logits.copy()
    actual[5, 0] = np.nan
    found = agreement_of(logits, actual, noisy(logits, 0.01), tuple(range(ROWS)), PROMPT)
    assert not found.agrees


def checked(*reasons: str) -> Verification:
    """A verdict with an output for each reason why it was not compared."""
    outputs = tuple(
        OutputComparison(f"present.{n}", "float32", 9.0, 1.0, (), True, 0, reason, True)
        for n, reason in enumerate(reasons)
    )
    gaps = tuple(Gap(f"output {output.name!r}", output.reason) for output in outputs)
    return Verification("partly", f"4 sets; not compared: {gaps_text(gaps)}; 2 kernels", outputs,
                        not_compared=gaps)  # fmt: skip


@pytest.mark.parametrize("noise", [0.02, 1e-6])
def test_what_is_ill_conditioned_was_compared_token_by_token(
    logits: np.ndarray, noise: float
) -> None:
    """Only if logits are no further off than roundings move them."""
    tokens = tuple(range(ROWS))
    found = agreement_of(logits, noisy(logits, 0.02, 3), noisy(logits, noise), tokens, PROMPT)
    moved, late = f"{ILL_CONDITIONED} in row [1]", "there was no time"
    whole, part = (found.with_tokens_compared(checked(*each)) for each in ([moved], [moved, late]))
    if noise < 0.01:
        assert (whole, part) == (checked(moved), checked(moved, late))
        return
    said = "what is ill-conditioned was compared token by token"
    assert (whole.verdict, whole.not_compared) == ("yes", ())
    assert whole.reason == f"4 sets; {said}; 2 kernels"
    assert part.verdict == "partly"
    assert [gap.reason for gap in part.not_compared] == [late]
    assert f"{said}; not compared: output 'present.1' ({late})" in part.reason


def test_noise_beyond_the_cap_settles_nothing(logits: np.ndarray) -> None:
    tokens = tuple(range(ROWS))
    for noise, verdict in ((0.1, "yes"), (0.5, "partly")):
        found = agreement_of(logits, noisy(logits, noise, 3), noisy(logits, noise), tokens, PROMPT)
        assert found.agrees
        moved = f"{ILL_CONDITIONED} in row [1]"
        assert found.with_tokens_compared(checked(moved)).verdict == verdict


def test_a_prompt_alone_settles_nothing(logits: np.ndarray) -> None:
    found = agreement_of(
        logits, noisy(logits, 0.02, 3), noisy(logits, 0.1), tuple(range(ROWS)), PROMPT
    )
    moved = f"{ILL_CONDITIONED} in row [1]"
    assert found.with_tokens_compared(checked(moved)).verdict == "yes"
    assert replace(found, decoded=0).with_tokens_compared(checked(moved)).verdict == "partly"


def test_rows_that_prefill_does_not_give(logits: np.ndarray) -> None:
    last = logits.copy()
    last[: PROMPT - 1] = np.nan
    found = agreement_of(last, last, noisy(last, 0.01), tuple(range(ROWS)), PROMPT, has_text=True)
    assert found.agrees
    assert found.tokens == ROWS - PROMPT + 1
    assert found.perplexity is None


def test_a_result_that_does_not_run_is_wrong(tmp_path: Path) -> None:
    folder = read_folder(genai_folder(tmp_path / "f"))
    layout = layout_of(folder)
    assert isinstance(layout, DecoderLayout)
    model = onnx.load(tmp_path / "f" / "model.onnx")
    (head,) = (node for node in model.graph.node if node.output[0] == "head")
    head.input[0] = "length"
    onnx.save(model, tmp_path / "broken.onnx")
    good, broken = (
        SessionPlan(tmp_path / "f" / "model.onnx"),
        SessionPlan(tmp_path / "broken.onnx"),
    )
    with pytest.raises(CheckError, match=r"the result .*, and the original runs"):
        compare_decoders(good, broken, layout, tmp_path)
    found = compare_decoders(broken, good, layout, tmp_path)
    assert isinstance(found, Refused)
    assert found.reason.startswith("the original ")
