"""Two decoders as language models: logits, tokens and perplexity on the same text."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ortkit.errors import CheckError
from ortkit.genai.decoding_child import DecodeJob, decode
from ortkit.genai.layout import DecoderLayout
from ortkit.graph.io.open import open_model
from ortkit.graph.io.parts import share_weights, write_part
from ortkit.isolation.ended import Ended, TimedOut
from ortkit.isolation.run import run_isolated
from ortkit.refusal import RefusedError, refusals
from ortkit.runtime.opening import SessionPlan
from ortkit.verify.perturbed.runs import perturbed_copy
from ortkit.verify.tolerances import CAPS, SPREAD_FACTOR
from ortkit.verify.verification import Verification

#: Tokens of a prompt that is made up, and tokens that are decoded after a prompt.
PROMPT, STEPS = 24, 40
#: A token counts as another one where the original prefers its own by more than this many times
#: what perturbed values, as in other verification, move its logits.
_NOISE_FACTOR = 4.0
_TOP = 5
#: The most bytes of logits of one run, in float32.
_LOGITS_BYTES = 256 << 20

Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Agreement:
    """How far a result agrees with the original; both get the original's tokens.

    Args:
        tokens: Tokens that were compared, those of the prompt included.
        decoded: Tokens of these that went through the caches one by one.
        logits_error: The largest, over tokens, of the norm of the difference by the norm.
        own_error: The same of the original whose values are perturbed by a few roundings.
        divergence: The mean of the Kullback-Leibler divergence from original to result, in nats.
        largest_divergence: Its largest, over tokens.
        top1: Share of tokens after which both find the same next token most likely.
        top5: Mean share of the five most likely next tokens that both have.
        same_greedy: Decoded tokens before the first that the result would choose otherwise.
        other_choices: Places where the result chooses another token and roundings do not explain
            it: the original prefers its own by more than `_NOISE_FACTOR` times its own noise.
        near_ties: Places where it chooses another token, and roundings explain it.
        largest_tie: By how much the original prefers its own token there, at most.
        noise: How far perturbed values move a logit of the original, at most.
        perplexity: Perplexity of the text, by original and result; None without a text.
    """

    tokens: int
    decoded: int
    logits_error: float
    own_error: float
    divergence: float
    largest_divergence: float
    top1: float
    top5: float
    same_greedy: int
    other_choices: tuple[int, ...]
    near_ties: tuple[int, ...] = ()
    largest_tie: float = 0.0
    noise: float = 0.0
    perplexity: tuple[float, float] | None = None

    @property
    def agrees(self) -> bool:
        """Whether the result chooses the same tokens, up to roundings."""
        return not self.other_choices and isfinite(self.logits_error)

    @property
    def is_within_noise(self) -> bool:
        """Whether it agrees, and no logits are further off than roundings move the original's.

        Where roundings move these by more than the cap of models that quantize, no comparison
        tells an error from a rounding. Where no token was decoded, no cache was read.
        """
        allowed = SPREAD_FACTOR * self.own_error
        is_small = self.logits_error <= allowed <= CAPS["int8"]
        return self.agrees and self.decoded > 0 and is_small

    def with_tokens_compared(self, verification: Verification) -> Verification:
        """Return the verdict on the decoder, of which this compares what is ill-conditioned.

        Roundings move the caches of many layers by more than is allowed for a value. What they
        are for are the logits of later tokens, which were compared.
        """
        if not self.is_within_noise:
            return verification
        return verification.with_ill_conditioned_compared(
            "what is ill-conditioned was compared token by token"
        )

    @property
    def lines(self) -> list[str]:
        """Return it as text, one fact a line."""
        lines = [
            f"the same greedy tokens in {self.same_greedy} of {self.decoded} steps",
            f"most likely token: {self.top1:.1%} of {self.tokens} agree; five: {self.top5:.1%}",
            f"divergence {self.divergence:.2g} nats, at most {self.largest_divergence:.2g}",
            f"logits off by {self.logits_error:.2g}; perturbed original: {self.own_error:.2g}",
        ]
        if self.near_ties:
            lines.insert(1, self._near_ties_line)
        if self.perplexity is not None:
            lines.append("perplexity {:.4g} -> {:.4g}".format(*self.perplexity))
        return lines

    @property
    def _near_ties_line(self) -> str:
        bound, noise = f"at most {self.largest_tie:.2g}", f"with noise of {self.noise:.2g}"
        count = len(self.near_ties)
        start = f"near ties, where it chooses another token: {count}"
        return f"{start}; the original prefers its own by {bound}, {noise}"

    def to_json(self) -> dict[str, object]:
        """Return the fields, as JSON's types."""
        return {**asdict(self), "agrees": self.agrees}


