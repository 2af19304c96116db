"""Training on captions: what is counted, what the loss is divided by, and what learns how fast."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cc_prep.models.vqgan import VQGAN
from cc_prep.models.vqgan import Config as Codec
from cc_train.layers.caption_loss import caption_loss
from cc_train.systems.procap import stage2_objective
from cc_train.systems.procap.captioner import ComparisonSettings, Decoder, ProCap
from cc_train.systems.procap.frame_features import FrameFeatures
from cc_train.systems.procap.procedure_encoder import Config, ProcedureEncoder
from cc_train.systems.procap.stage2_objective import UNUSED, Stage2Objective, _seen
from cc_train.text import BOS, EOS, MARKS, PAD, Vocabulary
from cc_train.training import fact_losses
from cc_train.training.caption_objective import CaptionObjective
from cc_train.training.fact_losses import FactLosses

WORDS = Vocabulary([*MARKS, "a", "b", "c"])


def network(**more: Any) -> ProCap:
    torch.manual_seed(0)
    sizes = Config(
        width=64, layers=1, latent=8, frames=3, rows=2, columns=2, text_length=4,
        text_vocabulary=20, codes=16,
    )  # fmt: skip
    codec = VQGAN(Codec(channels=32, multipliers=(1, 1), latent=8, codes=16, code_width=8)).eval()
    decoder = Decoder(width=16, heads=2, hidden=16, layers=1, length=6, dropout=0.0)
    return ProCap(
        ProcedureEncoder(sizes),
        decoder,
        features=FrameFeatures(codec, "tokens"),
        codec=WORDS,
        **more,
    ).eval()


def objective(
    captioner: ProCap, freeze: bool = False, decay_norms: bool = False, smoothing: float = 0.1
) -> Stage2Objective:
    return Stage2Objective(
        captioner,
        lambda one: {"CIDEr": 1.0},
        label_smoothing=smoothing,
        weight_decay=0.5,
        device="cpu",
        encoder_lr_scale=0.25,
        freeze=freeze,
        decay_norms=decay_norms,
    )


def batch() -> dict[str, Tensor]:
    """Captions of two and of four words."""
    encoded = [WORDS.encode(caption, 6) for caption in ("a b", "c b a c")]
    ids, labels = (torch.from_numpy(np.stack(part)) for part in zip(*encoded, strict=True))
    tokens = torch.arange(16).view(2, 2, 4) % 8
    return {"before_after": tokens, "ids": ids, "labels": labels}


def test_captions_and_words_are_counted() -> None:
    """Keeps away: an accuracy over padding, and a loss that is divided by words."""
    one = batch()
    assert one["ids"][0].tolist() == [BOS, *(WORDS.ids[w] for w in "ab"), EOS, PAD, PAD]
    counts = objective(network()).denominators(one)
    assert {name: int(value) for name, value in counts.items()} == {"captions": 2, "words": 3 + 5}


@torch.inference_mode()
def test_the_loss_is_divided_by_captions_and_the_accuracy_by_words() -> None:
    captioner, one = network(), batch()
    task = objective(captioner, smoothing=0.2)
    logits = captioner(one["before_after"], one["ids"])
    one["labels"][1, :3] = logits[1, :3].argmax(-1)  # three words that are right
    [chunk] = task.chunks(one)
    losses = task.losses("model", chunk, 0, task.denominators(one))
    expected = caption_loss(logits, one["labels"], 0.2).item() / 2
    assert losses["total"].item() == pytest.approx(expected, rel=1e-5)
    right = sum(
        int(logits[i, j].argmax() == one["labels"][i, j]) for i, n in ((0, 3), (1, 5))
        for j in range(n)
    )  # fmt: skip
    assert right >= 3
    assert losses["word_accuracy"].item() == pytest.approx(right / 8)


@torch.inference_mode()
def test_any_captioner_has_the_same_loss() -> None:
    captioner, one = network(), batch()
    counts = {"captions": torch.tensor(2), "words": torch.tensor(8)}
    plain = CaptionObjective(captioner, lambda one: {}, 0.2, 0.5, "cpu")
    known = objective(captioner, smoothing=0.2)
    [chunk] = known.chunks(one)
    for name, value in known.losses("model", chunk, 0, counts).items():
        assert plain.losses("model", one, 0, counts)[name].item() == pytest.approx(value.item())


@torch.inference_mode()
def test_a_comparison_learns_without_facts() -> None:
    captioner, one = network(comparison=ComparisonSettings()), batch()
    task = objective(captioner)
    [chunk] = task.chunks(one)
    assert task.losses("model", chunk, 0, task.denominators(one)).keys() == {
        "total", "word_accuracy"
    }  # fmt: skip


@torch.inference_mode()
def test_ordered_pairs_are_pairs_of_their_images() -> None:
    """Keeps away: a caption of the reverse order, or of another pair that shares an image."""
    captioner, pairs = network(comparison=ComparisonSettings()), batch()
    task, counts = objective(captioner), objective(captioner).denominators(pairs)
    images = torch.randint(0, 16, (3, 4), generator=torch.Generator().manual_seed(0))
    first, second = torch.tensor([2, 0]), torch.tensor([0, 1])
    pairs["before_after"] = torch.stack((images[first], images[second]), dim=1)
    ordered = {n: value for n, value in pairs.items() if n != "before_after"}
    ordered |= {"features": images, "first": first, "second": second}
    [expected], [chunk] = task.chunks(pairs), task.chunks(ordered)
    assert chunk["frames"].shape == (3, *expected["frames"].shape[2:])
    for name, value in task.losses("model", expected, 0, counts).items():
        assert task.losses("model", chunk, 0, counts)[name].item() == pytest.approx(value.item())


@torch.inference_mode()
def test_facts_add_to_the_loss_of_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: facts that are unlearned, and captions that weigh as much as their words."""
    captioner, one = network(comparison=ComparisonSettings()), batch()
    plain, task = objective(captioner), objective(captioner)
    counts = plain.denominators(one)
    [chunk] = plain.chunks(one)
    loss = plain.losses("model", chunk, 0, counts)["total"] * counts["captions"]
    task.facts = FactLosses()
    monkeypatch.setattr(stage2_objective, "_seen", lambda batch: {})
    monkeypatch.setattr(fact_losses, "losses", lambda *_: {"type": torch.tensor(3.0)})
    monkeypatch.setattr(FactLosses, "total", lambda *_: torch.tensor(2.0))
    losses = task.losses("model", chunk, 0, counts)
    caption = loss.item() / counts["words"].item()
    assert losses["caption"].item() == pytest.approx(caption)
    assert losses["total"].item() == pytest.approx(caption + 2)
    assert losses["type"].item() == 3


