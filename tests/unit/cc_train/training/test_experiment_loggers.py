"""The loggers of others, against stand-ins with the functions of theirs that we call.

The real packages were run by hand, with a resumed run each (wandb 0.31 offline, mlflow-skinny 3.17
with a folder, trackio 0.43): they are too large for the environment of the tests.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from cc_prep.errors import UserError
from cc_train.training import experiment_loggers
from cc_train.training.metric_logger import MetricLogger

CONFIG = {"system": "pair", "loop": {"steps": 9, "betas": [0.9, 0.98]}}


class Service:
    """What a service knows: the figures by run, and the settings of each."""

    def __init__(self) -> None:
        self.figures: dict[str, dict[int, dict[str, float]]] = {}
        self.settings: dict[str, Any] = {}
        self.active: str | None = None

    def begin(self, id: str | None, settings: Mapping[str, Any] | None = None) -> str:
        assert self.active is None, "the run before was not ended"
        self.active = id or f"run{len(self.figures)}"
        self.figures.setdefault(self.active, {})
        if settings is not None:
            self.settings[self.active] = settings
        return self.active

    def add(self, figures: dict[str, float], step: int) -> None:
        assert self.active is not None
        self.figures[self.active].setdefault(step, {}).update(figures)

    def end(self) -> None:
        self.active = None


def like_wandb(service: Service) -> SimpleNamespace:
    def init(
        project: str, name: str, config: Any, resume: str, id: Any = None, dir: str = ""
    ) -> Any:
        assert (project, resume) == ("change-captioning", "allow")
        # trackio knows a run by its name, and has no id.
        return SimpleNamespace(id=service.begin(id if dir else name, config))

    return SimpleNamespace(
        init=init, log=lambda figures, step: service.add(figures, step), finish=service.end
    )


def like_mlflow(service: Service) -> SimpleNamespace:
    def start_run(run_id: str | None, run_name: str) -> Any:
        return SimpleNamespace(info=SimpleNamespace(run_id=service.begin(run_id)))

    def log_params(values: dict[str, str]) -> None:
        service.settings[service.active] = values

    return SimpleNamespace(
        set_experiment=lambda name: None,
        start_run=start_run,
        log_params=log_params,
        log_metrics=lambda figures, step: service.add(figures, step),
        end_run=service.end,
    )


STAND_INS = {"wandb": like_wandb, "trackio": like_wandb, "mlflow": like_mlflow}


@pytest.fixture
def service(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Service:
    name = request.node.callspec.params["name"]
    running = Service()
    monkeypatch.setitem(sys.modules, name, STAND_INS[name](running))
    return running


@pytest.mark.parametrize("name", STAND_INS)
def test_a_resumed_run_goes_on_in_the_same_run(name: Any, service: Service, tmp_path: Path) -> None:
    run = tmp_path / "out" / "stage2"
    run.mkdir(parents=True)
    for start in (0, 4):
        others = experiment_loggers.open_loggers((name,), run, CONFIG)
        logger = MetricLogger(run, start, 9, Console(file=io.StringIO()), others)
        logger.log(start + 4, "train", {"total": 0.5})
        logger.log(start + 4, "validation", {"CIDEr": 80.0})
        logger.close()
    [figures] = service.figures.values()
    for one in figures.values():
        assert one.pop("train/seconds_per_step") > 0
    each = {"train/total": 0.5, "validation/CIDEr": 80.0}
    assert figures == {4: each, 8: each}
    [settings] = service.settings.values()
    assert settings in (CONFIG, {k: str(v) for k, v in experiment_loggers.flat(CONFIG).items()})
    assert service.active is None
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [4, 4, 8, 8]


@pytest.mark.parametrize("name", STAND_INS)
def test_runs_whose_paths_end_alike_are_two_runs(
    name: Any, service: Service, tmp_path: Path
) -> None:
    """Keeps away: the figures of two trainings in one curve."""
    for folder in ("a", "b"):
        run = tmp_path / folder / "clevr/stage2"
        run.mkdir(parents=True)
        (logger,) = experiment_loggers.open_loggers((name,), run, CONFIG)
        logger.log(1, {"train/total": 0.5})
        logger.close()
    assert len(service.figures) == 2


@pytest.mark.parametrize("name", ["wandb"])
def test_a_service_that_fails_is_named_and_the_training_goes_on(
    name: Any, service: Service, tmp_path: Path
) -> None:
    """Keeps away: a training of days that ends with its tracker."""
    others = experiment_loggers.open_loggers((name,), tmp_path, CONFIG)
    sys.modules[name].log = lambda figures, step: service.figures[1]  # type: ignore[attr-defined]
    output = io.StringIO()
    logger = MetricLogger(tmp_path, 0, 9, Console(file=output, width=200), others)
    for step in (1, 2):
        logger.log(step, "train", {"total": 0.5})
    logger.close()
    assert output.getvalue().count("Wandb gets no more figures: KeyError: 1") == 1
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("name", STAND_INS)
def test_one_that_is_not_installed_or_refuses_is_one_line(
    name: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=rf"{name} is not installed .*'\.\[{name}\]'"):
        experiment_loggers.open_loggers((name,), tmp_path, CONFIG)

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("no key\nlog in")

    module = SimpleNamespace(init=refuse, start_run=refuse, set_experiment=refuse)
    monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(UserError, match=f"loop.loggers: {name}: no key. Log in") as error:
        experiment_loggers.open_loggers((name,), tmp_path, CONFIG)
    assert "\n" not in str(error.value)
