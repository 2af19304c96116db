"""What helps small captioners on small data: the mimetic start, and kept features."""

from __future__ import annotations

import pytest
import torch

from cc_prep.models.clip import Transformer
from cc_prep.models.vqgan import VQGAN, Config
from cc_train.layers import mimetic
from cc_train.systems.procap.frame_features import FrameFeatures


@pytest.fixture
def vqgan() -> VQGAN:
    torch.manual_seed(1)
    return VQGAN(
        Config(channels=32, multipliers=(1, 2), blocks=1, latent=8, codes=16, code_width=8)
    )


def images(count: int) -> torch.Tensor:
    return torch.rand(1, count, 3, 16, 16, generator=torch.Generator().manual_seed(count))


def test_attention_starts_by_subtracting_what_looks_alike() -> None:
    torch.manual_seed(0)
    transformer = Transformer(128, 1)
    mimetic.start(transformer)
    attention = transformer.resblocks[0].attn
    query, key, value = attention.in_proj_weight.detach().chunk(3)
    for head in range(2):
        part = slice(64 * head, 64 * (head + 1))
        look = query[part].T @ key[part]
        assert 0.3 < look.diagonal().mean() < 1.2
        assert look.fill_diagonal_(0).mean().abs() < 0.02
    mix = value.T @ attention.out_proj.weight.detach().T
    assert -0.5 < mix.diagonal().mean() < -0.3
    assert torch.linalg.matrix_rank(query[:64].T @ key[:64]) == 64


def test_a_changed_token_stands_out_before_any_training() -> None:
    """Two frames of the same eight tokens but one: the block moves that one most apart."""
    torch.manual_seed(0)
    transformer = Transformer(128, 1)
    mimetic.start(transformer)
    tokens = torch.randn(8, 128) * 3
    after = tokens.clone()
    after[5] = torch.randn(128) * 3
    with torch.inference_mode():
        attention = transformer.resblocks[0].attn
        both = torch.cat((tokens, after))[None]
        ratio = (both + 2 * attention(both))[0].norm(dim=-1) / both[0].norm(dim=-1)
    unchanged = torch.cat((ratio[:5], ratio[6:13], ratio[14:]))
    assert min(ratio[5], ratio[13]) > unchanged.mean()


def test_kept_features_are_those_of_each_image_alone(vqgan: VQGAN) -> None:
    plain, keeping = FrameFeatures(vqgan, "pixels"), FrameFeatures(vqgan, "pixels", cache_mb=1)
    frames = images(5)
    first = keeping(frames)
    alone = torch.stack([plain(frames[:, i : i + 1])[0, 0] for i in range(5)])[None]
    assert torch.equal(first, alone)
    assert torch.allclose(first, plain(frames), atol=1e-5)
    # In another order and another batch: the same bits, which is what a resumed run needs.
    order = [3, 0, 4]
    assert torch.equal(keeping(frames[:, order]), first[:, order])
    fresh = FrameFeatures(vqgan, "pixels", cache_mb=1)
    assert torch.equal(fresh(frames[:, order]), first[:, order])


def test_kept_features_are_not_computed_again(
    vqgan: VQGAN, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeping = FrameFeatures(vqgan, "pixels", cache_mb=1)
    frames = images(5)
    first = keeping(frames)
    monkeypatch.setattr(keeping.vqgan, "features", lambda images: pytest.fail("encoded again"))
    assert torch.equal(keeping(frames), first)


def test_kept_features_can_be_compiled_around(vqgan: VQGAN) -> None:
    features = FrameFeatures(vqgan, "pixels", cache_mb=1)
    compiled = torch.compile(lambda x: features(x) + 1, backend="eager")(images(3))
    expected = FrameFeatures(vqgan, "pixels")(images(3))
    assert torch.allclose(compiled - 1, expected, atol=1e-5)


def test_the_cache_stays_under_its_size(vqgan: VQGAN) -> None:
    keeping = FrameFeatures(vqgan, "pixels", cache_mb=1)
    [one] = keeping(images(1))[0]
    keeping.cache_mb = 20.5 * one.nbytes / 1e6  # type: ignore[assignment]
    for count in (7, 9, 11, 5):
        keeping(images(count))
        assert len(keeping._cache) <= 20
    assert len(keeping._cache) == 20
