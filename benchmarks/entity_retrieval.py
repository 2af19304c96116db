"""How often the best entity of a rendered pair is right: its colour, shape, material, size.

    cc-prep synth out/fresh --scenes 200 --seed 996 --size 112
    python benchmarks/entity_retrieval.py out/fresh [--train out/scenes]

Neighbours vote by Lab histograms or by EfficientNet-Lite0, in found or in true masks; each pair is
left out of its own vote. A word is right if it is true of what changed, before or after. The row
`most frequent` takes the vocabulary's most frequent phrase for every pair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import click
import numpy as np
from found_masks import Triple, read
from lib.measuring import report

from cc_prep import datasets, manifest, weights
from cc_prep.formats.changes import FoundChange, Region
from cc_prep.formats.entities import Entity
from cc_prep.manifest import Changes, Entities
from cc_prep.records import CHANGE
from cc_prep.steps import changes
from cc_prep.steps.changes.segmenters import Fill
from cc_prep.steps.entities import regions
from cc_prep.steps.entities.phrases import NounPhrases, vocabulary
from cc_prep.steps.entities.retrieval import ByNeighbours, RegionVectors

WORDS = ("color", "shape", "material", "size")


@click.command()
@click.argument("root")
@click.option("--train", metavar="DIR", help="Whose pairs vote; default: ROOT's, itself left out.")
@click.option("--neighbours", type=int, default=Entities().neighbours, show_default=True)
@click.option("--temperature", type=float, default=Entities().temperature, show_default=True)
def main(root: str, train: str | None, neighbours: int, temperature: float) -> None:
    """Prints for what share of the changed pairs of ROOT, rendered scenes, the entity is right."""
    nouns = NounPhrases()
    pairs = load(root)
    voters = load(train) if train else pairs
    phrases = dict(zip([one[0].key for one in voters], nouns_of(nouns, voters), strict=True))
    names = vocabulary(phrases.values(), Entities().min_count)
    commonest = [Entity(max(names, key=lambda name: names[name]), 1.0)]
    rows = {
        "most frequent": right(pairs, [commonest] * len(pairs)),
    }
    located = weights.locate("efficientnet-lite0")
    for features in ("lab", "efficientnet-lite0"):
        settings = Entities(features=features)
        encoder = regions.make(settings, located, "cpu")
        for masks in ("found", "true"):
            known = vectors(encoder, voters, masks, settings, phrases)
            asked = known if not train else vectors(encoder, pairs, masks, settings, {})
            vote = ByNeighbours(known, names, settings.k, neighbours, temperature)
            rows[f"{features}, {masks} masks"] = right(pairs, [vote(one) for one in asked])
    counts = {"pairs": len(pairs), "voters": len(voters), "phrases": len(names)}
    report("entity_retrieval", {"root": root, **counts, **rows})


def load(root: str) -> list[Triple]:
    """The changed pairs of a rendered data set."""
    settings = manifest.load("synth", ["image_size=null"], root)
    splits = (datasets.pairs(settings, split) for split in settings.splits)
    return [read(settings, pair) for split in splits for pair in split if pair.kind == CHANGE]


def nouns_of(nouns: NounPhrases, pairs: Sequence[Triple]) -> list[tuple[str, ...]]:
    """The noun phrases of each pair's captions."""
    captions = sorted({caption for pair, *_ in pairs for caption in pair.captions})
    of_caption = dict(zip(captions, nouns(captions), strict=True))
    return [
        tuple(p for caption in pair.captions for p in of_caption[caption]) for pair, *_ in pairs
    ]


def vectors(
    encoder: regions.Encoder,
    pairs: Sequence[Triple],
    masks: str,
    settings: Entities,
    phrases: dict[str, tuple[str, ...]],
) -> list[RegionVectors]:
    """Each pair's regions; of true masks there is one, the whole mask."""
    result = []
    for pair, before, after, truth in pairs:
        if masks == "found":
            change = changes.find(before, after, Changes(), Fill())
        else:
            change = true_change(truth)
        ends = regions.vectors(encoder, before, after, change, settings.regions)
        scene = pair.id if phrases else None
        result.append(RegionVectors(pair.key, scene, phrases.get(pair.key, ()), *ends))
    return result


def true_change(mask: np.ndarray | None) -> FoundChange:
    """The true mask as if it had been found."""
    assert mask is not None
    height, width = mask.shape
    if not mask.any():
        return FoundChange(height, width, "true")
    y, x = np.nonzero(mask)
    box = (int(x.min()), int(y.min()), int(x.max()) + 1, int(y.max()) + 1)
    region = Region(
        box=box,
        centre=(float(x.mean()), float(y.mean())),
        area=int(mask.sum()),
        strength=1.0,
        iou_before=1.0,
        iou_after=1.0,
        kept=True,
    )
    return FoundChange(height, width, "true", (region,), mask)


def right(pairs: Sequence[Triple], entities: Sequence[Sequence[Entity]]) -> dict[str, float]:
    """Shares of pairs whose best entity has the right word of each kind, and all right ones."""
    counts: Counter[str] = Counter()
    for (pair, *_), listed in zip(pairs, entities, strict=True):
        words = listed[0].phrase.split() if listed else []
        assert pair.facts is not None
        ends = [looks for looks in (pair.facts.before, pair.facts.after) if looks is not None]
        correct = {word: any(getattr(looks, word) in words for looks in ends) for word in WORDS}
        counts.update(word for word, value in correct.items() if value)
        counts["all four"] += all(correct.values())
    return {word: round(counts[word] / len(pairs), 3) for word in (*WORDS, "all four")}


if __name__ == "__main__":
    main()
