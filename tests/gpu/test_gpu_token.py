"""A decoder's products on a GPU: one row by our kernel, more by cuBLAS, beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import ortkit
from scripts.benches.cuda_decode import Decoder, feeds_of

LAYERS = 2
SMALL = Decoder("small", LAYERS, 512, 1024, 8, 2)
_NEAR = 5e-3


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ortkit.Optimized]]:
    pytest.importorskip("triton")
    path = tmp_path_factory.mktemp("decoder") / "decoder.onnx"
    onnx.save(SMALL.model(), path)
    yield path, ortkit.optimize(path, ortkit.OptimizeOptions(target="cuda", verify=False))


def logits(model: Path | ortkit.Optimized, rows: int, keys: int, **options: bool) -> np.ndarray:
    """The logits of new rows, with which a cache has `keys`."""
    feeds = FEEDS[rows, keys]
    share = {name: name.replace("past_key_values", "present") for name in feeds if "past" in name}
    with ortkit.Session(model, "cuda", **options) as session:
        bound = session.bind({name: feed.copy() for name, feed in feeds.items()}, share=share)
        for _ in range(3):
            found = bound.run()["logits"]
        return np.asarray(found, np.float64)


FEEDS = {(rows, keys): feeds_of(SMALL, rows, keys) for rows, keys in ((1, 40), (7, 9), (300, 300))}


def test_regions(models: tuple[Path, ortkit.Optimized]) -> None:
    kinds = [one.kind for one in models[1].report.regions if one.emitted_as is not None]
    # Q, K and V as one, what follows attention, and the last of a layer.
    assert kinds.count("product") >= 3 * LAYERS
    assert kinds.count("attention") == LAYERS


@pytest.mark.parametrize(("rows", "keys"), FEEDS)
def test_logits(rows: int, keys: int, models: tuple[Path, ortkit.Optimized]) -> None:
    want, got = (logits(model, rows, keys) for model in models)
    assert np.linalg.norm(got - want) <= _NEAR * np.linalg.norm(want)


def test_a_token_in_a_cuda_graph(models: tuple[Path, ortkit.Optimized]) -> None:
    want, got = (logits(model, 1, 40, cuda_graph=True) for model in models)
    assert np.linalg.norm(got - want) <= _NEAR * np.linalg.norm(want)
