"""METEOR of 8,000 captions in Python, against the Java program that pycocoevalcap starts.

    python benchmarks/bench_meteor.py [--captions 8000] [--repeats 3]
        [--golden tests/golden/meteor/by_chance.json]

--golden measures nothing: it asks the program about captions by chance, compares each, and writes
its answers into the file that tests/parity/test_meteor.py reads. Else each turn begins as a new
process does: Java starts, and the tables are read anew. The captions are tokenised before. The
figures agree, which is asserted. The aim is to be faster.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import click
from bench_metrics import sentences
from lib.measuring import report, turns

from cc_prep.synth import grammar
from cc_train.evaluation.captions import metrics
from cc_train.evaluation.captions.meteor import meteor, paraphrases, tables

BY_CHANCE = 400  # captions of --golden
PHRASES = ("in front of", "next to", "no longer", "has been", "is missing", "a number of", "'s")


def by_chance() -> tuple[dict[str, list[str]], dict[str, str]]:
    """References and captions of words that are often repeated, and of words of one meaning."""
    rng = random.Random(0)
    groups: dict[str, list[str]] = {}
    synsets = tables.read().synsets
    for word in sorted(synsets)[:: len(synsets) // 6000]:
        for number in synsets[word].split():
            groups.setdefault(number, []).append(word.replace("_", " "))
    alike = [words for words in groups.values() if len(words) > 1]
    plain = [*" ".join(grammar.NO_CHANGE_SENTENCES).split(), "of", "and", "box", "boxes", "."]

    def words() -> list[str]:
        of_one_meaning = [word for group in rng.sample(alike, 2) for word in group]
        pool = [*rng.sample(plain, 5), *of_one_meaning, rng.choice(PHRASES)]
        return rng.choices(pool, k=rng.randint(1, 14))

    def caption(pool: list[str]) -> str:
        return " ".join(word if rng.random() < 0.8 else rng.choice(pool) for word in pool)

    pools = {str(number): words() for number in range(BY_CHANCE)}
    candidates = {id: caption(pool) for id, pool in pools.items()}
    return {id: [caption(pool[::-1]), caption(pool)] for id, pool in pools.items()}, candidates


def write_golden(path: Path) -> None:
    """Asks the program about captions by chance, and stores what it answers."""
    from pycocoevalcap.meteor.meteor import Meteor

    references, candidates = by_chance()
    total, each = Meteor().compute_score(references, {id: [c] for id, c in candidates.items()})
    _, scores = meteor(references, candidates, [set(candidates)])
    theirs = dict(zip(candidates, map(float, each), strict=True))
    assert all(abs(scores[id] - theirs[id]) < 1e-9 for id in candidates)
    items = [
        {"candidate": candidates[id], "references": references[id], "score": theirs[id]}
        for id in candidates
    ]
    stored = {**json.loads(path.read_text()), "total": float(total), "items": items}
    path.write_text(json.dumps(stored, indent=0, ensure_ascii=False) + "\n")


@click.command()
@click.option("--captions", default=8000, show_default=True)
@click.option("--repeats", default=3, show_default=True)
@click.option("--golden", type=click.Path(exists=True, path_type=Path), help="Written anew.")
def main(captions: int, repeats: int, golden: Path | None) -> None:
    """Measures seconds."""
    if golden is not None:
        write_golden(golden)
        return
    references, candidates = metrics.tokenised(*sentences(captions))

    def ours() -> float:
        tables.read.cache_clear()
        paraphrases.read.cache_clear()
        return meteor(references, candidates, [set(candidates)])[0][0]

    def theirs() -> float:
        from pycocoevalcap.meteor.meteor import Meteor

        lists = {id: [caption] for id, caption in candidates.items()}
        return float(Meteor().compute_score(references, lists)[0])

    assert abs(ours() - theirs()) < 1e-9
    seconds = turns({"ours": ours, "java": theirs}, repeats)
    ratio = seconds["java"] / seconds["ours"]
    print(f"ours {seconds['ours']:.1f} s, Java {seconds['java']:.1f} s: × {ratio:.2f}")
    report("meteor", {"captions": captions, **seconds, "ratio": ratio})


if __name__ == "__main__":
    main()
