"""What may differ when a run goes on, and how a step is divided among processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cc_prep import settings
from cc_prep.errors import UserError
from cc_train import start
from cc_train.systems.procap import stage1
from cc_train.training import resume
from cc_train.training.settings import Loop

RUN = Path("run")


SPEED = settings.keys(stage1.Settings, role=settings.Role.SPEED)


def config(world: int = 1, **loop: Any) -> dict[str, Any]:
    return {"cache_mb": 500, "loop": Loop(**loop).split_over(world).model_dump(mode="json")}


@pytest.mark.parametrize("name", ["validate_every", "checkpoint_every", "threads", "log_every"])
def test_settings_that_change_no_number_may_change(name: str) -> None:
    """Keeps away: a run that cannot go on with less memory, or on another machine."""
    resume.check_same(config(), config(**{name: 7}), RUN, SPEED)
    other = {**config(device="cpu", compile=True, tf32=True), "cache_mb": 1, "files": ["new"]}
    resume.check_same(config(), other, RUN, SPEED)


def test_settings_that_change_a_step_may_not() -> None:
    with pytest.raises(UserError, match="global_batch_size: 8 → 16"):
        resume.check_same(config(batch_size=8), config(batch_size=16), RUN, SPEED)
    with pytest.raises(UserError, match="precision"):
        resume.check_same(config(), config(precision="bfloat16"), RUN, SPEED)


def test_another_division_of_the_same_step_goes_on() -> None:
    for other in (
        config(4, batch_size=2), config(batch_size=4, grad_accum_steps=2),
        config(2, global_batch_size=8, batch_size=3),
    ):  # fmt: skip
        resume.check_same(config(batch_size=8), other, RUN, SPEED)


def test_another_validation_set_is_refused() -> None:
    """Keeps away: a best checkpoint chosen by figures of two different sets of pairs."""
    of, name = (lambda **samples: {**config(), "samples": samples}), "valid_sha256"
    resume.check_same(of(**{name: "ab"}), of(**{name: "ab"}), RUN)
    with pytest.raises(UserError, match="run was validated on other pairs"):
        resume.check_same(of(**{name: "cd"}), of(**{name: "ab"}), RUN)


def test_another_start_is_refused() -> None:
    """Keeps away: a run of two starts, whose settings and card name the last one alone."""
    of = lambda init: {**config(), "init": init}  # noqa: E731
    mini, other = ({"name": name, "place": name, "sha256": name * 20} for name in ("mini", "other"))
    resume.check_same(of(mini), of({**mini, "name": "elsewhere/mini"}), RUN)
    resume.check_same(of(None), of(None), RUN)
    here, there = ({**mini, "place": place} for place in ("here", "there"))
    resume.check_same(of(here), of({**here, "sha256": "b" * 20}), RUN)  # trained on meanwhile
    resume.check_same(of(here), of(there), RUN)  # the same weights in another folder
    with pytest.raises(UserError, match="run started from mini"):
        resume.check_same(of(here), of({**there, "sha256": "b" * 20}), RUN)
    for now, words in ((None, "new weights"), (other, r"other \(SHA-256 otherotherot\)")):
        message = rf"run started from mini \(SHA-256 miniminimini\), and this training from {words}"
        with pytest.raises(UserError, match=message):
            resume.check_same(of(mini), of(now), RUN)
    with pytest.raises(UserError, match="run started from new weights, and"):
        resume.check_same(of(None), of(mini), RUN)


@pytest.mark.parametrize(
    ("world", "most", "micro", "accumulated"),
    [(1, 16, 16, 1), (1, 8, 8, 2), (2, 8, 8, 1), (4, 8, 4, 1), (16, 8, 1, 1), (1, 5, 4, 4)],
)
def test_a_step_is_divided(world: int, most: int, micro: int, accumulated: int) -> None:
    loop = Loop(global_batch_size=16, batch_size=most).split_over(world)
    assert (loop.batch_size, loop.grad_accum_steps) == (micro, accumulated)
    assert loop.global_batch_size == 16


@pytest.mark.parametrize(
    ("total", "world", "most", "note"),
    [
        (62, 2, 16, "31 micro-batches of 1 on each process, which is slow: 31 has no larger"),
        (62, 2, 16, "Give a multiple of 32 as loop.global_batch_size"),
        (34, 1, 16, "17 micro-batches of 2 on"),
        (64, 2, 16, ""),
        (16, 2, 64, ""),  # the whole step at once
        (30, 1, 16, ""),
        (None, 1, 16, ""),
    ],
)
def test_small_micro_batches_are_said(total: int | None, world: int, most: int, note: str) -> None:
    """Keeps away: a training that is ten times slower than it could be, without a word."""
    asked = Loop(global_batch_size=total, batch_size=most)
    text = start.small_parts(asked, asked.split_over(world), world)
    assert note in text
    assert bool(note) == bool(text)


def test_a_step_that_cannot_be_divided_is_refused() -> None:
    with pytest.raises(UserError, match="16 items cannot be divided among 3 processes"):
        Loop(global_batch_size=16).split_over(3)
    with pytest.raises(UserError, match="both given"):
        Loop(global_batch_size=16, grad_accum_steps=2).split_over(1)
