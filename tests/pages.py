"""Opens a report in a real browser and asks it what it shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

# The page allows no script, so the copy that the browser is asked about drops that rule.
PROBE = """<script>addEventListener('load', () => {
  const all = [...document.images];
  const good = all.filter(i => i.complete && i.naturalWidth > 0 && i.clientWidth > 50);
  document.body.dataset.pictures = good.length + '/' + all.length;
  document.body.dataset.wide = document.documentElement.scrollWidth;
})</script></body>"""


def browser() -> str:
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    assert program, "no Chromium on the PATH: `make browser` installs one"
    return program


def opened(text: str, folder: Path) -> str:
    """The document that a browser makes of a page, with counts of its pictures on the body."""
    copy = folder / "probe.html"
    copy.write_text(re.sub(r"<meta http-equiv.*?>", "", text, flags=re.S).replace("</body>", PROBE))
    return subprocess.run(
        [browser(), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         f"--user-data-dir={folder}/profile", "--window-size=1560,1000",
         "--virtual-time-budget=5000", "--dump-dom", copy.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
        env={**os.environ, "HOME": str(folder)},
    ).stdout  # fmt: skip
