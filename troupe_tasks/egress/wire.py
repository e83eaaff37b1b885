"""One HTTP/1.1 connection: h11's state machine over a pipe, with deadlines."""

from __future__ import annotations

import asyncio

import h11

from troupe_tasks.egress import pipe as pipes
from troupe_tasks.egress.limits import Limits
from troupe_tasks.egress.pipe import Pipe


class Wire:
    """One side of an exchange that speaks HTTP/1.1."""

    def __init__(self, pipe: Pipe, *, role: type[h11.CLIENT] | type[h11.SERVER], limits: Limits) -> None:
        self.pipe = pipe
        self.limits = limits
        self.http = h11.Connection(role, max_incomplete_event_size=limits.head_bytes)

    async def next(self, deadline_s: float) -> h11.Event | type[h11.PAUSED]:
        """Return the next event; raises TimeoutError, Cut, or h11.RemoteProtocolError."""
        while True:
            event = self.http.next_event()
            if not isinstance(event, type) or event is h11.PAUSED:
                return event
            if self.http.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[], reason="Continue"))
            async with asyncio.timeout(deadline_s):
                data = await self.pipe.read()
            self.http.receive_data(data)

    async def send(self, event: h11.Event) -> None:
        """Send an event; raises Cut, or h11.LocalProtocolError for one that may not be sent now."""
        await pipes.write(self.pipe, self.http.send(event) or b"")

    async def linger(self) -> None:
        """End the sending side once the last answer is sent, and drop for a moment what still comes."""
        await pipes.linger(self.pipe)

    def abort(self) -> None:
        """Drop the connection and what is still unsent."""
        self.pipe.abort()

    def close(self) -> None:
        """Close the connection once what is queued is sent."""
        self.pipe.close()
