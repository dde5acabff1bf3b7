"""Random regions as Triton kernels, interpreted, in every variant that fits the sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from fuzz.feeds import Run, runs
from fuzz.grow import numbered_region
from fuzz.judge import judge, same
from fuzz.reference import Reference
from fuzz.sessions import Sessions
from fuzz.values import Region
from interpreter import Interpreter

from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.launches import block_count, fitting, sizes_of
from ortkit.kernels.triton.source import VariantSource
from ortkit.refusal import Refused

Record = Callable[[str, object], None]
#: Regions of a test in CI, and how many tests there are; the long run has 1,000 more.
_COUNT, _BATCHES, _LONG = 12, 4, 20
#: A fuzzer whose regions are mostly refused proves nothing.
_LEAST_BUILT = 0.6
#: The interpreter takes some milliseconds for each block of threads.
_MOST_BLOCKS = 24


def faults(
    region: Region, sources: tuple[VariantSource, ...], interpreter: Interpreter
) -> list[str]:
    """What the region's kernel gets wrong."""
    found: list[str] = []
    signature, reference = region.signature(), Reference(region)
    theirs = Sessions({0: region}, None, 1)
    variants = [source.variant([0] * len(source.steps)) for source in sources]
    for turn, run in enumerate(runs(region)):
        feeds = list(run.feeds.values())
        sizes = sizes_of(signature, [x.shape for x in feeds])
        numbers = [
            number
            for number in fitting(variants, sizes)
            if block_count(variants[number], sizes) <= _MOST_BLOCKS
        ]
        if turn:  # by turns, as each takes its time
            numbers = numbers[turn % len(numbers) :][:1] if numbers else []
        if not run.is_judged or not numbers:
            continue
        try:
            exact, samples = reference.run(run.feeds), reference.samples(run.feeds)
        except ValueError:
            continue  # the largest of no elements
        (own,) = theirs.run({0: run.feeds}).values()
        for number in numbers:
            results = interpreter.run(signature, feeds, number, sources=sources)
            for place, value in enumerate(region.outputs):
                fault = judge(
                    value.dtype,
                    results[place],
                    own[place] if isinstance(own, list) else None,
                    exact[value.name],
                    [sample[value.name] for sample in samples],
                ).fault
                if fault:
                    found.append(_text(region, run, number, f"{value.name}: {fault}"))
    return found


def _text(region: Region, run: Run, variant: int, fault: str) -> str:
    return f"{fault}\nvariant {variant}, {run.kind}, {dict(run.sizes)}\n{region.text()}"


def check(numbers: range, interpreter: Interpreter, record: Record) -> None:
    """Judge the regions of these numbers; see `fuzz`."""
    built, refused, found = 0, Counter[str](), list[str]()
    for number in numbers:
        region = numbered_region(number)
        sources = sources_of(region.signature())
        if isinstance(sources, Refused):
            refused[sources.reason] += 1
            continue
        built += 1
        found += faults(region, sources, interpreter)
    record("regions", f"{built} of {len(numbers)} built; refused: {dict(refused)}")
    assert not found, "\n\n".join(found[:3])
    assert built >= _LEAST_BUILT * len(numbers), refused


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch", range(_BATCHES))
def test_random_regions(batch: int, interpreter: Interpreter, record_property: Record) -> None:
    check(range(100 * batch, 100 * batch + _COUNT), interpreter, record_property)


def test_what_is_equal_by_rounding_only_is_no_fault(
    interpreter: Interpreter, record_property: Record
) -> None:
    """A tanh that rounds to 1 beside 1."""
    check(range(6343, 6344), interpreter, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(_LONG))
def test_many_random_regions(
    batch: int, interpreter: Interpreter, record_property: Record
) -> None:
    check(range(5000 + 100 * batch, 5050 + 100 * batch), interpreter, record_property)


def test_results_of_all_variants_are_alike(interpreter: Interpreter) -> None:
    """Where nothing is reduced, to the bit."""
    region = numbered_region(3)
    sources = sources_of(region.signature())
    assert not isinstance(sources, Refused)
    assert "tl.sum" not in sources[0].steps[0].text
    feeds = list(runs(region)[0].feeds.values())
    variants = [source.variant([0] * len(source.steps)) for source in sources]
    numbers = fitting(variants, sizes_of(region.signature(), [x.shape for x in feeds]))
    assert len(numbers) > 1
    first, *others = (interpreter.run(region.signature(), feeds, number) for number in numbers)
    for other in others:
        assert all(same(np.asarray(a), np.asarray(b)) for a, b in zip(first, other, strict=True))
