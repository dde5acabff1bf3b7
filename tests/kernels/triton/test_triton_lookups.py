"""Kernels that look rows of tables up, interpreted, against numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from interpreter import Interpreter, numpy_dtype

from ortkit.kernels.signature import RegionSignature, TensorSpec
from ortkit.kernels.triton.configs import configs_of
from ortkit.kernels.triton.generate import sources_of
from ortkit.kernels.triton.space import space_of
from ortkit.kernels.tvm.backend import TvmBackend
from ortkit.refusal import Refused
from ortkit.targets.target import Target

NORM = (
    "R = Gather (W, I)  Q = Gather (V, J)  S = Add (R, Q)  "
    "Y = LayerNormalization <axis = -1> (S, G)"
)
#: Tables of 7 and 2 rows: an index may count back, or name a row that is not there.
ROWS, OTHERS = 7, 2


def region(body: str, dtype: str, columns: int, indices: str = "int64") -> RegionSignature:
    """Return rows of W by I, one for each of b x s; of V by J, one for each of s, added."""
    inputs = (
        TensorSpec("W", dtype, (ROWS, columns)),
        TensorSpec("I", indices, ("b", "s")),
        TensorSpec("V", dtype, (OTHERS, columns)),
        TensorSpec("J", indices, (1, "s")),
        TensorSpec("G", dtype, (columns,)),
    )
    outputs = (
        TensorSpec("Y", dtype, ("b", "s", columns)),
        TensorSpec("S", dtype, ("b", "s", columns)),
    )
    names = ", ".join(item.name for item in inputs), ", ".join(output.name for output in outputs)
    text = f'<opset_import: ["" : 20]> f ({names[0]}) => ({names[1]}) {{ {body} }}'
    return RegionSignature("lookups", text, inputs, outputs)


def looked_up(table: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Return rows as CUDA's Gather has them: those that are not there hold zeros."""
    count = len(table)
    places = np.where(indices < 0, indices + count, indices)
    is_there = (places >= 0) & (places < count)
    found = table.astype(np.float64)[np.where(is_there, places, 0)]
    return np.asarray(np.where(is_there[..., None], found, 0.0))


def feeds_of(signature: RegionSignature, batch: int, length: int) -> list[np.ndarray]:
    """Return inputs; of the indices some count back, and some name no row."""
    random = np.random.default_rng(batch * 64 + length)
    columns = signature.inputs[0].shape[1]
    assert isinstance(columns, int)
    floats, integers = (numpy_dtype(signature.inputs[at].dtype) for at in (0, 1))
    tables = [
        random.standard_normal(shape).astype(floats)
        for shape in ((ROWS, columns), (OTHERS, columns), (columns,))
    ]
    first = random.integers(-ROWS - 2, ROWS + 2, (batch, length)).astype(integers)
    second = random.integers(-OTHERS, OTHERS, (1, length)).astype(integers)
    return [tables[0], first, tables[1], second, tables[2]]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("columns", [96, 33])
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (2, 16), (3, 21), (0, 5)])
def test_rows_are_looked_up_before_a_norm(
    interpreter: Interpreter, dtype: str, columns: int, batch: int, length: int
) -> None:
    signature = region(NORM, dtype, columns, "int32" if columns == 33 else "int64")
    feeds = feeds_of(signature, batch, length)
    total = looked_up(feeds[0], feeds[1]) + looked_up(feeds[2], feeds[3])
    centered = total - total.mean(-1, keepdims=True)
    wanted = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
    wanted = wanted * feeds[4].astype(np.float64)
    most = {"float16": 4e-3, "bfloat16": 4e-2, "float32": 2e-5}[dtype]
    for shift in (0, 4):
        found, sums = interpreter.run(signature, feeds, shift=shift)
        np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=most, atol=most)
        np.testing.assert_allclose(sums.astype(np.float64), total, rtol=most, atol=most)


def test_every_variant_looks_rows_up(interpreter: Interpreter) -> None:
    signature = region(NORM, "float16", 48)
    feeds = feeds_of(signature, 2, 16)
    sources = sources_of(signature)
    assert not isinstance(sources, Refused)
    results = [interpreter.run(signature, feeds, variant=n)[0] for n in range(len(sources))]
    assert len(results) > 1
    for result in results[1:]:
        np.testing.assert_array_equal(results[0], result)


def fixed(signature: RegionSignature, batch: int, length: int) -> RegionSignature:
    """Return a region with known sizes."""
    sizes = {"b": batch, "s": length}

    def known(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(
            replace(spec, shape=tuple(sizes.get(str(size), size) for size in spec.shape))
            for spec in specs
        )

    return replace(signature, inputs=known(signature.inputs), outputs=known(signature.outputs))


@pytest.mark.parametrize(
    ("length", "rows", "warps"), [(5, 1, 2), (63, 1, 2), (1024, 4, 4)]
)  # fmt: skip
def test_few_threads_have_many_rows(length: int, rows: int, warps: int) -> None:
    space = space_of(fixed(region(NORM, "float16", 768), 32, length))
    assert not isinstance(space, Refused)
    assert {(config.rows, config.warps) for config in configs_of(space) if config.is_aligned} == {
        (rows, warps)
    }


def test_blocks_of_more_rows_than_are_left(interpreter: Interpreter) -> None:
    signature = fixed(region(NORM, "float16", 48), 65, 67)
    space = space_of(signature)
    assert not isinstance(space, Refused)
    assert {config.rows for config in configs_of(space)} == {64}  # of 4,355
    feeds = feeds_of(signature, 65, 67)
    total = looked_up(feeds[0], feeds[1]) + looked_up(feeds[2], feeds[3])
    found = interpreter.run(signature, feeds)[1]
    np.testing.assert_allclose(found.astype(np.float64), total, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (NORM.replace("Q = Gather (V, J)", "N = Neg (V)  Q = Gather (N, J)"),
         "Gather of what the kernel computes"),
        (NORM.replace("Gather (W, I)", "Gather <axis = 1> (W, I)"), "Gather with other than"),
    ],
)  # fmt: skip
def test_other_tables_are_refused(body: str, reason: str) -> None:
    refused = sources_of(region(body, "float32", 96))
    assert isinstance(refused, Refused)
    assert reason in refused.reason


def test_kernels_for_cpus_look_no_rows_up() -> None:
    refused = TvmBackend().accepts(region(NORM, "float32", 96), Target("cpu"))
    assert isinstance(refused, Refused)
    assert "one constant index" in refused.reason
