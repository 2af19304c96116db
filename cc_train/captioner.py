"""A trained captioner at work: pairs of images, or samples of shards → sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cc_prep.errors import UserError
from cc_prep.formats.tar import DamagedShard
from cc_train.data.shard_index import ADVICE, Entry
from cc_train.decoding.cached import WordByWord
from cc_train.decoding.search import beam, greedy
from cc_train.layers import caption_decoder
from cc_train.systems.procap import procedure_encoder
from cc_train.systems.procap.batches import ends as sample_ends
from cc_train.systems.procap.captioner import Captioner
from cc_train.systems.procap.frame_features import FrameFeatures, Kind
from cc_train.systems.procap.procedure_encoder import ProcedureEncoder
from cc_train.systems.procap.stage1_objective import as_input
from cc_train.text import Vocabulary

BATCH = 32


@dataclass(frozen=True)
class Caption:
    """A sentence. beams: (sentence, score) of beam search, best first; empty for greedy."""

    text: str
    beams: tuple[tuple[str, float], ...] = ()


class Captioning:
    """A stage-2 run's best network."""

    def __init__(self, run: Path, device: str = "cpu") -> None:
        from cc_train.systems.procap import runs

        tensors, self.settings, self.step = runs.read_run(run, "stage2")
        self.vocabulary = Vocabulary(self.settings["words"])
        seen = self.settings["seen"]
        self.features = runs.read_features(run, seen["frames"], seen["compatible"]).to(device)
        self.captioner = _rebuilt(tensors, self.settings).to(device).eval()
        self.speaker = Speaker(self.captioner, self.features, self.vocabulary)
        self.device = device

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width in px that the captioner takes."""
        sizes, factor = self.captioner.encoder.config, self.features.vqgan.config.factor
        return sizes.rows * factor, sizes.columns * factor

    def of_images(
        self, pairs: Sequence[tuple[np.ndarray, np.ndarray]], beams: int
    ) -> list[Caption]:
        """Captions of pairs uint8 [H, W, 3] RGB in `image_size`."""
        found: list[Caption] = []
        for start in range(0, len(pairs), BATCH):
            stacked = np.stack([np.stack(pair) for pair in pairs[start : start + BATCH]])
            given = torch.from_numpy(stacked).to(self.device)
            found += self.speaker.say(given, beams)
        return found

    def of_samples(
        self, entries: Sequence[Entry], beams: int, swapped: bool = False
    ) -> Iterator[tuple[str, Caption]]:
        """Key and caption of every sample. swapped: of after and before. Raises UserError."""
        return predict(self.speaker, entries, beams, swapped)


class Speaker:
    """A captioner as its weights are now: before and after of some pairs → captions."""

    def __init__(
        self, captioner: Captioner, features: FrameFeatures, vocabulary: Vocabulary
    ) -> None:
        self.captioner, self.features, self.vocabulary = captioner, features, vocabulary
        self._decoder = WordByWord(captioner.decoder)

    @torch.inference_mode()
    def say(self, given: Tensor, beams: int = 1) -> list[Caption]:
        """Captions of a batch of ends, as `collate.ends` makes them. beams: 1 is greedy."""
        memory = self.captioner.memory(self.features(as_input(given)))
        if beams == 1:
            ids = greedy(self._decoder, memory)[:, 1:].tolist()
            return [Caption(self.vocabulary.decode(one)) for one in ids]
        captions = []
        for found in beam(self._decoder, memory, beams):
            said = tuple((self.vocabulary.decode(one.ids), one.score) for one in found)
            captions.append(Caption(said[0][0], said))
        return captions


def predict(
    speaker: Speaker, entries: Sequence[Entry], beams: int = 1, swapped: bool = False
) -> Iterator[tuple[str, Caption]]:
    """Key and caption of every sample. Raises UserError for one that cannot be read."""
    device = next(speaker.captioner.parameters()).device
    for start in range(0, len(entries), BATCH):
        part = entries[start : start + BATCH]
        given = torch.from_numpy(np.stack([_ends(entry, speaker.features.kind) for entry in part]))
        given = given.flip(1) if swapped else given
        found = speaker.say(given.to(device), beams)
        yield from zip([entry.key for entry in part], found, strict=True)


def _ends(entry: Entry, kind: Kind) -> np.ndarray:
    try:
        return sample_ends(entry.read(), kind)
    except (DamagedShard, FileNotFoundError) as error:
        raise UserError(f"{entry.shard}: {error}", ADVICE) from None


def _rebuilt(tensors: dict[str, Tensor], settings: dict[str, Any]) -> Captioner:
    encoder_prefix, decoder_prefix = "intermediate_generator.", "text_decoder.decoder."
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}

    def below(prefix: str) -> dict[str, tuple[int, ...]]:
        return {n[len(prefix) :]: s for n, s in shapes.items() if n.startswith(prefix)}

    try:
        encoder = ProcedureEncoder(procedure_encoder.Config.of(below(encoder_prefix)))
        sizes = settings["decoder"]
        decoder = caption_decoder.Config.of(below(decoder_prefix), sizes["heads"], sizes["length"])
        captioner = Captioner(
            encoder, decoder, settings["queries"]["kind"], settings["seen"]["compatible"]
        )
        captioner.load_state_dict(tensors)
    except (KeyError, RuntimeError) as error:
        raise UserError(f"no captioner: {str(error).splitlines()[0]}", "Train it anew") from None
    return captioner
