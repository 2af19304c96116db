"""A real headless Chromium: asked once what a page shows, or driven over its debugging pipe."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# The page allows no script, so the copy that the browser is asked about drops that rule.
PROBE = """<script>addEventListener('load', () => {
  const all = [...document.images];
  const good = all.filter(i => i.complete && i.naturalWidth > 0 && i.clientWidth > 50);
  document.body.dataset.pictures = good.length + '/' + all.length;
  document.body.dataset.wide = document.documentElement.scrollWidth;
})</script></body>"""
LAUNCH = """import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])"""
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
           "--disable-background-networking", "--disable-component-update")  # fmt: skip
PATIENCE_S = 120.0  # a browser on a busy machine; nothing is measured


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
        [browser(), *OPTIONS, f"--user-data-dir={folder}/profile", "--window-size=1560,1000",
         "--virtual-time-budget=5000", "--dump-dom", copy.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
        env={**os.environ, "HOME": str(folder)},
    ).stdout  # fmt: skip


class Tab:
    """A page. requests: every address that it asked for. complaints: errors of its console."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = os.fdopen(commands, "wb"), os.fdopen(answers, "rb")
        self._number, self._session = 0, ""
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "DOM"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> Any:
        """The answer to a command of the DevTools protocol; what happens meanwhile is noted."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while True:
            answer = json.loads(self._read())
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer.get("method"), answer.get("params", {}))

    def _read(self) -> bytes:
        parts = bytearray()
        while (byte := self._answers.read(1)) != b"\0":
            assert byte, "the browser is gone"
            parts += byte
        return bytes(parts)

    def _note(self, method: str | None, what: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(what["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(what["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning"):
            self.complaints.append(str(what["args"]))
        elif method == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.complaints.append(what["entry"]["text"])

    def open(self, url: str) -> None:
        """Goes to a page."""
        self.send("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression on the page; promises are waited for."""
        done = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def wait_for(self, condition: str) -> Any:
        """The value of an expression as soon as it is true; the browser itself waits for it."""
        script = f"""new Promise((resolve) => {{
          const look = () => {{
            let value = null;
            try {{ value = ({condition}); }} catch {{}}
            value ? resolve(value) : setTimeout(look, 20);
          }};
          look();
        }})"""
        return self.run(script)

    def choose(self, selector: str, *files: Path) -> None:
        """Gives files to an <input type="file"> as a user's choice does."""
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file in files])

    def screenshot(self, path: Path, width: int, height: int) -> None:
        """A picture of the page in a window of this size."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        path.write_bytes(b64decode(self.send("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def tab(folder: Path) -> Iterator[Tab]:
    """A tab of a browser of its own, whose profile lies in `folder`."""
    (commands_out, commands_in), (answers_out, answers_in) = os.pipe(), os.pipe()
    # Chromium reads from 3 and writes into 4, whatever these are here.
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (commands_out, answers_in)]
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", LAUNCH, *map(str, ends),
         browser(), *OPTIONS, "--disable-dev-shm-usage", f"--user-data-dir={folder}/profile",
         "--window-size=1100,1300", "--remote-debugging-pipe"],
        pass_fds=ends,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(folder)},
    )  # fmt: skip
    for end in (commands_out, answers_in, *ends):
        os.close(end)
    timer = threading.Timer(PATIENCE_S, process.kill)  # then every read ends
    timer.start()
    try:
        yield Tab(commands_in, answers_out)
    finally:
        timer.cancel()
        process.kill()
        process.wait()
