"""What a terminal is given to print: no commands, no credentials, JSON that stays JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.table import Table

from cc_prep import console
from cc_prep.terminal import echo, printable, with_homes
from cc_train.cli import cli as cc_train_cli
from pipelines.cli import cli as cc_prep_cli

EVIL = "\x1b]0;OWNED\x07\x1b[2J\x9b1m\r\u202e"
ESCAPED = "\\u001b]0;OWNED\\u0007\\u001b[2J\\u009b1m\\u000d\\u202e"


def test_a_text_of_strangers_commands_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Keeps away: an id that clears the screen, or shows another line than the one printed."""
    assert printable(EVIL) == ESCAPED
    assert printable("tab\tand\nnewline ü 中 \u200f") == "tab\tand\nnewline ü 中 \u200f"
    assert printable("name \udce9") == "name \\udce9"
    echo(f"fault: {EVIL}")
    echo(EVIL, err=True)
    assert capsys.readouterr() == (f"fault: {ESCAPED}\n", f"{ESCAPED}\n")


def test_json_stays_json() -> None:
    """Keeps away: a program that cannot read the line of one caption."""
    value = {"caption": f'a {EVIL}\n\\ " é'}
    assert json.loads(printable(json.dumps(value, ensure_ascii=False))) == value


def test_consoles_escape_lines_and_cells() -> None:
    file = io.StringIO()
    drawn = console.on_stderr(file)
    drawn.print(f"[x] {EVIL}")
    table = Table()
    table.add_column(EVIL)
    table.add_row(EVIL)
    drawn.print(table)
    assert "\x1b" not in file.getvalue()
    assert file.getvalue().count(ESCAPED) == 3


def test_an_address_is_printed_without_credentials(capsys: pytest.CaptureFixture[str]) -> None:
    echo("no folder http://bob:s3cret@host/d?sig=s3cret")
    assert "s3cret" not in capsys.readouterr().out


def test_a_name_of_strangers_does_not_fill_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    """Keeps away: an error of 5 MB, of which nobody finds the remedy. JSON stays whole."""
    line = f"cc-train: {'a' * 5_000_000}.json: no caption. Rebuild the shards"
    echo(f"first\n{line}", err=True)
    echo(line)
    said = capsys.readouterr()
    first, shown = said.err.splitlines()
    assert first == "first"
    assert shown.startswith("cc-train: aaa")
    assert shown.endswith("aaa.json: no caption. Rebuild the shards")
    assert len(shown) < 1000
    assert said.out == f"{line}\n"


def test_a_tilde_is_the_users_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a folder called `~` in the current one, from --out=~/scores."""
    monkeypatch.setenv("HOME", "/home/me")
    given = ["~/a", "~", "a=~/b,~/c", "--out=~/e", "x~/d", "exclude=~", "~other/f"]
    shown = ["/home/me/a", "/home/me", "a=/home/me/b,/home/me/c", "--out=/home/me/e", *given[4:]]
    assert with_homes(given) == shown


@pytest.mark.parametrize("cli", [cc_prep_cli, cc_train_cli])
def test_both_command_lines_know_the_tilde(
    cli: click.Group, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    command = ["verify"] if cli is cc_prep_cli else ["report"]
    error = CliRunner().invoke(cli, [*command, "~/nothing"]).exception
    assert f"{tmp_path}/nothing" in str(error)
