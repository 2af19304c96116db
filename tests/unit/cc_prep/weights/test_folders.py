"""Models of transformers in folders: what is told of one that cannot be loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cc_prep.errors import UserError
from cc_prep.weights import folders


class Large:
    """A class of transformers whose model is larger than memory."""

    @staticmethod
    def from_pretrained(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes")


def test_too_little_memory_is_no_damage(tmp_path: Path) -> None:
    """Keeps away: "Give a folder that transformers reads" for a folder that is whole."""
    with pytest.raises(UserError, match=r"memory does not suffice for it .*Take a smaller model"):
        folders.pretrained(Large, tmp_path)
