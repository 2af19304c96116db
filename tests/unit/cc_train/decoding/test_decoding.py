"""Decoding with kept keys and values says what full recomputation says."""

from __future__ import annotations

import itertools

import pytest
import torch

from cc_train.decoding.cached_decoder import CachedDecoder
from cc_train.decoding.search import beam, greedy
from cc_train.layers.caption_decoder import CaptionDecoder, Config
from cc_train.text import BOS, EOS, PAD, UNK


def decoder(seed: int, words: int = 14, length: int = 9) -> CaptionDecoder:
    torch.manual_seed(seed)
    config = Config(words=words, width=16, heads=2, hidden=32, layers=2, length=length)
    network = CaptionDecoder(config).eval()
    network.out.weight.data.mul_(3)  # so that no two words are nearly as likely
    return network


def plain_greedy(network: CaptionDecoder, memory: torch.Tensor) -> torch.Tensor:
    """All positions computed anew for each word."""
    ids = torch.full((len(memory), network.config.length), PAD)
    ids[:, 0] = BOS
    for place in range(1, network.config.length):
        logits = network(ids[:, :place], memory)[:, -1].clone()
        logits[:, UNK] = -1e10
        ids[:, place] = logits.argmax(-1)
    return ids


@pytest.mark.parametrize("seed", range(6))
@torch.inference_mode()
def test_greedy_is_full_recomputation(seed: int) -> None:
    network, memory = decoder(seed), torch.randn(5, 7, 16)
    expected = plain_greedy(network, memory)
    assert (greedy(CachedDecoder(network), memory, stop=False) == expected).all()
    for decoded, whole in zip(greedy(CachedDecoder(network), memory), expected, strict=True):
        ended = (whole == EOS).nonzero()
        end = int(ended[0, 0]) + 1 if len(ended) else len(whole)
        assert (decoded[:end] == whole[:end]).all()
        assert (decoded[end:] == PAD).all()
    assert (expected != UNK).all()


@torch.inference_mode()
def test_greedy_ends_when_all_have_ended() -> None:
    """Keeps away: steps for sentences that are over."""
    network = decoder(0)
    network.out.bias.data[EOS] = 1e4
    steps = []
    speaking = CachedDecoder(network)
    plain = speaking.step

    def counted(*arguments: object) -> object:
        steps.append(arguments)
        return plain(*arguments)  # type: ignore[arg-type]

    speaking.step = counted  # type: ignore[method-assign, assignment]
    ids = greedy(speaking, torch.randn(3, 4, 16))
    assert ids[:, :3].tolist() == [[BOS, EOS, PAD]] * 3
    assert len(steps) == 1


@pytest.mark.parametrize("seed", range(4))
@torch.inference_mode()
def test_a_wide_beam_finds_the_best_of_all(seed: int) -> None:
    """Against every sentence there is, scored by full recomputation."""
    network, memory = decoder(seed, words=10, length=4), torch.randn(1, 5, 16)
    vocabulary = [word for word in range(10) if word != UNK]
    best = []
    for length in range(4):
        for words in itertools.product([w for w in vocabulary if w != EOS], repeat=length):
            ids = [BOS, *words, *([EOS] if length < 3 else [])]
            logits = network(torch.tensor([ids[:-1]]), memory)[0].clone()
            logits[:, UNK] = -torch.inf
            chances = logits.log_softmax(-1)
            score = sum(float(chances[i, word]) for i, word in enumerate(ids[1:]))
            best.append((score, list(words)))
    best.sort(reverse=True)
    [hypotheses] = beam(CachedDecoder(network), memory, width=400)
    for (score, words), one in zip(best[:5], hypotheses[:5], strict=True):
        assert one.ids == words
        assert one.score == pytest.approx(score, abs=1e-3)


@torch.inference_mode()
def test_a_beam_of_one_is_greedy() -> None:
    network, memory = decoder(3), torch.randn(4, 6, 16)
    for ids, [hypothesis] in zip(
        greedy(CachedDecoder(network), memory).tolist(),
        beam(CachedDecoder(network), memory, 1),
        strict=True,
    ):
        words = ids[1 : ids.index(EOS)] if EOS in ids else ids[1:]
        assert hypothesis.ids == words
