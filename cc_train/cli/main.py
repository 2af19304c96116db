"""The group of all commands, and how the process ends."""

from __future__ import annotations

import multiprocessing
import os
import sys
from contextlib import nullcontext
from typing import Any, NoReturn

import click

from cc_prep import __version__
from cc_prep.devices import keep_freed_memory
from cc_prep.errors import JobFailed, LoaderWorkerDied, UserError
from cc_prep.terminal import STOPPED, echo, interruptible, with_homes
from cc_train import systems
from cc_train.cli import caption, evaluate, share, train

SECTIONS = {  # of `cc-train --help`, below that of the systems
    "Caption": (caption.caption, caption.imagine, caption.serve),
    "Evaluate": (
        evaluate.evaluate,
        evaluate.judge_check,
        evaluate.compare,
        evaluate.report,
        evaluate.baseline,
    ),
    "Share": (share.export, share.import_procap, share.import_scorer),
}


class _Commands(click.Group):
    """A command for each system, which trains it, and those of SECTIONS.

    Each of them, when it is stopped, ends with a line of ours in place of click's.
    """

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            raise JobFailed(STOPPED) from None

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(context, with_homes(args))

    def list_commands(self, context: click.Context) -> list[str]:
        return [*systems.names(), *self.commands]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name in systems.names():
            return train.command(systems.get(name))
        return super().get_command(context, name)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        trained = [train.command(systems.get(name)) for name in systems.names()]
        widest = max(map(len, self.list_commands(context)))
        for title, commands in {"Train": trained, **SECTIONS}.items():
            with formatter.section(title):
                limit = formatter.width - 6 - widest
                formatter.write_dl(
                    [(str(c.name).ljust(widest), c.get_short_help_str(limit)) for c in commands]
                )


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="cc-train")
def cli() -> None:
    """Trains on the shards that cc-prep makes, evaluates and captions.

    \b
    Example:
      cc-train stage1 --config clevr --shards 'out/clevr/shards/train-*.tar' --out out/clevr/stage1
    """


for _command in (command for commands in SECTIONS.values() for command in commands):
    cli.add_command(_command)


def main() -> None:
    """Runs the command: exit code 2 for a user's mistake, 1 when the work itself failed."""
    keep_freed_memory()
    try:
        code = _exit_code()
    except LoaderWorkerDied as error:
        # The usual end of the interpreter crashed in one of five trials: torch hears of each
        # worker's death by a signal, also while the interpreter is being taken apart.
        echo(f"cc-train: {error}", err=True)
        _leave(1)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # Started by torchrun. A thread of gloo's may still let go of its last tensors, for which
        # it asks the interpreter. If that is being taken apart by then, the process is aborted.
        _leave(code)
    sys.exit(code)


def _exit_code() -> int:
    # A rank that waits for others does not get to a handler; torchrun's SIGTERM has to end it.
    stoppable = nullcontext() if int(os.environ.get("WORLD_SIZE", "1")) > 1 else interruptible()
    try:
        with stoppable:
            cli.main(standalone_mode=False)
    except click.Abort:  # stopped before the command was chosen
        echo(f"cc-train: {STOPPED}", err=True)
        return 1
    except click.ClickException as error:
        error.show()
        if "extra argument" in error.message and ".tar" in error.message:
            # The first name went to --shards, the others to nothing.
            echo("The shell has replaced a pattern by names. Quote it: "
                       "--shards 'out/shards/train-*.tar'", err=True)  # fmt: skip
        return error.exit_code
    except UserError as error:
        echo(f"cc-train: {error}", err=True)
        return 2
    except BrokenPipeError:  # nobody reads on, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except LoaderWorkerDied:  # a JobFailed too, but main ends it in its own way
        raise
    except (JobFailed, OSError) as error:
        code = getattr(error, "exit_code", None)  # the first of several processes says why
        if code is None:
            echo(f"cc-train: {error}", err=True)
        return code or 1
    return 0


def _leave(code: int) -> NoReturn:
    """Ends at once, the loader workers with it."""
    for worker in multiprocessing.active_children():
        worker.kill()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
