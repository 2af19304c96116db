"""BLEU, ROUGE-L and CIDEr of 8,000 captions with their tokenisation, against the official scripts'.

    python benchmarks/bench_metrics.py [--captions 8000] [--repeats 5]

The alternative is pycocoevalcap's way: a Java process tokenises references and predictions, the
same measures in Python follow. The figures agree, which is asserted. The aim is a time: 10 s.
"""

from __future__ import annotations

from itertools import chain

import click
import numpy as np
from lib.measuring import report, turns

from cc_prep.synth import grammar
from cc_train.evaluation.captions import metrics

REFERENCES = 5


@click.command()
@click.option("--captions", default=8000, show_default=True)
@click.option("--repeats", default=5, show_default=True)
def main(captions: int, repeats: int) -> None:
    """Measures seconds."""
    references, predictions = sentences(captions)
    ours = metrics.score(references, predictions, metrics.PLAIN).corpus
    theirs = official(references, predictions)
    assert all(abs(ours[name] - theirs[name]) < 1e-6 for name in metrics.PLAIN), (ours, theirs)
    seconds = turns(
        {
            "ours": lambda: metrics.score(references, predictions, metrics.PLAIN),
            "official": lambda: official(references, predictions),
        },
        repeats,
    )
    ratio = seconds["official"] / seconds["ours"]
    print(f"ours {seconds['ours']:.1f} s, official {seconds['official']:.1f} s: × {ratio:.2f}")
    report("metrics", {"captions": captions, **seconds, "ratio": ratio})


def sentences(count: int) -> tuple[dict[str, list[str]], dict[str, str]]:
    """References and a prediction for so many pairs, of random words in the field's manner."""
    rng = np.random.default_rng(0)
    texts = [*chain(*grammar.SENTENCES.values()), *grammar.NO_CHANGE_SENTENCES]
    words = sorted({word for text in texts for word in text.split() if word.isalpha()})
    words += [f"word{number}" for number in range(300)]

    def sentence() -> str:
        return "The " + " ".join(rng.choice(words, rng.integers(6, 14))) + "."

    references = {str(n): [sentence() for _ in range(REFERENCES)] for n in range(count)}
    # Every other prediction shares words with its references.
    predictions = {id: texts[0] if int(id) % 2 else sentence() for id, texts in references.items()}
    return references, predictions


def official(references: dict[str, list[str]], predictions: dict[str, str]) -> dict[str, float]:
    """Scores as coco-caption's eval script does, without METEOR and SPICE."""
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    reference_entries = {
        id: [{"caption": text} for text in texts] for id, texts in references.items()
    }
    prediction_entries = {id: [{"caption": text}] for id, text in predictions.items()}
    tokenizer = PTBTokenizer()
    tokens = tokenizer.tokenize(reference_entries)
    guesses = tokenizer.tokenize(prediction_entries)
    bleu = Bleu(4).compute_score(tokens, guesses, verbose=0)[0]
    scores = dict(zip(metrics.BLEU, bleu, strict=True))
    scores["ROUGE-L"] = Rouge().compute_score(tokens, guesses)[0]
    scores["CIDEr"] = Cider().compute_score(tokens, guesses)[0]
    return {name: 100 * float(value) for name, value in scores.items()}


if __name__ == "__main__":
    main()