@refusals
def compare_decoders(
    original: SessionPlan,
    result: SessionPlan,
    layout: DecoderLayout,
    folder: Path,
    *,
    text: tuple[int, ...] = (),
    steps: int = STEPS,
    seconds: float = 600.0,
) -> Agreement:
    """Run two decoders on the same tokens; refused where the original does not run, or in time.

    The original continues a prompt by its most likely tokens, through its caches. The result, and
    the original with its values perturbed, get the same tokens in the same steps.

    Args:
        original: What is right by definition.
        result: What is compared.
        layout: How both are called.
        folder: For logits and a perturbed model; exists.
        text: Tokens of a text, the prompt; () makes one up. Those beyond the context, and beyond
            `_LOGITS_BYTES` of logits, are left out.
        steps: Tokens that are decoded after it, as far as the context allows.
        seconds: Most seconds of one run.

    Raises:
        CheckError: The result does not run where the original does.
        ModelError: The original is not valid.
    """
    random = np.random.default_rng(0)
    prompt = text or tuple(random.integers(0, layout.vocabulary, PROMPT).tolist())
    fitting = _LOGITS_BYTES // (4 * layout.vocabulary)
    fitting = min(layout.context, fitting)
    prompt = prompt[: max(1, fitting - steps)]
    steps = max(0, min(steps, fitting - len(prompt)))
    job = DecodeJob(original, layout, prompt, len(prompt), steps, folder / "logits.npy")
    tokens, expected = _run("the original", job, seconds)
    _check_numbers("the original", expected[len(prompt) - 1 :])

    def again(name: str, plan: SessionPlan, *, must_run: bool = False) -> Rows:
        job = DecodeJob(plan, layout, tokens, len(prompt), 0, folder / "logits.npy")
        return _run(name, job, seconds, must_run=must_run)[1]

    perturbed = again("the original with perturbed values", _perturbed(original, folder))
    _check_numbers("the original with perturbed values", perturbed[len(prompt) - 1 :])
    return agreement_of(
        expected,
        again("the result", result, must_run=True),
        perturbed,
        tokens,
        len(prompt),
        has_text=bool(text),
    )


def _run(
    name: str, job: DecodeJob, seconds: float, *, must_run: bool = False
) -> tuple[tuple[int, ...], Rows]:
    found = run_isolated(decode, job, timeout_seconds=seconds)
    if isinstance(found, Ended):
        if must_run and not isinstance(found, TimedOut):
            raise CheckError(f"{name} {found}, and the original runs", where=str(job.plan.model))
        raise RefusedError(f"{name} {found}")
    rows: Rows = np.load(job.results)
    return found, rows


def _check_numbers(name: str, rows: Rows) -> None:
    """Refuse logits that nothing can be compared with: those of new tokens are all computed."""
    if np.isnan(rows).any():
        raise RefusedError(f"logits of {name} are NaN")


def _perturbed(plan: SessionPlan, folder: Path) -> SessionPlan:
    """Return a decoder whose values are off by a few roundings of their types."""
    model = perturbed_copy(open_model(plan.model))
    weights = share_weights(model, folder / "perturbed.onnx")
    path = write_part(model, folder / "perturbed.part.onnx", weights)
    settings = replace(plan.settings, optimizations="off")  # else what is random may be folded
    return replace(plan, model=path, weights_folder=weights, settings=settings)


def agreement_of(
    expected: Rows,
    actual: Rows,
    perturbed: Rows,
    tokens: tuple[int, ...],
    prompt: int,
    *,
    has_text: bool = False,
) -> Agreement:
    """Compare logits, each [tokens, vocabulary]; rows of NaN were not computed.

    Args:
        expected: Logits of the original.
        actual: Logits of the result.
        perturbed: Logits of the original whose values are perturbed.
        tokens: What was run.
        prompt: Tokens of the prompt.
        has_text: Whether the prompt is a text, whose perplexity means something.
    """
    known: NDArray[np.bool_] = np.asarray(~np.isnan(expected).all(axis=1))
    indices = np.flatnonzero(known)
    expected, actual, perturbed = expected[known], actual[known], perturbed[known]
    noise = float(np.abs(expected - perturbed).max(initial=0.0))
    chosen, other = expected.argmax(axis=1), actual.argmax(axis=1)
    rows = np.arange(len(expected))
    margin = expected[rows, chosen] - expected[rows, other]
    # The last row of a prompt chooses the first new token.
    is_decoded = np.asarray(indices >= prompt - 1)
    steps = len(tokens) - prompt
    changed = np.flatnonzero((chosen != other) & is_decoded)
    is_explained = margin <= _NOISE_FACTOR * noise
    is_tie = (chosen != other) & is_explained
    p, q = _log_softmax(expected), _log_softmax(actual)
    divergence = np.maximum((np.exp(p) * (p - q)).sum(axis=1), 0.0)
    perplexity = None
    if has_text and prompt > 1 and known[: prompt - 1].all():
        perplexity = _perplexity(p, tokens[:prompt]), _perplexity(q, tokens[:prompt])
    return Agreement(
        tokens=len(expected),
        decoded=steps,
        logits_error=float(_relative(expected, actual).max(initial=0.0)),
        own_error=float(_relative(expected, perturbed).max(initial=0.0)),
        divergence=float(divergence.mean()),
        largest_divergence=float(divergence.max(initial=0.0)),
        top1=float((chosen == other).mean()),
        top5=float(np.mean([_shared(*pair) for pair in zip(expected, actual, strict=True)])),
        same_greedy=min(int(indices[changed[0]]) - prompt + 1 if len(changed) else steps, steps),
        other_choices=tuple(map(int, indices[np.logical_not(is_explained)])),
        near_ties=tuple(map(int, indices[is_tie])),
        largest_tie=float(margin[is_tie].max(initial=0.0)),
        noise=noise,
        perplexity=perplexity,
    )


def _relative(expected: Rows, actual: Rows) -> NDArray[np.float64]:
    """Return the norm of the difference by the norm, for each row."""
    difference = np.linalg.norm(actual.astype(np.float64) - expected, axis=1)
    return np.asarray(difference / np.maximum(np.linalg.norm(expected, axis=1), 1e-30))


def _log_softmax(logits: Rows) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis=1, keepdims=True)))


def _shared(expected: Rows, actual: Rows) -> float:
    count = min(_TOP, len(expected))
    best = (set(np.argpartition(-row, count - 1)[:count].tolist()) for row in (expected, actual))
    return len(set.intersection(*best)) / count


def _perplexity(scores: NDArray[np.float64], tokens: tuple[int, ...]) -> float:
    """Return the perplexity of a text, from the scores behind each of its tokens."""
    following = np.asarray(tokens[1:])
    return float(np.exp(-scores[np.arange(len(following)), following].mean()))
