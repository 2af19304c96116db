"""Named protocols of evaluation, `cc-train evaluate --protocol NAME`, read from `protocols.yaml`.

A protocol fixes what papers leave open: which pairs, which references, how many. It changes no
score: it checks that pairs and references are those of its name, which the signature then carries.

Each has a second name, `NAME-chosen-on-test`, for a checkpoint that was chosen on the very pairs
that are scored, as some public code does: its figures are too good, so they have a mark, and do not
compare with others.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from cc_prep import settings
from cc_prep.errors import UserError
from cc_prep.settings import Section
from cc_train.evaluation import signature
from cc_train.evaluation.captions import metrics
from cc_train.evaluation.captions.coco import Item

FILE = Path(__file__).parent / "protocols.yaml"
CHOSEN_ON_TEST = "-chosen-on-test"


class Protocol(Section):
    """A protocol.

    Attributes:
        revision: Increased when the pairs or references change.
        dataset: Its name in published.yaml.
        prepare: The command that writes its references from the raw files.
        pairs: Number of pairs.
        groups: Number of pairs in each group of the results.
        references_a_pair: Least and largest number of references of a pair.
        references: Their total number; None if it is not known.
        digest: SHA-256 of the references, see `signature.digest`; None if the official captions
            were not available.
        pairs_digest: SHA-256 of the ids of the pairs and of their groups, see `pairs_digest`; None
            if `digest` covers them.
        sentences: Captions have several sentences, which are also matched with those of references.
        left_open: Choices that papers leave open or make differently, and the choice here.
    """

    revision: int = Field(ge=1)
    title: str
    dataset: str
    prepare: str
    pairs: int = Field(ge=1)
    groups: dict[str, int] = Field(default_factory=dict)
    references_a_pair: Annotated[tuple[int, int], Field(strict=False)]
    references: int | None = None
    digest: str | None = Field(None, pattern="^[0-9a-f]{64}$")
    pairs_digest: str | None = Field(None, pattern="^[0-9a-f]{64}$")
    sentences: bool = False
    left_open: Annotated[tuple[str, ...], Field(strict=False)]


class Protocols(Section):
    """The whole file."""

    protocols: dict[str, Protocol]


@cache
def read() -> Mapping[str, Protocol]:
    """All protocols by name."""
    values = settings.parse(FILE.read_text(encoding="utf-8"), FILE.name)
    try:
        return Protocols.model_validate(values).protocols
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(map(str, first["loc"]))
        raise UserError(f"{FILE.name}: {path}: {first['msg']}", "Fix that entry") from None


def get(name: str) -> Protocol:
    """A protocol by its name, or by its name and CHOSEN_ON_TEST. Raises UserError."""
    known, plain = read(), name.removesuffix(CHOSEN_ON_TEST)
    if plain not in known:
        raise UserError(f"no protocol is named {name}", f"Known: {', '.join(sorted(known))}")
    return known[plain]


def of_dataset(dataset: str) -> list[str]:
    """The names of the protocols of a data set of published.yaml."""
    return [name for name, protocol in read().items() if protocol.dataset == dataset]


def require_said(name: str, chosen: bool) -> None:
    """Raises UserError for a checkpoint that was chosen on the pairs, if the name hides it.

    Args:
        chosen: Whether it was.
    """
    if chosen and not name.endswith(CHOSEN_ON_TEST):
        raise UserError(
            f"--protocol {name}: the checkpoint was chosen on these very pairs",
            f"Train with --valid of another split, or say it: --protocol {name}{CHOSEN_ON_TEST}",
        )


def checked(name: str, items: Sequence[Item]) -> str:
    """The protocol as a signature names it, `name@revision`.

    Args:
        items: What is to be scored.

    Raises:
        UserError: If that is not what the protocol asks for.
    """
    protocol = get(name)

    def differs(what: str) -> UserError:
        advice = f"Write the references with: {protocol.prepare}; or score without --protocol"
        return UserError(f"--protocol {name}: {what}", advice)

    _require_pairs(protocol, items, differs)
    _require_references(protocol, items, differs)
    return f"{name}@{protocol.revision}"


def _require_pairs(
    protocol: Protocol, items: Sequence[Item], differs: Callable[[str], UserError]
) -> None:
    if len(items) != protocol.pairs:
        raise differs(f"{protocol.pairs:,} pairs are to be scored, here are {len(items):,}")
    sizes = Counter(group for item in items for group in item.groups)
    for group, size in protocol.groups.items():
        if sizes[group] != size:
            raise differs(f"{size:,} pairs are {group!r}, here {sizes[group]:,}")
    known = protocol.pairs_digest
    if known is not None and pairs_digest(items, protocol.groups) != known:
        raise differs("the pairs, by their ids and groups, are not those of the official split")


def _require_references(
    protocol: Protocol, items: Sequence[Item], differs: Callable[[str], UserError]
) -> None:
    least, most = protocol.references_a_pair
    for item in items:
        if not least <= len(item.references) <= most:
            asked = f"{least}" if least == most else f"{least} to {most}"
            raise differs(f"{item.name} has {len(item.references)} references in place of {asked}")
    count = sum(len(item.references) for item in items)
    if protocol.references is not None and count != protocol.references:
        raise differs(f"{protocol.references:,} references are official, here are {count:,}")
    if protocol.digest is not None and _digest(items) != protocol.digest:
        raise differs("the references, or their ids, are not the official ones")


def pairs_digest(items: Sequence[Item], groups: Collection[str]) -> str:
    """SHA-256 of official ids, each with its groups out of `groups`; the order does not matter."""
    lines = ["\t".join((item.name, *sorted(set(item.groups) & set(groups)))) for item in items]
    return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "surrogatepass")).hexdigest()


def _digest(items: Sequence[Item]) -> str:
    references = {item.id: item.references for item in items}
    any_caption = {item.id: "" for item in items}
    tokens = metrics.tokenised(references, any_caption)[0]
    return signature.digest(tokens, {item.id: item.name for item in items})
