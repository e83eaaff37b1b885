"""Serve one HTTP/1.1 connection of an agent, request after request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import h11

from troupe_tasks.egress.audit import Entry
from troupe_tasks.egress.desk import Desk
from troupe_tasks.egress.h1side import H1Asking
from troupe_tasks.egress.verdict import Cut, Refusal
from troupe_tasks.egress.wire import Wire

Serve = Callable[[h11.Request, H1Asking, Entry], Awaitable[bool]]


class Turns:
    """A connection's requests, each served by serve, which tells whether the connection can go on."""

    def __init__(self, wire: Wire, serve: Serve, *, desk: Desk, host: str = "", port: int = 0) -> None:
        self.count = 0
        self._wire, self._serve, self._desk = wire, serve, desk
        self._host, self._port = host, port

    async def run(self) -> None:
        """Serve until either side has enough; close the connection."""
        try:
            while await self._one():
                self._wire.http.start_next_cycle()
            await self._wire.linger()
        except Cut:
            self._wire.abort()
        finally:
            self._wire.close()

    async def _one(self) -> bool:
        entry, asking = Entry(host=self._host, port=self._port), H1Asking(self._wire)
        since = (asking.received_bytes, asking.sent_bytes)
        if not await self._awaits_request():
            return False
        self.count += 1
        return await self._desk.told(entry, asking, self._turn(entry, asking), since=since)

    async def _awaits_request(self) -> bool:
        """Wait for the first byte of a request; nobody is told when none comes."""
        if self._wire.http.trailing_data[0]:
            return True
        try:
            async with asyncio.timeout(self._desk.limits.idle_s):
                data = await self._wire.pipe.read()
        except TimeoutError:
            return False
        self._wire.http.receive_data(data)
        return bool(data)

    async def _turn(self, entry: Entry, asking: H1Asking) -> bool:
        return await self._serve(await self._head(), asking, entry)

    async def _head(self) -> h11.Request:
        try:
            async with asyncio.timeout(self._desk.limits.head_s):
                event = await self._wire.next(self._desk.limits.head_s)
        except TimeoutError:
            raise Refusal(408, "protocol", "the request's headers did not come in time") from None
        except h11.RemoteProtocolError as error:
            raise Refusal(error.error_status_hint, "protocol", "not a request this proxy reads") from None
        if not isinstance(event, h11.Request):
            raise Cut("hung up in the middle of a request")
        return event
