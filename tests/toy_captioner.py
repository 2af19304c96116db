"""A whole captioner in sixty lines: what a new system has to bring, and nothing else."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cc_prep.settings import Section
from cc_train import systems, text
from cc_train.captioner import EncoderDecoder, Inputs
from cc_train.data import collate, split
from cc_train.data.stream import StreamSettings
from cc_train.runs import stored_run
from cc_train.training.caption_objective import CaptionObjective
from cc_train.training.settings import Loop
from cc_train.training.task import Task, TrainingRequest, over_samples, validation

LENGTH = 24


class Settings(Section):
    width: int = 16
    validation_split: split.ValidationSplit = split.ValidationSplit()
    stream: StreamSettings = StreamSettings()
    loop: Loop = Loop(steps=2, batch_size=2)


class Toy(EncoderDecoder):
    def __init__(self, size: tuple[int, int], words: text.TextCodec, width: int) -> None:
        super().__init__(Inputs(size), words, LENGTH)
        self.colours = nn.Linear(6, width)
        self.embedding, self.out = nn.Embedding(len(words), width), nn.Linear(width, len(words))

    def memory(self, before_after: Tensor) -> Tensor:
        return self.colours(before_after.float().mean((2, 3)).flatten(1) / 255)

    def logits(self, ids: Tensor, memory: Tensor) -> Tensor:
        return self.out(torch.tanh(self.embedding(ids) + memory[:, None]))


def prepare(settings: Settings, request: TrainingRequest) -> Task:
    data = split.read(request.shards, request.valid, settings.validation_split, request.console)
    words = split.vocabulary(data.train, None, 1, request.console)
    network = Toy(tuple(data.size), words, settings.width)
    score = validation(data, settings, request, network.inputs)
    objective = CaptionObjective(network, score, 0.0, 0.0, request.device)
    batches = collate.CaptionBatches("pixels", words, LENGTH)
    about = {"samples": data.about(), "text": words.describe(), "size": data.size}
    return over_samples(data, batches, objective, settings,
                        request=request, about=about, files=words.files())  # fmt: skip


def load(run: stored_run.Run, device: str) -> Toy:
    size, width = run.settings["size"], run.settings["width"]
    words = text.load(run.folder, run.settings["text"])
    return stored_run.network_of(run, lambda _: Toy(tuple(size), words, width), device)


systems.register(systems.System("toy", __name__, "Trains a toy.", init=False, ranks=False))
