"""Attention's kernel for Hopper, its blocks in numpy, against attention in float64."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from interpreter import Interpreter, chosen
from test_triton_attention import most_stack, stack_bytes
from triton_attention import CASES, SIZES, WHOLE, WIDE, Case, assert_close, feeds_of

from ortkit.kernels.cuda import SHARED_BYTES
from ortkit.kernels.signature import RegionSignature
from ortkit.kernels.triton.build import compile_step
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.launches import sizes_of
from ortkit.kernels.triton.source import VariantSource
from ortkit.refusal import Refused

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

#: Those with a bias have too few keys.
TAKEN = [
    name
    for name in CASES
    if re.match(r"widths? (64|96|128|256)|shared heads$", name) and "bias" not in name
]
#: More blocks of keys than there is room for, with queries of several blocks.
LONG = {"b": 1, "s": 260, "t": 900}


def hopper_sources(signature: RegionSignature) -> list[tuple[int, VariantSource]]:
    sources = sources_of(signature)
    assert not isinstance(sources, Refused)
    return [(i, source) for i, source in enumerate(sources) if source.steps[0].is_gluon]


def check(case: Case, sizes: dict[str, int], interpreter: Interpreter) -> None:
    feeds = feeds_of(case, sizes)
    made = hopper_sources(case.signature())
    assert made
    for number, source in made:
        # Whatever sizes a run has, CUDA takes maps whose rows begin at multiples of 16 bytes.
        strides = [stride.factor for each in source.steps[0].maps for stride in each.strides]
        assert strides and not any(factor % 16 for factor in strides)
        found = interpreter.run(case.signature(), feeds, variant=number)[0]
        assert_close(found, case.expected(feeds))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TAKEN)
def test_it_computes_attention(name: str, interpreter: Interpreter) -> None:
    check(CASES[name], SIZES, interpreter)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["width 64", "width 64, chosen keys", "width 96"])
def test_it_computes_attention_of_whole_blocks(name: str, interpreter: Interpreter) -> None:
    check(CASES[name], WHOLE, interpreter)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "name",
    [
        "width 64",
        "width 64, cap",
        "width 128, chosen keys to the last",
        "width 64, added by query and head",
        "width 64, chosen by query",
    ],
)
def test_room_for_blocks_is_used_again(name: str, interpreter: Interpreter) -> None:
    check(CASES[name], LONG, interpreter)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", ["a hole", "none kept", "in front", "all but one"])
@pytest.mark.parametrize("mask", ["chosen", "added"])
def test_masks_of_every_shape(mask: str, kind: str, interpreter: Interpreter) -> None:
    """Runs of keys are taken as such, and nothing else is taken for one."""
    body = replace(WIDE, heads=1, kv_heads=1, mask=mask)  # type: ignore[arg-type]
    dtype = "bool" if mask == "chosen" else "float16"
    case = Case(body, queries="s", keys="t", mask=(1, 1, 1, "t"), mask_dtype=dtype)
    q, k, v, _ = feeds_of(case, {"s": 70, "t": 300})
    kept = np.ones(300, bool)
    kept[{"a hole": slice(100, 180), "none kept": slice(0, 300), "in front": slice(0, 170),
          "all but one": slice(7, 8)}[kind]] = False  # fmt: skip
    given = kept if mask == "chosen" else np.where(kept, 0, -6e4).astype(np.float16)
    feeds = [q, k, v, given.reshape(1, 1, 1, 300)]
    number = hopper_sources(case.signature())[0][0]
    found = interpreter.run(case.signature(), feeds, variant=number)[0]
    assert_close(found, case.expected(feeds))


def test_a_bias_beside_what_is_kept_is_added(interpreter: Interpreter) -> None:
    """Numbers that are small beside those of lost keys are no run of zeros."""
    case = Case(replace(WIDE, mask="added"), queries="s", keys="t", mask=(1, 1, 1, "t"))
    feeds = feeds_of(case, {"s": 70, "t": 200})
    feeds[3] = np.where(np.arange(200) < 150, np.arange(200) % 5, -6e4).astype(np.float16)
    feeds[3] = feeds[3].reshape(1, 1, 1, 200)
    number = hopper_sources(case.signature())[0][0]
    assert_close(interpreter.run(case.signature(), feeds, variant=number)[0], case.expected(feeds))


def test_parts_with_a_bias_are_taken_where_keys_are_many(interpreter: Interpreter) -> None:
    body = replace(WIDE, heads=1, kv_heads=1)
    few, many = (
        Case(body, queries=count, keys=count, packed=True, biased=True) for count in (1023, 1024)
    )
    assert not hopper_sources(few.signature())
    check(many, {}, interpreter)


@pytest.mark.parametrize(
    "name",
    [
        "width 128",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                "width 64",
                "width 64, chosen keys",
                "width 256",
                "width 64, added by head",
                "width 64, added by query and head",
            )
        ),
    ],
)
def test_it_compiles_for_hopper_without_spills(name: str, tmp_path: Path) -> None:
    for _, source in hopper_sources(CASES[name].signature()):
        assert source.architectures == (90,)
        assert source.is_optional
        (step,) = source.steps
        made = compile_step(step, 90, tmp_path)
        assert stack_bytes(made.cubin, tmp_path) <= most_stack(step, CASES[name])
        assert made.shared_bytes <= SHARED_BYTES[90]
        for instruction in ("wgmma.mma_async", "cp.async.bulk.tensor", "setmaxnreg"):
            assert instruction in made.ptx


@pytest.mark.parametrize(
    ("width", "queries", "launch"),
    [
        (64, 2112, 256), (64, 2113, 512), (64, 3072, 512), (64, 3073, 256), (64, 4224, 256),
        (64, 6144, 512), (128, 1056, 256), (128, 1057, 384), (256, 64, 384),
    ],
)  # fmt: skip
def test_rows_decide_how_large_blocks_are(width: int, queries: int, launch: int) -> None:
    """By how often all multiprocessors get blocks: 8 heads of `queries` rows."""
    body = replace(WIDE, heads=8, kv_heads=8, width=width, v_width=width)
    case = Case(body, queries=queries, keys=queries)
    sources = sources_of(case.signature())
    assert not isinstance(sources, Refused)
    first, last = (source.variant([0]) for source in sources)
    assert first.steps[0].threads == launch
    assert last.steps[0].threads == 128


def test_rows_of_a_run_decide_where_they_are_not_known() -> None:
    case = Case(replace(WIDE, heads=8, kv_heads=8), queries="s", keys="s")
    sources = sources_of(case.signature())
    assert not isinstance(sources, Refused)
    variants = [source.variant([0]) for source in sources]
    launches = [
        variants[chosen(variants, [rows], is_aligned=True)].steps[0].threads
        for rows in (2112, 2113, 3168, 3169, 4224, 4225)
    ]
    assert launches == [256, 512, 512, 256, 256, 512]


@pytest.mark.parametrize(("is_by_row", "last"), [(True, 256), (False, 512)])
def test_masks_by_query_have_three_groups_in_the_first_round_alone(
    is_by_row: bool, last: int
) -> None:
    body = replace(WIDE, heads=8, kv_heads=8, mask="chosen")
    launches = []
    for queries in (2112, 2113, 3072, 3073, 6144):
        shape = (1, 1, queries if is_by_row else 1, 2048)
        case = Case(body, queries=queries, keys=2048, mask=shape, mask_dtype="bool")
        sources = sources_of(case.signature())
        assert not isinstance(sources, Refused)
        launches.append(sources[0].variant([0]).steps[0].threads)
    assert launches == [256, 512, 512, 256, last]


@pytest.mark.parametrize(
    ("batch", "keys", "limit"), [(4, 512, 128), (5, 512, 80), (5, 513, None), (32, 128, 80)]
)
def test_many_blocks_of_few_keys_are_three_on_a_multiprocessor(
    batch: int, keys: int, limit: int | None
) -> None:
    body = replace(WIDE, heads=8, kv_heads=8)
    case = Case(body, batch=batch, queries=512, keys=keys)
    assert hopper_sources(case.signature())[0][1].steps[0].registers == limit


@pytest.mark.parametrize(
    ("batch", "length"), [(1, 512), (8, 512), (32, 512), (32, 128), (1, 2048)]
)
def test_sizes_known_in_a_run_have_the_tiles_of_known_ones(batch: int, length: int) -> None:
    body = replace(WIDE, heads=12, kv_heads=12)
    known = Case(body, batch=batch, queries=length, keys=length)
    named = Case(body, batch="b", queries="s", keys="t")
    sources = sources_of(named.signature())
    assert not isinstance(sources, Refused)
    shapes = [feed.shape for feed in feeds_of(named, {"b": batch, "s": length, "t": length})]
    sizes = sizes_of(named.signature(), shapes)
    taken = sources[chosen([source.variant([0]) for source in sources], sizes, is_aligned=True)]
    fixed = hopper_sources(known.signature())[0][1]
    assert [(step.registers, step.workers) for step in taken.steps] == [
        (item.registers, item.workers) for item in fixed.steps
    ]


def test_without_keys_there_is_nothing_to_copy() -> None:
    case = CASES["width 64"]
    sources = sources_of(case.signature())
    assert not isinstance(sources, Refused)
    variants = [source.variant([0]) for source in sources]
    q, k, v = feeds_of(case, {"b": 2, "s": 70, "t": 1})
    taken = []
    for keys in (1, 0):
        shapes = [q.shape, k[:, :keys].shape, v[:, :keys].shape]
        taken.append(chosen(variants, sizes_of(case.signature(), shapes), is_aligned=True))
    assert [sources[item].steps[0].is_gluon for item in taken] == [True, False]


def test_rows_that_copies_do_not_reach_are_left_to_other_kernels() -> None:
    for dtype, keys, is_reached in (
        ("float16", 72, True), ("float16", 68, False), ("bool", 80, True), ("bool", 72, False),
        ("float16", "t", False), ("bool", "t", False),
    ):  # fmt: skip
        body = replace(WIDE, mask="chosen" if dtype == "bool" else "added")
        case = Case(body, keys=keys, mask=(1, 1, "s", keys), mask_dtype=dtype)
        assert bool(hopper_sources(case.signature())) == is_reached
    for widths in ((64, 32), (16, 16)):
        narrow = Case(replace(WIDE, width=widths[0], v_width=widths[1]), queries="s")
        assert not hopper_sources(narrow.signature())
