"""The page's HTTP server. It listens on this machine alone unless another --host is given."""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn

from cc_prep import storage
from cc_prep.errors import UserError
from cc_train.baselines.captioner import ChatCaptioner
from cc_train.data.pair_lists import read_pairs
from cc_train.pretrained import Captioner
from cc_train.runs import run_folder
from cc_train.serve.application import Application
from cc_train.serve.caption_service import CaptionService, ChatService, Service
from cc_train.serve.collection import Collection
from cc_train.serve.connections import MAX_HEADER_BYTES, Connection
from cc_train.serve.waiting import Pair
from cc_train.sharing import hub

LOCAL = ("127.0.0.1", "localhost", "::1")
TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{16,1000}")  # what a header of RFC 6750 can carry
TOKEN_REMEDY = "Give 16 or more of A-Z a-z 0-9 . _ ~ + / = -, such as `openssl rand -hex 16` prints"


class Server:
    """Serves one captioner.

    Args:
        examples: Pairs of image files that the page offers.
        queue: Pairs of the user's that wait for captions.
        collection: Where captions go; None where none are collected.
        port: 0 takes any.
        token: What requests must name; None where everybody who reaches the server may ask.

    Raises:
        UserError: For a port that is taken, a host that is not here, and a token of no use.
    """

    def __init__(
        self,
        service: Service,
        examples: Sequence[Pair] = (),
        queue: Sequence[Pair] = (),
        collection: Collection | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
    ) -> None:
        if token is not None and not TOKEN.fullmatch(token):
            raise UserError("the token is too short, or has other characters", TOKEN_REMEDY)
        self.service, self.collection = service, collection
        self.is_local = host in LOCAL
        self.names = {*LOCAL} if self.is_local else {*LOCAL, host.lower(), _machine()}
        self.application = Application(service, examples, queue, collection, self.is_called, token)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family)
        except OSError as error:
            raise UserError(
                f"{host}, port {port}: {error.strerror}", "Give another --host or --port"
            ) from None
        self.server_address = self._socket.getsockname()
        self._http = uvicorn.Server(
            uvicorn.Config(
                self.application.asgi,
                http=Connection,
                ws="none",
                loop="asyncio",
                lifespan="off",
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
                log_config=None,
                log_level="critical",  # what others send is not the terminal's business
                access_log=False,
                proxy_headers=False,
                server_header=False,
            )
        )
        self._ended = threading.Event()
        self._ended.set()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def serve_forever(self) -> None:
        """Answers until `shutdown`, or until Ctrl-C, which raises KeyboardInterrupt; in both cases
        requests that have arrived are answered first."""
        self._ended.clear()
        try:
            self._http.run(sockets=[self._socket])
        finally:
            self._ended.set()

    def shutdown(self) -> None:
        """Ends `serve_forever` in another thread, and waits for its end."""
        self._http.should_exit = True
        self._ended.wait()

    def is_called(self, host: str) -> bool:
        """Whether a request's `Host` names this server.

        A page of others that has its own name mean this machine still sends that name. An address
        is never such a name.
        """
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        known = name in self.names or (not self.is_local and _is_address(name))
        return known and "@" not in host

    @property
    def url(self) -> str:
        """Address of the page."""
        host, port = self.server_address[:2]
        name = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{name}:{port}"


def _machine() -> str:
    return socket.gethostname().lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def make(
    run: str,
    *,
    host: str,
    port: int,
    examples: str | None,
    pairs: str | None,
    collect: str | None,
    fetch: bool,
    device: str,
    token: str | None = None,
    chat: ChatCaptioner | None = None,
) -> Server:
    """The server, which does not answer yet. Raises UserError.

    Args:
        chat: Captions in place of `run`.
        fetch: Whether images of the lists may be at addresses, which the server then asks for them.
    """
    of_user = None if examples is None else _listed(Path(examples), fetch)
    queue = [] if pairs is None else _listed(Path(pairs), fetch)
    collection = None if collect is None else Collection(Path(collect))
    service: Service
    if chat is not None:
        service, shipped = ChatService(chat), shipped_examples("photos-mini")
    else:
        captioner = Captioner.from_pretrained(run, device=device)
        service = CaptionService(captioner, hub.name_of(run))
        shipped = captioner.folder / run_folder.EXAMPLES
        shipped = shipped if _has_pairs(shipped) else shipped_examples()
    offered = _listed(shipped, fetch) if of_user is None else of_user
    return Server(service, offered, queue, collection, host, port, token)


def _listed(path: Path, fetch: bool) -> list[Pair]:
    """The pairs of a list or a folder. Raises UserError for addresses that may not be asked."""
    pairs = list(read_pairs(path))
    for number, pair in enumerate(pairs, 1):
        if not fetch and any(map(storage.is_remote, pair)):
            raise UserError(
                f"{path}: pair {number} is at an address, and the page asks no other machine",
                "Add --fetch to let it, if you trust the list",
            )
    return pairs


def _has_pairs(folder: Path) -> bool:
    try:
        return next(read_pairs(folder), None) is not None
    except UserError:
        return False


def shipped_examples(captioner: str | None = None) -> Path:
    """The folder with pairs that come with the package, NAME_before.jpg, NAME_after.jpg, …

    Args:
        captioner: One of the package that has pairs of its own; None for rendered scenes.
    """
    own = "serve" if captioner is None else f"assets/{captioner}"
    return Path(str(resources.files("cc_train") / own / "examples"))
