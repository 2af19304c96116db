"""CLIP4IDC's data: variations that keep captions true, and who is a negative."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from rich.console import Console
from safetensors.torch import load_file, save_file

from cc_prep.errors import UserError
from cc_prep.formats import sequences, tar
from cc_prep.records import Facts, FrameSequence, ImagePair, ObjectAttributes
from cc_prep.synth.facts import attributes as solid
from cc_train.data import order, sequence_index
from cc_train.distributed import Ranks
from cc_train.systems.clip4idc import recipe as clip4idc
from cc_train.systems.clip4idc.known_facts import FactHeads
from cc_train.systems.clip4idc.objective import Clip4idcObjective, Network, from_scratch
from cc_train.systems.clip4idc.variation import Data, Variation, captions_of, draw
from cc_train.training import fact_losses
from cc_train.training.fact_losses import FactLosses
from cc_train.training.settings import Loop
from cc_train.training.task import TrainingRequest
from tests import weight_factory

RANDOM = np.random.default_rng(0)


def attributes(number: int) -> ObjectAttributes:
    return solid(("red", "blue")[number % 2], "cube", "metal", "small", (number / 5, 0.3))


# Of four pairs, which show different numbers of objects.
ADDED = Facts("add", None, attributes(1), (), (attributes(1), attributes(2)))


def write(
    folder: Path,
    numbers: range,
    split: str = "train",
    index: int = 0,
    facts: Sequence[Facts | None] = (),
) -> Path:
    path = folder / f"{split}-{index:06d}.tar"
    with tar.write_shard(str(path)) as (writer, _):
        for i in numbers:
            kind = "no_change" if i % 2 else "change"
            known = facts[i] if facts else None
            pair = ImagePair(
                "d", split, str(i // 2), kind, "b", "a", (f"caption {i}",), facts=known
            )
            frames = np.full((3, 32, 40, 3), 10 * i, np.uint8)
            writer.add(pair.key, sequences.encode(FrameSequence(pair, frames), "png", 95, {}))
    return path


def test_a_mirrored_pair_keeps_its_caption_true() -> None:
    data = Data(mirror=True)
    image = np.zeros((8, 8, 3), np.uint8)
    image[:, :2] = 255  # something on the left
    seen = set()
    for place in range(20):
        variation = Variation.draw(data, order.rng_of(0, 0, place))
        pair = variation.of_pair(image, image)
        side = "left" if pair[0][0, 0, 0] else "right"
        assert variation.of_caption("the cube left of the ball") == f"the cube {side} of the ball"
        assert variation.of_caption("The leftmost cube") == f"The {side}most cube"
        assert np.array_equal(*pair)
        seen.add(side)
    assert seen == {"left", "right"}


def test_both_images_move_together() -> None:
    image = RANDOM.integers(0, 256, (16, 16, 3), np.uint8)
    data = Data(shift=3, blur=1.0)
    variation = Variation.draw(data, order.rng_of(0, 0))
    before, after = variation.of_pair(image, image)
    assert np.array_equal(before, after)
    assert not np.array_equal(before, image)


def test_facts_go_where_the_images_go() -> None:
    """Keeps away: places of the stored images in a batch of moved and mirrored ones."""
    image = np.zeros((32, 40, 3), np.uint8)
    image[8, 10] = 255
    shown = solid("red", "cube", "metal", "small", (10.5 / 40, 8.5 / 32))
    facts = Facts("drop", shown, None, (shown,), ())
    pair = ImagePair("d", "train", "1", "change", "b", "a", ("gone",), facts=facts)
    seq = FrameSequence(pair, np.stack([image, image]))
    meta = json.loads(sequences.encode(seq, "png", 95, {})["json"])
    del meta["height"], meta["width"]  # the images say it
    sample = sequence_index.Sample("shard", "d-1", meta, {})
    for variation in (
        Variation(),
        Variation(dx=3, dy=-2),
        Variation(dx=3, dy=-2, mirror=True),
    ):
        seen = variation.of_facts(sample, image.shape)
        assert seen is not None
        assert seen.before is not None
        u, v = seen.before.location
        before, _ = variation.of_pair(image, image)
        assert before[int(v * 32), int(u * 40)].all()
        assert seen.objects_before == (seen.before,)
        assert (seen.type, seen.after, seen.objects_after) == ("drop", None, ())


def test_a_pair_turned_round_has_the_other_caption_and_the_other_facts() -> None:
    """Keeps away: images exchanged under the caption or the facts of the way forwards."""
    facts = replace(ADDED, reversed_captions=("the cube left of the ball is gone",))
    meta = {"captions": ["a cube appeared"], "kind": "change", "facts": facts.to_json()}
    sample = sequence_index.Sample("shard", "d-1", meta, {})
    before, after = (np.full((32, 40, 3), level, np.uint8) for level in (0, 255))
    sentences = set()
    for place in range(20):
        variation, caption = draw(
            sample, Data(reverse=True, mirror=True), order.rng_of(0, 0, place)
        )
        varied = variation.of_facts(sample, before.shape)
        assert varied is not None
        first, second = variation.of_pair(before, after)
        assert first.mean() == (255 if variation.reverse else 0) == 255 - second.mean()
        assert varied.type == ("drop" if variation.reverse else "add")
        assert len(varied.objects_before) == (2 if variation.reverse else 0)
        assert caption.endswith("gone") == variation.reverse
        sentences.add(caption)
    sides = {f"the cube {side} of the ball is gone" for side in ("left", "right")}
    assert sentences == {"a cube appeared", *sides}


def test_all_words_that_are_trained_on_are_known() -> None:
    """Keeps away: a word that only a varied caption has, and whose embedding stays zero."""
    facts = replace(ADDED, reversed_captions=("a ball on the left is gone",))
    meta = {"captions": ["a ball came"], "kind": "change", "facts": facts.to_json()}
    sample = sequence_index.Sample("shard", "d-1", meta, {})
    assert captions_of(sample, Data()) == {"a ball came"}
    assert captions_of(sample, Data(reverse=True, mirror=True)) == {
        "a ball came", "a ball on the left is gone", "a ball on the right is gone",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("meta", "turned"),
    [
        ({"kind": "no_change"}, True),
        ({"kind": "change"}, False),
        ({"kind": "change", "facts": ADDED.to_json()}, False),
    ],
)
def test_only_a_pair_with_a_caption_of_that_is_turned_round(
    meta: dict[str, object], turned: bool
) -> None:
    sample = sequence_index.Sample("shard", "d-1", {"captions": ["a"], **meta}, {})
    drawn = [draw(sample, Data(reverse=True), order.rng_of(0, 0, place)) for place in range(20)]
    assert {caption for _, caption in drawn} == {"a"}
    assert {variation.reverse for variation, _ in drawn} == ({True, False} if turned else {False})


def test_a_batch_with_facts(tmp_path: Path) -> None:
    """Keeps away: pairs of which nothing is known asked for facts; facts that no setting asked."""
    write(tmp_path, range(4))
    samples = sequence_index.read_index([f"{tmp_path}/*.tar"])
    sizes = from_scratch(clip4idc.Network(resolution=32, patch=16)).config
    plain = clip4idc.Settings(loop=Loop(batch_size=4))
    asked = clip4idc.Settings(loop=Loop(batch_size=4), facts=FactLosses())
    assert "facts" not in clip4idc._batch(samples, plain, sizes, Ranks(), 0)
    batch = clip4idc._batch(samples, asked, sizes, Ranks(), 0)
    assert (batch["facts"] == -1).all()
    assert batch["centres"].shape == (8, 2, 2)
    assert not batch["has_objects"].any()


FACTS = [
    Facts("drop", attributes(0), None, (attributes(0),), ()),
    ADDED,
    None,
    Facts(
        "move",
        attributes(3),
        attributes(4),
        (attributes(3), attributes(2)),
        (attributes(4), attributes(2)),
    ),
]


def test_ranks_average_to_the_losses_of_one_process(tmp_path: Path) -> None:
    """Keeps away: a rank that is asked for another's pairs or images, and sums that are divided by
    its own terms."""
    write(tmp_path, range(4), facts=FACTS)
    samples = sequence_index.read_index([f"{tmp_path}/*.tar"])
    network = from_scratch(clip4idc.Network(embedding=16, resolution=32, patch=16, vision_width=64))
    heads = FactHeads(network.config).eval()
    tokens, pairs = torch.randn(2, 4, 5, 64), torch.randn(4, 16)  # before and after, of each pair
    joint = torch.randn(4, 10, 64)

    def batch(ranks: Ranks) -> dict[str, torch.Tensor]:
        settings = clip4idc.Settings(loop=Loop(batch_size=4 // ranks.world), facts=FactLosses())
        return clip4idc._batch(samples, settings, network.config, ranks, 0)

    def losses(part: slice, ranks: Ranks) -> dict[str, torch.Tensor]:
        own = tokens[:, part].flatten(0, 1)
        counts = {name: count / ranks.world for name, count in total.items()}
        known = batch(ranks)
        return heads.losses(own, joint[part], pairs[part], known, counts, FactLosses())

    total = fact_losses.denominators(batch(Ranks()))
    assert all(count > 0 for name, count in total.items() if name != "new_color")
    total["new_color"] = torch.tensor(1)
    one = losses(slice(4), Ranks())
    halves = [losses(slice(2 * rank, 2 * rank + 2), Ranks(rank, 2)) for rank in (0, 1)]
    for name, loss in one.items():
        torch.testing.assert_close((halves[0][name] + halves[1][name]) / 2, loss, msg=name)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"facts": None}, "none of these pairs says what truly changed"),
        ({"facts": {"type": "drop"}}, "facts are type, before"),
    ],
)
def test_facts_that_cannot_be_learned(damage: dict[str, object], message: str) -> None:
    """Keeps away: a setting that has no effect, and a refusal in the middle of a training."""
    sample = sequence_index.Sample("shard", "d-1", {"facts": ADDED.to_json()}, {})
    clip4idc._check_facts([sample])
    damaged = replace(sample, meta={**sample.meta, **damage})
    with pytest.raises(UserError, match=message):
        clip4idc._check_facts([damaged])


def test_true_sentences_are_no_negatives() -> None:
    metas = [{"kind": "change"}, {"kind": "no_change"}, {"kind": "no_change"}, {"kind": "change"}]
    sentences = ["a", "b", "c", "a"]
    positives = clip4idc.positives(sentences, metas).int().tolist()
    assert positives == [[1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 1, 0], [1, 0, 0, 1]]


def test_fewer_pairs_without_change(tmp_path: Path) -> None:
    write(tmp_path, range(20))
    samples = sequence_index.read_index([f"{tmp_path}/*.tar"])
    for share, still in ((0.0, 0), (0.3, 3), (1.0, 10)):
        chosen = clip4idc._fewer_unchanged(samples, share)
        assert sum(s.meta["kind"] == "no_change" for s in chosen) == still
        assert sum(s.meta["kind"] == "change" for s in chosen) == 10


def prepared(folder: Path, *, init: Path | None = None, **sizes: int) -> tuple[int, int | None]:
    """How many blocks see one image alone in the network that is trained, and in its settings."""
    if not list(folder.glob("*.tar")):
        write(folder, range(8))
    request = TrainingRequest(
        [f"{folder}/*.tar"], (), folder / "run", init=init, console=Console(quiet=True)
    )
    task = clip4idc.prepare(clip4idc.Settings(network=Network(**SMALL | sizes)), request)
    assert isinstance(task.objective, Clip4idcObjective)
    assert isinstance(task.settings, clip4idc.Settings)
    next(iter(task.objective.held_out))
    return task.objective.network.config.intra_layers, task.settings.network.intra_layers


SMALL = {"resolution": 32, "patch": 16, "embedding": 16, "vision_width": 64, "text_width": 64}


def test_as_many_blocks_see_one_image_as_when_the_weights_were_trained(tmp_path: Path) -> None:
    """Keeps away: blocks that were trained on pairs and now see one image, without a word."""
    ours = weight_factory.write_clip4idc(tmp_path / "ours.safetensors")  # two of three blocks
    assert prepared(tmp_path, init=ours) == (2, 2)
    assert prepared(tmp_path, init=ours, intra_layers=2) == (2, 2)
    with pytest.raises(UserError, match=r"was trained with network\.intra_layers=2, not 1\. Leave"):
        prepared(tmp_path, init=ours, intra_layers=1)
    assert prepared(tmp_path) == (4, 4)
    foreign = tmp_path / "foreign.safetensors"
    save_file(load_file(ours), foreign)
    assert prepared(tmp_path, init=foreign, intra_layers=1) == (1, 1)
    with pytest.raises(UserError, match=r"intra_layers=9: there are 3 visual blocks.*Give 1 to 2"):
        prepared(tmp_path, init=foreign)
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(ours.read_bytes()[:100])
    with pytest.raises(UserError, match=r"damaged.*checkpoint"):
        prepared(tmp_path, init=damaged)


def test_sizes_that_do_not_fit(tmp_path: Path) -> None:
    """Keeps away: a network that trains for hours and cannot score, or sees another image then."""
    with pytest.raises(UserError, match=r"intra_layers=4: there are 4 visual blocks"):
        prepared(tmp_path, vision_layers=4)
    with pytest.raises(ValidationError, match="resolution 120 is no multiple of patch 16"):
        Network(resolution=120)
    with pytest.raises(ValidationError, match="context"):
        Network(context=77)
    prepared(tmp_path, context=16)
