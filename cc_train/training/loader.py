"""The loader: micro-batches of steps, on the device; one line for what happens in its workers."""

from __future__ import annotations

import atexit
import importlib
import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cc_prep.errors import JobFailed, LoaderWorkerDied, UserError
from cc_train.data.stream import Source
from cc_train.training.settings import Loop

GPU_WORKERS = 4  # one thread that decodes images lets a fast GPU wait
WORKER_DIED = (
    "a loader worker died (out of memory?); the same command resumes from the last checkpoint"
)


class Batches(Dataset[Any]):
    """The micro-batches of this rank by their number; a step has `grad_accum_steps` of them.

    An error that has a message of its own takes the place of a batch: what is raised in a loader
    worker comes out of torch with the worker's traceback in place of the message. `raise_refusals`
    raises it.
    """

    def __init__(self, source: Callable[[int], Any], count: int) -> None:
        self.source, self.count = source, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Any:
        try:
            return self.source(number)
        except (UserError, JobFailed) as error:
            return error
        except OSError as error:  # such as a shard that may not be read
            plain = (error.errno, error.strerror, error.filename) if error.errno else (str(error),)
            return OSError(*plain)  # one that can be handed over


def steps(source: Source, settings: Loop, start: int, device: str) -> Iterator[list[Any]]:
    """The micro-batches of every step from `start` on; pinned where they go to a GPU."""
    each, workers = settings.grad_accum_steps, settings.loader_workers
    if workers is None:
        workers = GPU_WORKERS if device == "cuda" else 0
    loader: DataLoader[Any] = DataLoader(
        Batches(source, settings.steps * each),
        batch_size=None,
        sampler=range(start * each, settings.steps * each),
        num_workers=workers,
        pin_memory=device == "cuda",
        worker_init_fn=init_worker,
    )
    if workers:
        _end_workers_at_exit()
    batches: list[Any] = []
    for item in raise_refusals(loader, workers):
        batches.append(item)
        if len(batches) == each:
            yield batches
            batches = []


@cache
def _end_workers_at_exit() -> None:
    """Kills loader workers that are left when the interpreter ends.

    An error may keep the loader alive until then. multiprocessing would send each worker a SIGTERM,
    which `init_worker` has it survive, and wait for it without a limit. What is registered later is
    called earlier.
    """
    importlib.import_module("multiprocessing.util")  # which registers that
    atexit.register(_end_workers)


def _end_workers() -> None:
    if hasattr(signal, "SIGCHLD"):  # by which torch hears of each death, and raises an error
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for worker in multiprocessing.active_children():
        if worker.daemon:
            worker.kill()


def ahead(step_batches: Iterator[list[Any]], device: str) -> Iterator[list[Any]]:
    """The batches of each step, on the device; those of the next one are copied meanwhile.

    On a CPU nothing is copied, and nothing is read earlier than it is asked for. The batches must
    be pinned for the copy not to wait for the device.
    """
    if device == "cpu":
        yield from step_batches
        return
    stream = torch.cuda.Stream()
    following = _copied(next(step_batches, None), stream)
    while following is not None:
        torch.cuda.current_stream().wait_stream(stream)
        batches = following
        _used_by(batches, torch.cuda.current_stream())
        following = _copied(next(step_batches, None), stream)
        yield batches


def _copied(batches: list[Any] | None, stream: torch.cuda.Stream) -> list[Any] | None:
    if batches is None:
        return None
    with torch.cuda.stream(stream):
        return [to_device(batch, "cuda") for batch in batches]


def to_device(batch: Any, device: str) -> Any:
    """A batch with its tensors on the device; pinned ones are copied while the host goes on."""
    if isinstance(batch, dict):
        return {name: to_device(value, device) for name, value in batch.items()}
    return batch.to(device, non_blocking=True) if isinstance(batch, Tensor) else batch


def _used_by(batch: Any, stream: torch.cuda.Stream) -> None:
    """Keeps the memory of copied tensors until this stream is done with them."""
    if isinstance(batch, Tensor):
        batch.record_stream(stream)
    elif isinstance(batch, (dict, list)):
        for value in batch.values() if isinstance(batch, dict) else batch:
            _used_by(value, stream)


def init_worker(number: int) -> None:
    """A loader worker uses one processor: OpenCV would start a thread for each.

    SIGTERM often goes to a whole group of processes. It is the training's, which saves and ends its
    workers itself, so a worker ends at the second one.
    """
    import cv2

    cv2.setNumThreads(0)

    def spare(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, spare)


def raise_refusals(loader: Iterable[Any], workers: int) -> Iterator[Any]:
    """A loader's items. Raises a refusal in place of one, and JobFailed if a worker dies while it
    hands one over.

    It does so through a socket, whose errors look like those of a store that a worker reads from;
    but what a worker itself raises says so.
    """
    items = iter(loader)
    while True:
        try:
            item = next(items)
        except StopIteration:
            return
        except (ConnectionError, EOFError, FileNotFoundError) as error:
            if workers == 0 or "in DataLoader worker process" in str(error):
                raise
            raise LoaderWorkerDied(WORKER_DIED) from None
        if isinstance(item, (UserError, JobFailed, OSError)):
            raise item
        yield item


@contextmanager
def dead_workers_reported() -> Iterator[None]:
    """Reports the death of a loader worker in one line; torch may raise it at any point.

    That may be within a `__del__`, where Python prints a traceback and continues. That traceback is
    suppressed, since the next request to the dead worker raises the same error.
    """
    unraisable = sys.unraisablehook

    def quiet(event: sys.UnraisableHookArgs) -> None:
        if not _worker_died(event.exc_value):
            unraisable(event)

    sys.unraisablehook = quiet
    try:
        yield
    except RuntimeError as error:
        if not _worker_died(error):
            raise
        raise LoaderWorkerDied(WORKER_DIED) from None
    finally:
        sys.unraisablehook = unraisable


def _worker_died(error: BaseException | None) -> bool:
    """Whether torch raised it for a dead worker; what a worker itself raises has no such words."""
    return isinstance(error, RuntimeError) and "DataLoader worker (pid" in str(error)
