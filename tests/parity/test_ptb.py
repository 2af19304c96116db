"""Our tokenizer gives what the Java one gives."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest

from cc_train.evaluation.captions import ptb
from tests.conftest import ROOT, golden

REAL = ROOT.parent / "shared" / "realdata"  # no licence: read where it stands, never copied
SHARE = 0.999


def strings(content: object) -> Iterator[str]:
    """All strings of a JSON value that are captions."""
    if isinstance(content, str):
        yield content.replace("\n", " ")
    elif isinstance(content, dict):
        for key, value in content.items():
            if key in ("references", "candidates", "sentences", "sents"):
                yield from strings(value)
            elif isinstance(value, (dict, list)):
                yield from strings(value) if key not in SKIPPED else ()
    elif isinstance(content, list):
        for value in content:
            yield from strings(value)


SKIPPED = ("ids", "corpus", "per_item", "tokenised_references", "tokenised_candidates")


def golden_captions() -> list[str]:
    files = [f for folder in golden("caption_metrics") for f in sorted(folder.glob("*.json"))]
    return [caption for file in files for caption in strings(json.loads(file.read_text()))]


def odd_captions() -> list[str]:
    """Words, marks and numbers as captions may mix them."""
    rng = random.Random(0)
    parts = [
        "the",
        "car",
        "isn't",
        "man's",
        "there's",
        "T-shirt",
        "left",
        "(white)",
        "3.5",
        "10:30",
    ]
    parts += ["50%", "&", '"red"', "cannot", "gonna", "it's", "no", "and/or", "black", "they're"]
    ends = [".", "!", "?", "...", "", ",", ";", " -- ", ":"]
    return [
        "".join(rng.choice(parts) + rng.choice([" ", " ", " ", ", "]) for _ in range(8)).strip()
        + rng.choice(ends)
        for _ in range(400)
    ]


def real_captions() -> list[str]:
    return [
        caption.strip()
        for file in sorted(REAL.glob("*/**/*.json"))
        for caption in strings(json.loads(file.read_text()))
        if "clevr" not in str(file)
    ]


SOURCES = {"golden": golden_captions, "odd": odd_captions}
SOURCES |= {"real": real_captions} if REAL.exists() else {}


@pytest.mark.parametrize("mark", ["\u0300", "\u0301", "\u064b", "\u109d"])
def test_marks_stay_in_their_word(mark: str) -> None:
    """Keeps away: words of Latin to Burmese that fall apart at an accent or a vowel."""
    assert ptb.tokenize(f"a{mark}b c{mark}") == f"a{mark}b c{mark}"


@pytest.mark.parametrize("source", list(SOURCES))
def test_same_tokens(source: str) -> None:
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    captions = sorted({caption for caption in SOURCES[source]() if caption.strip()})
    assert len(captions) > 50
    java = PTBTokenizer().tokenize({i: [{"caption": one}] for i, one in enumerate(captions)})
    other = [one for i, one in enumerate(captions) if ptb.tokenize(one) != java[i][0]]
    assert len(other) <= (1 - SHARE) * len(captions), other[:20]
