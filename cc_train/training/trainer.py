"""The trainer: takes the steps of an objective, validates it and writes its checkpoints."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

from cc_prep import storage
from cc_prep.errors import JobFailed, UserError
from cc_prep.formats.provenance import differences
from cc_prep.storage.file_lock import LockHeld, file_lock
from cc_train.data.stream import Source
from cc_train.distributed import FirstRankFailed, Ranks
from cc_train.runs import checkpoints, origin
from cc_train.runs.checkpoints import Checkpoint, better
from cc_train.runs.run_folder import SETTINGS
from cc_train.training import optim, resume
from cc_train.training.interval import IntervalMeans
from cc_train.training.loader import to_device
from cc_train.training.objective import Objective
from cc_train.training.settings import Loop, compute_dtype

LOCK, LOCK_SECONDS = ".lock", 30.0  # a training that was asked to stop still saves
MIN_SCALE = 2.0**-14  # of float16, after 30 steps without a finite gradient
LOWER = "lower loop.learning_rate: the command then resumes from the last checkpoint, if any"


class _Forward(nn.Module):
    """An objective's losses as a module, for DistributedDataParallel and torch.compile."""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective, self.network = objective, objective.network
        self.others = nn.ModuleDict(objective.others)  # their gradients are averaged as well

    def forward(
        self, phase: str, batch: Any, step: int, denominators: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        return self.objective.losses(phase, batch, step, denominators)


class Trainer:
    """Trains an objective, with its optimisers, its running average and its checkpoints.

    Made on all ranks together.

    Args:
        config: All settings, as JSON; a run resumes only with the same, but for `resume.FREE`.
        run: Its folder.
        device: Of the objective, `cpu` or `cuda`.
        speed: The dotted keys in `config` with the role SPEED, which may differ as well.
        metrics: Of the last validation, by name.
        best: The step and the metrics of the best one.
        signals: Sums over all ranks of what each gave to the last step.
        interval: The losses of the steps since the last log.

    Raises:
        UserError: For a loss that cannot be accumulated, and where ranks have other settings or
            samples.
    """

    def __init__(
        self,
        objective: Objective,
        settings: Loop,
        config: Mapping[str, Any],
        run: Path,
        ranks: Ranks = Ranks(),  # noqa: B008, it is frozen
        device: str = "cpu",
        speed: Collection[str] = (),
    ) -> None:
        if objective.over == "batch" and settings.grad_accum_steps > 1:
            raise UserError(
                "this training's loss is over a whole batch, which cannot be accumulated",
                "Set loop.grad_accum_steps=1, or a larger loop.batch_size with global_batch_size",
            )
        self.objective, self.settings, self.run, self.ranks = objective, settings, run, ranks
        self.config, self.device, self.speed = json.loads(json.dumps(config)), device, speed
        self._require_same()  # before tensors are exchanged, whose shapes follow from the samples
        self.optimisers = {
            phase: optim.build_optimizer(
                objective.groups(phase), settings.learning_rate, settings.betas, settings.optimizer
            )
            for phase in objective.phases
        }
        self.averaged = None
        if settings.ema_decay:
            average = optim.running_average(settings.ema_decay)
            self.averaged = AveragedModel(objective.network, multi_avg_fn=average)
        self.scaler = torch.amp.GradScaler(self.device, enabled=settings.precision == "float16")
        self.forward: nn.Module = _Forward(objective)
        if ranks.world > 1:
            places = [ranks.local] if self.device == "cuda" else None
            self.forward = DistributedDataParallel(
                self.forward,
                device_ids=places,
                find_unused_parameters=not objective.all_parameters_used,
                gradient_as_bucket_view=True,
            )
        if settings.compile:
            self.forward = torch.compile(self.forward)  # type: ignore[assignment]
        self.metrics: dict[str, float] = {}
        self.not_finite: list[str] = []  # the last validation's metrics that were left out
        self.best: dict[str, float] = {}
        self.damaged: list[str] = []  # what is wrong with checkpoints that were not taken
        self.before: dict[str, Any] = {}  # the loop's settings until now
        self.signals: dict[str, float] = {}
        self.interval = IntervalMeans()
        self.held = ExitStack()  # the lock of the run's folder, on the first rank

    @property
    def exported(self) -> nn.Module:
        """The network that is validated and stored: the running average, if there is one."""
        return self.averaged.module if self.averaged is not None else self.objective.network

    def _require_same(self) -> None:
        """Refuses ranks with other settings or samples than the first one's; it says so for all.

        Raises UserError, and FirstRankFailed on the other ranks.
        """
        configs = self.ranks.gather_objects(json.dumps(self.config, sort_keys=True))
        other = next((n for n, one in enumerate(configs) if one != configs[0]), None)
        if other is None:
            return
        lines = "; ".join(differences(json.loads(configs[0]), json.loads(configs[other]))[:5])
        error = UserError(
            f"rank {other} has other settings or samples than the first ({lines})",
            "Start all processes with one command, on the same data",
        )
        raise error if self.ranks.is_main_process else FirstRankFailed(str(error), 2)

    def prepare(self, resume_mode: str, source: Source) -> int:
        """Makes the run folder or resumes the run in it; returns the step to start at.

        The first rank looks, decides and sends the checkpoint to the others, which need not see the
        folder.

        Args:
            resume_mode: `never` refuses a folder that has a run.

        Raises:
            UserError: For that, and for a run with other settings.
        """
        checkpoint, self.config = self.ranks.broadcast_from_rank0(
            lambda: self._decide(resume_mode), checkpoints.to_send
        )
        if checkpoint is None:
            return 0
        tensors = self.ranks.broadcast_tensors(checkpoint.training, self.device)
        self._restore(checkpoint, tensors)
        source.restore(checkpoint.state.get("stream", {}))
        return checkpoint.step

    def _decide(self, resume_mode: str) -> tuple[Checkpoint | None, dict[str, Any]]:
        """The checkpoint to resume from, on the first rank, and the run's settings from now on.

        They say of its start what those before said, and its folder has them then.
        """
        path = self.run / SETTINGS
        self._lock()
        resume.check_begun(self.run)
        if path.exists() and resume_mode == "never":
            raise UserError(f"{self.run}: already holds a run", "Give another --out")
        checkpoint, self.damaged = checkpoints.read_last(self.run)
        before = resume.read_settings(path) if path.exists() else {}
        config = self.config
        if checkpoint is not None:  # without one, no step is of the settings of before
            resume.check_same(before, config, self.run, self.speed)
            self.before = before.get("loop", {})
            resume.check_steps(checkpoint.step, self.settings.steps, self.run)
            config = {**config, origin.INIT: before.get(origin.INIT)}
        if checkpoint is None or checkpoint.step < self.settings.steps:
            storage.write_json(str(path), config)  # of a finished run they stay what was trained
        return checkpoint, config

    def _lock(self) -> None:
        """Takes the lock of the run's folder. Raises UserError while another training has it."""
        self.run.mkdir(parents=True, exist_ok=True)
        try:
            self.held.enter_context(file_lock(self.run / LOCK, LOCK_SECONDS))
        except LockHeld:
            raise UserError(
                f"{self.run}: another training is running in it",
                "Wait for it, or give another --out",
            ) from None

    def step(
        self, batches: Sequence[Any], step: int, signals: Mapping[str, float] | None = None
    ) -> dict[str, Tensor]:
        """Takes a step of every phase and returns this rank's share of the losses, by name.

        Args:
            batches: The micro-batches of this rank.
            signals: Numbers that are summed over all ranks in the same exchange as the
                denominators; the sums are `self.signals` afterwards. The total is `loss` and the
                norm of its gradient, before clipping, `grad_norm`; with several phases each has the
                phase's name behind it. `interval` takes the shares in.

        Raises:
            JobFailed: If the loss or a gradient of a phase is not finite; that phase's weights are
                then as before.
        """
        self._seed(step, self.ranks.rank)
        batches = [to_device(batch, self.device) for batch in batches]
        multiplier = self.settings.lr_multiplier(step)
        denominators = self._denominators(batches, signals or {})
        shares: dict[str, Tensor] = {}
        self.objective.network.train()
        for phase, optimiser in self.optimisers.items():
            optimiser.zero_grad(set_to_none=True)
            losses = self._backward(phase, batches, step, denominators)
            self.scaler.unscale_(optimiser)
            trained = [p for group in optimiser.param_groups for p in group["params"]]
            most = self.settings.max_grad_norm or math.inf
            norm = nn.utils.clip_grad_norm_(trained, most)
            is_finite = self._check(step, phase, losses["total"], norm)
            for group in optimiser.param_groups:
                group["lr"] = group["base"] * multiplier
            if any(parameter.grad is not None for parameter in trained):
                self.scaler.step(optimiser)
            suffix = f"_{phase}" if len(self.optimisers) > 1 else ""
            shares |= {name: value for name, value in losses.items() if name != "total"}
            shares[f"loss{suffix}"] = losses["total"]
            if is_finite:  # the same on all ranks, whose mean is logged
                shares[f"grad_norm{suffix}"] = norm.detach()
        self.scaler.update()
        if self.scaler.is_enabled() and self.scaler.get_scale() < MIN_SCALE:
            raise JobFailed(f"step {step}: no gradient is finite in float16; {LOWER}")
        self.objective.after_step(step)
        if self.averaged is not None:
            self.averaged.update_parameters(self.objective.network)
        self.interval.add(shares)
        return shares

    def _seed(self, step: int, number: int) -> None:
        """number: of the micro-batch among those of all ranks in the step, so that dropout does not
        depend on the number of processes."""
        torch.manual_seed((self.settings.seed * 1_000_003 + step) * 4096 + number)

    def _denominators(
        self, batches: Sequence[Any], signals: Mapping[str, float]
    ) -> dict[str, Tensor]:
        """Number of terms of each loss in the step, summed over all ranks (at least 1) and divided
        by the number of ranks.
        """
        each = [self.objective.denominators(batch) for batch in batches]
        own = {name: torch.stack([one[name] for one in each]).sum() for name in each[0]}
        if self.ranks.world == 1:
            self.signals = dict(signals)
            return {name: total.clamp(min=1) for name, total in own.items()}
        flags = {f"signal.{n}": torch.tensor(v, device=self.device) for n, v in signals.items()}
        totals = self.ranks.all_reduce_sum({**own, **flags})
        self.signals = {name: totals.pop(f"signal.{name}").item() for name in signals}
        # Gradients are averaged over ranks, so each rank divides by the mean number of terms.
        return {name: total.clamp(min=1) / self.ranks.world for name, total in totals.items()}

    def _backward(
        self, phase: str, batches: Sequence[Any], step: int, denominators: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Accumulates gradients over all micro-batches; this rank's part of each loss."""
        dtype = compute_dtype(self.settings.precision, self.device)
        shares: dict[str, Tensor] = {}
        chunks = [
            (number, chunk)
            for number, batch in enumerate(batches)
            for chunk in self.objective.chunks(batch)
        ]
        previous = 0
        for place, (number, chunk) in enumerate(chunks, 1):
            if number != previous:
                self._seed(step, number * self.ranks.world + self.ranks.rank)
                previous = number
            wait = self.ranks.world > 1 and place < len(chunks)
            with self.forward.no_sync() if wait else nullcontext():  # type: ignore[operator]
                with torch.autocast(self.device, dtype, enabled=dtype is not torch.float32):
                    losses = self.forward(phase, chunk, step, denominators)
                self.scaler.scale(losses["total"]).backward()
            for name, value in losses.items():
                own = shares.get(name, torch.zeros((), device=self.device))
                shares[name] = own + value.detach()
        return shares

    def _check(self, step: int, phase: str, loss: Tensor, norm: Tensor) -> bool:
        """Ends a step whose numbers are not finite. The norm is the same on all ranks.

        With float16 the norm need not be finite: returns whether it is.

        It waits for the device, as a step also does elsewhere: where a loss picks the words of a
        caption, and where several processes exchange numbers.
        """
        values = torch.stack([loss.double(), norm.double().to(loss.device)]).tolist()
        # With float16 a gradient may overflow: the scaler then leaves the step out.
        if math.isfinite(values[0]) and (math.isfinite(values[1]) or self.scaler.is_enabled()):
            return math.isfinite(values[1])
        raise JobFailed(
            f"step {step}: the {phase} loss is {values[0]}, its gradient {values[1]}; {LOWER}"
        )

    def validate(self, step: int) -> np.ndarray | None:
        """Validates on all ranks, and stores the first one's metrics and the best step on each.

        Returns the objective's picture, uint8 [H, W, 3], on the first rank, if it has one. A figure
        that is no finite number is left out and named in `not_finite`. It ends no run: the losses
        are finite, so the weights are good, and the next validation may be as well.
        """
        network = self.exported.eval()
        with torch.inference_mode():
            own, picture = self.objective.validate(network)
        metrics = self.ranks.broadcast(own)
        self.metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self.not_finite = [name for name in metrics if name not in self.metrics]
        self.best = better(self.best, self.metrics, step, self.objective.criterion)
        return picture

    def save(self, step: int, source: Source) -> None:
        """Writes a checkpoint on the first rank, and removes old ones. Raises JobFailed."""
        interval = self.interval.state(self.ranks)
        if not self.ranks.is_main_process:
            return
        # The model's file has the network, or its average; `checkpoints.read` takes it from there.
        raw = self.objective.network.state_dict() if self.averaged is not None else {}
        training = {f"network.{n}": t for n, t in raw.items()}
        for name, module in self.objective.others.items():
            training |= {f"other.{name}.{n}": t for n, t in module.state_dict().items()}
        training |= {f"buffer.{n}": t for n, t in self.objective.buffers.items()}
        for phase, optimiser in self.optimisers.items():
            training |= checkpoints.flatten(optimiser.state_dict(), f"optimiser.{phase}")
        if self.averaged is not None:
            training["averaged"] = self.averaged.n_averaged
        model = self.exported.state_dict()
        state = {
            "metrics": self.metrics,
            "best": self.best,
            "interval": interval,
            "stream": source.state(step * self.settings.grad_accum_steps),
            "scaler": self.scaler.state_dict(),
            "machine": self._machine(),
        }
        checkpoints.write(self.run, step, model, self.config, training, state)
        best = int(self.best["step"]) if self.best else None
        checkpoints.prune(self.run, step, self.settings.keep_checkpoints, best)

    def _machine(self) -> dict[str, Any]:
        """What the steps were computed on, and in; noted, and free to change."""
        gpu = torch.cuda.get_device_name() if self.device == "cuda" else None
        dtype = str(compute_dtype(self.settings.precision, self.device)).removeprefix("torch.")
        known = {"torch": torch.__version__, "gpu": gpu, "precision": dtype}
        return {**known, "processes": self.ranks.world}

    def _restore(self, checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> None:
        checkpoints.load(self.objective.network, tensors, "network.")
        for name, module in self.objective.others.items():
            checkpoints.load(module, tensors, f"other.{name}.")
        for name, buffer in self.objective.buffers.items():
            buffer.copy_(tensors[f"buffer.{name}"])
        for phase, optimiser in self.optimisers.items():
            whole = optimiser.state_dict()
            whole["state"] = checkpoints.unflatten(tensors, f"optimiser.{phase}")
            optimiser.load_state_dict(whole)
        if self.averaged is not None:
            checkpoints.load(self.averaged.module, tensors, "exported.")
            self.averaged.n_averaged.copy_(tensors["averaged"])
        scaler = checkpoint.state.get("scaler")
        if scaler and scaler["scale"] >= 1:  # less after many gradients that were not finite
            self.scaler.load_state_dict(scaler)
        self.interval.restore(checkpoint.state.get("interval", {}), self.device)
        self.metrics, self.best = checkpoint.state["metrics"], checkpoint.state["best"]
        # After a damaged one was passed over, the best of before may be pruned already.
        if self.best and int(self.best["step"]) not in checkpoint.stored:
            self.best = {}
