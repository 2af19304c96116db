"""How well the attributes of small objects can be read from the features of each backbone.

    python benchmarks/backbone_attributes.py [--backbone NAME]... [--scenes 4000] [--fresh 1000] \
        [--seeds 3] [--size 112] [--out out/bench/backbones]

What a captioner of pairs reads looks with (its adapter, and the classifier at a place) is trained
on the features of the objects' true places and measured on other scenes. Where a change is takes no
part, so the rows tell what the features hold. One row a backbone: % right, with the interval of the
seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import click
import numpy as np
import torch
import torch.nn.functional as F
from lib import rendered, tables
from lib.measuring import report
from torch import Tensor

from cc_prep.devices import keep_freed_memory
from cc_prep.media import images as image_files
from cc_prep.models.backbones import BACKBONES
from cc_prep.records import ObjectAttributes
from cc_prep.steps.features import FeatureExtractor
from cc_prep.weights import networks
from cc_train.data.supervision import SOLIDS
from cc_train.layers.pair_encoder import EncoderSettings, PairEncoder

SEED = 2000  # of the scenes to train on; those to measure on have the next one
EPOCHS, BATCH, RATE = 6, 24, 1e-3
STATISTICS = 500  # images whose channels are standardised by


@dataclass(frozen=True)
class Objects:
    """Images uint8 [N, H, W, 3], and their objects.

    image: the number of each object's image, int64 [M]. place: (u, v) in it, float32 [M, 2].
    looks: classes, int64 [M, 4].
    """

    images: np.ndarray
    image: Tensor
    location: Tensor
    attributes: Tensor

    @classmethod
    def of(cls, root: str) -> Objects:
        """Images and objects of the changed pairs of rendered scenes."""
        images: list[np.ndarray] = []
        rows: list[tuple[int, ObjectAttributes]] = []
        for pair in rendered.changed(root):
            assert pair.facts is not None
            facts = pair.facts
            for path, attributes in (
                (pair.before, facts.objects_before),
                (pair.after, facts.objects_after),
            ):
                rows += [(len(images), one) for one in attributes if one.location is not None]
                images.append(image_files.read(f"{root}/{path}", None))
        return cls(
            np.stack(images),
            torch.tensor([number for number, _ in rows]),
            torch.tensor([one.location for _, one in rows]),
            torch.tensor([SOLIDS.classes_of_object(one) for _, one in rows]),
        )


@click.command()
@click.option(
    "--backbone",
    "names",
    type=click.Choice([name for name, one in BACKBONES.items() if one.weights is not None]),
    multiple=True,
    default=["efficientnet-lite0", "efficientnet-lite0-x2"],
    show_default=True,
)
@click.option(
    "--scenes", type=click.IntRange(BATCH), default=4000, show_default=True, help="To train on."
)
@click.option(
    "--fresh", type=click.IntRange(1), default=1000, show_default=True, help="To measure on."
)
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--size", default=112, show_default=True, help="Of the images, in px.")
@click.option("--out", default="out/bench/backbones", show_default=True)
def main(names: tuple[str, ...], scenes: int, fresh: int, seeds: int, size: int, out: str) -> None:
    """Prints the shares of looks that are read right."""
    keep_freed_memory()
    sets = []
    for number, count in enumerate((scenes, fresh)):
        root = f"{out}/{size}-{SEED + number}"
        rendered.make(root, count, SEED + number, size)
        sets.append(Objects.of(root))
    train, test = sets
    rows: dict[str, dict[int, dict[str, float]]] = {}
    for name in names:
        extract = FeatureExtractor(name, *networks.backbone(name))
        features = [_features(extract, one.images) for one in sets]
        rows[name] = {}
        for seed in range(seeds):
            reader = trained(features[0], train, seed)
            rows[name][seed] = shares_of_right(reader, features[1], test)
            print(f"{name}, seed {seed}: {rows[name][seed]}", flush=True)
    print(tables.table_of(rows, list(SOLIDS.attributes)))
    report(f"backbone_attributes_{size}", {"scenes": scenes, "fresh": fresh, **rows})


def trained(features: Tensor, objects: Objects, seed: int) -> PairEncoder:
    """What reads looks, trained on objects in images whose features [N, C, h, w] are given."""
    torch.manual_seed(seed)
    channels, rows, columns = features.shape[1:]
    reader = PairEncoder((channels, rows, columns), EncoderSettings())
    some = features[:STATISTICS].float()
    reader.mean.copy_(some.mean((0, 2, 3)))
    reader.std.copy_(some.std((0, 2, 3)))
    optimizer = torch.optim.AdamW(reader.parameters(), RATE, betas=(0.9, 0.98), weight_decay=0.05)
    steps = EPOCHS * (len(features) // BATCH)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps + 1, pct_start=0.05)
    for _ in range(EPOCHS):
        order = torch.randperm(len(features))
        for chosen in order[: len(order) // BATCH * BATCH].split(BATCH):
            ours = torch.isin(objects.image, chosen)
            parts = _logits(reader, features, objects, chosen, ours)
            attributes = objects.attributes[ours]
            loss = sum(F.cross_entropy(part, attributes[:, i]) for i, part in enumerate(parts))
            assert isinstance(loss, Tensor)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rate.step()
    return reader.eval()


@torch.no_grad()
def shares_of_right(reader: PairEncoder, features: Tensor, objects: Objects) -> dict[str, float]:
    """% of the objects whose looks are read right."""
    right = torch.zeros(len(SOLIDS.attributes))
    for chosen in torch.arange(len(features)).split(BATCH):
        ours = torch.isin(objects.image, chosen)
        parts = _logits(reader, features, objects, chosen, ours)
        read = torch.stack([part.argmax(1) for part in parts], dim=1)
        right += (read == objects.attributes[ours]).sum(0)
    shares = 100 * right / len(objects.attributes)
    return dict(zip(SOLIDS.attributes, shares.tolist(), strict=True))


def _logits(
    reader: PairEncoder, features: Tensor, objects: Objects, chosen: Tensor, ours: Tensor
) -> Sequence[Tensor]:
    """Logits of each look of the objects of some images. ours: which objects, bool [M]."""
    number = torch.empty(len(features), dtype=torch.int64)
    number[chosen] = torch.arange(len(chosen))
    images = reader.images(features[chosen])[number[objects.image[ours]]]
    return reader.attributes_at(images, objects.location[ours]).split(
        SOLIDS.attribute_classes, dim=1
    )


def _features(extract: FeatureExtractor, images: np.ndarray) -> Tensor:
    """float16 [N, C, h, w]; an image at a time, as `cc-prep build` computes them."""
    parts = [extract(image[None], [0]).values for image in images]
    return torch.from_numpy(np.concatenate(parts))


if __name__ == "__main__":
    main()
