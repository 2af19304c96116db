"""CLIP4IDC's loss and its measures, against what the formulas say."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from cc_prep.errors import UserError
from cc_prep.models.clip4idc import CLIP4IDC, Config
from cc_train.data.sequence_index import Sample
from cc_train.systems.clip4idc import batches
from cc_train.systems.clip4idc import objective as clip4idc
from cc_train.systems.clip4idc.objective import sinusoids_2d
from cc_train.training import optim
from cc_train.training.fact_losses import FactLosses

TINY = clip4idc.Network(
    embedding=16, resolution=32, patch=16, vision_width=64, vision_layers=2, intra_layers=1,
    text_width=64, text_layers=1,
)  # fmt: skip
# Caption 0 is true of pair 1, which is one without change, as 2 is: but 0 is not true of 2.
POSITIVES = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 1, 1]], dtype=torch.bool)


def objective(
    monkeypatch: pytest.MonkeyPatch, facts: FactLosses | None = None, clip_lr_scale: float = 1.0
) -> clip4idc.Clip4idcObjective:
    torch.manual_seed(0)
    task = clip4idc.Clip4idcObjective(
        clip4idc.from_scratch(TINY), [], weight_decay=0.1, device="cpu",
        clip_lr_scale=clip_lr_scale, facts=facts,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    pairs, text = torch.randn(2, 3, 16, generator=generator)
    monkeypatch.setattr(clip4idc, "embed", lambda network, batch: (pairs, pairs, pairs, text))
    return task


def test_the_loss_of_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: targets that are divided along the wrong axis where positives overlap."""
    task = objective(monkeypatch)
    *_, pairs, text = clip4idc.embed(task.network, {})
    logits = task.network.similarity(text, pairs).detach()
    to_pairs, to_text = logits.log_softmax(1), logits.log_softmax(0)
    expected = 0.0
    for i in range(3):
        row, column = POSITIVES[i], POSITIVES[:, i]
        expected -= float(to_pairs[i][row].mean()) / 3 / 2
        expected -= float(to_text[:, i][column].mean()) / 3 / 2
    losses = task.losses("model", {"positives": POSITIVES}, 0, {})
    assert losses["total"].item() == pytest.approx(expected, rel=1e-5)
    assert losses["scale"].item() == pytest.approx(task.network.logit_scale.exp().item())


def test_facts_are_learned_beside_the_contrast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: heads that are asked for, and that no loss reaches."""
    plain = objective(monkeypatch).losses("model", {"positives": POSITIVES}, 0, {})
    task = objective(monkeypatch, FactLosses())
    monkeypatch.setattr(task.heads, "losses", lambda *_: {"facts": torch.tensor(3.0)})
    losses = task.losses("model", {"positives": POSITIVES}, 0, {})
    assert losses["contrast"].item() == pytest.approx(plain["total"].item())
    assert losses["total"].item() == pytest.approx(plain["total"].item() + 3)


def test_what_clip_never_learned_has_the_whole_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    task = objective(monkeypatch, FactLosses(), clip_lr_scale=0.25)
    scale_of = {id(p): group["scale"] for group in task.groups("model") for p in group["params"]}
    assert task.heads is not None
    assert {scale_of[id(p)] for p in task.heads.parameters()} == {1.0}
    named = dict(task.network.named_parameters())
    assert scale_of[id(named["visual.joint_positional_embedding"])] == 1.0
    assert scale_of[id(named["visual.positional_embedding"])] == 0.25


def test_the_scale_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    task = objective(monkeypatch)
    task.network.logit_scale.data.fill_(9.0)
    task.after_step(0)
    assert task.network.logit_scale.exp().item() == pytest.approx(100, rel=1e-5)
    task.network.logit_scale.data.fill_(3.0)
    task.after_step(0)
    assert task.network.logit_scale.item() == 3


class Known(nn.Module):
    """Logits [captions, pairs] that a test chooses."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def similarity(self, text: Tensor, pairs: Tensor) -> Tensor:
        return self.logits


