"""Puts the question about every sample to a model, unless its answer is stored already."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeVar

from cc_train.baselines import questions
from cc_train.baselines.answers import Answer, Answers
from cc_train.baselines.prompts import Wording
from cc_train.baselines.questions import Example, Question
from cc_train.data.shard_index import Entry

T = TypeVar("T")
R = TypeVar("R")


class Model(Protocol):
    """What answers questions.

    Attributes:
        identity: What of it decides an answer.
        batch: Questions at a time.
        name: What people call it.
    """

    batch: int

    @property
    def name(self) -> str: ...

    @property
    def identity(self) -> Mapping[str, Any]: ...

    def answer(self, questions: Sequence[Question]) -> list[Answer]: ...

    def stop(self) -> None:
        """Lets threads that wait with a question end with an error."""


@dataclass(frozen=True)
class Answered:
    """The answer about a sample.

    Attributes:
        stored: It was there already.
    """

    key: str
    answer: Answer
    stored: bool


def in_threads(
    work: Callable[[T], R], items: Iterable[T], threads: int, stop: Callable[[], None]
) -> Generator[R]:
    """What `work` gives of items, as it comes.

    Args:
        threads: One works in this thread.
        stop: Is called after an error, or where no more is asked for, before what is under way is
            waited for.
    """
    left = iter(items)
    if threads == 1:
        yield from map(work, left)
        return
    with ThreadPoolExecutor(threads) as pool:
        # One item a thread is handed out at a time, so that the first error is seen at once.
        under_way = {pool.submit(work, item) for item in islice(left, threads)}
        try:
            while under_way:
                done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                for one in done:
                    yield one.result()
                under_way |= {pool.submit(work, item) for item in islice(left, len(done))}
        except BaseException:
            stop()
            raise


class Asking:
    """The question about each sample, put to a model by one thread or several.

    Args:
        wordings: By data set. Samples with the same images and wording are one question.
        examples: By data set, what the model is shown before a question.
    """

    def __init__(
        self,
        model: Model,
        answers: Answers,
        wordings: Mapping[str | None, Wording],
        examples: Mapping[str | None, Sequence[Example]],
    ) -> None:
        self.model, self.answers, self.wordings = model, answers, wordings
        self.examples = examples
        self._identity = dict(model.identity)
        self._locks: dict[str, threading.Lock] = {}

    def all(
        self, entries: Sequence[Entry], threads: int = 1, swapped: bool = False
    ) -> Generator[Answered]:
        """The answers about samples, as they come. Raises UserError and JobFailed.

        With several threads each has a batch of its own. After an error no further question is put;
        the answers of those under way are stored.
        """
        size = self.model.batch
        batches = (entries[start : start + size] for start in range(0, len(entries), size))

        def answered(batch: Sequence[Entry]) -> list[Answered]:
            return self._batch(batch, swapped)

        for listed in in_threads(answered, batches, threads, self.model.stop):
            yield from listed

    def _batch(self, entries: Sequence[Entry], swapped: bool) -> list[Answered]:
        """The answers about samples, of which no other thread asks for one at the same time."""
        asked = [
            questions.of(
                entry, self.wordings[entry.dataset], self.examples.get(entry.dataset, ()), swapped
            )
            for entry in entries
        ]
        digests = [question.digest(self._identity) for question in asked]
        locks = [
            self._locks.setdefault(digest, threading.Lock()) for digest in sorted(set(digests))
        ]
        for lock in locks:  # in one order, so that no two threads wait for each other
            lock.acquire()
        try:
            return self._stored_or_asked(asked, digests)
        finally:
            for lock in locks:
                lock.release()

    def _stored_or_asked(self, asked: Sequence[Question], digests: Sequence[str]) -> list[Answered]:
        """The answers to questions. Those that are not stored are the model's, and are stored."""
        by_digest, missing = {}, {}
        for digest, question in zip(digests, asked, strict=True):
            stored = self.answers.get(digest)
            if stored is None:
                missing[digest] = question
            else:
                by_digest[digest] = stored
        if missing:
            new = self.model.answer(list(missing.values()))
            for (digest, question), answer in zip(missing.items(), new, strict=True):
                record = {"model": self.model.name, **self._identity, **question.wording.to_json()}
                if question.examples:
                    record["examples"] = [example.key for example in question.examples]
                self.answers.put(digest, answer, record)
                by_digest[digest] = answer
        return [
            Answered(question.key, by_digest[digest], digest not in missing)
            for question, digest in zip(asked, digests, strict=True)
        ]
