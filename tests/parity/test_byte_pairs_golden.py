"""Our ids are those of OpenAI's tokenizer, for nasty strings too."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cc_prep.models import clip
from tests.conftest import golden

ITEMS = [
    item
    for folder in golden("clip_bpe")
    for item in json.loads((folder / "bpe.json").read_text(encoding="utf-8"))["items"]
]


def test_there_are_golden_vectors() -> None:
    assert ITEMS


@pytest.mark.parametrize("item", ITEMS, ids=range(len(ITEMS)))
def test_same_ids(item: dict) -> None:
    assert clip.token_ids(item["text"]) == item["ids"]
    for context, field in ((77, "clip77"), (32, "idc32")):
        expected = item.get(field, item["ids"])
        row = clip.tokenize([item["text"]], context)[0]
        assert row.tolist() == expected + [0] * (context - len(expected))


@given(st.lists(st.text(max_size=200), max_size=4))
def test_a_batch_has_one_start_and_fits(texts: list[str]) -> None:
    ids = clip.tokenize(texts)
    assert ids.shape == (len(texts), 32)
    assert (ids[:, 0] == clip.START_TOKEN).all()
    assert all(clip.END_TOKEN in row for row in ids)
    assert ids.max(initial=0) <= clip.END_TOKEN
