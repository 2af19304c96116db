"""The signature of a score: all that it depends on besides the captions, in one printable line.

    pairs:1263|refs:2100-3f6c0d2a91be|subset:all|tok:ptb|CIDEr:D,df=refs|METEOR:1.5,python|…

As with sacreBLEU's signature, two scores are comparable if their lines agree. Keys are separated by
`|`; no value holds a `|` or a `:`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cc_prep import __version__
from cc_prep.unspaced import Words
from cc_train.evaluation.captions import metrics

SCORER = 1  # counted up whenever the same captions may get other figures
ALL, PREDICTED = "all", "predicted"
TOKENIZERS: Mapping[Words, str] = {
    "treebank": "ptb,lowercase,nopunct",
    "characters": "ptb+characters,lowercase,nopunct",
}
PROTOCOL, NONE, FACTS, JUDGE = "protocol", "none", "facts", "judge"
TOLD_OTHERWISE = ("subset", "version")  # by `refs`, which holds every pair, and by `scorer`
# By measure: what it is, and in which variant.
VARIANTS = {
    "BLEU": "corpus,closest",
    "METEOR": "1.5,python",
    "ROUGE-L": "beta=1.2",
    "CIDEr": "D,n=4,sigma=6,df=refs",
    "S*m": "BLEU-4,METEOR,ROUGE-L,CIDEr",
    "SPICE": "1.0",
}


@dataclass(frozen=True)
class Signature:
    """The parts of a signature by key, in their order."""

    parts: Mapping[str, str]

    @property
    def line(self) -> str:
        """The signature as it is printed."""
        return "|".join(f"{key}:{value}" for key, value in self.parts.items())

    @property
    def protocol(self) -> str | None:
        """The name of the protocol that the scores follow, if any."""
        name = self.parts.get(PROTOCOL, NONE).partition("@")[0]
        return None if name == NONE else name

    @property
    def words(self) -> Words:
        """How captions were split into words."""
        return "characters" if self.parts.get("tok") == TOKENIZERS["characters"] else "treebank"

    def judged(self, judge: str) -> Signature:
        """The signature of the same scores with those of a judge, see `judging.scores.signed`."""
        parts: dict[str, str] = {}
        for key, value in self.parts.items():
            if key == PROTOCOL:
                parts[JUDGE] = judge
            parts[key] = value
        return Signature(parts)

    def differences(self, other: Signature) -> list[str]:
        """Keys whose values make two scores incomparable.

        Three things are not among them: the toolkit's version, since `scorer` is increased whenever
        a score may change; the subset, since `refs` covers the pairs of that subset; and keys that
        only one of the two has, such as a measure or a protocol.
        """
        absent = {PROTOCOL: NONE}
        return [
            key
            for key, value in self.parts.items()
            if key not in TOLD_OTHERWISE
            and key in other.parts
            and other.parts[key] != value
            and absent.get(key) not in (value, other.parts[key])
        ]


def common(signatures: Sequence[Signature]) -> Signature:
    """What the signatures of several comparable scores have in common: that of their mean.

    Keys that one of them lacks are left out, such as a measure that is then not in the mean. The
    protocol is `none` unless all follow it; other values that differ are joined by `+`.
    """
    first = signatures[0].parts
    parts = {}
    for key in (key for key in first if all(key in one.parts for one in signatures)):
        values = list(dict.fromkeys(one.parts[key] for one in signatures))
        parts[key] = NONE if key == PROTOCOL and len(values) > 1 else "+".join(values)
    return Signature(parts)


def parse(line: str) -> Signature:
    """The signature in a line.

    Raises:
        ValueError: For a line that is none.
    """
    pairs = [part.partition(":") for part in line.split("|")]
    if not all(key and colon and value for key, colon, value in pairs):
        raise ValueError(f"{line!r} is no signature")
    return Signature({key: value for key, _, value in pairs})


def of(
    references: Mapping[str, Sequence[str]],
    names: Mapping[str, str],
    measures: Sequence[str],
    subset: str = ALL,
    protocol: str = NONE,
    *,
    facts: str | None = None,
    learned: Mapping[str, str] | None = None,
    words: Words = "treebank",
) -> Signature:
    """The signature of scores.

    Args:
        references: Tokenised, by id, as `metrics.tokenised` gives them.
        names: The official id of each.
        measures: Those that were computed.
        subset: `all` pairs with references, or only those that were `predicted`.
        protocol: As `name@revision`.
        facts: What was judged of rendered pairs, as `rendered.fact_scores.digest` gives it; without
            it the signature has no such key.
        learned: The networks of measures of `captions.learned`, by measure.
        words: As the references were split.
    """
    count = sum(map(len, references.values()))
    used = {"BLEU" if name in metrics.BLEU else name for name in measures}
    return Signature(
        {
            "pairs": str(len(references)),
            "refs": f"{count}-{digest(references, names)[:12]}",
            "subset": subset,
            "tok": TOKENIZERS[words],
            **{name: variant for name, variant in VARIANTS.items() if name in used},
            **(learned or {}),
            **({FACTS: facts} if facts else {}),
            PROTOCOL: protocol,
            "scorer": str(SCORER),
            "version": __version__,
        }
    )


def digest(references: Mapping[str, Sequence[str]], names: Mapping[str, str]) -> str:
    """SHA-256 of references and official ids; the order of pairs and captions does not matter."""
    lines = sorted("\t".join((names[id], *sorted(texts))) for id, texts in references.items())
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()
