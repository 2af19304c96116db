"""What `cc-train serve` does."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path

from cc_prep import storage
from cc_prep.errors import UserError
from cc_train.data.pair_lists import read_pairs
from cc_train.pretrained import Captioner
from cc_train.serve.captions import CaptionService
from cc_train.serve.collection import Collection
from cc_train.serve.server import LOCAL, Server
from cc_train.serve.waiting import Pair
from cc_train.sharing import hub


def serve(
    *,
    run: str,
    host: str,
    port: int,
    examples: str | None,
    pairs: str | None,
    collect: str | None,
    fetch: bool,
    device: str,
    say: Callable[[str], None],
) -> None:
    """Serves the page until Ctrl-C. Raises UserError for what cannot be served.

    say: is told where the page is.
    """
    with make(
        run,
        host=host,
        port=port,
        examples=examples,
        pairs=pairs,
        collect=collect,
        fetch=fetch,
        device=device,
    ) as server:
        say(f"{server.service.name}: {server.url} (Ctrl-C ends it)")
        if host not in LOCAL:
            say("everybody who reaches this address can use the page")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            if server.collection is not None:
                server.collection.end()
            say("ended")


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
) -> Server:
    """The server, which does not answer yet. Raises UserError.

    fetch: whether images of the lists may be at addresses, which the server then asks for them.
    """
    offered = _listed(Path(examples) if examples else shipped_examples(), fetch)
    queue = [] if pairs is None else _listed(Path(pairs), fetch)
    collection = None if collect is None else Collection(Path(collect))
    service = CaptionService(Captioner.from_pretrained(run, device=device), hub.name_of(run))
    return Server(service, offered, queue, collection, host, port)


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


def shipped_examples() -> Path:
    """The folder with pairs that come with the package: rendered scenes, NAME_before.jpg, …"""
    return Path(str(resources.files("cc_train.serve") / "examples"))
