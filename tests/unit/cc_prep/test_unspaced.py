"""Captions in scripts that are written without blanks between words."""

from __future__ import annotations

import random
import unicodedata

import pytest

from cc_prep import unspaced

CHARACTERS = [
    *"一辆白色的汽车出现在左侧，。「」没有变化々ー",
    *"サッカーコートが消えたﾊ",
    *"ＡＢ１！",
]
CHARACTERS += ["𠀀", "葛\U000e0100", "ม่", "น้ำ", "ที่", "ລ", "ម្", "မြ", "が"]
WORDS = ["suv", "the", "3d", "العربية", "עִבְרִית", "हिन्दी", "машина", "집이", "🚗"]


@pytest.mark.parametrize(
    ("caption", "tokens"),
    [
        ("一辆SUV出现在左侧。", ["一", "辆", "SUV", "出", "现", "在", "左", "侧", "。"]),
        ("サッカー", ["サ", "ッ", "カ", "ー"]),
        ("ไม่มีน้ำ", ["ไ", "ม่", "มี", "น้ำ"]),
        ("葛\U000e0100飾　𠀀", ["葛\U000e0100", "飾", "𠀀"]),
        ("か\u3099", ["が"]),
        ("집이 사라졌다", ["집이", "사라졌다"]),
        ("ＡＢ", ["ａ", "ｂ"]),
        ("the red cube", ["the", "red", "cube"]),
    ],
)
def test_each_character_is_a_token(caption: str, tokens: list[str]) -> None:
    """Keeps away: a Chinese, Japanese or Thai sentence that is one word, a mark apart from its
    letter, a character beyond U+FFFF in halves, and words of other scripts in letters."""
    assert unspaced.tokens_of(caption, str.split) == tokens


def test_joined_tokens_are_the_caption_again() -> None:
    """Keeps away: captions of a captioner with blanks between characters, or words run together."""
    rng = random.Random(0)
    for _ in range(2000):
        parts = list[str]()
        for _ in range(rng.randint(1, 8)):
            word = rng.random() < 0.4
            blank = word and parts and parts[-1] in WORDS
            parts += [" "] * bool(blank) + [rng.choice(WORDS if word else CHARACTERS)]
        caption = unicodedata.normalize("NFC", "".join(parts)).lower()
        assert unspaced.joined(unspaced.tokens_of(caption, str.split)) == caption


@pytest.mark.parametrize(
    ("captions", "noted"),
    [
        (["没有变化。", "一辆白色的汽车出现在左侧。"], True),
        (["ไม่มีการเปลี่ยนแปลง"], True),
        (["the car left", "サッカーコートが消えた"], True),
        (["没有 变化 。", "一辆 白色 的 汽车 出现 在 左侧 。"], False),
        (["ไม่มี การ เปลี่ยนแปลง"], False),
        (["집이 사라졌다", "the cube", "。。。。。。", ""], False),
    ],
)
def test_captions_without_blanks_are_noted(captions: list[str], noted: bool) -> None:
    """Keeps away: a training of whole sentences as words without a hint at the setting, and the
    hint where blanks already divide the words."""
    assert ("words=characters" in unspaced.note(captions)) == noted
