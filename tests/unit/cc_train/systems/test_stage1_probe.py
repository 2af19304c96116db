"""The gate of stage 1: what it reads of an encoder, and of which pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cc_prep.errors import UserError
from cc_prep.models.vqgan import VQGAN
from cc_prep.records import Facts
from cc_prep.synth.facts import attributes as solid
from cc_prep.weights.registry import read_tensors
from cc_train.data import shard_index
from cc_train.evaluation.few_label_probe import CHANGED, FIGURES, Labels
from cc_train.systems.procap import stage1_probe
from cc_train.systems.procap.frame_features import FrameFeatures
from cc_train.systems.procap.procedure_encoder import Config, ProcedureEncoder
from cc_train.systems.procap.stage1_probe import Gate, ProbedPairs
from tests import shard_factory

SIZES = Config(width=64, layers=1, latent=6, codes=11, frames=3, rows=4, columns=4, text_length=4)
ATTRIBUTES = solid("red", "cube", "metal", "large", (0.4, 0.6))


@pytest.fixture(scope="module")
def encoder() -> ProcedureEncoder:
    torch.manual_seed(0)
    return ProcedureEncoder(SIZES, 0.02).eval()


def pairs(scenes: int, difference: float) -> ProbedPairs:
    """Noise; the last channel of one place differs by so much where something changed."""
    generator = torch.Generator().manual_seed(1)
    ends = 0.1 * torch.randn(2 * scenes, 2, 16, 6, generator=generator)
    ends[::2, 1, 9, 5] += difference
    tokens = torch.randint(0, 11, (2 * scenes, 2, 16), generator=generator)
    names = [f"{number // 2:03d}" for number in range(2 * scenes)]
    facts = [Facts("color", ATTRIBUTES, ATTRIBUTES), Facts("none")] * scenes
    return ProbedPairs(ends.half(), tokens, Labels.of(names, facts))


def test_readings_of_a_change_that_the_input_shows(encoder: ProcedureEncoder) -> None:
    figures = stage1_probe.measure(encoder, pairs(40, 2.0), counts=(15,), draws=2)
    assert list(figures) == [
        "input", "embedded input", "states", "states beside input",
        "surprise", "surprise beside input",
    ]  # fmt: skip
    assert figures["input"][15][CHANGED].value == 1
    assert figures["states beside input"][15][CHANGED].value > 0.9
    assert figures["surprise"][15][CHANGED].value < 0.9  # no training has taught it
    values = stage1_probe.logged(figures)
    assert len(values) == 6 * len(FIGURES)
    assert values["probe_15_changed_input"] == 1


def test_what_the_encoder_shows_less_of_is_behind_its_input(encoder: ProcedureEncoder) -> None:
    """An encoder that embeds everything alike has states without the change."""
    blind = ProcedureEncoder(SIZES, 0.02).eval()
    torch.nn.init.zeros_(blind.conv_to_embedding[1].weight)
    figures = stage1_probe.measure(blind, pairs(40, 2.0), counts=(15,), draws=2)
    states = figures["states"][15][CHANGED]
    assert states.value == pytest.approx(0.5)
    assert states.gain_interval[1] < 0


def test_surprise_is_that_of_what_is_hidden(encoder: ProcedureEncoder) -> None:
    """Keeps away: a token that is seen while it is predicted."""
    seen = pairs(2, 1.0)
    embedded = encoder.embed(seen.ends.float())
    with torch.inference_mode():
        before = stage1_probe.surprise(encoder, embedded, seen.tokens)
        embedded[:, 1, 5] += 3
        after = stage1_probe.surprise(encoder, embedded, seen.tokens)
        same = (before == after).all(0)
    quarter = [5, 7, 13, 15]  # of the second end; hidden together with place 5
    assert same[quarter, 1].all()
    assert same.float().mean() < 0.5  # of the others, which see it, some round to the same


def test_surprise_of_one_place_by_hand(encoder: ProcedureEncoder) -> None:
    seen = pairs(1, 1.0)
    with torch.inference_mode():
        embedded = encoder.embed(seen.ends.float())
        found = stage1_probe.surprise(encoder, embedded, seen.tokens)
        frames = torch.zeros(2, 3, 16, 6)
        frames[:, [0, 2]] = seen.ends.float()
        visible = torch.ones(3, 4, 4, dtype=torch.bool)
        visible[1] = visible[0, ::2, ::2] = False
        shown = encoder.frames(frames, visible.flatten().expand(2, -1))
        control = encoder.control(torch.zeros(2, 4, dtype=torch.long), related=False)
        states = encoder(control, shown)[:, control.shape[1] :]
        expected = F.cross_entropy(
            encoder.to_logits(states[:, 2]), seen.tokens[:, 0, 2], reduction="none"
        )
    assert found[:, 2, 0].numpy() == pytest.approx(expected.numpy(), abs=1e-5)


def test_a_validation_logs_gains_over_the_input(encoder: ProcedureEncoder) -> None:
    seen = pairs(40, 2.0)
    figures = stage1_probe.measure(encoder, seen, (15,), stage1_probe.VALIDATION_DRAWS)
    found = Gate(seen, 15)(encoder)
    assert len(found) == 2 * len(FIGURES)
    assert found["probe_type_states"] == figures["states beside input"][15]["type"].gain
    assert found["probe_changed_surprise"] == figures["surprise beside input"][15][CHANGED].gain


def test_a_probe_of_too_few_scenes_is_refused() -> None:
    with pytest.raises(UserError, match="40 scenes of the validation have facts"):
        Gate(pairs(40, 2.0), 21)


def test_pairs_of_shards(tmp_path: Path) -> None:
    pattern, vqgan = shard_factory.write_tokens(tmp_path, 3, facts=Facts("drop", ATTRIBUTES))
    codec = VQGAN.from_tensors(read_tensors(vqgan))[0]
    features = FrameFeatures(codec, "tokens")
    entries = shard_index.read([pattern])
    read = ProbedPairs.read(entries, features)
    assert read.ends.shape == (6, 2, 4, codec.config.code_width)
    first = entries[0].read().tokens[[0, -1]].reshape(2, -1)
    np.testing.assert_array_equal(read.tokens[0], first)
    assert read.labels.scenes.tolist() == [0, 0, 1, 1, 2, 2]
    assert read.labels.changed.all()
    assert read.labels.places[0, 0].tolist() == [0.4, 0.6]
    assert np.isnan(read.labels.places[:, 1]).all()


def test_pairs_without_facts_are_refused(tmp_path: Path) -> None:
    pattern, vqgan = shard_factory.write_tokens(tmp_path, 2)
    features = FrameFeatures(VQGAN.from_tensors(read_tensors(vqgan))[0], "tokens")
    with pytest.raises(UserError, match="says what truly changed"):
        ProbedPairs.read(shard_index.read([pattern]), features)
