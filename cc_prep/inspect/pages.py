"""What all our HTML pages share: one look, pictures inside the file, and escaped text."""

from __future__ import annotations

import base64
from pathlib import Path

import jinja2


def environment(*folders: Path) -> jinja2.Environment:
    """Templates in these folders, and `page.css` and `page.html.j2` of our report on a job.

    They escape all that they are given, and a value that is missing is an error.
    """
    return jinja2.Environment(
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


def data_url(data: bytes, kind: str) -> str:
    """An encoded image as a URL that holds it.

    Args:
        kind: `jpeg` or `png`.
    """
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
