"""Stage 2, and what it takes of its stage 1: how long an epoch is, and whose switches count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load

from cc_prep import manifest, storage, weights
from cc_prep.errors import UserError
from cc_prep.formats import provenance, training_shards
from cc_prep.formats.tar import VERSIONS
from cc_prep.settings import build
from cc_prep.weights import networks
from cc_train import configs
from cc_train.layers.caption_decoder import Norm
from cc_train.runs import checkpoints, run_folder, stored_run
from cc_train.systems.procap import stage1, stage2
from cc_train.systems.procap.captioner import ProCap
from cc_train.training.task import Task, TrainingRequest
from tests import shard_factory, weight_factory

SCENES = 6
QUIET = Console(quiet=True)
NETWORK = {"width": 64, "layers": 1, "text_length": 4}
NO_SLIPS = {"frames": "tokens", "reference_quirks": False}


def prepared(
    folder: Path,
    system: str,
    init: Path | None = None,
    *,
    tokenizer: dict[str, Any] | None = None,
    images: bool = False,
    **values: object,
) -> Task:
    """The task of a stage on shards of six scenes of two pairs, one of which is held out."""
    shards, vqgan = shard_factory.write_tokens(folder, SCENES, images=images, tokenizer=tokenizer)
    recipe = {"stage1": stage1, "stage2": stage2}[system]
    loop = {"batch_size": 2, "device": "cpu", "epochs": 1}
    files = {"vqgan": str(vqgan)} if init is None or init.is_file() else {}
    own = {"loop": loop, **files, **values}
    settings = build(recipe.Settings, own, "test", "docs")  # type: ignore[attr-defined]
    request = TrainingRequest([shards], [], folder / system, init, console=QUIET)
    task: Task = recipe.prepare(settings, request)  # type: ignore[attr-defined]
    return task


@pytest.mark.parametrize(("pair_scenes", "items"), [(False, 2 * (SCENES - 1)), (True, SCENES - 1)])
@pytest.mark.parametrize("system", ["stage1", "stage2"])
def test_an_epoch_has_as_many_items_as_the_stream(
    tmp_path: Path, system: str, pair_scenes: bool, items: int
) -> None:
    """Keeps away: pairs that are counted where both of a scene are one item: twice the steps."""
    stream = {"pair_scenes": pair_scenes}
    task = prepared(tmp_path, system, network=NETWORK, stream=stream)
    assert task.items == items


def write_run(folder: Path, system: str, task: Task, settings: dict[str, object]) -> Path:
    """A run with a task's network as it is."""
    run = folder / "run"
    run_folder.write_files(run, task.files)
    settings = {"system": system, "files": sorted(task.files), **task.about, **settings}
    storage.write_json(str(run / run_folder.SETTINGS), settings)
    tensors = task.objective.network.state_dict()
    checkpoints.write(run, 0, tensors, settings, {}, {"metrics": {}, "best": {"step": 0}})
    return run


def test_an_encoder_that_saw_no_captions_has_no_words(tmp_path: Path) -> None:
    """Keeps away: 49,408 embeddings that nothing reads, most of a small captioner's file."""
    settings: dict[str, Any] = {
        "network": NETWORK, "text": "none", "losses": {"align": 0}, "keyframes": {"k": 0}
    }  # fmt: skip
    first = prepared(tmp_path, "stage1", **settings)
    run = write_run(tmp_path, "stage1", first, {**NO_SLIPS, **settings})
    second = prepared(tmp_path, "stage2", run, queries={"k": 0})
    network = second.objective.network
    assert isinstance(network, ProCap)
    assert len(network.encoder.text_emb.weight) == NETWORK["text_length"] + 1
    tokens = torch.zeros(2, 2, network.encoder.config.frame_tokens, dtype=torch.long)
    assert len(network.eval().caption(tokens)) == 2


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("decoder", [False, True])
def test_each_stage_has_its_own_slips(
    tmp_path: Path, first: bool, second: bool, decoder: bool
) -> None:
    """Keeps away: a stage 2 with the slips that its stage 1 had; but it sees images as that did."""
    task = prepared(tmp_path / "a", "stage1", network=NETWORK, reference_quirks=first)
    losses = {"reference_quirks": not first}
    stage1_settings = {"frames": "tokens", "network": NETWORK, "losses": losses}
    stage1_settings |= {"reference_quirks": first}
    init = write_run(tmp_path / "a", "stage1", task, stage1_settings)
    sizes = {"width": 16, "heads": 2, "hidden": 16, "length": 8, "reference_quirks": decoder}
    values = {"reference_quirks": second, "decoder": sizes}
    task = prepared(tmp_path / "b", "stage2", init, **values)
    more = {**values, "queries": {"kind": "shared"}, "comparison": None}
    run = write_run(tmp_path / "b", "stage2", task, more)
    for network in (task.objective.network, stage2.load(stored_run.read(run), "cpu")):
        assert isinstance(network, ProCap)
        assert network.features.reference_quirks is first
        assert network.reference_quirks is second
        norms = [one for one in network.decoder.modules() if isinstance(one, Norm)]
        assert {norm.reference_quirks for norm in norms} == {decoder}


