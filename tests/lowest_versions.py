"""Prints the lowest version of each dependency that pyproject.toml allows, as constraints.

`make test-lowest` installs these; `make setup` installs the pins of constraints.txt.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[^]]*\])?(?:>=([\w.]+))?(?:\s*(;.*))?")
NOT_TESTED = ("wandb", "mlflow", "trackio", "docs")  # extras; the tests have stand-ins for three


def lowest_versions(pyproject: str) -> list[str]:
    """A pin for each direct dependency of the package and of the extras that the tests need.

    Raises ValueError for a dependency without a lowest version.
    """
    project = tomllib.loads(pyproject)["project"]
    extras = project["optional-dependencies"].items()
    pins = []
    for text in [*project["dependencies"], *(r for name, rs in extras for r in rs
                                             if name not in NOT_TESTED)]:  # fmt: skip
        match = REQUIREMENT.fullmatch(text)
        if match is None or not (match[2] or match[1] == project["name"]):
            raise ValueError(f"{text}: give it a lowest version, as in name>=1.0")
        if match[2]:
            pins.append(f"{match[1]}=={match[2]} {match[3] or ''}".strip())
    return pins


if __name__ == "__main__":
    sys.stdout.write("\n".join(lowest_versions(PYPROJECT.read_text())) + "\n")
