"""Both stages on a frozen backbone's features: statistics, what stage 2 takes over, refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.records import Facts
from cc_prep.settings import build
from cc_train.data import shard_index, split
from cc_train.data.split import Split
from cc_train.evaluation.predict import predict
from cc_train.runs import checkpoints, run_folder, stored_run
from cc_train.systems.pair import recipe as pair
from cc_train.systems.pair.captioner import PairCaptioner
from cc_train.systems.procap import stage1, stage2
from cc_train.systems.procap.captioner import ProCap
from cc_train.systems.procap.procedure_encoder import ProcedureEncoder
from cc_train.systems.procap.visualise import GAP
from cc_train.training.task import Task, TrainingRequest
from tests import shard_factory, weight_factory

SIZES = {"width": 16, "heads": 2, "hidden": 16, "length": 8}
VALUES: dict[str, dict[str, Any]] = {
    "stage1": {"network": {"width": 64, "layers": 1, "text_length": 4}},
    "stage2": {"decoder": SIZES},
    "pair": {"decoder": SIZES, "encoder": {"width": 64}},
}


def prepared(
    folder: Path, system: str, init: Path | None = None, fine: int = 2, **values: object
) -> Task:
    """The task of a system on shards with features of all frames, so many times as fine as the
    tokens."""
    folder.mkdir(exist_ok=True)
    backbone = weight_factory.write_vqgan(folder / "backbone.safetensors", seed=1, levels=4 - fine)
    facts = Facts("none") if {"facts", "probe_labels"} & set(values) or system == "pair" else None
    shards, vqgan = shard_factory.write_tokens(
        folder / "shards", 4, backbone=backbone, facts=facts, images=True, fine=fine
    )
    recipe: Any = {"stage1": stage1, "stage2": stage2, "pair": pair}[system]
    files = {"vqgan": str(vqgan), "backbone_weights": str(backbone)} if init is None else {}
    if system == "pair":
        del files["vqgan"]
    loop = {"batch_size": 2, "device": "cpu", "steps": 1, "epochs": None}
    settings = build(
        recipe.Settings, {"loop": loop, **files, **VALUES[system], **values}, "test", "docs"
    )
    request = TrainingRequest([shards], [], folder / system, init, console=Console(quiet=True))
    task: Task = recipe.prepare(settings, request)
    stored = {**settings.model_dump(mode="json"), "system": system, "files": sorted(task.files)}
    stored |= task.about
    run_folder.write_files(request.run, task.files)
    storage.write_json(str(request.run / run_folder.SETTINGS), stored)
    tensors = task.objective.network.state_dict()
    checkpoints.write(request.run, 0, tensors, stored, {}, {"metrics": {}, "best": {"step": 0}})
    return task


def features_of(folder: Path) -> torch.Tensor:
    """All features of the shards, float64 [N, C, h, w]; but of the scene that is held out."""
    entries = shard_index.read([str(folder / "shards/train-*.tar")])
    return torch.cat([torch.tensor(entry.read().features.values) for entry in entries]).double()  # type: ignore[union-attr]


@pytest.mark.parametrize(("pooling", "channels"), [("unshuffle", 32), ("mean", 8)])
def test_stage_1_standardises_what_it_sees(tmp_path: Path, pooling: str, channels: int) -> None:
    """Keeps away: statistics of other channels, and ones that are lost with the checkpoint."""
    task = prepared(tmp_path, "stage1", frames="features", feature_pooling=pooling)
    encoder = task.objective.network
    assert isinstance(encoder, ProcedureEncoder)
    assert encoder.config.latent == channels
    assert encoder.standardise is not None
    stored, _ = stage1.read_encoder(tmp_path / "stage1")
    assert stored.config == encoder.config
    assert stored.standardise is not None
    assert torch.equal(stored.standardise.mean, encoder.standardise.mean)
    batch = task.source(0)
    assert batch["frames"].shape == (2, 4, 8, 4, 4)
    seen = task.objective.features(batch["frames"])  # type: ignore[attr-defined]
    standard = encoder.standardise(seen)
    assert abs(float(standard.mean())) < 0.2
    assert 0.8 < float(standard.std()) < 1.2
    denominators = {n: v.clamp(min=1) for n, v in task.objective.denominators(batch).items()}
    [chunk] = task.objective.chunks(batch)
    losses = task.objective.losses("model", chunk, 0, denominators)
    assert set(losses) == {"total", "msm", "align", "consistency"}
    with torch.inference_mode():
        measures, picture = task.objective.validate(encoder.eval())
    assert measures["msm"] > 0
    assert picture is not None, "what it reconstructs is drawn from tokens"


@pytest.mark.parametrize("weights", [{}, {"msm": 0, "align": 0, "consistency": 0}])
def test_local_consistency_is_learned_on_pasted_images(
    tmp_path: Path, weights: dict[str, float]
) -> None:
    """Keeps away: a loss that is not trained beside the others, or not alone, and a stage 2 that
    trains its head."""
    losses = {"local": 2.0, **weights}
    task = prepared(tmp_path / "a", "stage1", frames="features", losses=losses)
    batch = task.source(0)
    [chunk] = task.objective.chunks(batch)
    counts = task.objective.denominators(batch)
    found = task.objective.losses("model", chunk, 0, {n: v.clamp(min=1) for n, v in counts.items()})
    assert ("msm" in found) == (not weights)
    head = task.objective.network.to_logits_local
    found["total"].backward()
    assert head[3].bias.grad.abs().sum() > 0
    assert counts["local"] == batch["pasted_kinds"].numel()
    with torch.inference_mode():
        measures, picture = task.objective.validate(task.objective.network)
    assert measures["local"] > 0
    assert picture is not None
    # Three rows for each of two pairs, or one: before, after, what happened, what is found.
    rows = 2 if weights else 6
    assert picture.shape == (rows * 8 + (rows - 1) * GAP, 4 * 8 + 3 * GAP, 3)
    assert task.objective.criterion.figure in measures
    second = prepared(tmp_path / "b", "stage2", tmp_path / "a/stage1")
    assert isinstance(second.objective.network, ProCap)
    kept = second.objective.network.encoder.to_logits_local
    assert not any(parameter.requires_grad for parameter in kept.parameters())


def test_a_probe_of_held_out_scenes_is_part_of_validations(tmp_path: Path) -> None:
    """Keeps away: a probe that is asked for, and of which a log has nothing."""
    with pytest.raises(UserError, match="1 scenes of the validation have facts"):
        prepared(tmp_path, "stage1", frames="features", probe_labels=10)
    task = prepared(tmp_path, "stage1", frames="features")
    task.objective.probe = lambda network: {"probe_type_states": 0.5}  # type: ignore[attr-defined]
    with torch.inference_mode():
        measures, _ = task.objective.validate(task.objective.network)
    assert measures["probe_type_states"] == 0.5
    assert measures["msm"] > 0


def test_stage_2_takes_kind_networks_and_statistics_of_stage_1(tmp_path: Path) -> None:
    first = prepared(tmp_path / "a", "stage1", frames="features").objective.network
    assert isinstance(first, ProcedureEncoder)
    task = prepared(tmp_path / "b", "stage2", tmp_path / "a/stage1", queries={"k": 3})
    digest = storage.sha256(tmp_path / "a/backbone.safetensors")
    for network in (
        task.objective.network,
        stage2.load(stored_run.read(tmp_path / "b/stage2"), "cpu"),
    ):
        assert isinstance(network, ProCap)
        assert (network.inputs.reads, network.inputs.backbone) == ("features", ("vqgan", digest))
        assert network.inputs.tokenizer is None
        own, theirs = network.encoder.standardise, first.standardise
        assert own is not None
        assert theirs is not None
        assert torch.equal(own.std, theirs.std)
        assert network.encoder.config.frames == 5
    assert not any("backbone" in name for name in task.objective.network.state_dict())


def test_stage_2_without_stage_1(tmp_path: Path) -> None:
    """Its statistics come from the shards; images and stored features give the same caption."""
    network = {"width": 64, "layers": 1, "text_length": 4}
    task = prepared(tmp_path, "stage2", frames="features", network=network)
    built = task.objective.network
    assert isinstance(built, ProCap)
    assert built.encoder.standardise is not None
    expected = features_of(tmp_path).mean((0, 2, 3)).float()
    means = built.encoder.standardise.mean.view(8, 4).mean(1)
    assert torch.allclose(means, expected, atol=0.2)
    captioner = stage2.load(stored_run.read(tmp_path / "stage2"), "cpu")
    images = torch.randint(0, 256, (3, 2, 8, 8, 3), dtype=torch.uint8)
    pixels = images.flatten(0, 1).permute(0, 3, 1, 2).float() / 255
    backbone = captioner.features.backbone
    assert backbone is not None
    stored = backbone.frozen.compute(pixels).unflatten(0, (3, 2))
    assert [(c.score, c.ood_score) for c in captioner.caption(images)] == [
        (c.score, c.ood_score) for c in captioner.caption(stored)
    ]
    entries = shard_index.read([str(tmp_path / "shards/train-*.tar")])
    assert len({sample.key for sample, _ in predict(captioner, entries)}) == 8


@pytest.mark.parametrize("pooling", ["unshuffle", "mean"])
def test_stage_2_tells_images_unlike_its_training(tmp_path: Path, pooling: str) -> None:
    """Keeps away: a score that tells nothing apart, and statistics that a run loses."""
    prepared(tmp_path / "a", "stage1", frames="features", feature_pooling=pooling)
    prepared(tmp_path / "b", "stage2", tmp_path / "a/stage1")
    captioner = stage2.load(stored_run.read(tmp_path / "b/stage2"), "cpu")
    seen = features_of(tmp_path / "b").float()
    alike = captioner.ood_score(seen.unflatten(0, (-1, 2)))
    assert 0.5 < np.mean(alike) < 3
    assert max(alike) < 6
    spread = seen.mean((2, 3)).std(0)[:, None, None]
    one_strange = torch.stack((seen, seen + 10 * spread), dim=1)
    assert min(captioner.ood_score(one_strange)) > 15


def test_stage_2_needs_no_tokens_where_stage_1_saw_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames in between and tokens are made for stage 1 alone; the run names its VQGAN."""
    prepared(tmp_path / "a", "stage1", frames="features")
    network, names = VALUES["stage1"]["network"], ("tokenizer", "tokenizer_sha256")
    expected = stored_run.read(tmp_path / "a/stage1").settings

    def without_tokens(*arguments: Any) -> Split:
        data = read(*arguments)
        data.first.update(dict.fromkeys(names))
        return data

    read = split.read
    monkeypatch.setattr(split, "read", without_tokens)
    prepared(tmp_path / "b", "stage2", tmp_path / "a/stage1")
    stored = stored_run.read(tmp_path / "b/stage2").settings
    assert [stored[name] for name in names] == [expected[name] for name in names]
    with pytest.raises(UserError, match="the shards hold no tokens"):
        prepared(tmp_path / "c", "stage2", frames="features", network=network, vqgan=None)
    prepared(tmp_path / "d", "stage2", frames="features", network=network)
    digest = stored_run.read(tmp_path / "d/stage2").settings["tokenizer_sha256"]
    assert digest == expected["tokenizer_sha256"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"frames": "tokens"}, "Leave frames out with --init"),
        ({"feature_pooling": "mean"}, "feature_pooling is unshuffle in"),
    ],
)
def test_settings_that_are_not_stage_1_s(
    tmp_path: Path, values: dict[str, str], message: str
) -> None:
    prepared(tmp_path / "a", "stage1", frames="features")
    with pytest.raises(UserError, match=message):
        prepared(tmp_path / "b", "stage2", tmp_path / "a/stage1", **values)


