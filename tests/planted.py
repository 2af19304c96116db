"""A pickle that leaves a file behind where it is executed."""

from __future__ import annotations

import os
from pathlib import Path


class Payload:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.mark}",)
