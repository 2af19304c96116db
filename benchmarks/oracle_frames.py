"""Can frames in between help a captioner at all? The true ones in place of ProCap's queries.

    python benchmarks/oracle_frames.py --shards 'out/ablation/truth/shards/*.tar' [--seeds 3]
        [--steps 500]

The procedure encoder of `manifests/synth_features.yaml` from nothing, with explicit differences of
the states of both ends, learns what the renderer knows of each pair. It sees the ends alone, the
ends with two queries between them, or the ends with two true frames, which `interpolate.method:
truth` stores. A captioner knows no more than these heads say. A fifth of the scenes is held out;
"exact" is the share of their changed pairs, both ways round, of which all facts are right.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import click
import numpy as np
import torch
from lib.measuring import report
from lib.tables import cell
from torch import Tensor, nn

from cc_prep.devices import keep_freed_memory
from cc_train.data import shard_index, supervision
from cc_train.data.collate import features_of
from cc_train.data.ordered_pairs import OrderedPair, facts_of, objects_of, ordered_pairs
from cc_train.layers import mimetic
from cc_train.layers.feature_grid import to_grid
from cc_train.layers.pair_comparison import Changes, Comparison
from cc_train.systems.procap.procedure_encoder import Config, ProcedureEncoder
from cc_train.training import fact_losses, optim

Way = Literal["ends alone", "queries", "true frames"]
WAYS: tuple[Way, ...] = ("ends alone", "queries", "true frames")
GRID, WIDTH, BATCH, RATE = (7, 7), 128, 24, 1e-3


@dataclass(frozen=True)
class Example:
    """An ordered pair. frames: float16 [4, C, h, w]. images: the objects of both ends."""

    scene: str
    frames: np.ndarray
    pair: OrderedPair
    images: tuple[
        tuple[supervision.ObjectAttributes, ...], tuple[supervision.ObjectAttributes, ...]
    ]


class Reader(nn.Module):
    """Four frames → what changed between the first and the last one."""

    def __init__(self, way: Way, channels: int) -> None:
        super().__init__()
        self.inner = {"ends alone": 0, "queries": 2, "true frames": 2}[way]
        self.seen = way == "true frames"
        sizes = Config(width=WIDTH, layers=4, latent=channels, frames=self.inner + 2,
                       rows=GRID[0], columns=GRID[1], standardised=True)  # fmt: skip
        self.encoder = ProcedureEncoder(sizes, 0.02)
        self.encoder.target_pos_emb.init_sinusoidal()
        mimetic.start(self.encoder.transformer)
        self.comparison = Comparison(WIDTH, GRID)

    def forward(self, frames: Tensor) -> tuple[Changes, Tensor]:
        """features float [B, 4, n, C] → the changes, and the states of both ends [2 B, D, h, w]."""
        encoder = self.encoder
        shown = frames if self.inner else frames[:, [0, -1]]
        visible = torch.ones(shown.shape[:3], dtype=torch.bool)
        visible[:, 1:-1] = self.seen
        text = torch.zeros(len(frames), encoder.config.text_length, dtype=torch.long)
        control = encoder.control(text, related=False)
        states = encoder(control, encoder.frames(shown, visible.flatten(1)))[:, control.shape[1] :]
        count = encoder.config.frame_tokens
        before, after = (
            part.mT.unflatten(2, GRID) for part in (states[:, :count], states[:, -count:])
        )
        return self.comparison(before, after), torch.cat((before, after))


@click.command()
@click.option("--shards", multiple=True, required=True)
@click.option("--seeds", default=3, show_default=True)
@click.option("--steps", default=500, show_default=True)
def main(shards: tuple[str, ...], seeds: int, steps: int) -> None:
    """Prints the share of exact facts for each way, with 95 % intervals over seeds."""
    torch.set_num_threads(1)
    keep_freed_memory()
    examples = [one for entry in shard_index.read(shards) for one in ordered(entry)]
    examples = [one for one in examples if one.pair.facts is not None]
    names = sorted({one.scene for one in examples})
    if len(names) < 5:
        raise click.UsageError("--shards: fewer than five rendered scenes")
    held_out = {*np.random.default_rng(0).permutation(names)[: len(names) // 5].tolist()}
    train = [one for one in examples if one.scene not in held_out]
    valid = [one for one in examples if one.scene in held_out]
    print(f"{len(train)} ordered pairs to train on, {len(valid)} held out")
    results: dict[str, list[float]] = {way: [] for way in WAYS}
    for seed in range(seeds):
        for way in WAYS:
            torch.manual_seed(seed)
            reader = trained(way, train, steps, seed)
            results[way].append(exact(reader, valid))
            print(f"seed {seed}, {way}: {results[way][-1]:.1f} % exact", flush=True)
    for name, values in results.items():
        print(f"{name}: {cell(values)} % exact")
    means = {way: statistics.fmean(values) for way, values in results.items()}
    report("oracle_frames", {"steps": steps, "pairs": len(train), **means, "seeds": results})


def ordered(entry: shard_index.Entry) -> list[Example]:
    """A sample's pair in both directions, its ends with two true frames between them.

    Of five frames, as the ablation stores them, these are at a quarter and at three quarters.
    """
    sample = entry.read()
    last = len(sample.tokens) - 1
    frames = features_of(sample, [0, round(last / 3), round(2 * last / 3), last])
    scene = ordered_pairs([sample])
    objects = (scene.objects[0], scene.objects[1])
    return [
        Example(entry.scene, frames, pair, objects)
        if pair.first == 0
        else Example(entry.scene, frames[::-1], pair, objects[::-1])
        for pair in scene.pairs
    ]


def stacked(examples: Sequence[Example]) -> Tensor:
    """Features float32 [B, 4, n, C] on the encoder's grid."""
    frames = torch.from_numpy(np.stack([one.frames for one in examples]))
    tokens = to_grid(frames.flatten(0, 1), GRID, "unshuffle").float().flatten(2).transpose(1, 2)
    return tokens.contiguous().unflatten(0, frames.shape[:2])


