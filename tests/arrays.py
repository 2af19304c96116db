"""Arrays as the members of a shard hold them."""

from __future__ import annotations

import io

import numpy as np


def npy(array: np.ndarray) -> bytes:
    """The bytes of a .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getvalue()
