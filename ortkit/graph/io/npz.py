"""Writing npz files: whole or not at all, and with any name of an array."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ortkit.graph.io.atomic import write_whole


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays as `numpy.savez` does, which takes none that is called `file`.

    Raises:
        UserError: The file cannot be written.
    """
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)
    write_whole(path, content.getbuffer())
