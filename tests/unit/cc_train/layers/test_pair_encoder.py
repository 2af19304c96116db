"""The pair encoder: what it sees of the backbone's features."""

from __future__ import annotations

import torch
from torch import Tensor

from cc_train.layers.pair_encoder import EncoderSettings, PairEncoder


def test_feature_dropout_leaves_out_whole_channels_in_training_alone() -> None:
    torch.manual_seed(0)
    encoder = PairEncoder((64, 2, 3), EncoderSettings(width=8, feature_dropout=0.5))
    seen: list[Tensor] = []
    encoder.adapter[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    features = torch.ones(4, 64, 2, 3)
    encoder.train().images(features)
    encoder.eval().images(features)
    trained, evaluated = seen
    assert torch.equal(evaluated, features)
    assert torch.equal(trained.amin((2, 3)), trained.amax((2, 3))), "a channel is whole or out"
    assert set(trained.unique().tolist()) == {0.0, 2.0}
    left_out = (trained[:, :, 0, 0] == 0).float().mean(1)
    assert left_out.min() > 0.2
    assert left_out.max() < 0.8
    assert not torch.equal(trained[0], trained[1]), "each image loses others"


def test_places_are_summaries_of_their_own() -> None:
    """Keeps away: "on the left" at chance, since positions are lost among the differences."""
    torch.manual_seed(0)
    encoder = PairEncoder((8, 3, 4), EncoderSettings(width=16, places=True)).eval()
    features = torch.randn(2, 2, 8, 3, 4)
    changes = encoder.changes(features)
    assert changes.summaries.shape == (2, encoder.summaries, 16) == (2, 9, 16)
    for number, logits in ((-2, changes.before), (-1, changes.after)):
        where = logits.softmax(1) @ encoder.position
        assert torch.allclose(changes.summaries[:, number], where, atol=1e-6)
    alike = torch.cdist(encoder.position, encoder.position) + torch.eye(12)
    assert alike.min() > 0.1, "each place is another"
    without = PairEncoder((8, 3, 4), EncoderSettings(width=16))
    assert without.changes(features).summaries.shape == (2, without.summaries, 16) == (2, 7, 16)
