"""Sentences for scenes: a grammar of our own in the style of CLEVR-Change's vocabulary.

Every sentence about a change names its object by an expression that fits no other object of the
scene it speaks of: by its attributes if they suffice, else by its position relative to a landmark.
Positions are compared on the floor and not in the image, which seldom makes a difference.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from cc_prep.synth.scenes import CAMERA, Scene, Solid

NOUNS = {
    "cube": ("cube", "block"),
    "sphere": ("sphere", "ball"),
    "cylinder": ("cylinder",),
}
ADJECTIVES = {
    "small": ("small", "tiny", "little"),
    "large": ("large", "big"),
    "rubber": ("rubber", "matte"),
    "metal": ("metal", "shiny", "metallic"),
}
FEATURES = ("size", "color", "material", "shape")
SENTENCES = {
    "color": (
        "the {it} changed to {new}",
        "the {it} became {new}",
        "the {it} turned {new}",
        "the {it} is now {new}",
        "the {it} has changed its color to {new}",
        "the color of the {it} was changed to {new}",
        "someone painted the {it} {new}",
    ),
    "material": (
        "the {it} changed to {new}",
        "the {it} became {new}",
        "the {it} is now {new}",
        "the {it} is now made of {new}",
        "the material of the {it} changed to {new}",
        "the {it} has been replaced by one of {new}",
    ),
    "add": (
        "the {it} has been added",
        "the {it} was newly placed",
        "the {it} has appeared",
        "someone added the {it}",
        "there is now one more object, the {it}",
        "the {it} is new",
    ),
    "drop": (
        "the {it} is missing",
        "the {it} has disappeared",
        "the {it} is gone",
        "someone removed the {it}",
        "the {it} is no longer there",
        "the {it} was taken away",
    ),
    "move": (
        "the {it} moved",
        "the {it} is in a different place",
        "the {it} changed its location",
        "someone moved the {it}",
        "the {it} was moved from its original location",
        "the {it} has been put elsewhere",
    ),
}
NO_CHANGE_SENTENCES = (
    "nothing has changed",
    "no change was made",
    "there is no change",
    "the scene remains the same",
    "the two scenes are identical",
    "there is no difference",
    "everything stays where it was",
    "no change has occurred",
    "the objects are the same as before",
    "the two scenes seem the same",
)
# One sentence a type, one word a thing: what small captioners on small data can learn.
PLAIN = {
    "color": "the {it} turned {new}",
    "material": "the {it} turned {new}",
    "add": "the {it} appeared",
    "drop": "the {it} disappeared",
    "move": "the {it} moved",
}
PLAIN_NO_CHANGE = "nothing changed"
# Towards the right and the far side, on the floor, as the middle camera sees it. An image has its
# own camera beside that one, and perspective: it may show the other way round two objects that are
# little apart in one of these directions and far apart in the other. Of 5,940 scenes, 203 needed a
# relation, and in 5 of them it was untrue of the image for some landmark.
_FORWARD = -np.array(CAMERA[:2]) / np.hypot(*CAMERA[:2])
_RIGHT = np.array((_FORWARD[1], -_FORWARD[0]))
RELATIONS: dict[str, np.ndarray] = {
    "to the right of": _RIGHT,
    "to the left of": -_RIGHT,
    "behind": _FORWARD,
    "in front of": -_FORWARD,
}
CLEAR_DISTANCE = 0.3


SENTENCES_APART = ". "  # in a text that says several changes


def change_captions(scene: Scene, rng: np.random.Generator, count: int = 6) -> list[str]:
    """Up to `count` different sentences that say the change; none if it cannot be said clearly.

    Of several changes each is a text that says all of them, a sentence each, in any order.
    """
    if scene.further:
        return together([change_captions(one, rng, count) for one in scene.each()], rng)
    # What was added is seen in the second image, everything else in the first.
    solids = scene.after if scene.change == "add" else scene.before
    expressions = referring_expressions(solids, scene.changed)
    if not expressions:
        return []
    after = scene.after[scene.changed]
    sentences: dict[str, None] = {}
    for _ in range(20 * count):
        if len(sentences) == count:
            break
        features = expressions[min(int(rng.geometric(0.4)) - 1, len(expressions) - 1)]
        it = _in_words(solids, scene.changed, features, rng)
        sentence = str(rng.choice(SENTENCES[scene.change]))
        new = ""
        if after is not None and scene.change in ("color", "material"):
            new = after.color if scene.change == "color" else after.material
        sentences[sentence.format(it=it, new=new)] = None
    return list(sentences)


def plain_caption(scene: Scene) -> str:
    """The one plain sentence that says the change, with all attributes of the object."""
    solids = scene.after if scene.change == "add" else scene.before
    is_unique = fits(solids, scene.changed, FEATURES) == [scene.changed]
    expression = FEATURES if is_unique else referring_expressions(solids, scene.changed)[0]
    after = scene.after[scene.changed]
    new = "" if after is None else getattr(after, scene.change, "")
    it = _in_words(solids, scene.changed, expression, None)
    return PLAIN[scene.change].format(it=it, new=new)


def together(sentences: Sequence[Sequence[str]], rng: np.random.Generator) -> list[str]:
    """Texts that say all changes, each in a random order; none where a change has no sentence.

    Args:
        sentences: Of each change.
    """
    texts = []
    for number in range(min(map(len, sentences))):
        order = rng.permutation(len(sentences))
        texts.append(SENTENCES_APART.join(sentences[i][number] for i in order))
    return texts


def plain_captions(scene: Scene) -> list[str]:
    """The plain sentence, or none where no expression singles the object out.

    Of several changes one text, a sentence each.
    """
    if scene.further:
        of_each = [plain_captions(one) for one in scene.each()]
        return [SENTENCES_APART.join(one for [one] in of_each)] if all(of_each) else []
    there = scene.after if scene.change == "add" else scene.before
    return [plain_caption(scene)] if referring_expressions(there, scene.changed) else []


def by_attributes(scene: Scene) -> bool:
    """Whether attributes alone single out what changed, before and after."""
    return all(
        solids[one.changed] is None or fits(solids, one.changed, FEATURES) == [one.changed]
        for one in scene.each()
        for solids in (scene.before, scene.after)
    )


def no_change_captions(rng: np.random.Generator, count: int = 6) -> list[str]:
    """`count` different sentences that say that nothing changed."""
    return [str(s) for s in rng.choice(NO_CHANGE_SENTENCES, count, replace=False)]


Expression = tuple[str, ...]


def referring_expressions(solids: Sequence[Solid | None], target: int) -> list[Expression]:
    """Ways to single out an object, shortest first.

    A way is the features to name; with a relation it ends in `relation` and the landmark's number.
    The shape is always named, as the noun.
    """
    plain: list[Expression] = []
    for count in range(4):
        for rest in itertools.combinations(FEATURES[:3], count):
            features = (*rest, "shape")
            if _matches(solids, target, features) == [target]:
                plain.append(features)
    if plain:
        return plain
    return [
        (*FEATURES, relation, str(landmark))
        for relation in RELATIONS
        for landmark in _landmarks(solids, target)
        if _related(solids, _matches(solids, target, FEATURES), relation, landmark) == [target]
    ]


def fits(solids: Sequence[Solid | None], target: int, expression: Expression) -> list[int]:
    """The objects that an expression, made for `target`, fits."""
    features = tuple(f for f in expression if f in FEATURES)
    matches = _matches(solids, target, features)
    if len(expression) > len(features):
        relation, landmark = expression[-2], int(expression[-1])
        matches = _related(solids, matches, relation, landmark)
    return matches


def _matches(solids: Sequence[Solid | None], target: int, features: Sequence[str]) -> list[int]:
    target_solid = solids[target]
    return [
        number
        for number, solid in enumerate(solids)
        if solid is not None
        and all(getattr(solid, f) == getattr(target_solid, f) for f in features)
    ]


def _landmarks(solids: Sequence[Solid | None], target: int) -> list[int]:
    """Objects that their looks alone single out."""
    return [
        number
        for number, solid in enumerate(solids)
        if solid is not None and number != target and _matches(solids, number, FEATURES) == [number]
    ]


def _related(
    solids: Sequence[Solid | None], numbers: Sequence[int], relation: str, landmark: int
) -> list[int]:
    direction, mark = RELATIONS[relation], solids[landmark]
    assert mark is not None

    def along(number: int) -> float:
        solid = solids[number]
        assert solid is not None
        return float(np.dot((solid.x - mark.x, solid.y - mark.y), direction))

    distances = {n: along(n) for n in numbers if n != landmark}
    # If an object is clearly on neither side, the sentence would be a matter of taste.
    if any(abs(d) < CLEAR_DISTANCE for d in distances.values()):
        return list(numbers)
    return [n for n, d in distances.items() if d > 0]


def _in_words(
    solids: Sequence[Solid | None],
    number: int,
    expression: Expression,
    rng: np.random.Generator | None,
) -> str:
    """The words of an expression; without dice always the first of several."""
    solid = solids[number]
    assert solid is not None

    def pick(words: Sequence[str]) -> str:
        return str(rng.choice(list(words))) if rng is not None else words[0]

    words = [pick(ADJECTIVES[solid.size])] if "size" in expression else []
    words += [solid.color] if "color" in expression else []
    words += [pick(ADJECTIVES[solid.material])] if "material" in expression else []
    words.append(pick(NOUNS[solid.shape]))
    if expression[-1] not in FEATURES:
        mark = _in_words(solids, int(expression[-1]), FEATURES, rng)
        words.append(f"{expression[-2]} the {mark}")
    return " ".join(words)
