"""A training from its start to its end: what it says when it ends, and what may follow it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from cc_prep.errors import JobFailed, UserError
from cc_train.data.stream import StatelessSource
from cc_train.runs import checkpoints
from cc_train.training import trainer as trainers
from cc_train.training.loop import fit
from cc_train.training.settings import Loop
from tests.conftest import ROOT
from tests.network_factory import Line, line_batch

PROGRAM = """
import sys
from pathlib import Path
from rich.console import Console
from cc_train import cli
from cc_train.data.stream import StatelessSource
from cc_train.training.loop import fit
from cc_train.training.settings import Loop
from tests.network_factory import Line, line_batch

case, run = sys.argv[1:]

class Failing(Line):
    def losses(self, phase, batch, step, denominators):
        if case == "step" and step == 2:
            raise RuntimeError("CUDA out of memory")
        return super().losses(phase, batch, step, denominators)

def made(number):
    if case == "worker" and number == 2:
        raise PermissionError(13, "Permission denied", "train-000003.tar")
    return line_batch(number)

def command(**options):
    loop = Loop(steps=50, loader_workers=1, device="cpu").split_over(1)
    fit(Failing(), StatelessSource(made), loop, config={"system": "line"}, run=Path(run),
        resume="auto", console=Console(quiet=True))

cli.cli.main = command
cli.main()
"""


def train(run: Path, objective: Line, **settings: object) -> str:
    """What a training prints. Its settings are those of a run."""
    values = {"steps": 6, "checkpoint_every": 2, "device": "cpu", **settings}
    loop = Loop.model_validate(values).split_over(1)
    text = io.StringIO()
    fit(
        objective,
        StatelessSource(line_batch),
        loop,
        config={"system": "line", "loop": loop.model_dump(mode="json")},
        run=run,
        resume="auto",
        console=Console(file=text, width=200),
    )
    return text.getvalue()


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("step", "RuntimeError: CUDA out of memory"),
        ("worker", "cc-train: [Errno 13] Permission denied: 'train-000003.tar'"),
    ],
)
def test_an_error_ends_the_process_and_its_workers(tmp_path: Path, case: str, message: str) -> None:
    """Keeps away: a command that never ends, and the GPU and the machine that it occupies."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, case, str(tmp_path / "run")],
        capture_output=True, text=True, check=False, timeout=120, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == message
    assert ("Traceback" in done.stderr) == (case == "step")


def test_the_advice_for_a_loss_that_is_no_number_can_be_followed(tmp_path: Path) -> None:
    """Keeps away: "lower loop.learning_rate", and then "was trained with other settings"."""
    with pytest.raises(JobFailed, match=r"step 4: .* lower loop\.learning_rate: the command then"):
        train(tmp_path, Line(nan_at=4), learning_rate=0.1)
    shown = train(tmp_path, Line(), learning_rate=0.01)
    assert "resuming at step 4" in shown
    assert "the learning rate was 0.1 and is 0.01 from here on" in shown
    settings = (tmp_path / "settings.json").read_text()
    assert train(tmp_path, Line(), learning_rate=0.5) == "all 6 steps are done\n"
    assert (tmp_path / "settings.json").read_text() == settings, "of what was trained"


def test_before_the_first_checkpoint_settings_are_free(tmp_path: Path) -> None:
    """Keeps away: a folder in which no step was taken, and whose settings cannot be mended."""
    with pytest.raises(JobFailed, match="step 0"):
        train(tmp_path, Line(nan_at=0), seed=1)
    assert "resuming" not in train(tmp_path, Line(), seed=2)
    with pytest.raises(UserError, match=r"trained with other settings \(loop\.seed: 2 → 3\)"):
        train(tmp_path, Line(), seed=3)


def test_one_training_at_a_time_is_in_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: half a checkpoint under its final name, where a command was given twice."""
    monkeypatch.setattr(trainers, "LOCK_SECONDS", 0.1)
    program = (
        "import sys, time; from pathlib import Path; from cc_prep.storage import file_lock\n"
        f"with file_lock.file_lock(Path({str(tmp_path)!r}) / '.lock', 1):\n"
        "    print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="another training is running in it"):
            train(tmp_path, Line())
        assert not (tmp_path / "settings.json").exists()
        other.kill()
        other.wait()
        assert "resuming" not in train(tmp_path, Line())
    assert train(tmp_path, Line()) == "all 6 steps are done\n"


def test_float16_without_a_finite_gradient_ends(tmp_path: Path) -> None:
    """Keeps away: a training to its end of which no step changed a weight."""
    with pytest.raises(JobFailed, match="no gradient is finite in float16"):
        train(tmp_path, Line(gradient=float("nan")), precision="float16", steps=60)
    shown = train(tmp_path, Line(), precision="float16", steps=60, learning_rate=1e-5)
    assert "resuming at step 30" in shown
    checkpoint, _ = checkpoints.read_last(tmp_path)
    assert checkpoint is not None
    assert checkpoint.state["scaler"]["scale"] >= 1, "not what 30 overflows made of it"


def test_a_loss_over_the_batch_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    objective = Line()
    objective.over = "batch"
    run = tmp_path / "run"
    with pytest.raises(UserError, match="cannot be accumulated"):
        train(run, objective, grad_accum_steps=2)
    assert not run.exists()
    train(run, objective)


def logged(run: Path) -> dict[int, float]:
    """The loss of each log of the training by its step."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if line["part"] == "train"}


def test_the_last_steps_are_logged_and_a_prolonged_run_logs_whole_intervals(tmp_path: Path) -> None:
    """Keeps away: a short training without any loss in its log, and another curve if it goes on."""
    settings = {"schedule": "constant", "warmup_steps": 0, "log_every": 3, "learning_rate": 0.1}
    for run, steps in (("short", 2), ("whole", 7), ("parts", 5), ("parts", 7)):
        train(tmp_path / run, Line(), steps=steps, **settings)
    whole, parts = (logged(tmp_path / run) for run in ("whole", "parts"))
    assert [*logged(tmp_path / "short")] == [2]
    assert [*whole] == [3, 6, 7]
    assert parts.pop(5) > whole[6], "of the steps 4 and 5 alone"
    assert parts == whole


@pytest.mark.parametrize(
    ("settings", "is_noted"),
    [
        ({"schedule": "linear"}, True),
        ({"schedule": "step", "decay_steps": 2}, False),
        ({"schedule": "constant"}, False),
        ({"schedule": "constant", "warmup_ratio": 0.5}, True),
    ],
)
def test_a_rate_that_follows_the_steps_is_noted(
    tmp_path: Path, settings: dict[str, object], is_noted: bool
) -> None:
    """Keeps away: a note on a schedule that stays, and none on a warm-up that becomes longer."""
    train(tmp_path, Line(), steps=2, **settings)
    shown = train(tmp_path, Line(), steps=4, **settings)
    assert ("2 steps became 4: the learning rate follows" in shown) == is_noted
