"""A captioner, or anybody's predictions, against the references of a split.

DIR/predictions.json   [{image_id, caption}], COCO's results format; ids as the official scripts
                       want them (and sc_results.json, nsc_results.json for CLEVR-Change)
DIR/references.json    COCO's annotation format
DIR/scores.json        what is right of rendered pairs (`facts`), corpus scores of every group,
                       how sentences match those of references (`sentences`, where a protocol
                       asks for it), what a judge says (`judged`, if one was asked), scores of
                       predicted masks (`masks`), whether masks and captions of rendered pairs tell
                       of the same object (`faithfulness`), what was left out, the conventions, the
                       signature
DIR/items.jsonl        one line per pair: caption, references, scores; of a rendered pair what truly
                       changed (`facts`) and whether the caption is right (`outcomes`, `exact`);
                       what a judge said of it (`judged`); of an own pair its names in its data set
                       (`pair`, `before`, `after`)
DIR/table.md           facts and corpus scores as tables
DIR/predicted_masks/   KEY.png of class ids, where the captioner masks; and true_masks/ beside it
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cc_prep import storage, unspaced
from cc_prep.errors import UserError
from cc_prep.unspaced import Words
from cc_prep.words import aligned
from cc_train.evaluation import signature
from cc_train.evaluation.captions import coco, metrics
from cc_train.evaluation.captions.coco import CHANGE, STILL, Item
from cc_train.evaluation.captions.metrics import Scores
from cc_train.evaluation.evaluation_files import (
    TOTAL,
    Faithfulness,
    Group,
    MaskScores,
    NoneSwapped,
    ScoredPair,
    ScoresFile,
    Swapped,
)
from cc_train.evaluation.signature import Signature

if TYPE_CHECKING:
    from cc_train.evaluation.captions.learned import Measure
    from cc_train.evaluation.captions.sentence_matching import SentenceScores
    from cc_train.evaluation.judging.scores import JudgedScores
    from cc_train.evaluation.rendered.fact_scores import RenderedScores

SCORES, ITEMS, TABLE = "scores.json", "items.jsonl", "table.md"
FILES = (SCORES, ITEMS, TABLE, coco.PREDICTIONS, coco.REFERENCES, *coco.SCORER_FILES)
OF_CHOICE = (
    "The checkpoint was chosen on these very pairs, so it is worse on others than these scores say."
)
NO_CIDER = (
    "CIDEr counts the words that tell a pair from the others of its row: where all references are "
    "alike, or there is one pair, it is 0 for right captions too. BLEU-3 and BLEU-4 are near 0 "
    "where no caption has that many words."
)


@dataclass(frozen=True)
class Evaluation:
    """Scores of all items and of each group, × 100.

    Attributes:
        signature: What the scores depend on besides the captions.
        groups: Scores by group, `total` first.
        counts: Number of pairs by group.
        swapped: The result of `swap_check` for the captions of (after, before); None if there are
            none.
        swapped_captions: These captions by the items' ids.
        judged: What a judge says of the captions; None where none was asked.
        sentences: How captions of several changes match the references' sentences, where the
            protocol asks for it.
        rendered: What is right of the pairs whose data set was rendered; None if there are none.
        masks: Scores of predicted masks, if captioner and samples have masks.
        faithfulness: Agreement of masks and captions, if the pairs are also rendered.
        step, weights, beams, decode: Checkpoint, SHA-256 of its file of weights and decoding of
            the captions; None for captions from elsewhere.
        trained_on: How many of the pairs the captioner was trained on, as far as its folder says.
        chosen_on: Whether its checkpoint was chosen on these pairs, as far as its folder says.
        without_blanks: What to do about references without blanks between their words, if they
            were split at blanks.
        without_words: Which references hold punctuation alone.
    """

    signature: Signature
    groups: dict[str, Scores] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    swapped: Swapped | NoneSwapped | None = None
    sentences: SentenceScores | None = None
    swapped_captions: Mapping[str, str] | None = field(default=None, repr=False)
    judged: JudgedScores | None = None
    rendered: RenderedScores | None = None
    masks: MaskScores | None = None
    faithfulness: Faithfulness | None = None
    step: int | None = None
    weights: str | None = None
    beams: int | None = None
    decode: str | None = None
    trained_on: int = 0
    chosen_on: bool = False
    without_blanks: str = ""
    without_words: str = ""

    def scores_file(self) -> ScoresFile:
        """The content of scores.json."""
        groups = {
            name: Group(pairs=self.counts[name], **scores.corpus)
            for name, scores in self.groups.items()
        }
        parts = {
            "facts": self.rendered and self.rendered.scores,
            "groups": groups,
            "sentences": self.sentences and self.sentences.to_json(),
            "judged": self.judged and self.judged.scores,
            "masks": self.masks,
            "faithfulness": self.faithfulness,
            "without_blanks": self.without_blanks or None,
            "without_words": self.without_words or None,
            "decode": None if self.decode == "best" else self.decode,
            "trained_on": self.trained_on or None,
            "chosen_on": self.chosen_on or None,
        }
        known: dict[str, Any] = {name: part for name, part in parts.items() if part is not None}
        if self.beams is not None:
            known |= {"step": self.step, "weights": self.weights, "beams": self.beams}
        return ScoresFile(
            **known,
            left_out=self.groups[TOTAL].left_out,
            conventions=metrics.conventions(self.signature.words),
            signature=self.signature.line,
            swapped=self.swapped,
        )

    def to_json(self) -> dict[str, Any]:
        """The content of scores.json, as JSON."""
        return self.scores_file().to_json()


def evaluate(
    items: Sequence[Item],
    predictions: Mapping[str, str],
    measures: Sequence[str] = metrics.ORDER,
    protocol: str | None = None,
    subset: str = signature.ALL,
    words: Words = "treebank",
    learned: Sequence[Measure] = (),
) -> Evaluation:
    """Scores of predictions by id, for all items together and for each smaller group.

    Args:
        protocol: The name of one of `cc_train.evaluation.protocols`; it is checked.
        subset: See `signature.of`.
        words: How captions are split into words.
        learned: Further measures, which need networks.

    Raises:
        UserError: Where predictions and items do not fit, an item has no reference, or the items
            are not those of the protocol.
    """
    named, sentences = signature.NONE, None
    references = {item.id: item.references for item in items}
    if protocol is not None:
        from cc_train.evaluation import protocols
        from cc_train.evaluation.captions import sentence_matching

        named = protocols.checked(protocol, items)
    tokens = metrics.tokenised(references, predictions, words)
    if protocol is not None and protocols.get(protocol).sentences:
        sentences = sentence_matching.score(references, predictions)
    groups: dict[str, set[str]] = {TOTAL: set(references)}
    for item in items:
        for name in item.groups:
            groups.setdefault(name, set()).add(item.id)
    scored = {n: groups[n] for n in ranked(groups) if n == TOTAL or groups[n] != groups[TOTAL]}
    scores = metrics.score_groups(tokens, scored, measures, words)
    for measure in learned:
        for name, values in measure.score(references, predictions).items():
            metrics.add(scores.values(), name, values)
    names = {item.id: item.name for item in items}
    rendered = None
    if any(item.facts is not None for item in items):
        from cc_train.evaluation.rendered import fact_scores

        rendered = fact_scores.score(items, predictions)
    return Evaluation(
        signature.of(
            tokens[0],
            names,
            list(scores[TOTAL].corpus),
            subset,
            named,
            facts=None if rendered is None else rendered.digest,
            learned=dict(chain.from_iterable(one.variants.items() for one in learned)),
            words=words,
        ),
        scores,
        {name: len(ids) for name, ids in scored.items()},
        without_blanks=unspaced.note(chain.from_iterable(references.values()))
        if words == "treebank"
        else "",
        without_words=_without_words(tokens[0], names),
        sentences=sentences,
        rendered=rendered,
    )


def ranked(groups: Iterable[str]) -> list[str]:
    """Names of groups in the order in which they are shown."""
    first = [TOTAL, CHANGE, STILL]
    return sorted(groups, key=lambda n: (first.index(n) if n in first else len(first), n))


def swap_check(
    items: Sequence[Item],
    in_order: Mapping[str, str],
    swapped: Mapping[str, str],
    words: Words = "treebank",
) -> Swapped | NoneSwapped:
    """How the captions of changed pairs react when before and after are swapped.

    Args:
        in_order, swapped: Captions by the items' ids.
        words: How they are split into words.
    """
    changed = [item for item in items if item.is_changed]
    if not changed:
        return NoneSwapped()
    references = {item.id: item.references for item in changed}
    same = [in_order[item.id] == swapped[item.id] for item in changed]
    cider, cider_swapped = (
        metrics.corpus_cider(references, {item.id: captions[item.id] for item in changed}, words)
        for captions in (in_order, swapped)
    )
    return Swapped(
        pairs=len(changed), same=sum(same) / len(same), cider=cider, cider_swapped=cider_swapped
    )


def make_folder(out: Path) -> None:
    """Makes the folder of an evaluation. Raises UserError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not os.access(out, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise UserError(f"{out}: {error.strerror}", "Give another --out") from None


def write_captions(out: Path, items: Sequence[Item], predictions: Mapping[str, str]) -> None:
    """Writes the captions of an evaluation into `out` before they are scored, so that they are not
    lost if scoring fails. Scores of other captions that are there are removed first.
    """
    storage.remove(str(out / SCORES))
    coco.write(out, items, predictions)


def write(
    out: Path,
    result: Evaluation,
    items: Sequence[Item],
    predictions: Mapping[str, str],
    uncaptioned: Sequence[Item] = (),
) -> None:
    """Writes all files of an evaluation into the folder `out`, which it creates.

    Readers begin with scores.json: it is removed first and written last, so that they never see the
    scores of one evaluation with the captions of another.

    Args:
        uncaptioned: Pairs without references, which references.json then lists.
    """
    lines = [
        json.dumps(
            _scored(item, predictions[item.id], result).to_json(),
            ensure_ascii=False,
        )
        for item in items
    ]
    make_folder(out)
    write_captions(out, items, predictions)
    coco.write_references(out / coco.REFERENCES, [*items, *uncaptioned])
    storage.write_bytes(str(out / ITEMS), ("\n".join(lines) + "\n").encode())
    storage.write_bytes(str(out / TABLE), table(result).encode())
    storage.write_json(str(out / SCORES), result.to_json())


def _scored(item: Item, caption: str, result: Evaluation) -> ScoredPair:
    """The line of items.jsonl of an item."""
    scores = result.groups[TOTAL].items[item.id]
    known: dict[str, Any] = {**item.own}
    if item.facts is not None and result.rendered is not None:
        verdict = result.rendered.verdicts[item.id]
        known |= {"facts": item.facts, "outcomes": verdict.outcomes, "exact": verdict.exact}
        if item.facts.several:
            known["changes"] = verdict.changes.to_json()
    if result.judged is not None and item.name in result.judged.pairs:
        if result.swapped_captions is not None and item.id in result.swapped_captions:
            known["swapped"] = result.swapped_captions[item.id]
        known["judged"] = result.judged.pairs[item.name]
    return ScoredPair(
        id=item.id,
        image_id=item.name,
        caption=caption,
        references=list(item.references),
        groups=list(item.groups),
        scores={name: round(value, 4) for name, value in scores.items()},
        **known,
    )


def of_training(count: int, pairs: int) -> str:
    """A note on scores of `pairs` pairs, of which `count` have the keys of training pairs.

    Equal keys need not mean equal images: keys of rendered scenes are numbers for every seed.
    """
    return (
        f"{count:,} of these {pairs:,} pairs have the keys of pairs that it was trained on: if "
        "they are the same images, it may be worse on others than these scores say."
    )


def notes(scores: ScoresFile) -> list[str]:
    """What to know about scores.

    Where captions are split wrongly, that is why CIDEr is 0; else it is explained where it is 0 in
    one of the groups.
    """
    no_cider = any(group.figures.get("CIDEr") == 0 for group in scores.groups.values())
    why = scores.without_blanks or (NO_CIDER if no_cider else "")
    return [one for one in (why, scores.without_words) if one]


def _without_words(references: Mapping[str, Sequence[str]], names: Mapping[str, str]) -> str:
    """A note on references of which tokenising leaves nothing, such as those of dots.

    Args:
        references: Tokenised, by id.
        names: Of each id.
    """
    ids = [id for id, texts in references.items() for text in texts if not text]
    if not ids:
        return ""
    have = "1 reference has" if len(ids) == 1 else f"{len(ids):,} references have"
    return f"{have} no word, such as one of {names[ids[0]]}: no caption can agree with it"


def table(result: Evaluation) -> str:
    """What is right of rendered pairs, then the corpus scores, in Markdown."""
    names = list(result.groups[TOTAL].corpus)
    lines = []
    if result.rendered is not None:
        lines.append(result.rendered.table(result.counts[TOTAL]))
    lines += ["| | pairs | " + " | ".join(names) + " |", "|---" * (len(names) + 2) + "|"]
    for group, scores in result.groups.items():
        values = " | ".join(f"{scores.corpus[name]:.2f}" for name in names)
        lines.append(f"| {group} | {result.counts[group]:,} | {values} |")
    if result.sentences is not None:
        lines.append(f"\n{result.sentences.table()}".rstrip())
    if result.judged is not None:
        lines.append(f"\n{result.judged.table()}".rstrip())
    if result.masks is not None:
        from cc_train.evaluation.masks import segmentation

        lines.append(f"\n{segmentation.table(result.masks)}".rstrip())
    if result.faithfulness is not None:
        from cc_train.evaluation.rendered import faithfulness

        lines.append(f"\n{faithfulness.table(result.faithfulness)}".rstrip())
    lines += [f"\n{note}" for note in notes(result.scores_file())]
    for name, reason in result.groups[TOTAL].left_out.items():
        lines.append(f"\n{name} is left out: {reason}.")
    if result.swapped:
        swapped = result.swapped
        lines.append(
            f"\nSwapped, (after, before): {100 * swapped.same:.1f} % of the captions of changed "
            f"pairs stay the same; CIDEr {swapped.cider:.2f} in order, "
            f"{swapped.cider_swapped:.2f} swapped."
        )
    if result.trained_on:
        lines.append(f"\n{of_training(result.trained_on, result.counts[TOTAL])}")
    if result.chosen_on:
        lines.append(f"\n{OF_CHOICE}")
    conventions = metrics.conventions(result.signature.words)
    lines.append(f"\n{conventions[0].upper()}{conventions[1:]}.")
    lines.append(f"\nSignature: `{result.signature.line}`")
    return aligned("\n".join(lines)) + "\n"
