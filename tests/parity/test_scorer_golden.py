"""SCORER and CBR give what the public code gives: intermediates, losses, gradients, five steps."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cc_train.decoding.next_word import Recomputing
from cc_train.decoding.search import greedy
from cc_train.layers.frozen_backbone import BackboneSpec, FrozenBackbone
from cc_train.layers.token_matching import contrast, token_matching
from cc_train.systems.scorer import import_checkpoint
from cc_train.systems.scorer.captioner import ScorerCaptioner
from cc_train.systems.scorer.encoder import EncodedPairs
from cc_train.systems.scorer.objective import Losses, ScorerObjective, Ways
from cc_train.systems.scorer.reconstruction import Reconstruction, sentence_of
from cc_train.systems.scorer.words import END, MARKS, NULL, ScorerWords
from cc_train.training import optim
from tests.conftest import golden

FOLDERS = golden("scorer")
RUNS = {"pos": "changed", "neg": "unchanged"}
REFERENCE = Ways(per_head=False, trained_cbr=False, slots=True, sampled=True)
PARTS = {"caption": "caption", "contrast": "sim", "cbr": "cbr", "total": "total"}
each_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f.name)


class Golden:
    """The vectors of a folder, the objective with their weights, and their tolerances."""

    def __init__(self, folder: Path) -> None:
        self.meta = json.loads((folder / "meta.json").read_text())
        with np.load(folder / "vectors.npz") as arrays:
            self.arrays = {name: torch.from_numpy(arrays[name]) for name in arrays}
        sizes = self.meta["config"]
        detector, speaker, cbr = (
            self.below(f"w/{part}/") for part in ("change_detector", "speaker", "cbr")
        )
        side = sizes["grid"]
        settings, _ = import_checkpoint.settings_of(
            detector, speaker, sizes["enc_heads"], sizes["dec_heads"], "golden"
        )
        encoder, count = settings.encoder, len(speaker["core.embed.weight"])
        words = ScorerWords([*MARKS, *map(str, range(count - len(MARKS)))])
        spec = BackboneSpec("golden", None, (sizes["feat_channels"], side, side))
        network = ScorerCaptioner(
            FrozenBackbone(None, spec), (side, side), encoder, settings.decoder, words
        )
        network.change_detector.load_state_dict(detector)
        network.speaker.load_state_dict(speaker)
        reconstruction = Reconstruction(encoder.width, sizes["cbr_heads"])
        reconstruction.load_state_dict(cbr)
        weights = Losses(contrast=sizes["lambda_v"], cbr=sizes["lambda_m"])
        self.objective = ScorerObjective(
            network,
            reconstruction,
            score=lambda captioner: {},
            weights=weights,
            ways=REFERENCE,
            weight_decay=0.0,
            device="cpu",
            halves=("changed", "unchanged"),
        )
        self.network, self.reconstruction = network.eval(), reconstruction.eval()
        self.reconstruction.requires_grad_(True)  # their gradients are among the vectors

    def below(self, prefix: str) -> dict[str, Tensor]:
        return {n[len(prefix) :]: t for n, t in self.arrays.items() if n.startswith(prefix)}

    def pair(self, run: str) -> Tensor:
        after = "sc" if run == "pos" else "nsc"
        return torch.stack((self.arrays["in/d_feats"], self.arrays[f"in/{after}_feats"]), dim=1)

    def batch(self) -> dict[str, dict[str, Tensor]]:
        return {
            ours: {
                "before_after": self.pair(theirs),
                "ids": self.arrays[f"in/{theirs}_labels"],
                "labels": self.arrays[f"in/{theirs}_targets"],
                "scene": torch.arange(len(self.arrays[f"in/{theirs}_targets"])),
            }
            for theirs, ours in RUNS.items()
        }

    def parameters(self) -> dict[str, nn.Parameter]:
        parts = {
            "change_detector": self.network.change_detector,
            "speaker": self.network.speaker,
            "cbr": self.reconstruction,
        }
        return {f"{n}.{name}": p for n, m in parts.items() for name, p in m.named_parameters()}

    def close(self, ours: Tensor, name: str, kind: str) -> None:
        expected = self.arrays[name]
        limits = {name: self.meta["tolerances"][kind][name] for name in ("atol", "rtol")}
        torch.testing.assert_close(
            ours.detach().to(expected.dtype), expected, **limits, msg=lambda text: f"{name}: {text}"
        )

    def losses(self) -> dict[str, Tensor]:
        batch = self.batch()
        denominators = self.objective.denominators(batch)
        chunks = self.objective.chunks(batch)
        each = [self.objective.losses("model", chunk, 0, denominators) for chunk in chunks]
        return {name: each[0][name] + each[1][name] for name in each[0]}


@lru_cache(maxsize=2)
def shared(folder: Path) -> Golden:
    """For tests that change no weight."""
    return Golden(folder)


def test_there_are_golden_vectors() -> None:
    assert FOLDERS


def averaged(attention: Any, x: Tensor, other: Tensor) -> Tensor:
    """The head mean of what the softmax of an attention gives."""
    query, key = attention.query(x), attention.key(other)
    q, k = (t.unflatten(2, (attention.heads, -1)).transpose(1, 2) for t in (query, key))
    return (q @ k.transpose(2, 3) / q.shape[3] ** 0.5).softmax(3).mean(1)


@each_folder
@pytest.mark.parametrize("run", RUNS)
@torch.no_grad()
def test_what_the_encoder_sees(folder: Path, run: str) -> None:
    one = shared(folder)
    detector = one.network.change_detector
    before, after = one.network.features(one.pair(run))
    encoded: EncodedPairs = detector(before, after)
    one.close(encoded.before, f"mid/{run}/enc/proj_before", "mid")
    one.close(encoded.after, f"mid/{run}/enc/proj_after", "mid")
    one.close(encoded.difference, f"mid/{run}/enc/diff", "mid")
    pair = encoded.before, encoded.after
    for number, layer in enumerate(detector.scorer):
        new_before, new_after, queries = layer(*pair)
        matched = (
            token_matching(queries.before, queries.after_keys),
            token_matching(queries.after, queries.before_keys),
        )
        sides = zip(("before", "after"), (new_before, new_after), matched, pair, strict=True)
        for i, (side, new, match, old) in enumerate(sides):
            name = f"mid/{run}/enc/layer{number}/{side}_side"
            one.close(new, f"{name}/out", "mid")
            one.close(queries.scale * match, f"{name}/mtm", "mid")
            weights = averaged(layer.attention, old, pair[1 - i])
            one.close(weights, f"{name}/att_mean", "mid")
        pair = new_before, new_after


@each_folder
@pytest.mark.parametrize("run", RUNS)
@torch.no_grad()
def test_what_the_decoder_says(folder: Path, run: str) -> None:
    one = shared(folder)
    speaker, name = one.network.speaker, f"mid/{run}/dec"
    ids, visible = one.arrays[f"in/{run}_labels"], one.arrays[f"in/{run}_mask"]
    memory = one.arrays[f"mid/{run}/enc/diff"]
    core = speaker.core
    x = core.position_enc(core.embed(ids))
    one.close(x, f"{name}/embed_plus_pe", "mid")
    x = core.fc(x)
    one.close(x, f"{name}/input_h", "mid")
    causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
    mask = (visible.bool()[:, None] & causal)[:, None]
    for number, layer in enumerate(core.layer):
        under = f"{name}/layer{number}"
        attended = layer.self_attention(x, x, mask, False)
        one.close(attended, f"{under}/self_att", "mid")
        a = layer.norm1(attended + x)
        one.close(a, f"{under}/norm1", "mid")
        attended = layer.dec_enc_attention(a, memory, None, False)
        one.close(attended, f"{under}/cross_att", "mid")
        looked = layer.dec_enc_attention.scores(a, memory)
        one.close(looked, f"{under}/cross_scores_mean", "mid")
        c = layer.norm2(a + attended)
        one.close(c, f"{under}/norm2", "mid")
        one.close(layer.hidden_intermediate(c), f"{under}/ffn_gelu", "mid")
        x, _ = layer(x, memory, mask, False)
        one.close(x, f"{under}/out", "mid")
    one.close(speaker.hidden(ids, memory, visible), f"{name}/hidden", "mid")
    one.close(speaker(ids, memory, visible), f"{name}/logits", "mid")
    assert torch.equal(speaker.looked(ids, memory, visible).looked, looked)
    # Without the mask of padding the words have the same logits: what we train with.
    valid = one.arrays[f"in/{run}_targets"] >= 0
    bare = speaker(ids, memory)
    torch.testing.assert_close(bare[valid], one.arrays[f"{name}/logits"][valid])


@each_folder
@pytest.mark.parametrize("run", RUNS)
@torch.no_grad()
def test_what_cbr_makes_up(folder: Path, run: str) -> None:
    one = shared(folder)
    cbr, under = one.reconstruction, f"mid/{run}/cbr"
    names = ("enc/proj_before", "enc/proj_after", "dec/hidden")
    before, after, hidden = (one.arrays[f"mid/{run}/{name}"] for name in names)
    sentence = sentence_of(hidden, one.arrays[f"in/{run}_mask"], over_slots=True)
    one.close(sentence, f"{under}/sent_mean", "mid")
    made_up = cbr(before, sentence)
    side = one.meta["config"]["grid"]
    maps = made_up.transpose(1, 2).unflatten(2, (side, side))
    one.close(maps, f"{under}/hallucination_BDHW", "mid")
    one.close(cbr.scale * token_matching(*cbr.queries(made_up, after)), f"{under}/mtm", "mid")


@each_folder
def test_losses_and_the_gradient_of_each(folder: Path) -> None:
    one = shared(folder)
    losses, parameters = one.losses(), one.parameters()
    for ours, theirs in PARTS.items():
        one.close(losses[ours], f"loss/{theirs}", "loss")
        gradients = torch.autograd.grad(
            losses[ours], [*parameters.values()], retain_graph=True, allow_unused=True
        )
        for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
            norm = torch.tensor(-1.0) if gradient is None else gradient.norm()
            one.close(norm, f"gradnorm/{theirs}/{name}", "gradnorm")
            if ours == "total" and gradient is not None:
                assert gradient.shape == parameter.shape
                one.close(gradient, f"grad_total/{name}", "grad_total")


@each_folder
@torch.no_grad()
def test_the_losses_of_each_run(folder: Path) -> None:
    one = shared(folder)
    batch = one.batch()
    for (theirs, ours), chunk in zip(RUNS.items(), one.objective.chunks(batch), strict=True):
        encoded = one.network.change_detector(*one.network.features(batch[ours]["before_after"]))
        first, second = (contrast(matched) for matched in one.objective.matchings(encoded))
        one.close(first, f"loss/{theirs}/sim_1", "loss")
        one.close(second, f"loss/{theirs}/sim_2", "loss")
        losses = one.objective.losses("model", chunk, 0, one.objective.denominators(batch))
        for name, expected in (("caption", "caption"), ("contrast", "sim"), ("cbr", "cbr")):
            one.close(2 * losses[name], f"loss/{theirs}/{expected}", "loss")


@each_folder
@pytest.mark.parametrize("run", RUNS)
@torch.inference_mode()
def test_greedy_words_and_where_they_looked(folder: Path, run: str) -> None:
    """By the decoder that keeps keys and values, and by the one that does not."""
    one = shared(folder)
    memory = one.network.memory(one.pair(run))
    marks = one.network.codec.marks
    cached = one.network.next_word()
    expected = one.arrays[f"greedy/{run}/ids"]
    for decoder in (cached, Recomputing(one.network.logits, one.network.length)):
        ids = greedy(decoder, memory, marks)
        assert (ids.masked_fill(ids == END, NULL) == expected).all()
    state = cached.start(memory)
    for place in range(expected.shape[1]):
        cached.step(expected[:, place], memory, state)
    one.close(state.looked, f"greedy/{run}/cross_scores_mean", "mid")


def step_by_step(one: Golden) -> Tensor:
    """The losses of five steps of the real optimiser, and of the weights after them."""
    one.reconstruction.requires_grad_(False)
    rate = one.meta["config"]["lr"]
    optimiser = optim.build_optimizer(one.objective.groups("model"), rate, (0.9, 0.999))
    rows = []
    for step in range(6):
        losses = one.losses()
        rows.append(torch.stack([losses[name].detach() for name in PARTS]))
        optimiser.zero_grad()
        losses["total"].backward()
        if step < 5:
            optimiser.step()
            one.objective.after_step(step)
    return torch.stack(rows)


@each_folder
def test_five_steps(folder: Path) -> None:
    one = Golden(folder)
    one.close(step_by_step(one), "train/losses", "train_losses")
    last = f"scorer.{len(one.network.change_detector.scorer) - 1}."
    for name, parameter in one.parameters().items():
        # Softmax sees no constant: the gradient of these is rounding noise.
        noise = name.endswith("key.bias") and last not in name and not name.startswith("cbr.")
        if not noise:
            one.close(parameter.norm(), f"train/after5_norm/{name}", "after5_norm")
        if f"train/after5/{name}" in one.arrays:
            one.close(parameter, f"train/after5/{name}", "after5")
