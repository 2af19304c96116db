"""The group of all commands, and the process's exit code."""

from __future__ import annotations

import sys
from typing import Any

import click

from cc_prep import __version__
from cc_prep.errors import JobFailed, UserError
from cc_prep.formats.tar import DamagedShard
from cc_prep.progress import of_command
from cc_prep.terminal import STOPPED, echo, interruptible, with_homes
from pipelines.cli import data, exchange, jobs, look, splits, weights

SECTIONS = {  # of `cc-prep --help`
    "Prepare": (
        data.synth, data.composites, data.videos, data.init, splits.split, jobs.build,
        jobs.interpolate, jobs.score_frames, jobs.changes, jobs.entities, jobs.caption,
        weights.weights,
    ),
    "Inspect": (
        data.inspect, look.status, look.verify, look.stats, look.report, look.card,
    ),
    "Exchange": (data.references, jobs.import_group, jobs.export_group),
}  # fmt: skip


class _Commands(click.Group):
    """The commands below; one that is stopped ends with a line of ours in place of click's."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(context, with_homes(args))

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            raise JobFailed(STOPPED) from None

    def list_commands(self, context: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, self.commands))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                limit = formatter.width - 6 - widest
                formatter.write_dl(
                    [(str(c.name).ljust(widest), c.get_short_help_str(limit)) for c in commands]
                )


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="cc-prep")
def cli() -> None:
    """Prepares change-captioning data: image pairs → sequences → scores → training shards.

    \b
    Example, from nothing:
      cc-prep synth data/synth --scenes 20
      cc-prep build synth --out out/synth
      cc-prep report out/synth
    """


for _command in exchange.COMMANDS:
    jobs.export_group.add_command(_command)
for _command in (command for commands in SECTIONS.values() for command in commands):
    cli.add_command(_command)


def main() -> None:
    """Runs the command. The exit code is 2 for a user's mistake, 1 for faults and failed jobs."""
    of_command()
    try:
        with interruptible():
            cli()
    except UserError as error:
        echo(f"cc-prep: {error}", err=True)
        sys.exit(2)
    except DamagedShard as error:  # of an earlier job
        echo(f"cc-prep: {error}. Look closer with: cc-prep verify", err=True)
        sys.exit(2)
    except JobFailed as error:
        echo(f"cc-prep: {error}", err=True)
        sys.exit(1)
    except OSError as error:  # a file or a disk that no command can say more about
        echo(f"cc-prep: {error}", err=True)
        sys.exit(1)