def test_ranks_at_1_5_and_10(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: R@5 that counts rank 6, and the two directions under each other's name."""
    logits = torch.zeros(12, 12)
    logits.fill_diagonal_(1)
    logits[0, 1:2] = 2  # caption 0 finds its pair at rank 2
    logits[1, 2:7] = 2  # caption 1 at rank 6
    logits[2, [0, *range(3, 12)]] = 2  # caption 2 at rank 11
    zeros = torch.zeros(12, 1)
    monkeypatch.setattr(clip4idc, "embed", lambda network, batch: (zeros, zeros, zeros, zeros))
    batch = {"captions": [str(i) for i in range(12)], "tokens": zeros}
    measures = clip4idc.retrieval(Known(logits), [batch], "cpu")  # type: ignore[arg-type]
    share = 100 / 12
    expected = {"text_r1": 9, "text_r5": 10, "text_r10": 11}
    # Pair j meets as many captions above its own as its column has twos.
    above = (logits.T > 1).sum(1)
    expected |= {f"pair_r{k}": int((above < k).sum()) for k in (1, 5, 10)}
    for name, count in expected.items():
        assert measures[name] == pytest.approx(count * share), name
    assert measures["recall"] == pytest.approx(sum(expected.values()) * share / 6)
    chances = [measures[f"chance_r{k}"] for k in (1, 5, 10)]
    assert chances == pytest.approx([share, 5 * share, 10 * share])


def test_chance_is_never_above_all(monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = torch.zeros(2, 1)
    monkeypatch.setattr(clip4idc, "embed", lambda network, batch: (zeros, zeros, zeros, zeros))
    batch = {"captions": ["a", "b"]}
    measures = clip4idc.retrieval(Known(torch.eye(2)), [batch], "cpu")  # type: ignore[arg-type]
    assert (measures["chance_r1"], measures["chance_r5"]) == (50, 100)


def test_waves_are_sines_of_rows_then_of_columns() -> None:
    """Keeps away: places that differ, but not by how far they are apart."""
    side, width = 5, 16
    embeddings = clip4idc.sinusoids_2d(side, width)
    for row in range(side):
        for column in range(side):
            for i in range(4):
                frequency = 100.0 ** (-i / 4)
                values = embeddings[1 + row * side + column]
                assert values[i] == pytest.approx(math.sin(row * frequency), abs=1e-5)
                assert values[4 + i] == pytest.approx(math.cos(row * frequency), abs=1e-5)
                assert values[8 + i] == pytest.approx(math.sin(column * frequency), abs=1e-5)
                assert values[12 + i] == pytest.approx(math.cos(column * frequency), abs=1e-5)


def test_a_new_network_starts_from_the_same_waves_in_both_images() -> None:
    network = clip4idc.from_scratch(TINY)
    places = clip4idc.POSITION_SCALE * clip4idc.sinusoids_2d(2, 64)
    assert clip4idc.POSITION_SCALE == 0.5
    assert torch.equal(network.visual.positional_embedding.data, places)
    joint = network.visual.joint_positional_embedding.data
    assert torch.equal(joint, torch.cat((places, places)))


def test_pairs_are_before_and_after_in_this_order() -> None:
    """Keeps away: a network that learns every change backwards."""
    torch.manual_seed(0)
    network = clip4idc.from_scratch(TINY).eval()
    images = torch.randn(2, 3, 3, 32, 32)
    tokens = torch.randint(1, 50, (3, 32))
    with torch.inference_mode():
        *_, pairs, text = clip4idc.embed(
            network, {"before": images[0], "after": images[1], "tokens": tokens}
        )
        before, after = (network.visual.encode_frames(part) for part in images)
        torch.testing.assert_close(
            pairs, network.visual.encode_pairs(before, after), atol=1e-5, rtol=1e-4
        )
    assert text.shape == (3, 16)


def test_held_out_pairs_are_a_sample_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: recall on the first pairs of the shards, which may all be of one kind."""
    seen: list[str] = []
    monkeypatch.setattr(batches, "before_after", lambda sample: seen.append(sample.key))
    monkeypatch.setattr(batches, "collate", lambda pairs, captions, config: {})
    meta = {"kind": "change", "captions": ["x"]}
    samples = [Sample("shard", f"set-{i:03d}", meta, {}) for i in range(60)]
    assert list(batches.HeldOut(samples, 20, Config(intra_layers=1))) == [{}]
    assert len(seen) == 20
    assert max(seen) > "set-050"


def test_from_clip_starts_from_copies() -> None:
    sizes = Config(
        embedding=16, resolution=32, patch=16, vision_width=64, vision_layers=2, intra_layers=1,
        vocabulary=100, context=32, text_width=64, text_layers=1,
    )  # fmt: skip
    plain = CLIP4IDC(sizes).state_dict()
    new = [name for name in plain if any(part in name for part in clip4idc.NEW)]
    assert len(new) == 5
    for name in new:
        del plain[name]
    tensors = clip4idc.from_clip(plain, 1).state_dict()
    places = plain["visual.positional_embedding"]
    assert torch.equal(tensors["visual.joint_positional_embedding"], torch.cat((places, places)))
    assert torch.equal(tensors["visual.bef_embedding"], plain["visual.class_embedding"])
    assert torch.equal(tensors["visual.ln_mid.bias"], plain["visual.ln_pre.bias"])
    with pytest.raises(UserError, match="no CLIP weights"):
        clip4idc.from_clip({"a": torch.zeros(1)}, 1)


@pytest.mark.parametrize("scale", [1e-3, 2.0])
def test_what_came_from_clip_has_a_rate_of_its_own(scale: float) -> None:
    network = clip4idc.from_scratch(TINY)
    task = clip4idc.Clip4idcObjective(
        network, [], weight_decay=0.1, clip_lr_scale=scale, device="cpu"
    )
    optimiser = optim.build_optimizer(task.groups("model"), 1.0, (0.9, 0.99))
    rates = {id(p): g["base"] for g in optimiser.param_groups for p in g["params"]}
    assert len(rates) == len(list(network.parameters()))
    for name, parameter in network.named_parameters():
        fresh = any(part in name for part in clip4idc.NEW)
        assert rates[id(parameter)] == (1.0 if fresh else scale), name


def test_retrieval_of_a_known_order() -> None:
    """Four pairs, the third found at rank 2 by its sentence; two with the same sentence."""

    class Known(nn.Module):
        visual = None

        def similarity(self, text: Tensor, pairs: Tensor) -> Tensor:
            return torch.tensor([[9.0, 1, 0, 0], [1, 9, 0, 0], [5, 0, 4, 0], [0, 0, 9, 1]])

    batch = {"captions": ["a", "b", "c", "c"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clip4idc, "embed", lambda n, b: [torch.zeros(4, 1)] * 4)
        measures = clip4idc.retrieval(Known(), [batch], "cpu")  # type: ignore[arg-type]
    # Row 3 is right: the pair it finds has the same sentence. Row 2 finds pair 0 first.
    assert measures["text_r1"] == 75
    assert measures["text_r5"] == 100
    assert measures["chance_r1"] == 37.5  # one in four for two sentences, two in four for two
    assert 0 < measures["recall"] <= 100


@pytest.mark.parametrize(("level", "expected"), [(0.0, 0.0), (math.nan, math.nan)])
def test_a_network_that_tells_nothing_apart_finds_nothing(
    monkeypatch: pytest.MonkeyPatch, level: float, expected: float
) -> None:
    """Keeps away: a collapsed or overflowing network with the best figures there are."""
    monkeypatch.setattr(clip4idc, "embed", lambda n, b: [torch.zeros(50, 1)] * 4)
    batch = {"captions": [str(number) for number in range(50)]}
    measures = clip4idc.retrieval(Known(torch.full((50, 50), level)), [batch], "cpu")  # type: ignore[arg-type]
    assert measures["text_r10"] == pytest.approx(expected, nan_ok=True)
    assert measures["recall"] == pytest.approx(expected, nan_ok=True)
    assert measures["chance_r10"] == pytest.approx(20)


def test_waves_tell_every_place_apart() -> None:
    embeddings = sinusoids_2d(7, 64)
    assert embeddings.shape == (50, 64)
    assert not embeddings[0].any()
    places = embeddings[1:]
    assert (places @ places.T).argmax(1).tolist() == list(range(49))
