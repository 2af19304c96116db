"""CLIPScore and RefCLIPScore of the second image of each pair (Hessel et al., EMNLP 2021).

CLIPScore is 2.5 times the cosine of a caption's and the image's embeddings by CLIP, and 0 below 0.
RefCLIPScore is the harmonic mean of it and the cosine of the caption and its nearest reference.
Texts begin with "A photo depicts", and are cut at CLIP's limit, 77 tokens for the public ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from cc_prep.errors import UserError, first_line
from cc_prep.formats.tar import DamagedShard
from cc_prep.steps.entities.regions import embeddings, unit
from cc_prep.weights import folders
from cc_train.data.collate import images_of
from cc_train.data.shard_index import ADVICE, Entry
from cc_train.evaluation.captions.metrics import CLIP_SCORE, REF_CLIP_SCORE

PREFIX = "A photo depicts "
WEIGHT = 2.5
BATCH = 64
REMEDY = "Give a folder that CLIPModel.save_pretrained and CLIPProcessor.save_pretrained wrote"


class ClipScore:
    """Both measures by a CLIP from a local folder.

    Args:
        folder: See `folders`.
        entries: The samples whose images are compared.

    Attributes:
        variants: What their signatures name.

    Raises:
        UserError: Where the folder holds no CLIP, and without images.
    """

    def __init__(self, folder: str, entries: Sequence[Entry], device: str) -> None:
        from transformers import CLIPModel, CLIPProcessor

        if not entries:
            raise UserError(
                f"{CLIP_SCORE} needs the images of the pairs", "Give --shards that hold them"
            )
        located = folders.locate_folder(folder, "clip")
        try:
            self.processor = CLIPProcessor.from_pretrained(located.path, **folders.LOCAL)
            network = folders.pretrained(CLIPModel, located.path)
        except folders.UNREADABLE as error:
            raise UserError(f"{located.path}: {first_line(error)}", REMEDY) from None
        self.network, self.device = network.to(device).eval(), device
        self.entries = {entry.key: entry for entry in entries}
        plain = located.name.translate({ord(mark): "_" for mark in "|:"})
        self.variants = dict.fromkeys((CLIP_SCORE, REF_CLIP_SCORE), f"{plain},after")

    def score(
        self, references: Mapping[str, Sequence[str]], candidates: Mapping[str, str]
    ) -> dict[str, dict[str, float]]:
        """The scores of each id by measure; CLIPScore is at most 2.5, RefCLIPScore below 1.5."""
        texts = [text for id, caption in candidates.items() for text in (caption, *references[id])]
        vectors = self._of_texts([text for text in dict.fromkeys(texts) if text.strip()])
        with_image, with_both = dict[str, float](), dict[str, float]()
        for start in range(0, len(candidates), BATCH):
            ids = list(candidates)[start : start + BATCH]
            for id, image in zip(ids, self._of_images(ids), strict=True):
                ours = vectors.get(candidates[id], np.zeros_like(image))
                theirs = [vectors[text] for text in references[id] if text in vectors]
                nearest = max((float(ours @ text) for text in theirs), default=0.0)
                with_image[id] = WEIGHT * max(float(ours @ image), 0.0)
                with_both[id] = _harmonic(with_image[id], max(nearest, 0.0))
        return {CLIP_SCORE: with_image, REF_CLIP_SCORE: with_both}

    def _of_texts(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        found = dict[str, np.ndarray]()
        longest = self.network.config.text_config.max_position_embeddings
        for start in range(0, len(texts), BATCH):
            batch = texts[start : start + BATCH]
            tokens = self.processor.tokenizer(
                [PREFIX + text for text in batch],
                padding=True, truncation=True, max_length=longest, return_tensors="pt",
            )  # fmt: skip
            with torch.inference_mode():
                output = self.network.get_text_features(
                    input_ids=tokens["input_ids"].to(self.device),
                    attention_mask=tokens["attention_mask"].to(self.device),
                )
            found |= zip(batch, unit(embeddings(output)), strict=True)
        return found

    def _of_images(self, ids: Sequence[str]) -> np.ndarray:
        pictures = []
        for id in ids:
            entry = self.entries[id]
            try:
                sample = entry.read()
                pictures.append(images_of(sample, [len(sample.tokens) - 1])[0])
            except (DamagedShard, FileNotFoundError) as error:
                raise UserError(f"{entry.shard}: {error}", ADVICE) from None
        inputs = self.processor.image_processor(images=pictures, return_tensors="pt")
        with torch.inference_mode():
            output = self.network.get_image_features(
                pixel_values=inputs["pixel_values"].to(self.device)
            )
        return unit(embeddings(output))


def _harmonic(first: float, second: float) -> float:
    return 2 * first * second / (first + second) if first + second > 0 else 0.0
