"""fit(): the one loop that all training goes through.

Everything random is drawn from (seed, step), so a run that is killed and resumed does what the
undisturbed one does.
"""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from pydantic import Field
from rich.console import Console
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset

from cc_prep import storage
from cc_prep.errors import JobFailed, UserError
from cc_prep.settings import Section
from cc_train import checkpoints, optim
from cc_train.metric_logger import MetricLogger

SETTINGS = "settings.json"


class Loop(Section):
    """How long, how fast, how often; the same keys for every training."""

    steps: int = Field(1000, ge=1)
    batch_size: int = Field(16, ge=1)
    learning_rate: float = Field(1e-4, gt=0)
    betas: tuple[float, float] = Field((0.9, 0.999), strict=False)
    weight_decay: float = Field(0.0, ge=0)
    warmup: int = Field(100, ge=0)
    final_share: float = Field(0.01, ge=0, le=1)
    clip_norm: float = Field(1.0, gt=0)
    average: float = Field(0.0, ge=0, lt=1)
    precision: Literal["float32", "bfloat16"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = Field(0, ge=0)
    loader_workers: int = Field(0, ge=0)
    seed: int = 0
    log_every: int = Field(20, ge=1)
    validate_every: int = Field(500, ge=1)
    checkpoint_every: int = Field(500, ge=1)
    keep_checkpoints: int = Field(2, ge=1)


class Objective(Protocol):
    """What is trained.

    network: what is exported. others: networks that only training needs. buffers: tensors besides
        parameters that training must remember. turns: each has its own optimiser and its own
        backward pass in every step, in this order. best: the validation figure that picks the best
        checkpoint, and whether more is better.
    """

    @property
    def network(self) -> nn.Module: ...
    @property
    def others(self) -> dict[str, nn.Module]: ...
    @property
    def buffers(self) -> dict[str, Tensor]: ...
    @property
    def turns(self) -> tuple[str, ...]: ...
    @property
    def best(self) -> tuple[str, bool]: ...

    def groups(self, turn: str) -> list[dict[str, Any]]:
        """Parameter groups that the turn's optimiser updates."""
        ...

    def losses(self, turn: str, batch: Any, step: int) -> dict[str, Tensor]:
        """Scalars by name; `total` is minimised, the others are logged."""
        ...

    def after_step(self, step: int) -> None:
        """Called when all turns of a step are over."""
        ...

    def validate(self, network: nn.Module) -> tuple[dict[str, float], np.ndarray | None]:
        """Figures on held-out data, and a picture uint8 [H, W, 3] where there is one."""
        ...


class Batches(Dataset[Any]):
    """The batch of every step, by its number."""

    def __init__(self, batch: Callable[[int], Any], steps: int) -> None:
        self.batch, self.steps = batch, steps

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> Any:
        return self.batch(step)


def pick_device(settings: Loop) -> str:
    """`cuda` where there is one, unless the settings say otherwise. Raises UserError."""
    there = torch.cuda.is_available()
    if settings.device == "cuda" and not there:
        raise UserError("device=cuda: torch finds no GPU", "Say --set loop.device=cpu")
    return "cuda" if there and settings.device != "cpu" else "cpu"


def fit(
    objective: Objective,
    batch: Callable[[int], Any],
    settings: Loop,
    everything: Mapping[str, Any],
    run: Path,
    resume: str,
    console: Console,
) -> dict[str, float]:
    """Trains to `settings.steps`; the last validation's figures.

    batch: step → its batch of tensors. everything: all settings, written to the run folder and
        into the weights. resume: `auto` goes on from the last checkpoint, `never` refuses a folder
        that has one. Raises UserError, and JobFailed when a loss is no number or on SIGTERM.
    """
    trainer = Trainer(objective, settings, everything, run)
    start = trainer.prepare(resume)
    if start:
        console.print(f"going on at step {start}", highlight=False)
    loader: DataLoader[Any] = DataLoader(
        Batches(batch, settings.steps),
        batch_size=None,
        sampler=range(start, settings.steps),
        num_workers=settings.loader_workers,
    )
    figures = dict(trainer.figures)
    with MetricLogger(run, start, settings.steps, console) as logger, _stoppable() as stopped:
        for step, items in enumerate(loader, start):
            found = trainer.step(items, step)
            done = step + 1
            if done % settings.log_every == 0:
                logger.log(done, "train", found)
            last = done == settings.steps
            if done % settings.validate_every == 0 or last:
                figures, picture = trainer.validate(done)
                logger.log(done, "validation", figures)
                if picture is not None:
                    logger.picture(done, picture)
            if done % settings.checkpoint_every == 0 or last or stopped():
                trainer.save(done)
            if stopped() and not last:
                raise JobFailed(f"stopped at step {done}; the same command goes on from there")
    return figures


class Trainer:
    """An objective with its optimisers, averages and checkpoints."""

    def __init__(
        self, objective: Objective, settings: Loop, everything: Mapping[str, Any], run: Path
    ) -> None:
        self.objective, self.settings, self.run = objective, settings, run
        self.everything = json.loads(json.dumps(everything))
        self.device = pick_device(settings)
        self.optimisers = {
            turn: optim.scaled(objective.groups(turn), settings.learning_rate, settings.betas)
            for turn in objective.turns
        }
        self.averaged = None
        if settings.average:
            average = get_ema_multi_avg_fn(settings.average)
            self.averaged = AveragedModel(objective.network, multi_avg_fn=average)
        self.figures: dict[str, float] = {}
        self.best: dict[str, float] = {}

    @property
    def exported(self) -> nn.Module:
        """The network that is validated and shipped."""
        return self.averaged.module if self.averaged is not None else self.objective.network

    def prepare(self, resume: str) -> int:
        """Makes the run folder or goes on in it; the step to start at. Raises UserError."""
        there = checkpoints.steps(self.run)
        place = self.run / SETTINGS
        if place.exists() and resume == "never":
            raise UserError(f"{self.run}: a run is there already", "Give another --out")
        if place.exists():
            before = json.loads(place.read_text())
            _check_same(before, self.everything, self.run)
        storage.write_json(str(place), self.everything)
        if not there:
            return 0
        found = checkpoints.read(self.run, there[-1])
        self._restore(found)
        return found.step

    def step(self, batch: Any, step: int) -> dict[str, float]:
        """One step of every turn; the losses by name."""
        torch.manual_seed(self.settings.seed * 1_000_003 + step)
        batch = _to(batch, self.device)
        share = optim.learning_rate(
            step, self.settings.steps, self.settings.warmup, self.settings.final_share
        )
        said: dict[str, float] = {}
        self.objective.network.train()
        for turn, optimiser in self.optimisers.items():
            half = torch.autocast(
                self.device, torch.bfloat16, enabled=self.settings.precision == "bfloat16"
            )
            optimiser.zero_grad(set_to_none=True)
            with half:
                losses = self.objective.losses(turn, batch, step)
            losses["total"].backward()
            mine = [p for group in optimiser.param_groups for p in group["params"]]
            norm = nn.utils.clip_grad_norm_(mine, self.settings.clip_norm)
            if not math.isfinite(losses["total"].item()) or not math.isfinite(norm.item()):
                raise JobFailed(
                    f"step {step}: the {turn} loss is {losses['total'].item()}, its gradient "
                    f"{norm.item()}; the last checkpoint is good: lower loop.learning_rate"
                )
            for group in optimiser.param_groups:
                group["lr"] = group["base"] * share
            optimiser.step()
            said |= {name if name != "total" else turn: t.item() for name, t in losses.items()}
        self.objective.after_step(step)
        if self.averaged is not None:
            self.averaged.update_parameters(self.objective.network)
        return said

    def validate(self, step: int) -> tuple[dict[str, float], np.ndarray | None]:
        """Figures and picture; remembers them and whether they are the best so far."""
        network = self.exported.eval()
        with torch.inference_mode():
            self.figures, picture = self.objective.validate(network)
        name, more = self.objective.best
        value = self.figures[name]
        if not self.best or (value > self.best[name]) == more:
            self.best = {"step": step, name: value}
        return self.figures, picture

    def save(self, step: int) -> None:
        """Writes a checkpoint and removes old ones."""
        training = {f"network.{n}": t for n, t in self.objective.network.state_dict().items()}
        for name, module in self.objective.others.items():
            training |= {f"other.{name}.{n}": t for n, t in module.state_dict().items()}
        training |= {f"buffer.{n}": t for n, t in self.objective.buffers.items()}
        for turn, optimiser in self.optimisers.items():
            training |= checkpoints.flatten(optimiser.state_dict(), f"optimiser.{turn}")
        if self.averaged is not None:
            training["averaged"] = self.averaged.n_averaged
        model = self.exported.state_dict()
        training |= {f"exported.{n}": t for n, t in model.items()} if self.averaged else {}
        state = {"figures": self.figures, "best": self.best}
        checkpoints.write(self.run, step, model, self.everything, training, state)
        best = int(self.best["step"]) if self.best else None
        checkpoints.prune(self.run, self.settings.keep_checkpoints, best)

    def _restore(self, found: checkpoints.Checkpoint) -> None:
        tensors = {name: t.to(self.device) for name, t in found.training.items()}
        self.objective.network.load_state_dict(_below(tensors, "network."))
        for name, module in self.objective.others.items():
            module.load_state_dict(_below(tensors, f"other.{name}."))
        for name, buffer in self.objective.buffers.items():
            buffer.copy_(tensors[f"buffer.{name}"])
        for turn, optimiser in self.optimisers.items():
            whole = optimiser.state_dict()
            whole["state"] = checkpoints.unflatten(tensors, f"optimiser.{turn}")
            optimiser.load_state_dict(whole)
        if self.averaged is not None:
            self.averaged.module.load_state_dict(_below(tensors, "exported."))
            self.averaged.n_averaged.copy_(tensors["averaged"])
        self.figures, self.best = found.state["figures"], found.state["best"]


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n[len(prefix) :]: t for n, t in tensors.items() if n.startswith(prefix)}


def _to(batch: Any, device: str) -> Any:
    if isinstance(batch, dict):
        return {name: _to(value, device) for name, value in batch.items()}
    return batch.to(device) if isinstance(batch, Tensor) else batch


def _check_same(before: dict[str, Any], now: dict[str, Any], run: Path) -> None:
    """Refuses to go on with other settings, except a larger number of steps."""
    from cc_prep.formats.provenance import differences

    allowed = ("loop.steps", "loop.log_every", "loop.loader_workers", "loop.keep_checkpoints")
    found = [
        d for d in differences(before, now) if not d.startswith(tuple(f"{a}:" for a in allowed))
    ]
    if found:
        raise UserError(
            f"{run} was trained with other settings ({'; '.join(found[:5])})",
            "Use the same settings, or another --out",
        )


@contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """SIGTERM and Ctrl-C end the step under way and save, instead of losing it."""
    asked = False

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
