"""Two processes that train one network, on this machine's processors."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from rich.console import Console
from torch import Tensor, nn

from cc_prep.errors import JobFailed, UserError
from cc_train.data.stream import StatelessSource
from cc_train.distributed import FirstRankFailed, Ranks, joined
from cc_train.evaluation.unreadable import Unreadable
from cc_train.runs.checkpoints import Criterion
from cc_train.systems.chain.objective import PARTS
from cc_train.systems.chain.objective import Losses as ChainLosses
from cc_train.systems.scorer.objective import Losses
from cc_train.training import optim
from cc_train.training.objective import Objective
from cc_train.training.settings import Loop
from cc_train.training.trainer import Trainer
from tests import network_factory

ROWS = torch.arange(10.0).reshape(5, 2)  # three of the first rank, two of the second
OWN = (slice(0, 3), slice(3, 5))


def contrast(rows: Tensor) -> Tensor:
    """A loss of all rows together that is no sum over rows."""
    return (rows @ rows.T).square().mean().sqrt()


class Two(Objective):
    """An objective with a network, and another one that only training needs."""

    criterion = Criterion("loss", higher_is_better=False)
    over = "batch"

    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 1, bias=False))
        self.others["head"] = nn.Linear(1, 1, bias=False)
        self.counts: list[float] = []
        for module in (self.network, self.others["head"]):
            nn.init.ones_(module.weight)

    def groups(self, phase: str) -> list[dict[str, Any]]:
        return optim.param_groups([self.network, self.others["head"]], 0.0)

    def denominators(self, batch: Tensor) -> dict[str, Tensor]:
        return {"rows": torch.tensor(float(len(batch)))}

    def losses(self, phase: str, batch: Tensor, step: int, denominators: Any) -> dict[str, Tensor]:
        self.counts.append(float(denominators["rows"]))
        values = self.others["head"](self.network(batch))
        return {"total": (values.square().sum() / denominators["rows"])}

    def validate(self, network: nn.Module) -> tuple[dict[str, float], np.ndarray | None]:
        return {"loss": 0.0}, None


def trained(folder: Path, ranks: Ranks, rows: Tensor) -> tuple[list[float], list[float]]:
    """The weights of both networks after a step, and the denominators of its losses."""
    objective = Two()
    settings = Loop(steps=2, learning_rate=0.1, warmup_steps=0, device="cpu")
    trainer = Trainer(objective, settings, {}, folder, ranks)
    trainer.step([rows], 0)
    weights = [objective.network.weight, objective.others["head"].weight]
    return torch.cat([weight.flatten() for weight in weights]).tolist(), objective.counts


def gathers(rank: Ranks, folder: Path) -> Any:
    own = ROWS[OWN[rank.rank]].clone().requires_grad_(True)
    gathered = rank.gather(own)
    contrast(gathered).backward()
    assert own.grad is not None
    return gathered.tolist(), own.grad.tolist()


def trains(rank: Ranks, folder: Path) -> Any:
    return trained(folder, rank, ROWS[OWN[rank.rank]])


def prepares(rank: Ranks, folder: Path) -> Any:
    """The second rank comes later than the first one."""
    trainer = Trainer(Two(), Loop(steps=2, device="cpu"), {}, folder / "run", rank)
    time.sleep(rank.rank)
    return trainer.prepare("never", StatelessSource(lambda number: None))


def apart(rank: Ranks, folder: Path) -> Any:
    """Each rank has a folder of its own, and only the first one's has a checkpoint."""
    run, source = folder / str(rank.rank), StatelessSource(lambda number: None)
    trainer = Trainer(Two(), Loop(steps=2, device="cpu"), {}, run, rank)
    trainer.prepare("never", source)
    trainer.step([ROWS], 0)
    trainer.save(1, source)
    trainer.held.close()  # as at the end of a training
    fresh = Trainer(Two(), Loop(steps=2, device="cpu"), {}, run, rank)
    pickled, broadcast = [], dist.broadcast_object_list

    def recorded(values: list[Any]) -> None:
        pickled.append(pickle.dumps(values))
        broadcast(values)

    dist.broadcast_object_list = recorded
    try:
        step = fresh.prepare("auto", source)
    finally:
        dist.broadcast_object_list = broadcast
    tensors = any(b"_rebuild_tensor" in sent for sent in pickled)
    return step, fresh.objective.network.weight.tolist(), len(pickled), tensors


