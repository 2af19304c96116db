"""`cc_prep.extras`: what a user without an extra is told, before anything is written."""

from __future__ import annotations

import sys

import pytest

from cc_prep import extras
from cc_prep.errors import UserError
from cc_prep.manifest import Changes, Entities
from cc_prep.manifest import load as load_manifest
from pipelines import job_weights


def test_a_missing_package_has_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a user who is sent to install `sklearn`, which is another package."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(UserError, match=r"x needs scikit-learn.*: pip install '\.\[mllm\]'"):
        extras.require("sklearn", "x")
    with pytest.raises(UserError, match=r"y needs no_such_module.*: pip install '\.\[hub\]'"):
        extras.require("no_such_module", "y", "hub")
    extras.require("json", "z")


@pytest.mark.parametrize(
    ("missing", "section", "value"),
    [
        ("sklearn", "changes", Changes()),
        ("transformers", "changes", Changes(segmenter="sam", weights="/x")),
        ("transformers", "entities", Entities(retriever="clip", weights="/x")),
    ],
)
def test_jobs_ask_before_they_start(
    monkeypatch: pytest.MonkeyPatch, missing: str, section: str, value: object
) -> None:
    """Keeps away: a job that writes its folder, and whose workers only then lack a package."""
    monkeypatch.setitem(sys.modules, missing, None)
    manifest = load_manifest("synth", []).model_copy(update={section: value})
    find = {"changes": job_weights.of_segmenter, "entities": job_weights.of_regions}[section]
    with pytest.raises(UserError, match="which is not installed"):
        find(manifest)
