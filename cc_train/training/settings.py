"""Settings that every training has, and the device that it runs on."""

from __future__ import annotations

import math
from typing import Annotated, Literal, get_args

import torch
from pydantic import Field

from cc_prep.devices import set_tf32
from cc_prep.errors import UserError
from cc_prep.models.cpu import has_bfloat16
from cc_prep.settings import Section, Speed
from cc_train.training import optim
from cc_train.training.experiment_loggers import Name
from cc_train.training.optim import Optimizer, Schedule

Device = Literal["auto", "cpu", "cuda"]
DEVICES = get_args(Device)
Beta = Annotated[float, Field(ge=0, lt=1)]


class Loop(Section):
    """The settings of the training loop: the same keys for every system."""

    steps: int = Field(1000, ge=1)
    """Steps of the training."""
    epochs: float | None = Field(None, gt=0)
    """Epochs of the training; takes precedence over `steps`."""
    batch_size: Speed[int] = Field(16, ge=1)
    """Items of a micro-batch of one process."""
    grad_accum_steps: Speed[int] = Field(1, ge=1)
    """Micro-batches per step and process; 1 where the losses are over the whole batch: vqgan,
    clip4idc, scorer, and chain unless `losses.contrast` is 0."""
    global_batch_size: int | None = Field(None, ge=1)
    """Items of a step over all processes; a micro-batch then has at most `batch_size`, and
    `grad_accum_steps` follows."""
    optimizer: Optimizer = "adamw"
    """`bert_adam` has no bias correction and clips each tensor, as ProCap's code."""
    schedule: Schedule = "cosine"
    """The learning rate after the warm-up. `cosine`: down to `min_lr_ratio`; `constant`; `linear`:
    down to 0; `step`: multiplied by `decay_ratio` every `decay_epochs` or `decay_steps`."""
    learning_rate: float = Field(1e-4, gt=0)
    """The learning rate after the warm-up."""
    betas: tuple[Beta, Beta] = Field((0.9, 0.999), strict=False)
    """Decay of the running averages of the gradient and of its square."""
    weight_decay: float = Field(0.0, ge=0)
    """Of matrices and filters; docs/training.md names what has none."""
    warmup_steps: int = Field(100, ge=0)
    """Steps of warm-up; linear, for `constant` logarithmic."""
    warmup_ratio: float | None = Field(None, ge=0, lt=1)
    """Share of the schedule that is warm-up, in place of `warmup_steps`."""
    schedule_ratio: float = Field(1.0, ge=1)
    """Steps of the schedule in units of the training's: with 2 the training ends in the middle of
    its schedule, as that of ProCap's code does."""
    min_lr_ratio: float = Field(0.01, ge=0, le=1)
    """With `cosine`: the last learning rate in units of the first."""
    decay_epochs: float | None = Field(None, gt=0)
    """With `step`: the rate falls each time this many epochs are over."""
    decay_steps: int | None = Field(None, ge=1)
    """The same in steps."""
    decay_ratio: float | None = Field(None, gt=0, le=1)
    """What the rate is multiplied by then; null is 0.1."""
    max_grad_norm: float | None = Field(1.0, gt=0)
    """The largest norm of all gradients together; null: no limit."""
    ema_decay: float = Field(0.0, ge=0, lt=1)
    """Decay of the running average of the weights that is validated and kept; 0: none. After n
    steps it is at most (1 + n) / (10 + n)."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Of the layers; the weights stay float32. `float16` has a scaled loss (docs/training.md,
    GPUs)."""
    tf32: Speed[bool] = False
    """On a GPU, products and convolutions in float32 may round their factors to TF32."""
    compile: Speed[bool] = False
    """Use `torch.compile`; its speed was not measured."""
    device: Speed[Device] = "auto"
    """`auto`: `cuda` where there is one."""
    threads: Speed[int] = Field(0, ge=0)
    """Threads of torch on a CPU; 0 leaves torch's choice."""
    loader_workers: Speed[int | None] = Field(None, ge=0)
    """Processes that read ahead; null: 4 for a GPU, none for a CPU."""
    seed: int = Field(0, ge=0, lt=2**32)
    """Of weights, order, masks and dropout."""
    log_every: Speed[int] = Field(20, ge=1)
    """Steps between two lines of the log."""
    validate_every: Speed[int] = Field(500, ge=1)
    """Steps between two validations."""
    checkpoint_every: Speed[int] = Field(500, ge=1)
    """Steps between two checkpoints."""
    keep_checkpoints: Speed[int] = Field(2, ge=1)
    """Checkpoints that are kept besides the best."""
    loggers: Speed[tuple[Name, ...]] = Field((), strict=False)
    """Services that get the metrics of the log too."""

    @property
    def warmup(self) -> int:
        """Steps of warm-up: a share of the schedule's where it is given, else `warmup_steps`."""
        if self.warmup_ratio is None:
            return self.warmup_steps
        return round(self.warmup_ratio * self.schedule_steps)

    @property
    def schedule_steps(self) -> int:
        """Steps over which the schedule runs; the training may end before."""
        return round(self.schedule_ratio * self.steps)

    def lr_multiplier(self, step: int) -> float:
        """The share of the full learning rate at a step."""
        return optim.lr_multiplier(
            step,
            self.schedule_steps,
            self.warmup,
            self.min_lr_ratio,
            self.schedule,
            self.decay,
        )

    def split_over(self, world: int) -> Loop:
        """These settings with the division of a step among so many processes: micro-batches of
        `batch_size` items at most, where `global_batch_size` says how many a step has.

        Raises:
            UserError: If it cannot be divided, or the division is given as well.
        """
        total = self.global_batch_size
        if total is None:
            total = self.batch_size * self.grad_accum_steps * world
            return self.model_copy(update={"global_batch_size": total})
        if self.grad_accum_steps != 1:
            raise UserError(
                "loop.global_batch_size and loop.grad_accum_steps are both given",
                "Leave out grad_accum_steps: it follows from the number of processes",
            )
        share, rest = divmod(total, world)
        if rest:
            raise UserError(
                f"loop.global_batch_size: {total} items cannot be divided among {world} processes",
                "Start another number of processes, or give a multiple of it",
            )
        micro = max(size for size in range(1, self.batch_size + 1) if share % size == 0)
        return self.model_copy(update={"batch_size": micro, "grad_accum_steps": share // micro})

    def with_resolved_epochs(self, items: int, world: int) -> Loop:
        """These settings with the `steps` that `epochs` make, where `epochs` is given, and with the
        `decay_steps` that `decay_epochs` make.

        Args:
            items: Of an epoch.
            world: The number of processes.

        Raises:
            UserError: For the schedule `step` without either.
        """
        step_items = self.batch_size * self.grad_accum_steps * world
        update: dict[str, int] = {}
        if self.epochs is not None:
            update["steps"] = max(1, round(self.epochs * items / step_items))
        if self.decay_epochs is not None:
            # An epoch of SCORER's code, whose schedule this is, ends with a smaller batch.
            update["decay_steps"] = max(1, round(self.decay_epochs * math.ceil(items / step_items)))
        if self.schedule == "step" and not (self.decay_steps or self.decay_epochs):
            raise UserError(
                "loop.schedule is step, and nothing says after how many steps",
                "Set loop.decay_epochs or loop.decay_steps",
            )
        return self.model_copy(update=update) if update else self

    @property
    def follows_steps(self) -> bool:
        """Whether the learning rate of a step depends on the number of all steps."""
        return self.schedule in ("cosine", "linear") or self.warmup_ratio is not None

    @property
    def decay(self) -> tuple[int, float]:
        """(steps, ratio) of the schedule `step`: the rate is multiplied by ratio every so many
        steps.
        """
        return self.decay_steps or 1, self.decay_ratio or 0.1


def pick_device(device: str, remedy: str = "Give cpu or auto", tf32: bool = False) -> str:
    """`cuda` where there is one and `device` is `auto` or `cuda`, else `cpu`. Raises UserError.

    Args:
        remedy: For a user who wants a GPU that is not there.
        tf32: What float32 means on a GPU from now on, see `set_tf32`; it is set here so that no
            caller forgets it.
    """
    if device not in DEVICES:
        raise UserError(f"device={device}: not known", f"Give {', '.join(DEVICES)}")
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise UserError("device=cuda: torch finds no GPU", remedy)
    if not available or device == "cpu":
        return "cpu"
    set_tf32(tf32)
    return "cuda"


def compute_dtype(precision: str, device: str) -> torch.dtype:
    """What layers compute in where a training is set to a precision.

    A processor without instructions for bfloat16 computes in float32: it emulates bfloat16, which
    took 5 to 13 times as long in the layers that were measured.
    """
    if precision == "bfloat16" and device == "cpu" and not has_bfloat16():
        return torch.float32
    chosen: torch.dtype = getattr(torch, precision)
    return chosen