def other_settings(rank: Ranks, folder: Path) -> Any:
    """The samples of the second rank have more words, so its network has another size."""
    objective = Two()
    objective.others["words"] = nn.Linear(1, 3 + rank.rank)
    return Trainer(objective, Loop(device="cpu"), {"samples": rank.rank}, folder / "run", rank)


def contrasts(rank: Ranks, folder: Path) -> Any:
    """A step of SCORER: the second rank has fewer scenes, and one of them without a distractor."""
    samples = network_factory.SAMPLES
    parts = (samples[:6], samples[6:9])
    own = [*parts[0], *parts[1]] if rank.world == 1 else parts[rank.rank]
    objective = network_factory.scorer_objective(Losses(contrast=0.5, cbr=0.5), ranks=rank)
    settings = Loop(steps=2, device="cpu", max_grad_norm=None)
    trainer = Trainer(objective, settings, {}, folder, rank)
    trainer.step([network_factory.scorer_batch(own, swap=0.0)], 0)
    losses = trainer.interval.take(trainer.ranks)
    assert objective.reconstruction is not None
    trained = [*objective.network.parameters(), *objective.reconstruction.parameters()]
    norms = [0.0 if p.grad is None else float(p.grad.norm()) for p in trained]
    return {name: losses[name] for name in ("loss", "caption", "contrast", "cbr")}, norms


def chains(rank: Ranks, folder: Path) -> Any:
    """A step of the chain: the second rank has fewer scenes, and sentences that the first one has
    as well."""
    parts = (network_factory.SAMPLES[:8], network_factory.SAMPLES[8:12])
    own = [*parts[0], *parts[1]] if rank.world == 1 else parts[rank.rank]
    first = 0 if rank.world == 1 else 8 * rank.rank
    seeds = np.random.default_rng(0).spawn(12)[first : first + len(own)]
    objective = network_factory.chain_objective(
        network_factory.chain(), ChainLosses(contrast=0.5), ranks=rank
    )
    trainer = Trainer(objective, Loop(steps=2, device="cpu", max_grad_norm=None), {}, folder, rank)
    trainer.step([network_factory.CHAIN_BATCHES(own, seeds)], 0)
    losses = trainer.interval.take(trainer.ranks)
    trained = [*objective.network.parameters(), *objective.consistency.parameters()]
    norms = [0.0 if p.grad is None else float(p.grad.norm()) for p in trained]
    return {name: losses[name] for name in ("loss", *PARTS)}, norms


def refused(rank: Ranks, folder: Path) -> Any:
    """The first rank finds a run; the second one does not see the folder."""
    run, source = folder / str(rank.rank), StatelessSource(lambda number: None)
    first = Trainer(Two(), Loop(steps=2, device="cpu"), {}, run, rank)
    with first.held:
        first.prepare("auto", source)
    return Trainer(Two(), Loop(steps=2, device="cpu"), {}, run, rank).prepare("never", source)


def unreadable(rank: Ranks, folder: Path) -> Any:
    """Each rank meets another sample that cannot be read, and then both are too many."""
    screen = io.StringIO()
    samples = Unreadable(10, 0.2, rank, Console(file=screen, width=200))
    agreed = samples.agreed([f"key {rank.rank}"])
    samples.skip_bad = 0.1
    try:
        samples.agreed([f"key {rank.rank}"])
    except JobFailed as error:
        return sorted(agreed), screen.getvalue(), str(error)


def signals(rank: Ranks, folder: Path) -> Any:
    """What each rank gives to a step, and how many exchanges the step has besides DDP's own."""
    trainer = Trainer(Two(), Loop(steps=2, device="cpu"), {}, folder, rank)
    exchanges, reduce = [], dist.all_reduce
    dist.all_reduce = lambda *args, **kwargs: (exchanges.append(1), reduce(*args, **kwargs))[1]
    try:
        trainer.step([ROWS], 0, {"stop": float(rank.rank), "skipped": 2.0})
    finally:
        dist.all_reduce = reduce
    return trainer.signals, len(exchanges), rank.gather_objects(f"key {rank.rank}")