def trained(way: Way, examples: Sequence[Example], steps: int, seed: int) -> Reader:
    """A reader trained on ordered pairs."""
    sample = stacked(examples[:: max(1, len(examples) // 300)])
    reader = Reader(way, sample.shape[3])
    assert reader.encoder.standardise is not None
    flat = sample.flatten(0, 2)
    reader.encoder.standardise.set(flat.mean(0), flat.std(0))
    weights = fact_losses.FactLosses()
    optimiser = torch.optim.AdamW(optim.param_groups([reader], 0.05), lr=RATE, betas=(0.9, 0.98))
    rng = np.random.default_rng(seed)
    for step in range(steps):
        chosen = [examples[i] for i in rng.integers(0, len(examples), BATCH)]
        for group in optimiser.param_groups:
            group["lr"] = RATE * optim.lr_multiplier(step, steps, 60, 0.0, "cosine")
        batch = known(chosen)
        counts = {n: v.clamp(min=1) for n, v in fact_losses.denominators(batch).items()}
        with torch.autocast("cpu", torch.bfloat16):
            changes, images = reader(stacked(chosen))
            losses = fact_losses.losses(reader.comparison, changes, images, batch, counts)
        optimiser.zero_grad(set_to_none=True)
        weights.total(losses).backward()
        nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
        optimiser.step()
    return reader.eval()


def known(examples: Sequence[Example]) -> dict[str, Tensor]:
    """What the losses ask; the images are all first ones, then all second ones."""
    objects = [one.images[end] for end in (0, 1) for one in examples]
    return {**facts_of([one.pair for one in examples], GRID), **objects_of(objects, GRID)}


@torch.inference_mode()
def exact(reader: Reader, examples: Sequence[Example]) -> float:
    """Percent of changed pairs for which all known facts are right."""
    right: list[bool] = []
    for start in range(0, len(examples), BATCH):
        chosen = [one for one in examples[start : start + BATCH] if one.pair.changed]
        if not chosen:
            continue
        facts = known(chosen)["facts"]
        changes, _ = reader(stacked(chosen))
        parts = changes.facts.split(supervision.SOLIDS.fact_classes, dim=1)
        guessed = torch.stack([part.argmax(1) for part in parts], dim=1)
        right += ((guessed == facts) | (facts == supervision.UNKNOWN)).all(1).tolist()
    return 100 * statistics.fmean(right)


if __name__ == "__main__":
    main()
