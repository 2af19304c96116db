"""The lowest version of each direct dependency that pyproject.toml allows, as constraints for pip.

`make test-lowest` installs them in an environment of their own. Prints one pin a line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import tomli
from packaging.requirements import Requirement

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
TESTED_EXTRAS = ("synth", "s3", "hub", "mllm", "dev")
