"""Answers are stored by all that decides them, and become captions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cc_prep.errors import UserError
from cc_prep.media.images import encode_image
from cc_train.baselines import prompts, questions
from cc_train.baselines.answers import LENGTH, Answer, Answers
from cc_train.baselines.questions import Example, Question, media_type
from cc_train.data.shard_index import Entry

QUESTION = Question("k", b"before", b"after", prompts.of("spot"))
IDENTITY = {"model": "seer", "generation": {"max_tokens": 9}}


def test_what_decides_an_answer_is_in_the_digest() -> None:
    """Keeps away: answers of another prompt, model or order of images that are taken for these."""
    others = [
        replace(QUESTION, before=b"after", after=b"before"),
        replace(QUESTION, before=b"else"),
        replace(QUESTION, wording=prompts.of("spot", "What?")),
    ]
    identities = [{**IDENTITY, "model": "other"}, {**IDENTITY, "generation": {"max_tokens": 10}}]
    example = Example("e", b"1", b"2", "a car left")
    others.append(replace(QUESTION, examples=(example,)))
    others.append(replace(QUESTION, examples=(replace(example, caption="a car came"),)))
    digests = {question.digest(IDENTITY) for question in (QUESTION, *others)}
    digests |= {QUESTION.digest(identity) for identity in identities}
    assert len(digests) == 8
    assert QUESTION.digest(dict(reversed(IDENTITY.items()))) == QUESTION.digest(IDENTITY)
    assert replace(QUESTION, key="other").digest(IDENTITY) == QUESTION.digest(IDENTITY)


def test_examples_are_other_pairs_with_their_first_captions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keeps away: other examples each time, and the answer among what a model is shown."""
    monkeypatch.setattr(questions, "_stored_images", lambda entry: (b"1", b"2"))

    def entry(key: str, *captions: str, dataset: str = "d") -> Entry:
        return Entry(key, "s.tar", 0, 1, dataset=dataset, captions=captions)

    entries = [entry(f"k{i}", f"first of k{i}", "second") for i in range(4)]
    more = [*entries, entry("k4"), entry("k5", "a", dataset="e")]
    drawn = questions.examples(more, 4, "d", ())
    assert {one.key: one.caption for one in drawn} == {f"k{i}": f"first of k{i}" for i in range(4)}
    assert questions.examples(more[::-1], 4, "d", ()) == drawn
    with pytest.raises(UserError, match="holds 4 captioned pairs of d, and --shots is 5"):
        questions.examples(more, 5, "d", ())
    with pytest.raises(UserError, match="holds 0 captioned pairs of a data set, and"):
        questions.examples(more, 5, None, ())
    with pytest.raises(UserError, match="k2 would be an example and is asked about"):
        questions.examples(more, 4, "d", {"k2"})


@pytest.mark.parametrize(("codec", "kind"), [("png", "png"), ("webp", "webp"), ("jpg", "jpeg")])
def test_the_type_of_an_image_is_told_by_its_bytes(codec: str, kind: str) -> None:
    image = encode_image(np.zeros((4, 4, 3), np.uint8), codec, 90)
    assert media_type(image) == f"image/{kind}"


def test_an_answer_comes_back(tmp_path: Path) -> None:
    answers, digest = Answers(tmp_path), QUESTION.digest(IDENTITY)
    assert answers.get(digest) is None
    answer = Answer("The car \n “left” 🚗", LENGTH, "A car?")
    answers.put(digest, answer, IDENTITY)
    assert Answers(tmp_path).get(digest) == answer
    answers.put(f"{digest[:2]}{digest[::-1]}", answer, IDENTITY)  # in the same folder


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"answer": 3, "ended": "stop", "thoughts": ""}',
     '{"answer": "a", "ended": "stop", "thoughts": 3}'],
)  # fmt: skip
def test_a_damaged_answer_is_named(tmp_path: Path, content: str) -> None:
    """Keeps away: a traceback, or an empty caption, where a disk lost a file's content."""
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab/abc.json").write_text(content)
    with pytest.raises(UserError, match=r"abc.json: no stored answer"):
        Answers(tmp_path).get("abc")


