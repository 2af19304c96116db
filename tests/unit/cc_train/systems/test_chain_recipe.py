"""What the chain's recipe asks of shards and of runs to start from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from cc_prep.errors import UserError
from cc_train.data.shard_index import Entry
from cc_train.layers.frozen_backbone import FrozenBackbone
from cc_train.runs import stored_run
from cc_train.runs.stored_run import Run
from cc_train.systems.chain import recipe
from cc_train.text import MARKS, VOCABULARY, Vocabulary
from cc_train.training.task import TrainingRequest
from tests import network_factory, pair_factory


def entry(*classes: str) -> Entry:
    return Entry("a-000000-change", "a.tar", 0, 1, mask_classes=classes)


def test_classes_of_masks_are_those_of_all_shards() -> None:
    """Keeps away: pairs without masks that count as another list of classes."""
    two = entry("road", "building")
    assert recipe.mask_classes([entry(), two], [entry()]) == ["road", "building"]
    with pytest.raises(UserError, match="hold no masks"):
        recipe.mask_classes([entry(), entry()], [two])
    with pytest.raises(UserError, match="masks of other classes: change; road"):
        recipe.mask_classes([entry("change"), entry("road")], [])
    with pytest.raises(UserError, match="masks of other classes"):
        recipe.mask_classes([two], [entry("building", "road")])


def test_a_run_with_other_classes_is_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: roads and buildings that change places, which no shape of a tensor shows."""
    settings = {"mask_classes": ["road", "building"], "backbone": {}}
    monkeypatch.setattr(stored_run, "read", lambda path: Run(path, "chain", settings, {}, 1))
    about = {"mask_classes": ["building", "road"], "backbone": {}}
    with pytest.raises(UserError, match="tells road, building apart"):
        recipe._start_from(
            network_factory.chain(), tmp_path, recipe.Settings(), about, network_factory.WORDS
        )


def test_a_run_with_other_heads_is_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: attention that reads its weights in other parts, which no shape shows."""
    sections = {"encoder": {"heads": 2}, "decoder": {"heads": 4}, "backbone": {}}
    monkeypatch.setattr(stored_run, "read", lambda path: Run(path, "pair", sections, {}, 1))
    with pytest.raises(UserError, match=r"encoder\.heads=2, .* encoder\.heads=2"):
        recipe._start_from(
            network_factory.chain(),
            tmp_path,
            recipe.Settings(),
            {"backbone": {}},
            network_factory.WORDS,
        )


def test_words_that_a_frozen_decoder_would_never_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: own captions of which each new word is a random row for ever, by `pairs.yaml`."""
    known = Vocabulary([*MARKS, "the", "cube", "moved"])
    (tmp_path / VOCABULARY).write_bytes(known.files()[VOCABULARY])
    monkeypatch.setattr(stored_run, "read", lambda path: Run(path, "pair", {}, {}, 1))
    frozen = recipe.Settings.model_validate({"trunk_rate": 0})
    own = Vocabulary([*MARKS, "the", "house", "was", "built"])
    with pytest.raises(
        UserError, match=r"3 words that .* does not know \(house, was, built\)"
    ) as raised:
        recipe._start_from(network_factory.chain(), tmp_path, frozen, {}, own)
    assert f"Set trunk_rate=1, or vocabulary={tmp_path / VOCABULARY}, " in str(raised.value)
    with pytest.raises(KeyError, match="encoder"):  # it goes on to the next question
        recipe._start_from(network_factory.chain(), tmp_path, frozen, {}, known)


def test_a_contrast_over_micro_batches_is_refused_by_its_name() -> None:
    settings = recipe.Settings.model_validate({"loop": {"grad_accum_steps": 2}})
    with pytest.raises(UserError, match=r"Set losses\.contrast=0"):
        recipe.prepare(settings, TrainingRequest([], [], Path("run")))


def test_a_trunk_that_nothing_trained_is_not_left_as_it_is() -> None:
    """Keeps away: random encoder and decoder that never learn, by the settings of pairs.yaml."""
    settings = recipe.Settings.model_validate({"trunk_rate": 0})
    with pytest.raises(UserError, match="without --init they are random") as raised:
        recipe.prepare(settings, TrainingRequest([], [], Path("run")))
    assert "Give --init, such as captioner-mini, or set trunk_rate=1" in str(raised.value)


def test_a_run_of_another_system_is_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_run, "read", lambda path: Run(path, "scorer", {}, {}, 1))
    with pytest.raises(UserError, match="a run of scorer") as raised:
        recipe._start_from(
            network_factory.chain(), tmp_path, recipe.Settings(), {}, network_factory.WORDS
        )
    assert "Give one of pair or chain" in str(raised.value)


def test_what_a_pair_captioner_has_is_a_start_that_says_the_same() -> None:
    """Keeps away: regions that change the words of a captioner before anything was learned."""
    network = network_factory.chain(1).eval()
    look, regions = network.glance(network_factory.features()[:4])
    with torch.no_grad():
        seen = network.attended(look, regions)
    tokens = seen[:, look.tokens.shape[1] :]
    kinds = network.region_kinds
    expected = torch.cat((kinds[:1].expand(regions.tokens.shape[1], -1), kinds[1:]))
    assert torch.allclose(tokens, expected.expand_as(tokens)), "they hold nothing of the regions"


def test_a_captioner_knows_the_classes_of_its_masks() -> None:
    """Keeps away: masks that are scored against data whose class 1 is another one."""
    backbone = FrozenBackbone(nn.Identity(), pair_factory.BACKBONE)
    about = {
        "size": [16, 16],
        "mask_classes": ["road", "building"],
    }
    network = recipe.make(recipe.Settings(), about, network_factory.WORDS, backbone)
    assert network.inputs.mask_classes == ("road", "building")