def test_shards_of_another_backbone_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(tmp_path / "a", "stage1", frames="features")
    write = weight_factory.write_vqgan
    monkeypatch.setattr(
        weight_factory, "write_vqgan", lambda path, seed=0, levels=3: write(path, 2 * seed, levels)
    )
    with pytest.raises(UserError, match=r"was trained on features of vqgan .*same backbone"):
        prepared(tmp_path / "b", "stage2", tmp_path / "a/stage1")


def test_samples_of_two_backbones_are_refused(tmp_path: Path) -> None:
    """Keeps away: a captioner that is trained on features that mean something else."""
    task = prepared(tmp_path, "stage2", frames="features", network=VALUES["stage1"]["network"])
    [entry, *_] = shard_index.read([str(tmp_path / "shards/train-*.tar")])
    sample = entry.read()
    assert sample.features is not None
    other = replace(sample, features=replace(sample.features, sha256="0" * 64))
    with pytest.raises(UserError, match=", not of"):
        task.source.make([other], [np.random.default_rng(0)])  # type: ignore[attr-defined]


def test_features_cannot_be_cropped(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="features cannot be cropped"):
        prepared(tmp_path, "stage1", frames="features", crop=0.5)


def test_a_run_without_its_backbone_says_so(tmp_path: Path) -> None:
    prepared(tmp_path, "stage2", frames="features", network=VALUES["stage1"]["network"])
    (tmp_path / "stage2/backbone.safetensors").unlink()
    with pytest.raises(UserError, match=r"backbone\.safetensors: not there"):
        stage2.load(stored_run.read(tmp_path / "stage2"), "cpu")


