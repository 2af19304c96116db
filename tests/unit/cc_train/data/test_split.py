"""What is trained on and what is validated on."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from cc_prep.errors import UserError
from cc_prep.records import Facts
from cc_train.data import order, shard_index, split
from cc_train.data.shard_index import Entry
from cc_train.data.split import CaptionSettings
from cc_train.distributed import Ranks
from cc_train.runs import run_folder
from cc_train.systems.pair_training import PairSettings
from cc_train.systems.procap import stage2
from cc_train.systems.scorer import recipe as scorer
from cc_train.systems.scorer.words import ScorerWords
from cc_train.text import MARKS, Vocabulary
from cc_train.training.task import TrainingRequest, captioned
from tests import shard_factory


def test_a_sample_is_spread_and_stays() -> None:
    """Keeps away: the first of a list that is ordered by kind, and another choice each time."""
    items = list(range(1000))
    keys = [f"set-val-{i:06d}" for i in items]
    chosen = order.sample(items, keys, 200)
    assert len(chosen) == 200
    assert chosen == sorted(chosen), "in their own order"
    assert 70 < sum(i < 500 for i in chosen) < 130
    assert set(order.sample(items[::-1], keys[::-1], 200)) == set(chosen)
    more = [*items, *range(1000, 1010)]
    grown = order.sample(more, [f"set-val-{i:06d}" for i in more], 200)
    assert len(set(grown) & set(chosen)) > 185, "more data leaves most of the choice"
    assert order.sample(items[:3], keys[:3], 3) == order.sample(items[:3], keys[:3], 9) == [0, 1, 2]


def test_validation_takes_a_sample_of_all_shards(tmp_path: Path) -> None:
    """Keeps away: a validation on the first pairs alone, which may all be of one kind."""
    shards, _ = shard_factory.write_tokens(tmp_path / "train", 2)
    valid, _ = shard_factory.write_tokens(tmp_path / "val", 40, "val")
    data = split.read([shards], [valid], split.ValidationSplit(pairs=20), Console(quiet=True))
    assert len(data.valid) == 20
    assert max(int(entry.key.split("-")[2]) for entry in data.valid) > 30
    # A run says of these that it chose its checkpoint on them, and of no others.
    settings = {"samples": data.about(), "validation_split": {"pairs": 20}}
    assert split.is_validated_on(settings, shard_index.read([valid]))
    assert not split.is_validated_on(settings, shard_index.read([shards]))
    assert not split.is_validated_on({}, shard_index.read([valid]))


QUIET = Console(quiet=True)


def entries(*scenes: str) -> list[Entry]:
    kinds = ("change", "no_change")
    return [Entry(f"d-{scene}-{kind}", "a.tar", 0, 1) for scene in scenes for kind in kinds]


def test_one_scene_is_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a training that fails at its first validation, which has no pair to look at."""
    monkeypatch.setattr(split.shard_index, "read", lambda patterns: entries(*patterns))
    with pytest.raises(UserError, match="fewer than two scenes"):
        split.read(["1"], [], split.ValidationSplit(), QUIET)
    data = split.read(["1", "2"], [], split.ValidationSplit(), QUIET)
    assert {e.scene for e in data.train}.isdisjoint({e.scene for e in data.valid})
    assert (len(data.train), len(data.valid)) == (2, 2)
    assert len(split.read(["1"], ["2"], split.ValidationSplit(), QUIET).train) == 2


def test_small_data_are_validated_on_some_scenes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a best checkpoint that one scene of 25 has chosen."""
    monkeypatch.setattr(split.shard_index, "read", lambda patterns: entries(*patterns))
    scenes = [str(number) for number in range(25)]
    for settings, pairs in ((split.ValidationSplit(), 10), (split.ValidationSplit(scenes=1), 2)):
        assert len(split.read(scenes, [], settings, QUIET).valid) == pairs


def test_the_order_of_what_is_validated_on_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a run that does not go on, since its --valid are given the other way round."""
    monkeypatch.setattr(split.shard_index, "read", lambda patterns: entries(*patterns))
    one, same, other = (
        split.read(["1"], valid, split.ValidationSplit(), QUIET).about()
        for valid in (["2", "3"], ["3", "2"], ["2", "4"])
    )
    assert one == same != other


