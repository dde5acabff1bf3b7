"""Bodies of attention as text, for regions that attention's kernels compute."""

from __future__ import annotations

import numpy as np


def packed_rows_body(heads: int, width: int) -> str:
    """Return attention of the rows X0, each with Q, K and V, of the samples that P and M describe.

    P has the row of each position, I the position of each row, M is added to scores.
    """
    whole = attention_body(heads, heads, width, mask="M", packed=True)
    inner = whole.replace("(X0, SZ)", "(placed, SZ)").replace("Y = Reshape", "all = Reshape")
    columns = heads * width
    return "  ".join(
        [
            f"wide = Constant <value_ints = [-1, {3 * columns}]> ()",
            "flat = Reshape (X0, wide)",
            "placed = Gather <axis = 0> (flat, P)",
            inner,
            f"narrow = Constant <value_ints = [-1, {columns}]> ()",
            "rows = Reshape (all, narrow)",
            "Y = Gather <axis = 0> (rows, I)",
        ]
    )


def attention_body(
    heads: int,
    kv_heads: int,
    width: int,
    *,
    seen: str = "",
    mask: str = "",
    packed: bool = False,
    appended: bool = False,
) -> str:
    """Return attention of X0, X1 and X2 as Y.

    Args:
        heads: Of the query.
        kv_heads: Of keys and values.
        width: Of a head.
        seen: "first": query i sees keys up to i.
        mask: The name of a mask that is added.
        packed: Whether Q, K and V are columns of X0.
        appended: Whether keys and values go behind PK and PV, as GK and GV.
    """
    parts = []
    counts = (heads, kv_heads, kv_heads)
    names = ["X0", "X1", "X2"]
    if packed:
        names = ["P0", "P1", "P2"]
        sizes = ", ".join(str(count * width) for count in counts)
        parts.append(f"SZ = Constant <value_ints = [{sizes}]> ()")
        parts.append(f"{', '.join(names)} = Split <axis = 2> (X0, SZ)")
    for name, count, to in zip(names, counts, "QKV", strict=True):
        parts.append(f"{to}s = Constant <value_ints = [0, 0, {count}, {width}]> ()")
        parts.append(f"{to}r = Reshape ({name}, {to}s)")
        parts.append(f"{to} = Transpose <perm = [0, 2, 1, 3]> ({to}r)")
    scale, low = (int(np.array(item, np.float16).view(np.uint16)) for item in (0.125, -np.inf))
    keys, values = "K", "V"
    if appended:
        keys, values = "GK", "GV"
        parts += [f"G{name} = Concat <axis = 2> (P{name}, {name})" for name in "KV"]
    if heads != kv_heads:
        lying, (keys, values) = (keys, values), ("Kw", "Vw")
        parts.append("two = Constant <value_ints = [2]> ()")
        parts.append(f"ti = Constant <value_ints = [1, 1, {heads // kv_heads}, 1, 1]> ()")
        parts.append(f"to = Constant <value_ints = [0, {heads}, -1, {width}]> ()")
        for name, whole in zip("KV", lying, strict=True):
            parts.append(f"{name}u = Unsqueeze ({whole}, two)")
            parts.append(f"{name}t = Tile ({name}u, ti)")
            parts.append(f"{name}w = Reshape ({name}t, to)")
    parts += [
        f"f = Constant <value = float16 {{{scale}}}> ()",
        "Qf = Mul (Q, f)",
        f"Kx = Transpose <perm = [0, 1, 3, 2]> ({keys})",
        "S0 = MatMul (Qf, Kx)",
    ]
    scores = "S0"
    if mask:
        parts.append(f"S1 = Add (S0, {mask})")
        scores = "S1"
    if seen:
        parts += [
            "nq = Shape <start = 2, end = 3> (Q)",
            "nk = Shape <start = 3, end = 4> (Kx)",
            "nn = Concat <axis = 0> (nq, nk)",
            "ones = ConstantOfShape <value = bool[1] {1}> (nn)",
            "tri = Trilu <upper = 0> (ones)",
            f"low = Constant <value = float16 {{{low}}}> ()",
            f"S2 = Where (tri, {scores}, low)",
        ]
        scores = "S2"
    parts += [
        f"W = Softmax <axis = -1> ({scores})",
        f"O = MatMul (W, {values})",
        "Ot = Transpose <perm = [0, 2, 1, 3]> (O)",
        f"Os = Constant <value_ints = [0, 0, {heads * width}]> ()",
        "Y = Reshape (Ot, Os)",
    ]
    return "  ".join(parts)