def test_the_run_names_its_backbone(tmp_path: Path) -> None:
    prepared(tmp_path, "stage1", frames="features")
    settings = json.loads((tmp_path / "stage1/settings.json").read_text())
    assert settings["backbone"]["grid"] == [8, 4, 4]
    assert settings["backbone"]["tokens"] == [2, 2]
    assert settings["backbone"]["pooling"] == "unshuffle"


COMPARING: dict[str, Any] = {"comparison": {}, "pairs_per_scene": 2, "facts": {}}


@pytest.mark.parametrize("skip", [False, True])
def test_a_captioner_with_a_comparison_comes_back(tmp_path: Path, skip: bool) -> None:
    """Keeps away: a loaded captioner without its comparison, and one that says other captions."""
    network = VALUES["stage1"]["network"]
    values = {**COMPARING, "comparison": {"skip": skip}}
    task = prepared(tmp_path, "stage2", frames="features", network=network, **values)
    trained = task.objective.network
    assert isinstance(trained, ProCap)
    loaded = stage2.load(stored_run.read(tmp_path / "stage2"), "cpu")
    assert loaded.comparison is not None
    batch = task.source(0)
    pairs = batch["features"][torch.stack((batch["first"], batch["second"]), dim=1)]
    expected = [caption.score for caption in trained.eval().caption(pairs)]
    assert [caption.score for caption in loaded.caption(pairs)] == expected
    learning = {id(p) for group in task.objective.groups("model") for p in group["params"]}
    unused = ("to_logits", "special_emb")
    for name, parameter in trained.named_parameters():
        assert (id(parameter) in learning) or any(part in name for part in unused), name
    seen = trained.features(pairs)
    states = torch.zeros_like(trained.procedure(seen))  # which hide everything
    before, after = trained.ends(states, seen)
    assert bool((before != after).any()) == skip


