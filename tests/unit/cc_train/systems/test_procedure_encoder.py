"""The procedure encoder: its states at some positions are those of the whole sequence."""

from __future__ import annotations

import pytest
import torch

from cc_train.systems.procap.procedure_encoder import Config, ProcedureEncoder

SIZES = Config(
    width=64, layers=2, latent=8, frames=3, rows=2, columns=2, text_length=6, text_vocabulary=20,
    codes=16,
)  # fmt: skip


@pytest.mark.parametrize("reference_quirks", [False, True])
def test_states_at_the_frames_alone_are_those_of_the_whole_sequence(
    reference_quirks: bool,
) -> None:
    """Keeps away: a captioner that sees something else since the last block skips the text."""
    torch.manual_seed(0)
    encoder = ProcedureEncoder(SIZES)
    text = torch.zeros(3, SIZES.text_length, dtype=torch.long)
    frames = encoder.frames(torch.randn(3, 3, 4, 8))
    control = encoder.control(text, related=False, reference_quirks=reference_quirks)
    whole = encoder(control, frames, reference_quirks)[:, control.shape[1] :]
    alone = encoder.forward_frames(control, frames, reference_quirks)
    torch.testing.assert_close(alone, whole)
    parameters = list(encoder.transformer.parameters())
    weights = torch.randn_like(whole)
    expected = torch.autograd.grad((whole * weights).sum(), parameters, retain_graph=True)
    actual = torch.autograd.grad((alone * weights).sum(), parameters)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
