"""Stage 1's passes, one by one: what they add up to is what they are together."""

from __future__ import annotations

import pytest
import torch

from cc_prep.models.vqgan import VQGAN
from cc_prep.models.vqgan import Config as Codec
from cc_train.systems.procap.frame_features import FrameFeatures
from cc_train.systems.procap.procedure_encoder import Config, ProcedureEncoder
from cc_train.systems.procap.stage1_objective import VARIANTS, Batch, Losses, Stage1Objective, sums

SIZES = Config(
    width=64, layers=2, latent=8, frames=3, rows=2, columns=2, text_length=6, text_vocabulary=20
)


@pytest.fixture
def encoder() -> ProcedureEncoder:
    torch.manual_seed(0)
    return ProcedureEncoder(SIZES).double()


def batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    frames = torch.randn(2, 2, 3, 4, 8, dtype=torch.float64, generator=generator)
    return Batch(
        text=torch.randint(1, 20, (2, 6), generator=generator),
        frames=frames[0],
        damaged=frames[1],
        tokens=torch.randint(0, SIZES.codes, (2, 12), generator=generator),
        visible=torch.rand(2, 12, generator=generator) < 0.4,
        negative_index=torch.tensor([1, 0]),
        negative_is_valid=torch.tensor([1.0, 0.0]),
    )


@pytest.mark.parametrize(
    "weights", [{}, {"align": 0.0}, {"consistency": 0.0}, {"reference_quirks": 1}]
)
def test_passes_one_by_one_add_up(encoder: ProcedureEncoder, weights: dict[str, float]) -> None:
    settings = Losses(**{n: bool(w) if n == "reference_quirks" else w for n, w in weights.items()})
    whole = sums(encoder, batch(), settings)
    torch.stack(list(whole.values())).sum().backward()
    expected = {name: p.grad for name, p in encoder.named_parameters()}
    assert expected["transformer.resblocks.0.attn.in_proj_weight"] is not None
    encoder.zero_grad()
    totals: dict[str, float] = {}
    for name in VARIANTS:
        if name not in whole and name != "true":
            continue
        part = sums(encoder, batch(), settings, [name])
        torch.stack(list(part.values())).sum().backward()
        for loss, value in part.items():
            totals[loss] = totals.get(loss, 0.0) + value.item()
    assert totals == pytest.approx({name: value.item() for name, value in whole.items()})
    for name, p in encoder.named_parameters():
        torch.testing.assert_close(p.grad, expected[name], msg=name)


def test_large_passes_go_one_by_one_on_a_processor_and_the_one_with_all_heads_last(
    encoder: ProcedureEncoder,
) -> None:
    features = FrameFeatures(VQGAN(Codec(channels=32, latent=8, code_width=8)), "tokens")
    raw = {"visible": batch().visible}
    for weights, expected in (
        (Losses(), ("align", "consistency", "true")),
        (Losses(align=0), ("consistency", "true")),
        (Losses(align=0, consistency=0), ("true",)),
    ):
        for most, chunks in ((1000, [expected]), (0, [(name,) for name in expected])):
            objective = Stage1Objective(
                encoder, features, weights, (), 0.0, "cpu", max_activation_mb=most
            )
            assert [chunk["variants"] for chunk in objective.chunks(raw)] == chunks
