"""Each data set has its question, and the user's own goes before it."""

from __future__ import annotations

import pytest

from cc_prep import manifest
from cc_prep.errors import UserError
from cc_prep.synth import parsing
from cc_train.baselines import prompts

# Of the manifests, those whose captions nobody knows; `pairs` may be rendered or photographs.
OWN = {"own", "video", "pairs"}


def test_every_data_set_of_the_manifests_is_asked_in_its_own_words() -> None:
    """Keeps away: a data set that is asked the default question, since nobody thought of it."""
    manifests = {manifest.load(name).name for name in manifest.names()}
    assert manifests - set(prompts.read().datasets) == OWN
    default = prompts.of(None)
    assert prompts.of("own") == default
    for dataset in prompts.read().datasets:
        assert prompts.of(dataset).prompt != default.prompt


def test_photographs_are_not_asked_about_cubes() -> None:
    """Keeps away: a question about rendered scenes, since photographs were built as `pairs`."""
    assert prompts.of("pairs") == prompts.of(None)
    assert prompts.of("pairs", rendered=True) == prompts.of("synth")
    assert prompts.of("levir", rendered=True) == prompts.of("levir")


def test_a_prompt_of_the_user_goes_before() -> None:
    wording = prompts.of("levir", " What is new? ")
    assert (wording.prompt, wording.before) == ("What is new?", prompts.of("levir").before)
    with pytest.raises(UserError, match="--prompt is empty"):
        prompts.of("levir", " ")


def test_the_sentence_for_unchanged_scenes_is_understood() -> None:
    """Keeps away: a model that does as it was told, and is judged to say nothing of the change."""
    quoted = prompts.of("synth").prompt.split('"')[1]
    assert parsing.parse(quoted).type == parsing.UNCHANGED
