"""`make` whose programs run in the process of the tests, where torch is imported already."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

from tests import commands
from tests.commands import ROOT, Done
from tests.conftest import outside_make

# What make starts: it hands its arguments on, and says and returns what comes back.
PROGRAM = """#!{python} -ES
import json, socket, sys
with socket.create_connection(("127.0.0.1", {port})) as tests:
    tests.sendall(json.dumps([{name!r}, *sys.argv[1:]]).encode() + b"\\n")
    code, out, err = json.load(tests.makefile())
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""


def make(*arguments: object, **more: object) -> Done:
    """`make` in the checkout; it installs nothing. more: variables of the environment."""
    with (
        mock.patch.dict(os.environ, {name: str(value) for name, value in more.items()}),
        socket.create_server(("127.0.0.1", 0)) as server,
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        for name in ("cc-prep", "cc-train"):
            port = server.getsockname()[1]
            program = Path(folder, name)
            program.write_text(PROGRAM.format(python=sys.executable, port=port, name=name))
            program.chmod(0o755)
        given = ["make", "-s", "SETUP=", f"BIN={folder}", *map(str, arguments)]
        job = subprocess.Popen(given, cwd=ROOT, env=outside_make(), stdout=out, stderr=err)
        server.settimeout(0.05)
        while job.poll() is None:
            _answer(server)
        out.seek(0)
        err.seek(0)
        return Done(given, job.returncode, out.read(), err.read())


def _answer(server: socket.socket) -> None:
    """Runs the command that a program of make asks for, if one does."""
    try:
        connection, _ = server.accept()
    except TimeoutError:
        return
    connection.settimeout(None)
    with connection, commands.without_ray():
        name, *arguments = json.loads(connection.makefile().readline())
        run = {"cc-prep": commands.cc_prep, "cc-train": commands.cc_train}[name]
        done = run(*arguments)
        answer = [done.returncode, done.stdout, done.stderr]
        connection.sendall(json.dumps(answer).encode())
