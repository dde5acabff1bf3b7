"""Regions of one attention, and what they are in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ortkit.kernels.signature import RegionSignature, TensorSpec

Array = np.ndarray


@dataclass(frozen=True)
class Case:
    """A region: sizes as a signature has them, an attribute each."""

    queries: int | str = "s"
    keys: int | str = "t"
    batch: int | str = "b"
    heads: int = 2
    kv_heads: int = 2
    width: int = 32
    v_width: int = 32
    causal: bool = False
    stacked: bool = False
    scale: float | None = None
    mask: tuple[str, tuple[int | str, ...]] | None = None
    """Type and shape."""
    attributes: str = ""
    rounded: str = ""
    """The type of Q, K and V where they are rounded to bfloat16, or are bfloat16."""
    result: str = "float32"

    @property
    def signature(self) -> RegionSignature:
        """The region, its body the one node."""
        sizes = {
            "Q": (self.heads, self.queries, self.width),
            "K": (self.kv_heads, self.keys, self.width),
            "V": (self.kv_heads, self.keys, self.v_width),
            "Y": (self.heads, self.queries, self.v_width),
        }
        kinds = dict.fromkeys("QKV", self.rounded or "float32") | {"Y": self.result}
        q, k, v, y = (
            TensorSpec(name, kinds[name], self._shape(*of)) for name, of in sizes.items()
        )
        mask = () if self.mask is None else (TensorSpec("M", *self.mask),)
        names = ", ".join(spec.name for spec in (q, k, v, *mask))
        read = names if not self.rounded else ", ".join(["wQ", "wK", "wV"] + ["M"] * len(mask))
        body = f"Y = Attention <{self._attributes()}> ({read})".replace(" <>", "")
        if self.result == "bfloat16":
            body = f"{body.replace('Y', 'wY', 1)}  Y = Cast <to = 16> (wY)"
        for name in "QKV" if self.rounded else "":
            narrow = f"n{name}" if self.rounded == "float32" else name
            body = f"w{name} = Cast <to = 1> ({narrow})  {body}"
            if self.rounded == "float32":
                body = f"{narrow} = Cast <to = 16> ({name})  {body}"
        text = f'<opset_import: ["" : 23]> f ({names}) => (Y) {{ {body} }}'
        return RegionSignature("attention", text, (q, k, v, *mask), (y,))

    def _shape(self, heads: int, length: int | str, width: int) -> tuple[int | str, ...]:
        if self.stacked:
            return (self.batch, heads, length, width)
        return (self.batch, length, heads * width)

    def _attributes(self) -> str:
        heads = f"q_num_heads = {self.heads}, kv_num_heads = {self.kv_heads}"
        parts = [
            "" if self.stacked else heads,
            "is_causal = 1" if self.causal else "",
            "" if self.scale is None else f"scale = {self.scale}",
            self.attributes,
        ]
        return ", ".join(part for part in parts if part)

    def inputs(self, seed: int = 0, **sizes: int) -> dict[str, Array]:
        """Return random inputs; a bool mask lets four of five scores count."""
        rng = np.random.default_rng(seed)
        found: dict[str, Array] = {}
        for spec in self.signature.inputs:
            shape = [sizes[dim] if isinstance(dim, str) else dim for dim in spec.shape]
            if spec.dtype == "bool":
                found[spec.name] = rng.random(shape) < 0.8
            else:
                found[spec.name] = rng.standard_normal(shape).astype(np.float32)
        return found

    def exact(self, inputs: dict[str, Array]) -> Array:
        """Return softmax(scale Q K^T + mask) V in float64."""
        q, k, v = (self._heads(inputs[name], name) for name in "QKV")
        scale = self.width**-0.5 if self.scale is None else self.scale
        scores = q @ k.swapaxes(2, 3) * scale
        if (mask := inputs.get("M")) is not None:
            scores = scores + (np.where(mask, 0.0, -1e30) if mask.dtype == bool else mask)
        if self.causal:
            rows, columns = np.indices(scores.shape[2:])
            scores = np.where(columns <= rows, scores, -np.inf)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        result: Array = powers / powers.sum(-1, keepdims=True) @ v
        if self.stacked:
            return result
        return result.swapaxes(1, 2).reshape(result.shape[0], result.shape[2], -1)

    def _heads(self, tensor: Array, name: str) -> Array:
        tensor = tensor.astype(np.float64)
        count = self.heads if name == "Q" else self.kv_heads
        if not self.stacked:
            tensor = tensor.reshape(*tensor.shape[:2], count, -1).swapaxes(1, 2)
        return np.asarray(tensor.repeat(self.heads // count, 1))
