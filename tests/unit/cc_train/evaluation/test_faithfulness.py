"""Whether caption and mask tell of the same object: pairs whose answer is known beforehand."""

from __future__ import annotations

import numpy as np
import pytest

from cc_prep.records import Facts
from cc_prep.synth import parsing
from cc_prep.synth.facts import attributes as solid
from cc_train.evaluation.rendered import faithfulness
from cc_train.evaluation.rendered.faithfulness import Judged

SIDE = 40
CUBE = solid("red", "cube", "metal", "small", (0.25, 0.25))
BALL = solid("blue", "sphere", "metal", "small", (0.75, 0.75))
MOVED = solid("red", "cube", "metal", "small", (0.75, 0.25))
DROP = Facts("drop", CUBE, None, (CUBE, BALL), (BALL,))
MOVE = Facts("move", CUBE, MOVED, (CUBE, BALL), (MOVED, BALL))
STILL = Facts("none", None, None, (CUBE, BALL), (CUBE, BALL))


def square(*places: tuple[float, float], half: int = 4) -> np.ndarray:
    mask = np.zeros((SIDE, SIDE), np.uint8)
    for u, v in places:
        x, y = int(u * SIDE), int(v * SIDE)
        mask[y - half : y + half, x - half : x + half] = 1
    return mask


AT_CUBE, AT_BALL, NONE = square(CUBE.location), square(BALL.location), square()


@pytest.mark.parametrize(
    ("caption", "facts", "mask", "true", "predicted", "of_true"),
    [
        ("the small red metal cube disappeared", DROP, AT_CUBE, AT_CUBE, True, True),
        ("the small red metal cube disappeared", DROP, AT_BALL, AT_CUBE, False, True),
        # A wrong caption and its mask tell of the same object, which did not change.
        ("the small blue metal sphere disappeared", DROP, AT_BALL, AT_CUBE, True, False),
        ("the small blue metal sphere disappeared", DROP, AT_CUBE, AT_CUBE, False, False),
        # It lies there, and covers far more.
        ("the small red metal cube disappeared", DROP, square(CUBE.location, half=8), AT_CUBE,
        False,
         True),
        ("the small green metal cube disappeared", DROP, AT_CUBE, AT_CUBE, False, False),
        ("the small red metal cube disappeared", DROP, NONE, AT_CUBE, False, True),
        # It was not there before, where a loss is said of it.
        ("the small metal sphere appeared", DROP, AT_BALL, AT_CUBE, True, False),
        ("the small red metal cube appeared", DROP, AT_CUBE, AT_CUBE, False, False),
        ("the small red metal cube moved", MOVE, square(CUBE.location, MOVED.location),
         square(CUBE.location, MOVED.location), True, True),
        # Half of a move is not where it moved.
        ("the small red metal cube moved", MOVE, square(CUBE.location, half=3),
         square(CUBE.location, MOVED.location), False, True),
        ("the small red metal cube moved", STILL, AT_CUBE, NONE, True, False),
    ],
)  # fmt: skip
def test_where_a_mask_lies(
    caption: str, facts: Facts, mask: np.ndarray, true: np.ndarray, predicted: bool, of_true: bool
) -> None:
    """Keeps away: a mask somewhere else that counts, or a caption that is right by its mask."""
    fit = faithfulness.judge(Judged(caption, facts, mask, true))
    assert fit.claims
    assert (bool(fit.predicted), bool(fit.true)) == (predicted, of_true)


def test_contradictions_are_about_change_alone() -> None:
    """Keeps away: a speck that counts as a change; words that are not read as a denial."""
    speck = square(CUBE.location, half=2)  # 16 px
    for caption, mask, contradicts in (
        ("nothing changed", NONE, False), ("nothing changed", AT_CUBE, True),
        ("nothing changed", speck, False), ("the small red metal cube moved", speck, True),
        ("the small red metal cube moved", AT_BALL, False), ("fnord", AT_CUBE, False),
    ):  # fmt: skip
        fit = faithfulness.judge(Judged(caption, STILL, mask, NONE))
        assert fit.contradicts == contradicts, caption
    assert faithfulness.judge(Judged("fnord", STILL, NONE, NONE)).claims is None


def test_shares_and_masks_of_other_pairs() -> None:
    """Keeps away: a share over all pairs that only some captions are asked for."""
    other = Facts("drop", BALL, None, (CUBE, BALL), (CUBE,))
    pairs = [
        Judged("the small red metal cube disappeared", DROP, AT_CUBE, AT_CUBE),
        Judged("the small blue metal sphere disappeared", other, AT_BALL, AT_BALL),
        Judged("nothing changed", STILL, AT_CUBE, NONE),
        Judged("nothing changed", STILL, NONE, NONE),
    ]
    scores = faithfulness.count(pairs)
    assert scores is not None
    assert (scores.predicted_masks.count, scores.predicted_masks.pairs) == (2, 2)
    assert (scores.true_masks.count, scores.masks_of_other_pairs.count) == (2, 0)
    unmasked = scores.contradictions.change_without_a_mask
    masked = scores.contradictions.no_change_with_a_mask
    assert (unmasked.count, unmasked.pairs) == (0, 2)
    assert (masked.count, masked.pairs) == (1, 2)
    content = scores.to_json()
    assert content["contradictions"]["no change with a mask"]["share"] == 0.5
    assert "| contradiction: no change with a mask | 50.0 |" in faithfulness.table(scores)
    assert faithfulness.count([]) is None
    alone = faithfulness.count(pairs[:1])
    assert alone is not None
    assert alone.masks_of_other_pairs.pairs == 0, "the only pair of its type has its own mask"


def test_a_caption_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a grammar that reads every caption anew for each mask that it is held against."""
    read: list[str] = []
    plain = parsing.parse

    def parse(caption: str) -> parsing.Claims:
        read.append(caption)
        return plain(caption)

    monkeypatch.setattr(parsing, "parse", parse)
    gone = "the small red metal cube disappeared"
    faithfulness.count(
        [Judged(gone, DROP, AT_CUBE, AT_CUBE)] * 2
        + [
            Judged(gone, DROP, AT_BALL, AT_CUBE),
            Judged("nothing changed", STILL, NONE, NONE),
        ]
    )
    assert sorted(read) == ["nothing changed", gone, gone]
