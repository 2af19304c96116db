"""A decoder with cached keys and values says what full recomputation says, word by word."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from cc_prep.models import cpu
from cc_train.decoding.cached_attention import CrossAttention, KVCache
from cc_train.decoding.cached_decoder import CachedDecoder
from cc_train.decoding.search import beam, greedy
from cc_train.layers.caption_decoder import CaptionDecoder, DecoderSettings, Norm
from cc_train.text import BOS, EOS, PAD, UNK


@pytest.fixture(params=[True, False], ids=["oneDNN", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With oneDNN's products and without."""
    if not request.param:
        monkeypatch.setattr(cpu, "has_onednn", lambda: False)


PUBLISHED = DecoderSettings(width=512, heads=8, hidden=2048)
SMALL = DecoderSettings(width=8, heads=2, hidden=16, layers=2, length=5)


def seeded_decoder(words: int, sizes: DecoderSettings, quirks: bool = False) -> CaptionDecoder:
    torch.manual_seed(0)
    decoder = CaptionDecoder(words, sizes, quirks).eval()
    for name, parameter in decoder.named_parameters():
        if parameter.ndim == 1:  # biases and norms that do something
            parameter.data.add_(0.3 * torch.randn_like(parameter)).add_(name.endswith("beta"))
    return decoder


def stepwise_logits(
    decoder: CachedDecoder, ids: torch.Tensor, memory: torch.Tensor
) -> torch.Tensor:
    """Logits [B, L, words] of ids [B, L], one after the other."""
    past = decoder.start(memory)
    return torch.stack([decoder.step(one, memory, past) for one in ids.unbind(1)], dim=1)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("bias", [False, True])
@torch.inference_mode()
def test_scores_of_the_memory_are_those_before_the_softmax(bias: bool) -> None:
    """Keeps away: maps of what a word looked at, without what the keys' biases add."""
    torch.manual_seed(0)
    query, key, value = (nn.Linear(8, 8, bias=bias) for _ in range(3))
    attention = CrossAttention(query, key, value, heads=2, scale=0.7)
    x, memory = torch.randn(3, 8), torch.randn(3, 5, 8)
    queries, keys, values = query(x), key(memory), value(memory)
    scores = 0.7 * torch.einsum(
        "bhd,bnhd->bhn", queries.view(3, 2, 4), keys.view(3, 5, 2, 4)
    )  # fmt: skip
    mixed = torch.einsum("bhn,bnhd->bhd", scores.softmax(2), values.view(3, 5, 2, 4)).flatten(1)
    gathered, looked = attention.with_scores(x, memory)
    assert torch.allclose(looked, scores.mean(1), atol=1e-5)
    assert torch.allclose(gathered, mixed, atol=1e-5)
    assert torch.allclose(attention(x, memory), mixed, atol=1e-5)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("quirks", [False, True])
@torch.inference_mode()
def test_the_logits_of_each_word_at_the_reference_s_sizes(quirks: bool) -> None:
    decoder = seeded_decoder(80, PUBLISHED, quirks)
    ids, memory = torch.randint(0, 80, (3, 24)), torch.randn(3, 784, 512)
    expected = decoder(ids, memory)
    assert torch.allclose(stepwise_logits(CachedDecoder(decoder), ids, memory), expected, atol=1e-3)
    assert expected.std() > 0.1


