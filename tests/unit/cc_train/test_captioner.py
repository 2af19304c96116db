"""What captioners of an encoder and a decoder share, and the parts that every system has."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cc_train import systems
from cc_train.captioner import EncoderDecoder, Inputs
from cc_train.decoding.next_word import Recomputing
from cc_train.text import BOS, EOS, MARKS, UNK, Vocabulary

WORDS = Vocabulary([*MARKS, "a", "b", "c"])
A, B, C = (WORDS.ids[word] for word in "abc")


class Counting(EncoderDecoder):
    """Says as many words as the first pixel counts, the last one rather c than [UNK]."""

    def __init__(self) -> None:
        super().__init__(Inputs((2, 2)), WORDS, 6)
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.decoders = 0

    def memory(self, before_after: Tensor) -> Tensor:
        return before_after[:, 0, 0, 0, 0].float()[:, None] + self.weight

    def logits(self, ids: Tensor, memory: Tensor) -> Tensor:
        scores = torch.full((*ids.shape, len(WORDS)), -10.0)
        for row, count in enumerate(memory[:, 0].long().tolist()):
            for place in range(ids.shape[1]):
                if place == count:
                    scores[row, place, EOS] = 5
                else:
                    word = (A, B, C)[place % 3]
                    scores[row, place, [word, UNK]] = torch.tensor([3.0, 4.0])
        return scores

    def next_word(self) -> Recomputing:
        self.decoders += 1
        return Recomputing(self.logits, self.length)


def pairs(*counts: int) -> Tensor:
    images = torch.zeros(len(counts), 2, 2, 2, 3, dtype=torch.uint8)
    images[:, 0, 0, 0, 0] = torch.tensor(counts)
    return images


def test_greedy_says_words_until_the_end_mark() -> None:
    captions = Counting().eval().caption(pairs(3, 0, 9))
    assert [one.text for one in captions] == ["a b c", "", "a b c a b"]
    assert all(one.beams == () and one.mask is None for one in captions)


@pytest.mark.parametrize("beams", [2, 3])
def test_beams_are_ranked_and_the_first_is_the_caption(beams: int) -> None:
    for caption, greedy in zip(
        Counting().eval().caption(pairs(2, 3), beams),
        Counting().eval().caption(pairs(2, 3)),
        strict=True,
    ):
        assert caption.text == greedy.text == caption.beams[0][0]
        scores = [score for _, score in caption.beams]
        assert scores == sorted(scores, reverse=True)
        assert len(caption.beams) == beams


def test_a_decoder_is_made_anew_when_weights_may_have_changed() -> None:
    """Keeps away: a validation that decodes with the weights of the one before."""
    network = Counting().eval()
    network.caption(pairs(1))
    network.caption(pairs(2))
    assert network.decoders == 1
    network.train()
    network.eval()
    network.caption(pairs(1))
    assert network.decoders == 2
    network.to("cpu")
    network.caption(pairs(1))
    assert network.decoders == 3
    network.load_state_dict(network.state_dict())
    network.caption(pairs(1))
    assert network.decoders == 4


def test_training_mode_is_refused() -> None:
    with pytest.raises(AssertionError, match="eval"):
        Counting().caption(pairs(1))


def test_forward_is_logits_of_memory() -> None:
    network = Counting()
    ids = torch.tensor([[BOS, A]])
    assert torch.equal(network(pairs(1), ids), network.logits(ids, network.memory(pairs(1))))


@pytest.mark.parametrize("name", systems.names())
def test_every_system_of_the_table_is_whole(name: str) -> None:
    """Keeps away: a command whose recipe lacks a part."""
    recipe = systems.recipe(name)
    assert recipe.Settings().loop.steps > 0
    assert callable(recipe.prepare)
    parts = [part for part in ("load", "card") if hasattr(recipe, part)]
    assert len(parts) <= 1


def test_registered_twice() -> None:
    with pytest.raises(AssertionError, match="vqgan"):
        systems.register(systems.get("vqgan"))
