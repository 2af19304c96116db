"""The corpus of attack files takes minutes, so `make faults` alone gives it to the commands."""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("TRIES") else ["test_corpus.py"]