@given(
    heads=st.integers(1, 3),
    half=st.integers(4, 8),
    layers=st.integers(1, 3),
    sentences=st.integers(1, 4),
    length=st.integers(3, 6),
    tokens=st.integers(1, 9),
    quirks=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_of_every_size(
    heads: int, half: int, layers: int, sentences: int, length: int, tokens: int, quirks: bool
) -> None:
    width = 2 * half * heads
    hidden = 2 * width + 1
    sizes = DecoderSettings(width=width, heads=heads, hidden=hidden, layers=layers, length=length)
    decoder = seeded_decoder(7, sizes, quirks)
    ids, memory = torch.randint(0, 7, (sentences, length)), torch.randn(sentences, tokens, width)
    with torch.inference_mode():
        expected = decoder(ids, memory)
        assert torch.allclose(
            stepwise_logits(CachedDecoder(decoder), ids, memory), expected, atol=1e-4
        )


def test_some_of_the_sentences_go_on() -> None:
    """As beam search needs it: any of them, in any order, more than once."""
    decoder = seeded_decoder(11, SMALL)
    ids, memory = torch.randint(0, 11, (3, 5)), torch.randn(1, 6, 8).expand(3, -1, -1)
    speaking, rows = CachedDecoder(decoder), torch.tensor([2, 0, 0, 1])
    past = speaking.start(memory)
    for place in range(3):
        speaking.step(ids[:, place], memory, past)
    past, expected = past.select(rows), decoder(ids[rows], memory[:1].expand(4, -1, -1))
    assert isinstance(past, KVCache)
    logits = speaking.step(ids[rows, 3], memory[:1].expand(4, -1, -1), past)
    assert torch.allclose(logits, expected[:, 3], atol=1e-4)


def test_it_has_no_dropout_and_the_weights_of_its_making() -> None:
    """Keeps away: a validation that is of an earlier step's weights."""
    decoder = seeded_decoder(11, SMALL.model_copy(update={"dropout": 0.5}))
    ids, memory = torch.randint(0, 11, (2, 5)), torch.randn(2, 6, 8)
    before, speaking = decoder(ids, memory), CachedDecoder(decoder.train())
    assert torch.allclose(stepwise_logits(speaking, ids, memory), before, atol=1e-4)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(1.5)
    after = decoder.eval()(ids, memory)
    assert not torch.allclose(before, after, atol=1e-2)
    assert torch.allclose(stepwise_logits(CachedDecoder(decoder), ids, memory), after, atol=1e-4)


@given(st.integers(2, 40), st.integers(1, 5), st.floats(1e-3, 1e3))
def test_the_reference_s_norm_divides_by_the_unbiased_deviation(
    width: int, rows: int, scale: float
) -> None:
    norm = Norm(width, reference_quirks=True).double()
    for parameter in norm.parameters():
        parameter.data.normal_()
    x = (scale * torch.randn(rows, width, dtype=torch.float64) + 3).requires_grad_()
    std, mean = torch.std_mean(x, dim=-1, keepdim=True)
    expected = norm.gamma * (x - mean) / (std + 1e-6) + norm.beta
    normalized = norm(x)
    assert torch.allclose(normalized, expected)
    seeds = torch.randn_like(normalized)
    for mine, theirs in zip(
        torch.autograd.grad(normalized, x, seeds, retain_graph=True),
        torch.autograd.grad(expected, x, seeds),
        strict=True,
    ):
        assert torch.allclose(mine, theirs)


@pytest.mark.parametrize("quirks", [False, True])
def test_the_norm_of_a_constant_is_its_shift(quirks: bool) -> None:
    norm, x = Norm(4, quirks), torch.full((1, 4), 2.0, requires_grad=True)
    norm.beta.data.normal_()
    normalized = norm(x)
    assert torch.equal(normalized[0], norm.beta)
    normalized.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def small_decoder(seed: int, words: int = 14, length: int = 9) -> CaptionDecoder:
    torch.manual_seed(seed)
    sizes = DecoderSettings(width=16, heads=2, hidden=32, layers=2, length=length)
    network = CaptionDecoder(words, sizes).eval()
    network.out.weight.data.mul_(3)  # so that no two words are nearly as likely
    return network


def plain_greedy(network: CaptionDecoder, memory: torch.Tensor) -> torch.Tensor:
    """All positions computed anew for each word."""
    ids = torch.full((len(memory), network.sizes.length), PAD)
    ids[:, 0] = BOS
    for place in range(1, network.sizes.length):
        logits = network(ids[:, :place], memory)[:, -1].clone()
        logits[:, UNK] = -1e10
        ids[:, place] = logits.argmax(-1)
    return ids


@pytest.mark.parametrize("seed", range(6))
@torch.inference_mode()
def test_greedy_is_full_recomputation(seed: int) -> None:
    network, memory = small_decoder(seed), torch.randn(5, 7, 16)
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
    network = small_decoder(0)
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
    network, memory = small_decoder(seed, words=10, length=4), torch.randn(1, 5, 16)
    vocabulary = [word for word in range(10) if word != UNK]
    best = []
    for length in range(4):
        sentences = list(itertools.product([w for w in vocabulary if w != EOS], repeat=length))
        ids = torch.tensor([[BOS, *s, *([EOS] if length < 3 else [])] for s in sentences])
        logits = network(ids[:, :-1], memory.expand(len(ids), -1, -1)).clone()
        logits[:, :, UNK] = -torch.inf
        scores = logits.log_softmax(-1).gather(2, ids[:, 1:, None]).sum((1, 2))
        best += zip(scores.tolist(), map(list, sentences), strict=True)
    best.sort(reverse=True)
    [hypotheses] = beam(CachedDecoder(network), memory, width=400)
    for (score, words), one in zip(best[:5], hypotheses[:5], strict=True):
        assert one.ids == words
        assert one.score == pytest.approx(score, abs=1e-3)


@torch.inference_mode()
def test_a_beam_of_one_is_greedy() -> None:
    network, memory = small_decoder(3), torch.randn(4, 6, 16)
    for ids, [hypothesis] in zip(
        greedy(CachedDecoder(network), memory).tolist(),
        beam(CachedDecoder(network), memory, 1),
        strict=True,
    ):
        words = ids[1 : ids.index(EOS)] if EOS in ids else ids[1:]
        assert hypothesis.ids == words


@torch.inference_mode()
def test_beams_of_several_pairs_are_those_of_each_alone() -> None:
    """Keeps away: keys, values or memory of another pair, once some searches have ended."""
    network, memory = small_decoder(5), 3 * torch.randn(6, 7, 16)
    network.out.bias.data[EOS] = 2.0  # so that they end at different places
    together = beam(CachedDecoder(network), memory, 3)
    assert len({len(one[0].ids) for one in together}) > 1
    for one, memory_of_one in zip(together, memory, strict=True):
        [alone] = beam(CachedDecoder(network), memory_of_one[None], 3)
        assert [h.ids for h in one] == [h.ids for h in alone]
        assert [h.score for h in one] == pytest.approx([h.score for h in alone], abs=1e-4)
