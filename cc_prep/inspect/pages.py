"""What all our HTML pages share: one look, pictures inside the file, and escaped text."""

from __future__ import annotations

import base64
import re
import shlex
import sys
from datetime import datetime, timezone
from pathlib import Path

import jinja2
from markupsafe import Markup

from cc_prep import __version__
from cc_prep.redaction import without_credentials, without_folders

PROGRAMS = ("cc-prep", "cc-train")


def environment(*folders: Path) -> jinja2.Environment:
    """Templates in these folders, and `base.html.j2`, which all pages extend.

    They escape all that they are given, and a value that is missing is an error.
    """
    found = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [
                jinja2.FileSystemLoader(folders),
                jinja2.PackageLoader("cc_prep", "inspect/report"),
            ]
        ),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals["made"] = made
    found.filters["headings"] = headings
    found.filters["plain"] = plain
    return found


def made() -> dict[str, str]:
    """What the head of a page says of its making: the date, our version and the command.

    The command is empty where a program of somebody else's writes the page.
    """
    name, *arguments = Path(sys.argv[0]).name, *sys.argv[1:]
    command = ""
    if name in PROGRAMS:
        command = shlex.join([name, *(without_folders(without_credentials(a)) for a in arguments)])
    return {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "version": __version__,
        "command": command,
    }


def plain(value: float) -> str:
    """Three digits of a figure, never as a power of ten; what is as good as 0 is 0."""
    if abs(value) < 5e-4:
        return "0"
    if abs(value) < 1:
        return f"{value:.3f}"
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def headings(body: str) -> list[tuple[str, Markup]]:
    """Id and text of each `<h2 id=…>` of a rendered page, for its table of contents."""
    found = re.findall(r'<h2 id="([^"]+)">(.*?)</h2>', body, re.DOTALL)
    return [(anchor, Markup(text)) for anchor, text in found]


def data_url(data: bytes, kind: str) -> str:
    """An encoded image as a URL that holds it.

    Args:
        kind: `jpeg` or `png`.
    """
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