@pytest.mark.parametrize("name", manifest.names())
def test_manifests_of_the_paper_s_settings_keep_its_decoder(name: str) -> None:
    """Keeps away: figures beside the paper's of another decoder; and its slips in other runs."""
    section = configs.load(stage2.Settings, "stage2", name, [], QUIET)
    paper = name.startswith("paper/procap")
    like_the_paper = paper or name in ("clevr", "clevr_dc", "edit", "levir", "spot")
    assert section.decoder.reference_quirks is like_the_paper
    assert section.reference_quirks is paper


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"facts": {}}, "^test: facts: "),
        ({"decoder": {"width": 16, "heads": 3}}, r"^test: decoder: width \(16\) "),
    ],
)
def test_settings_are_checked_before_any_data(
    tmp_path: Path, values: dict[str, object], expected: str
) -> None:
    """Keeps away: minutes of reading, and of --init, before an error that was clear at once."""
    request = TrainingRequest(["no.tar"], [], tmp_path / "run", tmp_path / "init", console=QUIET)
    with pytest.raises(UserError, match=expected):
        stage2.prepare(build(stage2.Settings, values, "test", "docs"), request)


def test_the_encoder_starts_from_clip_s_blocks(tmp_path: Path) -> None:
    """The ablation without stage 1 as the paper has it: its code always begins with CLIP."""
    clip = weight_factory.write_clip4idc(tmp_path / "clip.safetensors")
    task = prepared(tmp_path, "stage2", clip, network={"width": 64, "layers": 2, "text_length": 4})
    assert isinstance(task.objective.network, ProCap)
    blocks = load(clip.read_bytes())
    for name, tensor in task.objective.network.encoder.transformer.state_dict().items():
        assert (tensor == blocks[f"visual.transformer.{name}"]).all(), name


def test_losses_of_captions_are_added_up(tmp_path: Path) -> None:
    """As in ProCap's code: a step of two captions counts twice as much as one of one."""
    networks = {"network": NETWORK, "loss_reduction": "sum"}
    objective = prepared(tmp_path, "stage2", **networks).objective
    labels = torch.zeros(3, 8, dtype=torch.long)
    assert objective.denominators({"labels": labels})["captions"] == 1


@pytest.mark.parametrize("key", ["vqgan", "backbone_weights"])
def test_networks_beside_those_of_stage_1_are_refused(tmp_path: Path, key: str) -> None:
    """Keeps away: a file that is named, and never read."""
    settings = build(stage2.Settings, {key: "file.pt"}, "test", "docs")
    request = TrainingRequest(["no.tar"], [], tmp_path / "run", tmp_path / "init", console=QUIET)
    with pytest.raises(UserError, match=rf"^{key}: with --init .* Leave {key} out with --init"):
        stage2.prepare(settings, request)


@pytest.mark.parametrize("system", ["stage1", "stage2"])
@pytest.mark.parametrize("values", [{"backbone_weights": "b.pt"}, {"feature_pooling": "mean"}])
def test_settings_of_features_are_refused_where_none_are_read(
    tmp_path: Path, system: str, values: dict[str, str]
) -> None:
    """Keeps away: a backbone's file, or a pooling, that tokens and pixels never use."""
    [key] = values
    with pytest.raises(UserError, match=f"^{key}: frames=tokens reads no features"):
        prepared(tmp_path, system, network=NETWORK, **values)


