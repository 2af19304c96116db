"""Bounds on what connections may hold: how many there are, and how long each may take.

uvicorn parses requests (by h11) and bounds their headers; it leaves both of these to a proxy before
it, which nobody has on their own machine.
"""

from __future__ import annotations

import asyncio
import json
import sys
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 100
MAX_HEADER_BYTES = 32_768  # of the request line and all headers, if they come in several parts
IDLE_SECONDS = 20.0  # between two requests, and before the first
TRANSFER_SECONDS = 120.0  # for a whole request to arrive, and for a whole answer to be taken
SLOW = "the request did not arrive in time. Try again"
MALFORMED = "this is no HTTP request"
TOO_LONG = "the address and the headers of the request are too long"
BUSY = "the server has too many connections. Try again"


class Connection(H11Protocol):
    """A connection of a browser, which is ended where the other side keeps it waiting."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._waiting_for: str | None = None
        self._arrival: asyncio.TimerHandle | None = None
        self._departure: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, BUSY)
        else:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._arrival, self._departure):
            if timer is not None:
                timer.cancel()

    def handle_events(self) -> None:
        super().handle_events()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._departure is None:
            self._departure = self.loop.call_later(TRANSFER_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._is_taken()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._is_taken()
        self._watch()

    def shutdown(self) -> None:
        """Ends the connection, after the answer to a request that has arrived."""
        if self._waiting_for is not None or self.flow.write_paused:
            self.transport.abort()
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """Refuses what h11 cannot parse; uvicorn calls it while it handles h11's error."""
        status = HTTPStatus(getattr(sys.exc_info()[1], "error_status_hint", 400))
        is_long = status is HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        self._refuse(status, TOO_LONG if is_long else MALFORMED)

    def _watch(self) -> None:
        """Has a timer run while the other side is to send something: one for each request."""
        state = self.conn.their_state
        waiting_for = None
        if state is h11.SEND_BODY or (state is h11.IDLE and self.conn.trailing_data[0]):
            waiting_for = "the rest"
        elif state is h11.IDLE:
            waiting_for = "a request"
        if waiting_for == self._waiting_for or self.transport.is_closing():
            return
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None
        self._waiting_for = waiting_for
        if waiting_for == "the rest":
            self._arrival = self.loop.call_later(
                TRANSFER_SECONDS, self._refuse, HTTPStatus.REQUEST_TIMEOUT, SLOW
            )
        elif waiting_for == "a request":
            self._arrival = self.loop.call_later(IDLE_SECONDS, self.transport.close)

    def _is_taken(self) -> None:
        """Stops the timer of an answer that the other side has taken."""
        done = self.cycle is None or self.cycle.response_complete
        if done and not self.flow.write_paused and self._departure is not None:
            self._departure.cancel()
            self._departure = None

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Ends the connection, with an answer unless another one has begun."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # what works on the request learns that it is over
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"error": message}).encode()
            headers = [
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(body))),
                ("Connection", "close"),
            ]
            response = h11.Response(status_code=status, headers=headers, reason=status.phrase)
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        self.transport.close()
