"""The versions that `make test-lowest` installs."""

from __future__ import annotations

import pytest

from tests.lowest_versions import PYPROJECT, lowest_versions

TEXT = """
[project]
name = "ours"
dependencies = ["a-b>=1.2; python_version < '3'", "c[x,y]>=3"]
[project.optional-dependencies]
dev = ["ours[docs]", "{last}"]
docs = ["unbound"]
"""


def test_each_dependency_has_its_lowest_version() -> None:
    """Keeps away: a version that is allowed and that nobody tried, by a requirement without one."""
    pins = ["a-b==1.2 ; python_version < '3'", "c==3", "d==4.5.6"]
    assert lowest_versions(TEXT.format(last="d>=4.5.6")) == pins
    for bad in ("d", "d<5", "d>=4,<5", "d==4"):
        with pytest.raises(ValueError, match=f"^{bad}: give it a lowest version"):
            lowest_versions(TEXT.format(last=bad))
    assert len(lowest_versions(PYPROJECT.read_text())) > 50
