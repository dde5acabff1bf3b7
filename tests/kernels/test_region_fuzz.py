"""Random regions: kernels compute what their functions do, on any number of threads."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fuzz import reduce
from fuzz.batch import Finding, check
from fuzz.feeds import Run, runs
from fuzz.grow import OPSETS, numbered_region, random_region
from fuzz.judge import judge, same
from fuzz.values import Region, Size, Value
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

from ortkit.kernels.build.cache import KernelCache, Slot
from ortkit.kernels.build.library import refusal
from ortkit.kernels.catalog import load_backend
from ortkit.kernels.region import ops
from ortkit.kernels.tunable import Tunable
from ortkit.kernels.tuning.defaults import default_choices
from ortkit.targets.target import Target
from tests.sampling import repeats

Record = Callable[[str, object], None]

#: Regions of a test in CI, and how many tests there are; the long run has 5,000 more.
_COUNT, _BATCHES, _LONG = 25, 8, 50
#: A fuzzer whose regions are mostly refused proves nothing.
_LEAST_BUILT = 0.6


def _check(numbers: range, cache: KernelCache, record: Record) -> None:
    findings, tally = check([numbered_region(number) for number in numbers], cache)
    record("regions", tally.text())
    assert not findings, "\n\n".join(
        reduce.smallest(finding, cache).text() for finding in findings[:3]
    )
    assert tally.built >= _LEAST_BUILT * tally.regions, tally.text()
    assert tally.judged >= 0.9 * tally.elements, tally.text()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch", range(_BATCHES))
def test_random_regions(batch: int, cache: KernelCache, record_property: Record) -> None:
    _check(range(_COUNT * batch, _COUNT * (batch + 1)), cache, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(_LONG))
def test_many_random_regions(batch: int, cache: KernelCache, record_property: Record) -> None:
    _check(range(1000 + 100 * batch, 1100 + 100 * batch), cache, record_property)


@pytest.mark.parametrize("number", [3502, 5330])
def test_regions_that_were_wrong_once(number: int, cache: KernelCache) -> None:
    """HardSwish where it comes near 0; ArgMin of rows with NaN."""
    findings, tally = check([numbered_region(number)], cache)
    assert not findings, findings[0].text()
    assert tally.built == 1


def test_no_place_in_nothing_is_looked_for(cache: KernelCache) -> None:
    findings, tally = check([numbered_region(3550)], cache)
    assert not findings
    assert "ArgMax of nothing" in " ".join(tally.refused)


@given(st.randoms(use_true_random=False), st.sampled_from(OPSETS))
@settings(max_examples=repeats(150, 50), deadline=None, suppress_health_check=list(HealthCheck))
def test_whether_a_region_is_taken_is_a_verdict(rng: random.Random, opset: int) -> None:
    signature = random_region(rng, opset, "drawn").signature()
    assert len(signature.key) == 12
    verdict = refusal(signature, Target())
    assert verdict is None or verdict.reason


def _three_nodes() -> Region:
    values = {name: Value(name, "float32", (Size(1, ("n",)), Size(19)), 4.0) for name in "xabcy"}
    nodes = [
        helper.make_node(op, [source], [target])
        for op, source, target in (("Tanh", "x", "a"), ("Abs", "a", "b"), ("Neg", "b", "y"))
    ]
    return Region("three", 20, (values["x"],), (values["y"],), tuple(nodes), values)


def test_a_wrong_kernel_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    region, cache, backend = _three_nodes(), KernelCache(tmp_path / "cache"), load_backend("tvm")
    assert check([region], KernelCache(tmp_path / "right"))[0] == []
    wrong = replace(ops.POINTWISE_OPS["Abs"], write=lambda e, _, x: x[0])
    monkeypatch.setitem(ops.POINTWISE_OPS, "Abs", wrong)
    signature, target = region.signature(), Target().resolved()
    choices = default_choices(signature, backend, target)
    slot = Slot(signature, backend.name, backend.fingerprint(), target, choices)
    assert isinstance(backend, Tunable)
    made = backend.compile_as(signature, target, tmp_path, choices)
    assert cache.store(slot, made) == ""
    (finding,), tally = check([region], cache)
    assert "output y: at" in finding.fault or "error" in finding.fault
    assert "Abs" in finding.text()
    assert tally.built == 1


def test_a_failing_region_is_cut_down_to_the_node_that_fails(
    cache: KernelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = _three_nodes()

    def fault(candidate: Region, _run: Run, _cache: KernelCache) -> str:
        return "wrong" if any(node.op_type == "Abs" for node in candidate.nodes) else ""

    monkeypatch.setattr(reduce, "fault_of", fault)
    found = reduce.smallest(Finding(region, "wrong", runs(region)[0]), cache)
    assert [node.op_type for node in found.region.nodes] == ["Abs"]
    assert found.run is not None
    np.testing.assert_allclose(
        found.run.feeds["a"], np.tanh(runs(region)[0].feeds["x"]), rtol=1e-6
    )


@pytest.mark.parametrize(("at_end", "beside"), [(True, 4), (False, -4)])
def test_a_kernel_that_touches_memory_beside_a_tensor_ends_the_process(
    at_end: bool, beside: int
) -> None:
    script = (
        "import ctypes, numpy as np\n"
        "from fuzz.direct import _guarded\n"
        f"with _guarded(np.ones(5, np.float32), at_end={at_end}) as array:\n"
        "    for place in (0, 4):\n"
        "        ctypes.c_float.from_address(array.ctypes.data + 4 * place).value\n"
        "    print('inside', flush=True)\n"
        f"    ctypes.c_float.from_address(array.ctypes.data + {beside} * 5).value\n"
    )
    here = Path(__file__).parent
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=here, capture_output=True, text=True, check=False
    )
    assert ended.stdout == "inside\n"
    assert ended.returncode == -signal.SIGSEGV


EXACT = np.array([1.0, -2.0, 1e-3, np.nan, np.inf])
#: The third element is the difference of two numbers of about 1.
SAMPLES = [EXACT + np.array([1, 2, 1, 0, 0]) * sign * 2.0**-23 for sign in (-1.0, 1.0)]


@pytest.mark.parametrize(
    ("changed", "is_right"),
    [
        ((0, 1 + 4 * 2.0**-23), True),
        ((0, 1 + 64 * 2.0**-23), False),
        ((2, 1e-3 + 4 * 2.0**-23), True),
        ((2, 1e-3 + 64 * 2.0**-23), False),
        ((3, 0.0), False),
        ((4, -np.inf), False),
        ((1, np.nan), False),
    ],
)
def test_errors_are_judged_by_what_the_element_is_sensitive_to(
    changed: tuple[int, float], is_right: bool
) -> None:
    found = EXACT.astype(np.float32)
    found[changed[0]] = changed[1]
    assert (judge("float32", found, None, EXACT, SAMPLES).fault == "") == is_right


def test_what_the_runtime_gets_wrong_too_is_allowed_four_times() -> None:
    found, own = EXACT.astype(np.float32), EXACT.astype(np.float32)
    own[0], found[0] = 1 + 64 * 2.0**-23, 1 + 250 * 2.0**-23
    assert judge("float32", found, own, EXACT, SAMPLES).fault == ""
    found[0] = 1 + 260 * 2.0**-23
    assert judge("float32", found, own, EXACT, SAMPLES).fault


def test_bits_are_compared_but_for_those_of_nan() -> None:
    one = np.array([1.0, np.nan, -0.0], np.float32)
    other = np.array([1.0, -np.nan, -0.0], np.float32)
    other.view(np.uint32)[1] ^= 5
    assert same(one, other)
    assert not same(one, np.array([1.0, np.nan, 0.0], np.float32))
    assert not same(one, np.array([1.0, 2.0, -0.0], np.float32))
    assert not same(np.array([1, 2]), np.array([1, 3]))


def test_an_element_that_may_be_anything_says_nothing() -> None:
    exact = np.array([1, 0])
    samples = [np.array([1, 0]), np.array([1, 1])]
    assert judge("int64", np.array([1, 5]), None, exact, samples).fault == ""
    assert judge("int64", np.array([2, 0]), None, exact, samples).fault