@pytest.mark.parametrize(
    ("text", "caption"),
    [
        (" The car\n is gone. ", "The car is gone."),
        ('"The car is gone."', "The car is gone."),
        ("“the car is gone”", "the car is gone"),
        ('"stop" became "go"', '"stop" became "go"'),
        ("the sign 'stop' is gone", "the sign 'stop' is gone"),
        ("<think>A car?\nYes.</think>\n\nA car left.", "A car left."),
        ("<think>A car? I was cut off", ""),
        ("A car? Yes.\n</think>\n\nA car left.", "A car left."),
        ("<think>a</think><think>b</think> A car left.", "A car left."),
        ("", ""),
        ('"', '"'),
        ('""', ""),
    ],
)
def test_captions_of_answers(text: str, caption: str) -> None:
    """Keeps away: scores that line breaks, marks of thought or quotation marks lower."""
    assert Answer(text).caption == caption


@pytest.mark.parametrize(
    ("answer", "caption", "is_in_thoughts"),
    [
        (Answer("", thoughts="A car left."), "A car left.", True),
        (Answer("", thoughts="Two cars?\nNo.\n \nA car\nleft."), "A car left.", True),
        (Answer("\n", thoughts="Two cars?</think>A car left."), "A car left.", True),
        (Answer("A car left.", thoughts="A bus left."), "A car left.", False),
        (Answer("<think>A bus?</think>A car left.", thoughts="A bus."), "A car left.", False),
        (Answer("", LENGTH, thoughts="A car? Or is it"), "", False),
        (Answer("", "content_filter", thoughts="A car"), "", False),
        (Answer("", thoughts="<think>A car?</think>"), "", False),
    ],
)
def test_answers_among_the_thoughts(answer: Answer, caption: str, is_in_thoughts: bool) -> None:
    """Keeps away: scores of 0 for a model whose server takes all that it writes for thoughts, and
    thoughts that were cut off as captions.
    """
    assert (answer.caption, answer.is_in_thoughts) == (caption, is_in_thoughts)


@pytest.mark.parametrize(
    "text",
    [
        "Answer: A car left.", "**Answer:** A car left.", "**Answer: A car left.**",
        "The change is that a car left.", "- A car left.", "1. A car left.", "## A car left.",
        "A **car** left.", "Sure! Here is the change:\n\n“A car left.”", "Caption: `A car left.`",
        "The difference between the two images is that: A car left.", "Final answer : A car left.",
        "The only change is that a car left.",
        "Here's one sentence: __A car left.__", "Here is the caption you asked for: A car left.",
        "Here are the changes observed between the two images: A car left.",
        "Here is the caption, in one sentence: A car left.",
        "Here's the difference (in one sentence): A car left.",
        "Here is the caption text: A car left.",
    ],
)  # fmt: skip
def test_what_is_around_a_sentence_is_removed(text: str) -> None:
    """Keeps away: n-gram scores that the manners of a chat model lower."""
    answer = Answer(text)
    assert answer.plain_caption.capitalize() == "A car left."
    assert answer.caption != answer.plain_caption


@pytest.mark.parametrize(
    "text",
    [
        "A car left.", "The answer on the sign is gone.", "change the sky to blue",
        "A sign: “stop” appeared.", "3 cars left.", "2 * 3 became 2 ** 3", "make it 10:30 am",
        "The change of the light is gone.", "", "Sure enough, the sign now says: stop",
        "Here are two people: one left.", "Here is the new caption sign on the wall: it was added",
        "Here is the changed sign: it says stop now.", "Here are the changes sign: open",
        "Here is a change at 10:30, a car left.", "Here is the caption banner on it: it is gone",
    ],
)  # fmt: skip
def test_what_belongs_to_a_sentence_stays(text: str) -> None:
    """Keeps away: captions that lose their first words."""
    assert Answer(text).plain_caption == Answer(text).caption == text
