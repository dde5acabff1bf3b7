"""The example of flash attention for Hopper: a user's kernel in Gluon, its blocks in numpy."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from interpreter import Interpreter
from test_triton_attention import MOST_STACK, stack_bytes

from ortkit.extend.declare.op import CustomOp
from ortkit.extend.declare.variants import Form, forms_of
from ortkit.extend.triton.kernels import sources_of_form
from ortkit.kernels.cuda import SHARED_BYTES
from ortkit.kernels.triton.build import compile_step
from tests.example_ops import example_ops

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


@pytest.fixture(scope="module")
def op() -> Iterator[CustomOp]:
    with example_ops() as declared:
        yield declared["FlashAttention"]


def form_of(op: CustomOp, dtype: str = "float16") -> Form:
    """The one that is for Hopper."""
    (form,) = [
        item
        for item in forms_of(op, [dtype], "cuda")
        if isinstance(item, Form) and item.declared is not None and item.declared.options.boxes
    ]
    return form


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("queries", "keys"), [(192, 256), (70, 129), (5, 1), (200, 700), (385, 128)]
)
def test_it_is_attention(op: CustomOp, interpreter: Interpreter, queries: int, keys: int) -> None:
    form = form_of(op)
    rng = np.random.default_rng(queries)
    q, k, v = (
        rng.standard_normal((1, 8, rows, 64)).astype(np.float16) for rows in (queries, keys, keys)
    )
    first = sources_of_form(form)[:1]
    (found,) = interpreter.run(form.signature, [q, k, v], sources=first)
    np.testing.assert_allclose(found.astype(np.float32), op(q, k, v).astype(np.float32), atol=2e-3)


def test_it_compiles_without_spills(op: CustomOp, tmp_path: Path) -> None:
    source, *others = sources_of_form(form_of(op))
    assert source.architectures == (90,)
    assert others and not any(other.architectures for other in others)
    made = compile_step(source.steps[0], 90, tmp_path)
    assert stack_bytes(made.cubin, tmp_path) <= MOST_STACK
    assert made.shared_bytes <= SHARED_BYTES[90]
    for instruction in ("wgmma.mma_async", "cp.async.bulk.tensor", "setmaxnreg"):
        assert instruction in made.ptx