def test_a_pair_is_not_trained_and_validated_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split.shard_index, "read", lambda patterns: entries(*patterns))
    with pytest.raises(UserError, match="2 samples are in --shards and in --valid"):
        split.read(["1", "2"], ["2"], split.ValidationSplit(), QUIET)


def test_a_pair_without_a_caption_teaches_none() -> None:
    """Keeps away: a captioner that learns to say nothing."""
    one, other = entries("1")
    both = [one, replace(other, captions=("gone",))]
    data = split.with_captions(split.Split(both, [], {}), QUIET)
    assert [entry.key for entry in data.train] == ["d-1-no_change"]
    assert data.first["captions"] == ["gone"]
    with pytest.raises(UserError, match="hold no captions"):
        split.with_captions(split.Split([one], [], {}), QUIET)


def test_words_of_mirrored_captions_can_be_learned() -> None:
    """Keeps away: "rightmost" as an unknown word, where no caption but a mirrored one has it."""
    [one, other] = entries("1")
    both = [
        replace(one, captions=("the leftmost cube",)),
        replace(other, captions=("a left",)),
    ]
    plain = split.vocabulary(both, None, 1, QUIET)
    mirrored = split.vocabulary(both, None, 1, QUIET, mirrored=True)
    assert mirrored.words == [*plain.words, "right", "rightmost"]


def test_captions_that_are_cut_are_counted() -> None:
    """Keeps away: a decoder that learns half of each caption, of which nothing is said."""
    console = Console(record=True, file=io.StringIO(), soft_wrap=True)
    texts = ("it is gone", "it is gone", "the small red cube is gone.", "nothing")
    for codec in (Vocabulary.of(texts), ScorerWords.of(texts)):
        split.note_cut_captions(texts, codec, 9, console)
        assert console.export_text() == ""
        split.note_cut_captions(texts, codec, 4, console)
        most = 8 if isinstance(codec, ScorerWords) else 9  # SCORER's words have no full stop
        assert console.export_text() == (
            "3 of 4 captions are cut to 2 words in training: decoder.length is 4. With "
            f"decoder.length={most} none of these is\n"
        )


def test_a_training_says_how_many_captions_it_cuts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = [replace(entry, captions=("a b c",)) for entry in entries("1", "2")]
    monkeypatch.setattr(split.shard_index, "read", lambda patterns: known)
    console = Console(record=True, file=io.StringIO())
    settings = PairSettings.model_validate({"decoder": {"length": 4}})
    monkeypatch.setattr(split.shard_index, "reversed_captions", lambda entries: ["a b", "a b d"])
    split.captioned(["x"], [], settings, console)
    assert "3 of 4 captions are cut to 2 words" in console.export_text()


BACKWARDS = ("caption 0 is missing", "it is missing")


def learned(shards: str, settings: CaptionSettings, run: Path, console: Console = QUIET) -> list:
    """The words of a training on shards, behind the marks."""
    _, words = captioned(settings, TrainingRequest([shards], [], run, console=console))
    return words.words[len(MARKS) :]


def test_words_of_reversed_captions_are_learned(tmp_path: Path) -> None:
    """Keeps away: "missing" as an unknown word, where only the pair (after, before) has it."""
    facts = Facts("none", reversed_captions=BACKWARDS)
    shards, _ = shard_factory.write_tokens(tmp_path, 3, facts=facts)
    ordered: list[CaptionSettings] = [
        PairSettings(),
        stage2.Settings(pairs_per_scene=2),
        scorer.Settings(pairs_per_scene=1),
    ]
    plain = learned(shards, stage2.Settings(), tmp_path)
    assert not {"is", "it", "missing"} & {*plain}
    for settings in ordered:
        assert learned(shards, settings, tmp_path) == [*plain, "is", "missing", "it"]


def test_words_that_forward_captions_have_stay_in_their_order(tmp_path: Path) -> None:
    """Keeps away: other bytes of every checkpoint, since reversed captions count words anew."""
    facts = Facts("none", reversed_captions=("change 2 2 2 2", "nochange nochange"))
    shards, _ = shard_factory.write_tokens(tmp_path, 3, facts=facts)
    for mirror in (0.0, 0.5):
        settings = PairSettings(mirror=mirror)
        assert learned(shards, settings, tmp_path) == learned(shards, stage2.Settings(), tmp_path)