Answers = dict[tuple[str, int], Any]
WORKS: tuple[Callable[[Ranks, Path], Any], ...] = (
    gathers, trains, prepares, apart, other_settings, refused, signals, contrasts,
    chains, unreadable,
)  # fmt: skip


def meets(rank: int, port: int) -> str:
    """The second rank meets an error of its own while the first one waits for it."""
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip
    try:
        with joined(False) as ranks:
            ranks.broadcast("both are there")
            if not ranks.is_main_process:
                raise ZeroDivisionError("odd")
            ranks.gather_objects("never")
    except (JobFailed, ZeroDivisionError) as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("the first rank went on alone")


def _process(rank: int, folder: Path, port: int, answers: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    for work in WORKS:
        try:
            answer: Any = work(Ranks(rank, 2, rank), folder / work.__name__)
        except (UserError, FirstRankFailed) as error:
            answer = f"{type(error).__name__}: {error}"
        answers.put((work.__name__, rank, answer))
        dist.barrier()
    dist.destroy_process_group()
    answers.put(("meets", rank, meets(rank, port)))


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What each work returns on each of two ranks, or the words of its UserError."""
    context, folder = multiprocessing.get_context("forkserver"), tmp_path_factory.mktemp("ranks")
    # Both share one start of Python and torch.
    context.set_forkserver_preload(["cc_train.training.trainer", "tests.network_factory"])
    queue = context.Queue()
    # As of torchrun: the one who starts the processes serves the store where they meet.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    processes = [
        context.Process(target=_process, args=(rank, folder, store.port, queue), daemon=True)
        for rank in (0, 1)
    ]
    for process in processes:
        process.start()
    rows = [queue.get(timeout=120) for _ in range(2 * len(WORKS) + 2)]
    for process in processes:
        process.join(60)
    return {(name, rank): answer for name, rank, answer in rows}


def test_a_gather_has_all_rows_and_their_gradients(answers: Answers) -> None:
    """Keeps away: a hang or wrong rows where one rank has more pairs than another."""
    both = [answers["gathers", rank] for rank in (0, 1)]
    rows = ROWS.clone().requires_grad_(True)
    contrast(rows).backward()
    assert rows.grad is not None
    for own, (gathered, gradient) in zip(OWN, both, strict=True):
        assert gathered == ROWS.tolist()
        # Each rank computes the whole loss, so the gradients of both are added up.
        assert torch.allclose(torch.tensor(gradient), 2 * rows.grad[own])


def test_two_ranks_train_all_networks_as_one_does(tmp_path: Path, answers: Answers) -> None:
    """Keeps away: networks beside the main one that drift apart between the ranks, and a sum that
    each rank divides by its own terms where another loss is over the whole batch."""
    first, second = (answers["trains", rank] for rank in (0, 1))
    weights, counts = trained(tmp_path, Ranks(), ROWS)
    assert counts == [5.0]
    assert first == second
    assert first[0] == pytest.approx(weights)
    assert first[1] == [2.5], "a mean rank's rows"


def test_a_fresh_folder_is_fresh_for_all_ranks(answers: Answers) -> None:
    """Keeps away: `--resume never` that finds the settings which the first rank just wrote."""
    assert [answers["prepares", rank] for rank in (0, 1)] == [0, 0]


def test_ranks_go_on_from_the_first_one_s_checkpoint(answers: Answers) -> None:
    """Keeps away: machines without a shared folder that train from different steps."""
    first, second = (answers["apart", rank] for rank in (0, 1))
    assert first == second
    assert first[0] == 1
    assert first[1] != [[1.0, 1.0]], "the weights after a step"


def test_no_tensor_of_a_checkpoint_is_pickled(answers: Answers) -> None:
    """Keeps away: a checkpoint of a gigabyte that is sent twice at each resume."""
    for rank in (0, 1):
        _, _, count, tensors = answers["apart", rank]
        assert count == 2, "what was decided, and the tensors' shapes"
        assert not tensors


def test_ranks_with_other_samples_are_refused(answers: Answers) -> None:
    """Keeps away: a machine whose copy of the shards is another one, trained on in silence."""
    message = "rank 1 has other settings or samples than the first (samples: 0 → 1)"
    assert answers["other_settings", 0].startswith(f"UserError: {message}")
    assert answers["other_settings", 1].startswith(f"FirstRankFailed: {message}")


def test_what_the_first_rank_refuses_ends_all(answers: Answers) -> None:
    """Keeps away: ranks that wait half an hour for one that has ended, or all print the same."""
    assert answers["refused", 0].startswith("UserError: ")
    assert answers["refused", 1].startswith("FirstRankFailed: ")
    assert "already holds a run" in answers["refused", 1]


def test_a_step_has_one_exchange(answers: Answers) -> None:
    """Keeps away: an exchange each for the denominators, the losses and the wish to stop; and what
    one rank could not read that the others do not count."""
    for rank in (0, 1):
        totals, exchanges, keys = answers["signals", rank]
        assert totals == {"stop": 1.0, "skipped": 4.0}
        assert exchanges == 1
        assert keys == ["key 0", "key 1"]


def test_what_any_rank_cannot_read_counts_on_all(answers: Answers) -> None:
    """Keeps away: ranks of which one ends and the others wait, or that validate on other pairs."""
    first, second = (answers["unreadable", rank] for rank in (0, 1))
    assert first[0] == second[0] == ["key 0", "key 1"]
    assert first[1].startswith("2 of 10 samples to validate on cannot be read, and are left out")
    assert second[1] == ""
    assert first[2] == second[2]
    assert "raise stream.skip_bad" in first[2]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """`joined` as rank 1 of two, without the other one, in whose store nobody left a word."""
    store = dist.HashStore()
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(dist, "rendezvous", lambda *args, **kwargs: iter([(store, 1, 2)]))
    for name in ("init_process_group", "destroy_process_group"):
        monkeypatch.setattr(dist, name, lambda *args, **kwargs: None)


@pytest.mark.usefixtures("alone")
def test_the_reason_of_a_lost_connection_is_shown() -> None:
    """Keeps away: a wrong network interface that reads as if another process had ended."""
    text = "NCCL error: invalid usage\nLast error:\nDuplicate GPU detected"
    with (
        pytest.raises(JobFailed, match=r"rank 1: .*Last error:; Duplicate GPU") as caught,
        joined(False),
    ):
        raise RuntimeError(text)
    assert str(caught.value.__cause__) == text


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("local", "error"), [("0", UserError), ("1", FirstRankFailed)])
def test_more_processes_than_gpus(
    monkeypatch: pytest.MonkeyPatch, local: str, error: type[Exception]
) -> None:
    """Keeps away: "invalid device ordinal" as a traceback, and processes that wait for its rank."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", local)
    with pytest.raises(error, match="2 processes on this machine, which has 1 GPU"), joined(True):
        pass


