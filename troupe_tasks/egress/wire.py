"""One HTTP/1.1 connection: h11's state machine over a pair of streams, with bounded buffers and deadlines."""

from __future__ import annotations

import asyncio
import contextlib

import h11

from troupe_tasks.egress.limits import Limits
from troupe_tasks.egress.verdict import Cut

_LINGER_S = 2.0


class Wire:
    """One side of an exchange; received and sent count the bytes that crossed it."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        role: type[h11.CLIENT] | type[h11.SERVER],
        limits: Limits,
    ) -> None:
        self.reader = reader
        self.writer = writer
        self.limits = limits
        self.http = h11.Connection(role, max_incomplete_event_size=limits.head_bytes)
        self.received_bytes = 0
        self.sent_bytes = 0
        writer.transport.set_write_buffer_limits(high=limits.chunk_bytes)
        # asyncio reads up to 256 KiB at once whatever the reader's limit; streams that nobody reads would hold it.
        writer.transport.max_size = limits.chunk_bytes  # type: ignore[attr-defined]

    async def read(self) -> bytes:
        """Return the next bytes, none at the end; raises Cut when the other side broke the connection."""
        try:
            data = await self.reader.read(self.limits.chunk_bytes)
        except OSError as error:
            raise Cut("the connection was reset") from error
        self.received_bytes += len(data)
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes and wait until the other side keeps up; raises Cut when it does not."""
        if not data:
            return
        self.sent_bytes += len(data)
        try:
            self.writer.write(data)
            async with asyncio.timeout(self.limits.stuck_s):
                await self.writer.drain()
        except (OSError, TimeoutError) as error:
            raise Cut("the other side is gone or takes nothing") from error

    async def next(self, deadline_s: float) -> h11.Event | type[h11.PAUSED]:
        """Return the next event; raises TimeoutError, Cut, or h11.RemoteProtocolError."""
        while True:
            event = self.http.next_event()
            if not isinstance(event, type) or event is h11.PAUSED:
                return event
            if self.http.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[], reason="Continue"))
            async with asyncio.timeout(deadline_s):
                data = await self.read()
            self.http.receive_data(data)

    async def send(self, event: h11.Event) -> None:
        """Send an event; raises Cut, or h11.LocalProtocolError for one that may not be sent now."""
        await self.write(self.http.send(event) or b"")

    async def linger(self) -> None:
        """End the sending side, and drop for a moment what still comes.

        Closing a socket with unread bytes resets it, which takes the last answer away (RFC 9112, section 9.6).
        """
        with contextlib.suppress(Cut, OSError, TimeoutError):
            self.writer.write_eof()
            async with asyncio.timeout(_LINGER_S):
                while await self.read():
                    pass

    def abort(self) -> None:
        """Drop the connection and what is still unsent."""
        self.writer.transport.abort()
