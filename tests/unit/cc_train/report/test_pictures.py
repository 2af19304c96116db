"""What the page shows of a captioner's look at pairs, and what it says where it cannot look."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from cc_prep import storage
from cc_train import loading
from cc_train.captioner import Attention, Caption, Inputs
from cc_train.data import shard_index
from cc_train.evaluation import evaluation
from cc_train.evaluation.captions import coco, metrics
from cc_train.report import page, pictures
from tests.unit.cc_train.evaluation.test_predict import TOKENIZER, write

TEXT = "it moved"


class Sees:
    """Masks the upper half of every pair, and looks everywhere."""

    device = torch.device("cpu")

    def __init__(self, tokenizer: str) -> None:
        self.inputs = Inputs((8, 8), "tokens", tokenizer=tokenizer)

    def caption(self, before_after: Tensor, beams: int = 1) -> list[Caption]:
        mask = np.repeat(np.array([[1], [0]], np.uint8), 2, axis=1)
        maps = np.full((2, 2, 2), 0.25, np.float32)
        looked = Attention(("it", "moved"), maps)
        return [Caption(TEXT, mask=mask, attention=looked) for _ in before_after]


@pytest.fixture
def shards(tmp_path: Path) -> str:
    return write(tmp_path / "test-000000.tar", [8, 8], [TEXT])


def of_captioner(monkeypatch: pytest.MonkeyPatch, tokenizer: str) -> None:
    monkeypatch.setattr(loading, "load", lambda path: Sees(tokenizer))


def test_one_sample_keeps_no_other_from_its_caption(
    shards: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a page without any mask since one sample was made with another VQGAN."""
    of_captioner(monkeypatch, TOKENIZER)
    one, other = shard_index.read([shards])
    captioned = pictures.captioned("run", [one, replace(other, tokenizer_sha256="3" * 64)])
    assert list(captioned.samples) == [one.key]
    [reason] = captioned.reasons
    assert "VQGAN" in reason
    sample, caption = captioned.samples[one.key]
    assert (sample.key, caption.text) == (one.key, TEXT)


@pytest.mark.parametrize("system", ["chain", "scorer"])
@pytest.mark.parametrize("tokenizer", [TOKENIZER, "3" * 64])
def test_the_page_says_why_it_shows_no_more(
    tmp_path: Path, shards: str, monkeypatch: pytest.MonkeyPatch, system: str, tokenizer: str
) -> None:
    """Keeps away: a page that just lacks its masks or its heat, and nobody knows why."""
    of_captioner(monkeypatch, tokenizer)
    items = coco.items(shard_index.metas(shard_index.read([shards])))
    captions = {item.id: TEXT for item in items}
    scores = evaluation.evaluate(items, captions, metrics.PLAIN)
    evaluation.write(tmp_path / "run/evaluation", scores, items, captions)
    storage.write_json(str(tmp_path / "run/settings.json"), {"system": system})
    text = Path(page.write(str(tmp_path / "run"), None, [shards])).read_text()
    can_read = tokenizer == TOKENIZER
    assert text.count('alt="mask, before"') == (2 if can_read else 0)
    assert text.count('alt="where it looked, before"') == (2 if can_read else 0)
    note = "2 of 2 pairs are shown without what the captioner sees in them: "
    assert (note in text) != can_read
    assert ("captioner&#39;s VQGAN" in text) != can_read


def test_samples_without_both_images(shards: str) -> None:
    """Keeps away: a traceback for shards that were built with the tokens alone."""
    sample = shard_index.read([shards])[0].read()
    before, after = pictures.ends(sample) or (None, None)
    assert before is not None
    assert after is not None
    assert (before == 7).all()
    assert before.shape == after.shape == (8, 8, 3)
    assert pictures.ends(replace(sample, images={0: sample.images[0]})) is None