def test_a_process_says_what_another_one_met(answers: Answers) -> None:
    """Keeps away: "connection closed by peer" as all that is said of an error elsewhere; and, by
    gloo's own words in two real processes, a lost exchange that is taken for an own error."""
    assert answers["meets", 1] == "ZeroDivisionError: odd"
    words = "JobFailed: rank 0 stopped, since rank 1 met ZeroDivisionError: odd"
    assert answers["meets", 0] == words


def test_scorers_contrast_is_over_all_ranks(answers: Answers, tmp_path: Path) -> None:
    """Keeps away: a rank that contrasts its own pairs alone, or counts another one's twice."""
    losses, norms = contrasts(Ranks(), tmp_path / "alone")
    for rank in (0, 1):
        of_rank, of_norms = answers["contrasts", rank]
        assert of_rank == pytest.approx(losses, rel=1e-4)
        assert of_norms == pytest.approx(norms, rel=1e-3, abs=1e-5)


def test_a_step_of_the_chain_is_that_of_one_process(answers: Answers, tmp_path: Path) -> None:
    """Keeps away: masks or regions that a rank divides by its own number, or a contrast within."""
    losses, norms = chains(Ranks(), tmp_path / "alone")
    for rank in (0, 1):
        of_rank, of_norms = answers["chains", rank]
        assert of_rank == pytest.approx(losses, rel=1e-4)
        assert of_norms == pytest.approx(norms, rel=1e-3, abs=1e-5)
