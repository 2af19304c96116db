"""A pair captioner with a map of changes learns to say several, and reads its map rightly."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cc_prep.records import Facts
from cc_train.data.ordered_pairs import OrderedPairBatches
from cc_train.data.supervision import SOLIDS
from cc_train.evaluation.rendered.change_scores import Matched
from cc_train.evaluation.rendered.fact_scores import judge
from cc_train.layers.caption_decoder import DecoderSettings
from cc_train.layers.change_map import ChangeMapSettings, peaks
from cc_train.layers.frozen_backbone import FrozenBackbone
from cc_train.layers.pair_encoder import EncoderSettings
from cc_train.runs import stored_run
from cc_train.sharing import hub
from cc_train.systems.pair import recipe
from cc_train.systems.pair.objective import Losses, PairObjective
from cc_train.systems.pair.several import SeveralCaptioner
from cc_train.text import Vocabulary
from tests import pair_factory
from tests.overfitting import Learning, overfit

SAMPLES = [sample for number in range(16) for sample in pair_factory.several(number)]
WORDS = Vocabulary.of([sample.meta["captions"][0] for sample in SAMPLES], 1)
ENCODER = EncoderSettings(width=48, heads=4, dropout=0.0)
DECODER = DecoderSettings(width=48, heads=4, hidden=96, layers=1, length=12, dropout=0.0)
MAP = ChangeMapSettings(layers=1, dropout=0.0)
GOAL = 0.95  # F1


def objective(seed: int = 0, weights: Losses | None = None) -> PairObjective:
    torch.manual_seed(seed)
    backbone = FrozenBackbone(nn.Identity(), pair_factory.BACKBONE)
    network = SeveralCaptioner(backbone, (32, 32), ENCODER, DECODER, WORDS, True, MAP)
    return PairObjective(network, lambda captioner: {}, weights or Losses(), 0.0, 0.0, "cpu")


def learn(seed: int = 0) -> Learning:
    """Until the F1 of the changes of the 32 pairs is high."""
    one = objective(seed)
    make = OrderedPairBatches(WORDS, 12, 2, pair_factory.SOURCE, changes=True)

    def is_learned(losses: dict[str, float]) -> bool:
        assert isinstance(one.network, SeveralCaptioner)
        return said_right(one.network).f1 >= GOAL

    def batches() -> Iterator[dict[str, Any]]:
        for step in itertools.count():
            yield make(SAMPLES, list(np.random.default_rng([seed, step]).spawn(len(SAMPLES))))

    return overfit(one, batches(), 400, 3e-3, is_learned)


def said_right(network: SeveralCaptioner) -> Matched:
    features = np.stack([sample.features.values for sample in SAMPLES])  # type: ignore[union-attr]
    spoken = network.eval().caption(torch.from_numpy(features))
    verdicts = [
        judge(one.text, Facts.from_json(sample.meta["facts"]), ())
        for one, sample in zip(spoken, SAMPLES, strict=True)
    ]
    return sum((verdict.changes for verdict in verdicts), Matched(0, 0, 0))


def test_it_learns_to_say_two_changes() -> None:
    """Keeps away: a loss that is wired to the wrong pair, place, class or image."""
    assert learn().is_done


@pytest.mark.parametrize("name", ["changes", "attributes", "location", "new_color"])
def test_each_loss_of_the_map_is_left_out_by_its_weight(name: str) -> None:
    make = OrderedPairBatches(WORDS, 12, 2, pair_factory.SOURCE, changes=True)
    batch = make(SAMPLES, list(np.random.default_rng(0).spawn(len(SAMPLES))))
    totals = {}
    for weight in (0.0, 1.0):
        values = dict.fromkeys(Losses.model_fields, 0.0) | {name: weight}
        one = objective(weights=Losses(**values))
        counts = {n: v.clamp(min=1) for n, v in one.denominators(batch).items()}
        totals[weight] = one.losses("model", batch, 0, counts)["total"].item()
    assert totals[0.0] == 0
    assert totals[1.0] > 0


def chances(*cells: tuple[int, int, str, float]) -> torch.Tensor:
    """A map of 6 × 6 places: row, column, type and chance."""
    values = torch.zeros(6, 6, len(SOLIDS.types))
    for row, column, kind, chance in cells:
        values[row, column, SOLIDS.types.index(kind)] = chance
    return values.flatten(0, 1)


def test_a_centre_on_a_border_is_one_change() -> None:
    """Keeps away: an object between two places that is said twice, or not at all."""
    split = chances((2, 2, "move", 0.45), (2, 3, "move", 0.4), (5, 0, "drop", 0.3))
    [found], left = peaks(split, (6, 6), 0.5)
    assert SOLIDS.types[found.type] == "move"
    assert 2 / 6 < found.place[0] < 4 / 6
    assert np.isclose(found.place[1], 2.5 / 6)
    assert np.isclose(left, 0.3)


def test_neighbouring_objects_are_two_changes() -> None:
    near = chances((2, 2, "move", 0.9), (3, 3, "drop", 0.95))
    found, _ = peaks(near, (6, 6), 0.5)
    assert sorted(SOLIDS.types[one.type] for one in found) == ["drop", "move"]
    assert peaks(chances(), (6, 6), 0.5) == ([], 0.0)


def test_captioner_mini_gets_a_map_that_comes_back() -> None:
    """Keeps away: a start that refuses its map, and a run that is read back without it."""
    mini = stored_run.read(hub.locate("captioner-mini"))
    sections = {"changes": {"layers": 1}}
    about = {**mini.settings, "decoder": {**mini.settings["decoder"], **sections}}
    run = replace(mini, settings=about)
    network = recipe._untrained(run)
    assert isinstance(network, SeveralCaptioner)
    assert isinstance(network.codec, Vocabulary)
    settings = stored_run.settings_of(run, recipe.Settings)
    learned = recipe._learned(mini, settings, network, network.codec)
    network.load_state_dict(learned)
    read = recipe.load(replace(run, tensors=learned), "cpu")
    assert isinstance(read, SeveralCaptioner)
    pixels = np.random.default_rng(0).integers(0, 256, (1, 2, 112, 112, 3), np.uint8)
    pairs = torch.from_numpy(pixels)
    one, other = (captioner.eval().caption(pairs)[0] for captioner in (network, read))
    assert (one.text, one.score) == (other.text, other.score)
    assert one.text == "nothing changed", "a new map sees no change"
    plain = recipe.load(replace(mini, tensors=mini.tensors), "cpu")
    assert not isinstance(plain, SeveralCaptioner)
