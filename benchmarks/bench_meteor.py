"""METEOR of 8,000 captions in Python, against the Java program that pycocoevalcap starts.

    python benchmarks/bench_meteor.py [--captions 8000] [--repeats 3]

Each turn begins as a new process does: Java starts, and the tables are read anew. The captions are
tokenised before. The figures agree, which is asserted. The aim is to be faster.
"""

from __future__ import annotations

import click
from bench_metrics import sentences
from lib.measuring import report, turns

from cc_train.evaluation.captions import metrics
from cc_train.evaluation.captions.meteor import meteor, paraphrases, tables


@click.command()
@click.option("--captions", default=8000, show_default=True)
@click.option("--repeats", default=3, show_default=True)
def main(captions: int, repeats: int) -> None:
    """Measures seconds."""
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
