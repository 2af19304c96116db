"""The facts of composed pairs become classes that a pair captioner learns, as of solids."""

from __future__ import annotations

import json

import pytest
import torch

from cc_prep.errors import UserError
from cc_prep.records import Facts, ObjectAttributes
from cc_train.data.ordered_pairs import facts_of, objects_of
from cc_train.data.supervision import SOLIDS, UNKNOWN, FactVocabulary, OrderedPair
from cc_train.layers.pair_comparison import Comparison
from cc_train.training import fact_losses


def thing(name: str, color: str = "", u: float = 0.5) -> ObjectAttributes:
    return ObjectAttributes({"class": name, "color": color}, (u, 0.5))


CAR, RED_CAR, DOG = thing("car"), thing("car", "red"), thing("dog", u=0.9)
PAIRS = (
    Facts("add", None, DOG, (CAR,), (CAR, DOG), grammar="composites"),
    Facts("color", CAR, RED_CAR, (CAR,), (RED_CAR,), grammar="composites"),
    Facts("replace", CAR, DOG, (CAR,), (DOG,), grammar="composites"),
    Facts("brighter", None, None, (CAR,), (CAR,), grammar="composites"),
    Facts("none", grammar="composites"),
)
VOCABULARY = FactVocabulary.of([None, *(facts.to_json() for facts in PAIRS)])


def test_vocabulary_is_that_of_the_data() -> None:
    assert VOCABULARY.types == ("none", "add", "drop", "replace", "color", "brighter", "darker")
    assert VOCABULARY.attributes == {"class": ("car", "dog"), "color": ("red",)}
    assert VOCABULARY.new == ("class", "color")
    assert VOCABULARY.fact_classes == (7, 2, 1, 2, 1)
    assert FactVocabulary.from_json(json.loads(json.dumps(VOCABULARY.to_json()))) == VOCABULARY
    assert FactVocabulary.of([None]) == SOLIDS


def test_classes_of_pairs() -> None:
    """Keeps away: a color that nobody knows, learned as the first one."""
    kinds = [VOCABULARY.classes(facts) for facts in PAIRS]
    assert kinds == [
        [1, 1, UNKNOWN, UNKNOWN, UNKNOWN],
        [4, 0, UNKNOWN, UNKNOWN, 0],
        [3, 0, UNKNOWN, 1, UNKNOWN],
        [5, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN],
        [0, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN],
    ]
    assert VOCABULARY.classes(PAIRS[1].reversed()) == [4, 0, 0, UNKNOWN, UNKNOWN]
    assert VOCABULARY.classes(None) == [UNKNOWN] * 5
    with pytest.raises(UserError, match="blurred"):
        VOCABULARY.classes(Facts("blurred", grammar="composites"))
    with pytest.raises(UserError, match="horse"):
        VOCABULARY.classes(Facts("add", None, thing("horse"), grammar="composites"))


def test_two_kinds_of_facts_are_refused() -> None:
    with pytest.raises(UserError, match="composed"):
        FactVocabulary.of([Facts("none").to_json(), PAIRS[0].to_json()])


def test_reader_of_other_facts_learns_them() -> None:
    """Keeps away: losses of facts that are split as those of solids are."""
    torch.manual_seed(0)
    reader = Comparison(16, (3, 3), vocabulary=VOCABULARY)
    images = torch.randn(10, 16, 3, 3)
    pairs = [OrderedPair(0, 0, (), True, facts) for facts in PAIRS]
    shown = [facts.objects_before for facts in PAIRS] + [facts.objects_after for facts in PAIRS]
    batch = {**facts_of(pairs, (3, 3), VOCABULARY), **objects_of(shown, (3, 3), VOCABULARY)}
    counts = {
        name: count.clamp(min=1)
        for name, count in fact_losses.denominators(batch, VOCABULARY).items()
    }
    optimizer = torch.optim.Adam(reader.parameters(), 0.01)
    totals = []
    for _ in range(60):
        changes = reader(images[:5], images[5:])
        losses = fact_losses.losses(reader, changes, images, batch, counts)
        assert {"type", "class", "color", "new_class", "new_color"} < losses.keys()
        total = fact_losses.FactLosses().total(losses, VOCABULARY)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        totals.append(total.item())
    assert totals[-1] < 0.3 * totals[0]
