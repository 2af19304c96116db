"""The page's server in a process of its own, for requests that are meant to break it.

`python -m tests.faults.page_server FOLDER` makes a few pairs below FOLDER, prints the address, and
serves until its end. FOLDER/mine is where it collects; nothing else may change.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from cc_prep.media import images
from cc_train.pretrained import Captioner
from cc_train.serve import connections
from cc_train.serve.caption_service import CaptionService
from cc_train.serve.collection import Collection
from cc_train.serve.server import Server
from tests.network_factory import Talkative

SECRET = b"a text that no image holds"


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    connections.IDLE_SECONDS, connections.TRANSFER_SECONDS = 2.0, 5.0  # so that they come to pass
    names = ("a.png", "b.jpg", "c.tif", "secret.png", "gone.png")
    noise = np.random.default_rng(0).integers(0, 256, (24, 24, 3)).astype(np.uint8)
    for name in names[:2]:
        (folder / name).write_bytes(images.encode_image(noise, name[-3:], 90))
    (folder / names[2]).write_bytes((folder / names[0]).read_bytes())
    for name in ("secret.png", "secret.txt"):
        (folder / name).write_bytes(SECRET)
    pairs = [(str(folder / name), str(folder / name)) for name in names]
    service = CaptionService(Captioner(Talkative(), Path()), "talkative")
    with Server(service, pairs, pairs, Collection(folder / "mine")) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