def test_words_of_reversed_captions_may_be_mirrored_or_rare(tmp_path: Path) -> None:
    """Keeps away: "right" as an unknown word; and a word of one caption that counts as frequent."""
    [entry] = [replace(one, captions=("it came",)) for one in entries("1")[:1]]
    backwards = ["it left the leftmost box", "gone"]
    words = split.vocabulary([entry], None, 1, QUIET, mirrored=True, backwards=backwards)
    assert words.words[len(MARKS) :] == [
        *("came", "it", "box", "gone", "left", "leftmost", "the", "right", "rightmost")
    ]
    rare = split.vocabulary([entry], None, 2, QUIET, backwards=["it came back", "back", "gone"])
    assert rare.words[len(MARKS) :] == ["back", "came", "it"]


def begin(run: Path, words: list[str]) -> None:
    """A run that has taken a step with these words behind the marks."""
    files = Vocabulary([*MARKS, *words]).files()
    run_folder.write_imported(run, files, {}, {"weight": torch.zeros(1)})


def test_a_run_without_words_of_reversed_captions_goes_on(tmp_path: Path) -> None:
    """Keeps away: a run of older code that is refused, for its vocabulary has become another."""
    facts = Facts("none", reversed_captions=BACKWARDS)
    shards, _ = shard_factory.write_tokens(tmp_path, 3, facts=facts)
    older = learned(shards, stage2.Settings(), tmp_path)
    run, begun = tmp_path / "run", tmp_path / "begun"
    begin(run, older)
    run_folder.write_files(begun, Vocabulary([*MARKS, *older]).files())
    assert learned(shards, PairSettings(), run) == older
    assert learned(shards, PairSettings(), begun) != older, "no step was taken yet"


def test_a_run_keeps_its_words_whatever_can_be_read_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a resume that is refused since a sample is damaged, and reads all samples."""
    facts = Facts("none", reversed_captions=BACKWARDS)
    shards, _ = shard_factory.write_tokens(tmp_path, 3, facts=facts)
    words = learned(shards, PairSettings(), tmp_path / "none")
    begin(tmp_path / "run", words)
    monkeypatch.setattr(split.shard_index, "reversed_captions", lambda entries: pytest.fail("read"))
    assert learned(shards, PairSettings(), tmp_path / "run") == words


def test_words_of_other_captions_are_not_those_of_the_run(tmp_path: Path) -> None:
    """Keeps away: a run that goes on with other captions, for its own words were taken."""
    facts = Facts("none", reversed_captions=BACKWARDS)
    shards, _ = shard_factory.write_tokens(tmp_path, 3, facts=facts)
    words = learned(shards, PairSettings(), tmp_path / "none")
    begin(tmp_path / "run", words[::-1])
    assert learned(shards, PairSettings(), tmp_path / "run") != words[::-1]


def test_a_damaged_vocabulary_of_a_run_is_refused(tmp_path: Path) -> None:
    shards, _ = shard_factory.write_tokens(tmp_path, 3)
    begin(tmp_path / "run", ["a"])
    (tmp_path / "run/vocabulary.json").write_text("[")
    with pytest.raises(UserError, match=r"vocabulary\.json: .* Restore it, or give another --out"):
        learned(shards, PairSettings(), tmp_path / "run")


def test_the_first_rank_alone_reads_captions_of_reversed_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: as many requests for every sample as there are processes."""
    shards, _ = shard_factory.write_tokens(
        tmp_path, 3, facts=Facts("none", reversed_captions=BACKWARDS)
    )
    words = learned(shards, PairSettings(), tmp_path)
    monkeypatch.setattr(split.shard_index, "reversed_captions", lambda entries: pytest.fail("read"))
    sent = [None, [*BACKWARDS]]
    monkeypatch.setattr(Ranks, "broadcast_from_rank0", lambda self, decide: sent.pop(0))
    request = TrainingRequest([shards], [], tmp_path, console=QUIET, ranks=Ranks(1, 2))
    assert captioned(PairSettings(), request)[1].words[len(MARKS) :] == words
