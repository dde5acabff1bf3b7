"""Kernels for single nodes by op, instead of groups."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from ortkit.provider import bridge, native
from tests.provider.native_providers import (
    TRIPLE,
    Graph,
    TestProvider,
    floats,
    function_kernel,
    guarded,
    model,
    placed,
    registered,
    session,
    triple,
    unoptimized,
)


class Singles(TestProvider):
    """Kernels for ops by name, without groups."""

    name = "SinglesExecutionProvider"
    ops = (("Add", 7, 99, "sum_all"), ("Clip", 13, 99, "describe"))
    claims: Any = None

    def __init__(self) -> None:
        self.created: list[str] = []

    def creating(self, function: str) -> Any:
        def create(_user: int, _ep: int, request: Any, kernels: int, error: int) -> None:
            assert request.contents.info
            assert request.contents.api
            self.created.append(function)
            if function:
                native.set_kernel(kernels, 0, function_kernel(function), error)

        return bridge.CREATE_KERNEL(guarded(create))

    def extend(self, made: bridge.Provider) -> None:
        types = (ctypes.c_int32 * 2)(1, 7)
        constraint = bridge.TypeConstraint(b"T", 2, types)
        entries = [
            bridge.KernelEntry(
                b"", op.encode(), first, last, 1, ctypes.pointer(constraint),
                create=self.creating(function),
            )
            for op, first, last, function in self.ops
        ]  # fmt: skip
        made.kernel_count = len(entries)
        made.kernels = (bridge.KernelEntry * len(entries))(*entries)
        made.get_capability = bridge.GET_CAPABILITY()
        made.compile = bridge.COMPILE()
        if self.claims is not None:
            made.get_capability = bridge.GET_CAPABILITY(guarded(self.claims))


def test_kernels_by_op_run_single_nodes() -> None:
    provider = Singles()
    text = TRIPLE.replace("float[n, 4] y", "float[n, 4] y, float[n, 4] s")
    with registered(provider):
        made = session(model(text), provider.name, options=unoptimized())
        assert placed(made, provider.name) == [["Add"]]
        assert provider.created == ["sum_all"]
        feeds = floats("abc", 3, 4)
        y, s = made.run(["y", "s"], feeds)
        np.testing.assert_array_equal(y, triple(feeds))
        np.testing.assert_array_equal(s, feeds["a"] + feeds["b"])


def test_an_absent_input_is_told() -> None:
    """Clip without a minimum."""
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (int64[n, k] x, int64 m) => (int64[i, j] y) { y = Clip(x, , m) }"""
    provider = Singles()
    with registered(provider):
        made = session(model(text), provider.name, options=unoptimized())
        assert placed(made, provider.name) == [["Clip"]]
        feeds = {"x": np.ones((5, 2), np.int64), "m": np.array(3)}
        (found,) = made.run(None, feeds)
        np.testing.assert_array_equal(found[0], [7, 2, 5, 0, 64, 1])
        np.testing.assert_array_equal(found[1], [-1] * 6)
        np.testing.assert_array_equal(found[2], [7, 0, -1, 0, 64, 1])


def test_a_provider_with_kernels_may_choose_nodes() -> None:
    class Choosing(Singles):
        name = "ChoosingExecutionProvider"
        seen: tuple[object, ...] = ()

        def claims(self, _user: int, _ep: int, view: Any, groups: int, error: int) -> None:
            graph = Graph(view.contents)
            self.seen = tuple(native.has_kernel(groups, node, error) for node in graph.nodes)
            native.add_single(groups, graph.nodes[1], error)

    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[n] a, float[n] b) => (float[n] y) { s = Add(a, b) t = Add(s, b) y = Relu(t) }"""
    provider = Choosing()
    with registered(provider):
        made = session(model(text), provider.name, options=unoptimized())
        assert placed(made, provider.name) == [["Add"]]
        assert provider.seen == (True, True, False)
        feeds = floats("ab", 3)
        want = np.maximum(feeds["a"] + feeds["b"] + feeds["b"], 0)
        np.testing.assert_allclose(made.run(None, feeds)[0], want, rtol=1e-6)


def test_a_kernel_entry_must_make_a_kernel() -> None:
    provider = Singles()
    provider.ops = (("Add", 7, 99, ""),)
    with registered(provider), pytest.raises(Exception, match="Add: create made no kernel"):
        session(model(TRIPLE), provider.name, options=unoptimized())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"op_type": b""}, "kernel 0 names no op"),
        ({"create": bridge.CREATE_KERNEL()}, "the kernel for Add has no create"),
        ({"first_version": 0}, "the kernel for Add is for versions 0 to 99"),
        ({"last_version": 3}, "the kernel for Add is for versions 7 to 3"),
    ],
)
def test_what_a_kernel_entry_lacks(change: dict[str, Any], says: str) -> None:
    made = Singles().definition()
    for field, value in change.items():
        setattr(made.kernels[0], field, value)
    with pytest.raises(Exception, match=says):
        native.define("X", made)


def test_a_provider_must_be_able_to_claim_something() -> None:
    made = TestProvider().definition()
    made.get_capability = bridge.GET_CAPABILITY()
    with pytest.raises(Exception, match="neither get_capability nor kernels"):
        native.define("X", made)