def test_stages_make_the_network_that_the_tokens_are_of(tmp_path: Path) -> None:
    """Keeps away: attention that `tokenize.config` dropped, and that a training used: the features
    of another network than the one that made its targets, without a word."""
    path = tmp_path / "vqgan.safetensors"
    vqgan = str(weight_factory.write_vqgan(path, attention=(2,)))
    config = {"ddconfig": {"resolution": 64, "attn_resolutions": []}}
    network, file, unused = networks.vqgan(vqgan, config)
    tokenizer = networks.tokenizer_meta(network, file, unused, config)
    values = {"network": NETWORK, "frames": "pixels", "vqgan": vqgan}
    for system, more in (("stage1", {"keyframes": {"k": 0}}), ("stage2", {})):
        task = prepared(tmp_path, system, tokenizer=tokenizer, images=True, **values, **more)
        made_with = load(task.files["vqgan.safetensors"])
        assert made_with.keys() == network.state_dict().keys()
        assert task.about["tokenizer_sha256"] == tokenizer["tokenizer_sha256"]
    # The same file with all of its attention is another network, and so is another file.
    other = {**tokenizer, "tokenizer_sha256": "0" * 64}
    for meta in (other, {**other, "tokenizer_config": None}, {**other, "tokenizer_config": 1}):
        with pytest.raises(UserError, match="their digests differ"):
            prepared(tmp_path, "stage1", tokenizer=meta, **values)
    # A damaged one is blamed on its shard, not on the weights or on a setting of cc-prep.
    of_file = weights.locate(vqgan).sha256
    for damage in ({"resolution": 64}, {"resolution": "x", "attn_resolutions": []}):
        meta = {**other, "tokenizer_config": {"sha256": of_file, **damage}}
        with pytest.raises(UserError, match=r"\.tar: a sample's tokenizer_config .* rebuild them"):
            prepared(tmp_path, "stage1", tokenizer=meta, **values)


def dropping(folder: Path, resolutions: list[int]) -> Path:
    """A folder with a VQGAN with attention, and the provenance of a build that dropped some."""
    folder.mkdir(exist_ok=True)
    vqgan = weight_factory.write_vqgan(folder / "vqgan.safetensors", attention=(2,))
    config = {"ddconfig": {"resolution": 64, "attn_resolutions": resolutions}}
    record = {
        "format": training_shards.FORMAT.name,
        "format_version": VERSIONS[training_shards.FORMAT.name],
        "settings": {"tokenize": {"weights": str(vqgan), "config": config}},
    }
    storage.write_json(str(folder / provenance.FILE), record)
    return folder


REFUSED = r"dropped attention of .* Rebuild these shards"
ATTENTION = {"network": NETWORK, "tokenizer": {}, "images": True}


@pytest.mark.parametrize("changed", [{"format": "theirs"}, {"settings": {"tokenize": None}}])
def test_a_foreign_provenance_ends_no_training(tmp_path: Path, changed: dict[str, Any]) -> None:
    """Keeps away: a training that is refused for a file that it does not need."""
    folder = dropping(tmp_path / "old", [])
    file = str(folder / provenance.FILE)
    storage.write_json(file, storage.read_json(file) | changed)
    prepared(folder, "stage1", **ATTENTION)


def test_pairs_to_validate_on_are_checked_before_the_first_step(tmp_path: Path) -> None:
    """Keeps away: 5,000 steps of stage 1 that end at the first validation."""
    shards, vqgan = shard_factory.write_tokens(tmp_path, SCENES, images=True)
    valid, _ = shard_factory.write_tokens(tmp_path / "other", SCENES, "val")
    own = {"network": NETWORK, "frames": "pixels", "vqgan": str(vqgan), "loop": {"device": "cpu"}}
    settings = build(stage1.Settings, own, "test", "docs")
    with pytest.raises(UserError, match=r"set-val-.* holds the images of 0"):
        stage1.prepare(settings, TrainingRequest([shards], [valid], tmp_path / "x", console=QUIET))