def start_of_pair(folder: Path, **values: object) -> ProCap:
    """A captioner that starts from the run `pair` of the folder."""
    network = VALUES["stage1"]["network"]
    given = {**COMPARING, "comparison": {"skip": True}, "init_pair": str(folder / "pair")}
    given |= {"frames": "features", "network": network, **values}
    task = prepared(folder, "stage2", fine=1, **given)
    started = task.objective.network
    assert isinstance(started, ProCap)
    return started


def test_stage_2_starts_from_a_captioner_of_pairs(tmp_path: Path) -> None:
    """Keeps away: a start that sees other differences than the captioner that it comes from, as
    with channels that are standardised otherwise."""
    task = prepared(tmp_path, "pair", fine=1)
    known = task.objective.network
    assert isinstance(known, PairCaptioner)
    known.encoder.mean.add_(0.5)
    known.encoder.std.mul_(1.5)
    folder = tmp_path / "pair"
    settings = json.loads((folder / run_folder.SETTINGS).read_text())
    progress = {"metrics": {}, "best": {"step": 1}}
    checkpoints.write(folder, 1, known.state_dict(), settings, {}, progress)
    started = start_of_pair(tmp_path)
    stored = json.loads((tmp_path / "stage2/settings.json").read_text())
    digest = storage.sha256(folder / "checkpoints/000001/model.safetensors")
    assert stored["init_pair_weights"] == {"name": "pair", "sha256": digest}
    batch = task.source(0)
    pairs = batch["features"][torch.stack((batch["first"], batch["second"]), dim=1)]
    with torch.inference_mode():
        expected, memory = known.eval().memory(pairs), started.eval().memory(pairs)
        imagined = 2 * started.encoder.config.frame_tokens
        assert memory.shape[1] == expected.shape[1] + imagined
        torch.testing.assert_close(memory[:, :-imagined], expected, rtol=1e-4, atol=1e-5)
        ids = torch.zeros(len(pairs), 1, dtype=torch.long)
        found = started.logits(ids, expected)
        torch.testing.assert_close(found, known.logits(ids, expected))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"comparison": {}}, "a captioner of pairs compares features.*Set comparison.skip=true"),
        (
            {"frames": "tokens", "pairs_per_scene": None, "facts": None, "backbone_weights": None},
            "the captioner reads tokens",
        ),
        ({"comparison": {"skip": True, "heads": 2}}, "encoder.heads=4, .*comparison.heads=4"),
        ({"decoder": {**SIZES, "hidden": 8}}, "has other sizes: size mismatch"),
        ({"decoder": {**SIZES, "reference_quirks": True}}, "has no decoder.reference_quirks"),
        ({"init_pair": "captioner-mini"}, "was trained on features of .*or set init_pair=null"),
        ({"init_pair": "captioner-multi"}, "says several changes, unlike stage 2"),
        ({"init_pair": "composites-mini"}, "knows other facts than those of rendered solids"),
        ({"init_pair": "chain-mini"}, "a run of chain"),
    ],
)
def test_a_captioner_of_pairs_that_does_not_fit(
    tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    prepared(tmp_path, "pair", fine=1)
    with pytest.raises(UserError, match=message):
        start_of_pair(tmp_path, **values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"facts": {}}, "facts: they are learned by a comparison of ordered pairs"),
        ({"facts": {}, "comparison": {}}, "Set comparison and pairs_per_scene too"),
        ({"comparison": {"heads": 5}}, "width .64. is not divisible by comparison.heads .5."),
        (
            {"frames": "tokens", "pairs_per_scene": 2, "backbone_weights": None},
            "the captioner reads tokens",
        ),
    ],
)
def test_settings_of_a_comparison_that_do_not_fit(
    tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    network = VALUES["stage1"]["network"]
    with pytest.raises(UserError, match=message):
        prepared(tmp_path, "stage2", **{"frames": "features", "network": network, **values})
