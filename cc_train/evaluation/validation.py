"""Validation of a captioner on held-out pairs during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from rich.console import Console

from cc_prep import storage, unspaced
from cc_prep.console import on_stderr
from cc_prep.errors import UserError
from cc_prep.records import NO_CHANGE, Facts
from cc_prep.unspaced import Words
from cc_train.captioner import CaptionModel, Inputs
from cc_train.data import shard_index
from cc_train.data.shard_index import Entry
from cc_train.distributed import ALONE, Ranks
from cc_train.evaluation.captions import metrics
from cc_train.evaluation.masks.samples import SampleMasks
from cc_train.evaluation.predict import check, predict
from cc_train.evaluation.rendered import fact_scores
from cc_train.evaluation.unreadable import Unreadable
from cc_train.runs.checkpoints import Criterion

MEASURES = ("CIDEr", "BLEU-4")
CRITERION = Criterion(MEASURES[0], higher_is_better=True, tie_breaker=MEASURES[1])
MORE = "Give --valid more pairs, or hold out more (validation_split.share, scenes and pairs)"
FEW = 10  # pairs: with fewer, the best checkpoint hangs on a word or two


class Validation:
    """CIDEr and BLEU-4, × 100, of greedy captions of held-out pairs; writes RUN/validation.json.

    Rendered pairs also have the shares of right facts, in % (`cc_train.evaluation.rendered`). Pairs
    without captions are left out.

    Args:
        ranks: The ranks share the pairs; the first one has the figures.
        skip_bad: The share of the pairs that may be unreadable; these are left out, and a note on
            `console` counts them.
        inputs: The captioner's; a check before the first step makes sure that the pairs hold them.
            Another note warns if the pairs are too few, or their references too alike, to choose
            the best checkpoint well.
        words: How captions are split into words; a third note says where `treebank` does not fit
            them.

    Raises:
        UserError: If no pair is left.
        JobFailed: If too many are unreadable.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        run: Path,
        ranks: Ranks = ALONE,
        skip_bad: float = 0.0,
        console: Console | None = None,
        inputs: Inputs | None = None,
        words: Words = "treebank",
    ) -> None:
        self.ranks, self.words = ranks, words
        metas = shard_index.metas(entries)
        captioned = [(e, m) for e, m in zip(entries, metas, strict=True) if m.get("captions")]
        self.entries = [entry for entry, _ in captioned]
        self.references = {entry.key: meta["captions"] for entry, meta in captioned}
        self.unchanged = {e.key for e, meta in captioned if meta.get("kind") == NO_CHANGE}
        damaged: set[str] = set()
        facts = shard_index.facts(self.entries, damaged)
        self.facts = {
            entry.key: of_pair
            for entry, value in zip(self.entries, facts, strict=True)
            if (of_pair := Facts.of_sample({"key": entry.key, "facts": value})) is not None
        }
        self.run = run
        if not self.entries:
            raise UserError(
                "no sample to validate on has a caption", "Give --valid a captioned split"
            )
        console = console or on_stderr()
        if inputs is not None:
            check(self.entries, inputs, console)
        references = list(self.references.values())
        of_words = unspaced.note(chain.from_iterable(references)) if words == "treebank" else ""
        for note in filter(None, (of_words, _too_weak(references))):
            if ranks.is_main_process:
                console.print(note)
        self.unreadable = Unreadable(len(self.entries), skip_bad, ranks, console)
        self.unreadable.agreed(damaged)

    def __call__(self, captioner: CaptionModel) -> dict[str, float]:
        """Figures by name: MEASURES of all pairs, of the changed and of the unchanged ones.

        CIDEr of pairs whose references are all alike is 0 for right captions too, as those of
        unchanged pairs often are; BLEU-4 is not, though of references of two words it is 0.1 at
        most. Empty on all ranks but the first.
        """
        entry_of, masks, own = {entry.key: entry for entry in self.entries}, SampleMasks(), {}
        damaged: set[str] = set()
        for sample, caption in predict(
            captioner, self.entries, ranks=self.ranks, unreadable=damaged
        ):
            own[sample.key] = caption.text
            masks.add(entry_of[sample.key], sample, caption)
        damaged = self.unreadable.agreed(damaged)
        parts = self.ranks.gather_objects(own)
        masked = self._masked(masks)
        if not self.ranks.is_main_process:
            return {}
        by_key = {key: text for part in parts for key, text in part.items()}
        read = [entry.key for entry in self.entries if entry.key not in damaged]
        captions = {key: by_key[key] for key in read}
        references = {key: self.references[key] for key in read}
        tokens = metrics.tokenised(references, captions, self.words)
        figures = dict(metrics.score_tokens(tokens, MEASURES).corpus)
        changed = set(captions) - self.unchanged
        for name, keys in (("change", changed), ("no_change", set(captions) & self.unchanged)):
            if keys and keys != set(captions):
                part = ({k: tokens[0][k] for k in keys}, {k: tokens[1][k] for k in keys})
                of_part = metrics.score_tokens(part, MEASURES).corpus
                figures |= {f"{measure}_{name}": of_part[measure] for measure in MEASURES}
        if self.facts.keys() & captions:
            figures |= self._right(captions)
        figures |= masked
        storage.write_json(str(self.run / "validation.json"), captions)
        return figures

    def _masked(self, masks: SampleMasks) -> dict[str, float]:
        """mIoU-change of the masks of all ranks; empty if captioner or samples have none."""
        counters = [one for one in self.ranks.gather_objects(masks.counter) if one is not None]
        if not counters:
            return {}
        first, *others = counters
        for other in others:
            first.matrix += other.matrix
        value = first.scores.miou_change
        return {} if value is None else {"mIoU_change": value}

    def _right(self, captions: Mapping[str, str]) -> dict[str, float]:
        scores = fact_scores.count(
            fact_scores.judge(captions[key], facts, self.references[key])
            for key, facts in self.facts.items()
            if key in captions
        )
        names = zip((*fact_scores.FACTS, fact_scores.EXACT), fact_scores.SHARES, strict=True)
        known = fact_scores.rows(scores)
        shares = {fact: known[name].share for fact, name in names if name in known}
        shares |= {"told_apart": scores.told_apart.share} if scores.told_apart else {}
        shares |= {"f1": scores.changes["F1"]} if scores.changes else {}
        return {f"right_{name}": 100 * share for name, share in shares.items()}


def _too_weak(references: Sequence[Sequence[str]]) -> str:
    """A warning if references [pairs][captions] are a poor base for choosing a checkpoint."""
    pairs = len(references)
    if len({frozenset(text.lower() for text in of_pair) for of_pair in references}) == 1:
        which = f"all {pairs} pairs to validate on have the same references"
        if pairs == 1:
            which = "there is 1 pair to validate on"
        chooses = "BLEU-4 chooses the best checkpoint"
        return f"CIDEr is 0 for all captions, as {which}: {chooses}. {MORE}"
    if pairs < FEW:
        return f"The best checkpoint is chosen on {pairs} pairs alone. {MORE}"
    return ""
