"""The client of `http://` and `https://`: it stays on the host, and takes what it asked for alone.

A stranger's list may name addresses. A redirect to another host would let it ask machines that
only this one reaches, and an answer without an end would fill the memory.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import aiohttp
import yarl

from cc_prep.errors import FileRefused

MAX_LISTING_BYTES = 2**26  # of a page that lists a folder
PIECE = 2**20  # bytes
SILENCE_SECONDS = 15.0  # as the client of S3 waits
ANSWER_SECONDS = 300.0
RANGE = re.compile(r"bytes=(\d+)-(\d+)")


async def session(**options: Any) -> aiohttp.ClientSession:
    """The session in which fsspec's `HTTPFileSystem` makes its requests."""
    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(_stay_on_host)
    return aiohttp.ClientSession(
        trace_configs=[trace],
        response_class=_BoundedAnswer,
        headers={"Accept-Encoding": "identity"},  # ranges are those of the file
        timeout=aiohttp.ClientTimeout(
            total=ANSWER_SECONDS, sock_connect=SILENCE_SECONDS, sock_read=SILENCE_SECONDS
        ),
        **options,
    )


async def _stay_on_host(
    _: aiohttp.ClientSession, __: SimpleNamespace, redirect: aiohttp.TraceRequestRedirectParams
) -> None:
    """Raises FileRefused for a redirect that `stays_on_host` does not allow."""
    location = redirect.response.headers.get("Location", "")
    target = redirect.url.join(yarl.URL(location))
    here = redirect.url
    if not stays_on_host(here, target):
        redirect.response.close()
        raise FileRefused(
            f"{here}: redirects to another place, {target}", "Give the address that it leads to"
        )


def stays_on_host(here: yarl.URL, target: yarl.URL) -> bool:
    """Whether a redirect keeps scheme, host and port, or goes from a host's http to its https."""
    ends = [(url.scheme, url.port) for url in (here, target)]
    return here.host == target.host and (
        ends[0] == ends[1] or ends == [("http", 80), ("https", 443)]
    )


class _BoundedAnswer(aiohttp.ClientResponse):
    """An answer whose body is read up to the end of the range that was asked for."""

    async def read(self) -> bytes:
        if self._body is None:
            asked = RANGE.fullmatch(self.request_info.headers.get("Range", ""))
            start, end = (int(asked[1]), int(asked[2])) if asked else (0, MAX_LISTING_BYTES)
            if start and self.status == 200:
                raise FileRefused(
                    f"{self.url}: the server gives no parts of files", "Copy the file to a disk"
                )
            body, size = bytearray(), end + 1 - start
            while len(body) < size and (piece := await self.content.read(PIECE)):
                body += piece
            self._body = bytes(body[:size])
        return self._body