def test_facts_come_with_each_pair_that_shows_an_image() -> None:
    """Keeps away: objects of another image, as three images are shown in four places."""
    objects = torch.tensor([0, 1, 1, 2])
    known = {
        "facts": torch.tensor([[7]]),
        "places": torch.tensor([[8]]),
        "object_image": objects,
        "object_location": torch.arange(4),
        "object_attributes": 10 * torch.arange(4),
        "centres": torch.tensor([5, 6, 7]),
        "has_objects": torch.tensor([True, False, True]),
    }
    seen = _seen({**known, "first": torch.tensor([0, 1]), "second": torch.tensor([1, 2])})
    assert {name: value.tolist() for name, value in seen.items()} == {
        "facts": [[7]],
        "places": [[8]],
        "object_image": [0, 1, 1, 2, 2, 3],
        "object_location": [0, 1, 2, 1, 2, 3],
        "object_attributes": [0, 10, 20, 10, 20, 30],
        "centres": [5, 6, 6, 7],
        "has_objects": [True, False, False, True],
    }


@pytest.mark.parametrize("freeze", [False, True])
def test_what_learns(freeze: bool) -> None:
    """Keeps away: a frozen encoder that learns, and heads of stage 1 that only decay."""
    captioner = network()
    task = objective(captioner, freeze)
    grouped = {id(p) for group in task.groups("model") for p in group["params"]}
    for name, parameter in captioner.named_parameters():
        inner = name.removeprefix("intermediate_generator.")
        learns = inner == name or not (freeze or inner.startswith(UNUSED))
        assert parameter.requires_grad is learns, name
        assert (id(parameter) in grouped) is learns, name
    assert any(name.startswith(UNUSED) for name, _ in captioner.encoder.named_parameters())


def test_the_encoder_has_a_rate_of_its_own() -> None:
    captioner = network(queries="independent", comparison=ComparisonSettings())
    assert captioner.queries is not None
    encoder = {id(p) for p in captioner.encoder.parameters()} | {id(captioner.queries)}
    groups = objective(captioner).groups("model")
    for group in groups:
        for parameter in group["params"]:
            assert group["scale"] == (0.25 if id(parameter) in encoder else 1.0)
            if parameter is captioner.queries or parameter is captioner.kinds:
                assert group["weight_decay"] == 0.0
    seen = [id(p) for group in groups for p in group["params"]]
    assert len(seen) == len(set(seen)), "no parameter in two groups"


@pytest.mark.parametrize("decay_norms", [False, True])
def test_what_decays(decay_norms: bool) -> None:
    captioner = network()
    decays = {
        id(parameter): group["weight_decay"]
        for group in objective(captioner, decay_norms=decay_norms).groups("model")
        for parameter in group["params"]
    }
    named = {n: p for n, p in captioner.named_parameters() if id(p) in decays}
    assert len(named) == len(decays)
    spared = {name for name, parameter in named.items() if not decays[id(parameter)]}
    if decay_norms:  # embeddings and positions decay as well
        assert spared == {name for name in named if "bias" in name}
        return
    tables = {name for name in named if "_emb." in name}
    assert len(tables) == 4 + 3, "of text and marks, and of three axes"
    assert spared == {name for name, p in named.items() if p.ndim < 2} | tables


def test_validation_is_the_scores() -> None:
    captioner = network()
    assert objective(captioner).validate(captioner) == ({"CIDEr": 1.0}, None)
