"""Whether stage 1 shows more of a change than its own input: the gate of stage 2.

A probe of few labels reads the encoder's states, and what surprises it, and beside them the frames
that go in. A stage 1 whose states, or whose states beside its input, do not beat the input cannot
help stage 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cc_prep.errors import UserError
from cc_prep.records import Facts
from cc_train.data import shard_index
from cc_train.data.collate import before_after
from cc_train.data.shard_index import Entry
from cc_train.evaluation import few_label_probe
from cc_train.evaluation.few_label_probe import Figure, Labels
from cc_train.systems.procap.frame_features import FrameFeatures, as_input
from cc_train.systems.procap.procedure_encoder import ProcedureEncoder

BATCH = 32
QUARTERS = 4
VALIDATION_DRAWS = 4  # of labelled scenes
INPUT, STATES, SURPRISE = "input", "states", "surprise"
BESIDE = "beside input"


@dataclass(frozen=True)
class ProbedPairs:
    """Pairs whose changes are known.

    Attributes:
        ends: The encoder's input for before and after, float16 [P, 2, n, C].
        tokens: Their codebook indices, int64 [P, 2, n].
        labels: What is known of the pairs.
    """

    ends: Tensor
    tokens: Tensor
    labels: Labels

    @classmethod
    def read(cls, entries: Sequence[Entry], features: FrameFeatures) -> ProbedPairs:
        """The pairs of these samples that have facts, of one change at most.

        Raises:
            UserError: A sample cannot be used, or none has facts.
            DamagedShard: A sample is damaged.
        """
        shard_index.require_facts(entries)
        ends, tokens, scenes, facts = [], [], [], []
        for entry in entries:
            sample = entry.read()
            known = Facts.of_sample({**sample.meta, "key": sample.key})
            if known is not None and not known.several:
                images = torch.from_numpy(before_after(sample, features.kind)[None])
                ends.append(features(as_input(images))[0].half().cpu())
                tokens.append(before_after(sample, "tokens"))
                scenes.append(entry.scene)
                facts.append(known)
        stacked = torch.from_numpy(np.stack(tokens))
        return cls(torch.stack(ends), stacked, Labels.of(scenes, facts))


def measure(
    encoder: ProcedureEncoder,
    pairs: ProbedPairs,
    counts: Sequence[int] = few_label_probe.COUNTS,
    draws: int = few_label_probe.DRAWS,
    device: str = "cpu",
) -> dict[str, dict[int, dict[str, Figure]]]:
    """The figures of `few_label_probe.probe`, where the input is what the others must beat."""
    grid = (encoder.config.rows, encoder.config.columns)
    seen = readings(encoder, pairs, device)
    return few_label_probe.probe(seen, pairs.labels, grid, counts=counts, draws=draws)


@torch.inference_mode()
def readings(
    encoder: ProcedureEncoder, pairs: ProbedPairs, device: str = "cpu"
) -> dict[str, list[np.ndarray]]:
    """What differs between before and after at every place, by name: blocks float [P, n, ·]."""
    was_training = encoder.training
    encoder.eval()
    states, surprises, embeddings = [], [], []
    batches = zip(pairs.ends.split(BATCH), pairs.tokens.split(BATCH), strict=True)
    for ends, tokens in batches:
        embedded = encoder.embed(ends.to(device).float())
        embeddings.append(_difference(embedded))
        states.append(_difference(encoder.forward_ends(embedded)))
        surprises.append(surprise(encoder, embedded, tokens.to(device)).cpu().numpy())
    encoder.train(was_training)
    raw = _difference(pairs.ends.float())
    state, surprised = np.concatenate(states), np.concatenate(surprises)
    return {
        INPUT: [raw],
        "embedded input": [np.concatenate(embeddings)],
        STATES: [state],
        f"{STATES} {BESIDE}": [state, raw],
        SURPRISE: [surprised],
        f"{SURPRISE} {BESIDE}": [surprised, raw],
    }


def surprise(encoder: ProcedureEncoder, embedded: Tensor, tokens: Tensor) -> Tensor:
    """How unlikely each token of both ends is, given the rest: −log p, [B, n, 2].

    A quarter of one end is hidden at a time, every second place along rows and columns; the encoder
    sees the rest of it, and all of the other end.

    Args:
        encoder: A stage 1.
        embedded: What its `embed` made of both ends, [B, 2, n, D].
        tokens: int64 [B, 2, n].
    """
    sizes = encoder.config
    row = torch.arange(sizes.rows, device=embedded.device)[:, None] % 2
    column = torch.arange(sizes.columns, device=embedded.device) % 2
    quarter = (2 * row + column).flatten()
    unlikely = embedded.new_zeros(tokens.shape)
    for end in range(2):
        for number in range(QUARTERS):
            hidden = torch.zeros(2, len(quarter), dtype=torch.bool, device=embedded.device)
            hidden[end] = quarter == number
            logits = encoder.to_logits(encoder.forward_ends(embedded, hidden)[:, end, hidden[end]])
            truth = tokens[:, end, hidden[end]]
            unlikely[:, end, hidden[end]] = F.cross_entropy(
                logits.mT.float(), truth, reduction="none"
            )
    return unlikely.mT


def _difference(ends: Tensor) -> np.ndarray:
    """After less before, float32 [B, n, D], of [B, 2, n, D]."""
    difference: np.ndarray = (ends[:, 1] - ends[:, 0]).float().cpu().numpy()
    return difference


@dataclass(frozen=True)
class Gate:
    """The probe as a training runs it in each validation.

    Attributes:
        labels: Number of labelled scenes.
    """

    pairs: ProbedPairs
    labels: int
    device: str = "cpu"

    def __post_init__(self) -> None:
        scenes = len(np.unique(self.pairs.labels.scenes))
        if scenes < 2 * self.labels:
            raise UserError(
                f"probe_labels: {scenes} scenes of the validation have facts, and a probe of "
                f"{self.labels} labelled ones needs {2 * self.labels}",
                "Set probe_labels lower, or hold out more scenes",
            )

    def __call__(self, encoder: ProcedureEncoder) -> dict[str, float]:
        """How much more is read beside the input than from the input alone: shares, by
        `probe_<figure>_<reading>`."""
        figures = measure(encoder, self.pairs, (self.labels,), VALIDATION_DRAWS, self.device)
        return {
            f"probe_{name}_{reading}": one.gain
            for reading in (STATES, SURPRISE)
            for name, one in figures[f"{reading} {BESIDE}"][self.labels].items()
        }


def logged(figures: Mapping[str, Mapping[int, Mapping[str, Figure]]]) -> dict[str, float]:
    """The figures as a training logs them: `probe_<count>_<figure>_<reading>`."""
    return {
        f"probe_{count}_{figure}_{name.replace(' ', '_')}": one.value
        for name, of_counts in figures.items()
        for count, row in of_counts.items()
        for figure, one in row.items()
    }
